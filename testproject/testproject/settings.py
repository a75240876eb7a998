"""Settings of the example project, which is also what the tests run on.

A demonstration for your own machine. On the open internet only as testproject/Dockerfile runs it: with `DEMO_HOST`, visitors may
look and start the nightly job, and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import django

BASE_DIR = Path(__file__).resolve().parent.parent

DEMO_HOST = os.environ.get("DEMO_HOST", "")
"""The name of the host of a demonstration that strangers can reach; empty for one on this machine."""
SECRET_KEY = os.environ["SECRET_KEY"] if DEMO_HOST else "a-demonstration-has-no-secrets"
DEBUG = not DEMO_HOST
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *([DEMO_HOST] if DEMO_HOST else [])]
CSRF_TRUSTED_ORIGINS = [f"https://{DEMO_HOST}"] if DEMO_HOST else []

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_fairque",
    *(["django_tasks"] if django.VERSION < (6, 0) else []),  # part of Django from 6.0 on
    *(["library", "catalogue"] if (BASE_DIR / "library").is_dir() else []),
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_fairque.middleware.CurrentUserMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "testproject.urls"
WSGI_APPLICATION = "testproject.wsgi.application"
ASGI_APPLICATION = "testproject.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "library" / "templates"],  # before those of apps: adds a button to a page of the admin
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TESTPROJECT_DATABASE", BASE_DIR / "db.sqlite3"),
        "OPTIONS": {
            # Several worker processes write: wait for each other's locks, and take the write lock when a transaction
            # begins, because one that only asks for it later fails at once instead of waiting.
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
STATIC_URL = "static/"

# No server to configure: with DEBUG, an embedded one keeps its data in BASE_DIR/.fairque and starts when first used.
# In production, name one:
#     FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:6379/0"}}
FAIRQUE: dict[str, Any] = {
    "OUTBOX": True,  # tasks of a transaction are committed with it
    **({"REDIS": {"URL": "embedded://"}} if DEMO_HOST else {}),
}

SILENCED_SYSTEM_CHECKS = [
    # library/loading.py enqueues the analyses of documents that it creates in bulk by itself, so no model event has to see them.
    "fairque.W021",
    "fairque.W052",  # DEBUG: nothing here is at work
]

# Tasks written for Django's own interface run in the same queues, beside the others.
TASKS = {
    "default": {
        "BACKEND": "django_fairque.backends.FairqueBackend",
        "OPTIONS": {"USER": "catalogue.users.owner", "MAX_RETRIES": 2},
    },
}
