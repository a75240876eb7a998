"""Django's settings for the peer that ``BENCH_PEER`` names."""

import os

from counting import SLOTS, URL

PEER = os.environ["BENCH_PEER"]
THREADS = {"workers": [{"queues": "*", "threads": SLOTS, "processes": 1, "polling_interval": 0.1}]}
APP, BACKEND, OPTIONS = {
    "django-tasks-redis": ("django_tasks_redis", "RedisTaskBackend", {"REDIS_URL": URL}),
    "django-vtasks": ("django_vtasks", "backends.valkey.ValkeyTaskBackend", {"BROKER_URL": URL}),
    "django-tasks-db": ("django_tasks_db", "DatabaseBackend", {}),
    "dj-queue": ("dj_queue", "backend.DjQueueBackend", THREADS),
    "steady-queue": ("steady_queue", "backend.SteadyQueueBackend", {}),
}[PEER]

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", APP]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
if PEER in ("django-tasks-db", "dj-queue", "steady-queue"):  # PGHOST and PGUSER say where
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "CONN_MAX_AGE": None}}
TASKS = {"default": {"BACKEND": f"{APP}.{BACKEND}", "QUEUES": ["default"], "OPTIONS": OPTIONS}}
VTASKS_QUEUES = ["default"]
VTASKS_CONCURRENCY = SLOTS
if PEER == "steady-queue":
    from steady_queue.configuration import Configuration

    STEADY_QUEUE = Configuration.Options(workers=[Configuration.Worker(queues=["default"], threads=SLOTS)])
LOGGING = {"version": 1, "loggers": {"django.tasks": {"level": "ERROR"}}}
