"""The tenants and their host names."""

from __future__ import annotations

from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Client(TenantMixin):  # type: ignore[misc] # django-tenants has no types
    """A tenant. Its schema is made by the scenario."""

    name = models.CharField(max_length=100)
    auto_create_schema = False

    class Meta:
        app_label = "customers"

    def __str__(self) -> str:
        return self.name


class Domain(DomainMixin):  # type: ignore[misc] # django-tenants has no types
    """A host name of a tenant."""

    class Meta:
        app_label = "customers"

    def __str__(self) -> str:
        return str(self.domain)
