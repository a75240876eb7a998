"""The settings that tests run on: those of testproject, with an app and a second database of the tests' own."""

from __future__ import annotations

import os

import django
from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.shop"]
DATABASES = {**DATABASES, "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
# The default hasher takes a third of a second for each user that a test makes or logs in.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# A transaction of a test must not depend on the settings of testproject.
FAIRQUE = {}
if "TEST_DATABASE_ENGINE" in os.environ:  # tests/tools/postgres.py sets this variable
    DATABASES["default"] = {"ENGINE": os.environ["TEST_DATABASE_ENGINE"], "NAME": "fairque"}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
