from __future__ import annotations

from tests.worker.project import settings as base

SECRET_KEY = "a-demonstration-has-no-secrets"  # that of the process that pushes: tasks are signed
DEBUG = False
USE_TZ = True
DATABASES = base.DATABASES
DEFAULT_AUTO_FIELD = base.DEFAULT_AUTO_FIELD
INSTALLED_APPS = [*base.INSTALLED_APPS, "tests.tracing.project.apps.Project"]
FAIRQUE = {**base.FAIRQUE, "TRACING": True}
