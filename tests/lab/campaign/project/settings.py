"""Settings of the campaign's processes. What differs from run to run comes from the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# redis-py loads OpenTelemetry's SDK wherever it is installed: a twentieth of a process' start, and hundreds start here.
sys.modules.setdefault("opentelemetry.sdk", None)  # type: ignore[arg-type]

from django_fairque.engine.scripting import scripts  # noqa: E402 - imports redis-py

SECRET_KEY = "campaign"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["django_fairque", "tests.lab.campaign.project"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
FAIRQUE = {
    "REDIS": {"URL": os.environ.get("CAMPAIGN_SERVER", "redis://unset"), "SOCKET_TIMEOUT": 3},
    "QUEUE": {
        "RETRY_BASE_SECONDS": 0.05,
        "REQUEST_TIMEOUT": 3,
        "SWEEP_INTERVAL": 0.5,
    },
    "WORKER": {
        "LEASE_SECONDS": float(os.environ.get("CAMPAIGN_LEASE", "2")),
        "POLL_INTERVAL": 1,
        "SHUTDOWN_TIMEOUT": 20,
    },
}

if "CAMPAIGN_LUA" in os.environ:  # an engine that was broken on purpose: see `broken`
    scripts._ROOT = Path(os.environ["CAMPAIGN_LUA"])
