"""Settings of a project without any extension of django_fairque: no admin, no users, no backend of ``django.tasks``."""

from __future__ import annotations

SECRET_KEY = "x" * 50
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_fairque", "tests.shop"]
DATABASES = {name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"} for name in ("default", "other")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
FAIRQUE: dict[str, object] = {}
