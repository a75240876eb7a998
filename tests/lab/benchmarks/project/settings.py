from __future__ import annotations

import os

SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_fairque", "tests.lab.benchmarks.project"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
FAIRQUE = {
    "REDIS": {"URL": os.environ.get("BENCHMARK_SERVER", "redis://unset")},
    "SIGNING": os.environ.get("BENCHMARK_SIGNING", "on"),
    "WORKER": {"LEASE_SECONDS": float(os.environ.get("BENCHMARK_LEASE", "30"))},
}
LOGGING = {"version": 1, "loggers": {"django_fairque": {"level": "ERROR"}}}
