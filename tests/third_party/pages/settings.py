"""Its settings. The server of the queue is in the environment."""

from __future__ import annotations

import os

SECRET_KEY = "pages"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["mptt", "import_export", "django_fairque", "tests.third_party.pages"]
FAIRQUE = {"REDIS": {"URL": os.environ["TEST_SERVER"]}}
