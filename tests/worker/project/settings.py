"""Settings of the worker processes that tests start. The server comes from the environment."""

from __future__ import annotations

import os

SECRET_KEY = "a-demonstration-has-no-secrets"  # that of the process that pushes: tasks are signed
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_fairque", "tests.worker.project"]
DATABASES = {
    "default": {
        "ENGINE": os.environ.get("TEST_DATABASE_ENGINE", "django.db.backends.sqlite3"),
        "NAME": os.environ.get("TEST_DATABASE", ":memory:"),
        "CONN_MAX_AGE": int(os.environ.get("TEST_CONN_MAX_AGE", "0")),
    }
}
if "TEST_CACHE" in os.environ:
    CACHES = {
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["TEST_CACHE"]}
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS: dict[str, object] = {
    "URL": os.environ.get("TEST_SERVER", "redis://unset"),
    "CLUSTER": "TEST_CLUSTER" in os.environ,
}
if sentinels := os.environ.get("TEST_SENTINELS"):
    REDIS = {"SENTINEL": {"NODES": sentinels, "SERVICE": "main"}}
if "TEST_HOSTILE_LOGGING" in os.environ:
    from tests.hostile import LOGGING  # noqa: F401 - Django reads it
FAIRQUE = {
    "REDIS": REDIS,
    "QUEUES": {"default": {}, "mail": {}},
    "QUEUE": {
        "RETRY_BASE_SECONDS": 0.05,
        "FAIR_BY": os.environ.get("TEST_FAIR_BY", "time"),
        "SHARDS": int(os.environ.get("TEST_SHARDS", "1")),
    },
    "SCHEDULES": {name: {"TASK": name, "EVERY": 60} for name in os.environ.get("TEST_SCHEDULE", "").split()},
}
