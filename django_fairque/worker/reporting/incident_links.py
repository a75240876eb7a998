"""The address of an incident's page in the admin, for messages about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import apps
from django.conf import settings
from django.urls import reverse

if TYPE_CHECKING:
    from django_fairque.engine.statistics.incidents import Incident

UNSET_DOMAIN = "example.com"
"""The domain that ``django.contrib.sites`` gives to its first site until the project changes it."""


def incident_url(incident: Incident) -> str | None:
    """Return the address of an incident's admin page, on the domain of the current site of ``django.contrib.sites``.
    The scheme is HTTPS unless ``DEBUG`` is on. None if that app is not installed, if its domain is still
    ``example.com``, or if the project's URLs do not include the admin.
    """
    if not apps.is_installed("django.contrib.sites"):
        return None
    from django.contrib.sites.models import Site

    try:
        domain = Site.objects.get_current().domain
        path = reverse("admin:django_fairque_incident", args=[incident.id], query={"queue": incident.queue})
    except Exception:  # noqa: BLE001 - a message without a link is better than none, whatever fails in the project's URLs or database
        return None
    return None if domain == UNSET_DOMAIN else f"{'http' if settings.DEBUG else 'https'}://{domain}{path}"
