"""The settings that the files of this folder count on: every secret and every place comes from the environment."""

from __future__ import annotations

import os

SECRET_KEY = os.environ["SECRET_KEY"]  # signs tasks too: the same for web and workers
SECRET_KEY_FALLBACKS = [key for key in [os.environ.get("SECRET_KEY_BEFORE")] if key]
DEBUG = False
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "shop.example").split(",")
SECURE_REDIRECT_EXEMPT = [r"^fairque/"]  # probes speak plain HTTP

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_fairque",
]
ROOT_URLCONF = "shop.urls"  # path("fairque/", include("django_fairque.urls")), and yours
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ.get("DATABASE_HOST", "127.0.0.1"),
        "NAME": "shop",
        "USER": "shop",
        "PASSWORD": os.environ["DATABASE_PASSWORD"],
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The server is FAIRQUE_REDIS__URL, its password FAIRQUE_REDIS__PASSWORD, the token for metrics FAIRQUE_MONITOR__TOKEN.
FAIRQUE = {
    "OUTBOX": True,  # tasks of a transaction are committed with it
    "WORKER": {"SHUTDOWN_TIMEOUT": 30},
    "MONITOR": {"LIMITS": {"OLDEST_WAIT": 600, "DEAD": 100}},
}
