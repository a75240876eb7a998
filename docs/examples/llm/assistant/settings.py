"""The smallest settings: the queue's server is embedded, because ``DEBUG`` is true and no server is named."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent.parent
SECRET_KEY = "an example has no secrets"
DEBUG = True
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_fairque", "assistant"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MODEL_PORT = int(os.environ.get("MODEL_PORT", "8099"))
"""Where the model listens on this machine."""
