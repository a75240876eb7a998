"""Its settings. The server of the queue and that of PostgreSQL are in the environment."""

from __future__ import annotations

import os

SECRET_KEY = "tenants"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django_tenants.postgresql_backend", "NAME": "postgres"},
    "reports": {"ENGINE": "django_tenants.postgresql_backend", "NAME": "postgres", "USER": "reports"},
}
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
SHARED_APPS = ["django_tenants", "django.contrib.contenttypes", "django_fairque", "tests.third_party.tenants.customers"]
TENANT_APPS = ["tests.third_party.tenants.orders"]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
TENANT_MODEL = "customers.Client"
TENANT_DOMAIN_MODEL = "customers.Domain"
FAIRQUE = {"REDIS": {"URL": os.environ["TEST_SERVER"]}, "MIDDLEWARE": ["shop.middleware.TenantSchema"]}
