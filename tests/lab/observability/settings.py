"""A project with Sentry, OpenTelemetry and structlog. Its requests and its worker processes report to a server of the tests."""

from __future__ import annotations

import os

import sentry_sdk

from django_fairque.integrations.sentry import FairqueIntegration
from tests.worker.project import settings as base

SECRET_KEY = "a-demonstration-has-no-secrets"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "tests.lab.observability.views"
MIDDLEWARE = ["django_fairque.middleware.CurrentUserMiddleware"]
INSTALLED_APPS = ["django_fairque", "tests.lab.observability.apps.Observed"]
DATABASES = base.DATABASES
FAIRQUE = {
    "REDIS": {"URL": os.environ["TEST_SERVER"]},
    "QUEUE": {"RETRY_BASE_SECONDS": 0.01},
    "WORKER": {"HARD_TIMEOUT_GRACE": 0.2},
    "REQUEST_USER": "tests.lab.observability.views.tenant_of",
    "MIDDLEWARE": ["django_fairque.integrations.structlog.StructlogContext"],
    "TRACING": True,
}

sentry_sdk.init(dsn=os.environ["TEST_DSN"], traces_sample_rate=1.0, integrations=[FairqueIntegration()])
