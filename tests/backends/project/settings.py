"""Settings of worker processes. The server comes from the environment."""

from __future__ import annotations

from tests.worker.project.settings import *  # noqa: F403

INSTALLED_APPS = ["django_fairque", "tests.backends.project"]
TASKS = {
    "default": {
        "BACKEND": "django_fairque.backends.FairqueBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"MAX_RETRIES": 1},
    }
}
