"""Numbered system checks; each subject has its own module. docs/reference/checks.md explains each check and its remedy.

Only `check_server` sends requests to a server, and only under ``check --deploy``.
"""

from __future__ import annotations

from django.core import checks

from django_fairque.checks.configuration import check_attribution, check_configuration, check_deployment, check_workers
from django_fairque.checks.server import check_caches, check_server
from django_fairque.checks.tasks import check_bulk_operations, check_event_mistakes, check_events, check_tasks

__all__ = [
    "TAG",
    "check_attribution",
    "check_bulk_operations",
    "check_caches",
    "check_configuration",
    "check_deployment",
    "check_event_mistakes",
    "check_events",
    "check_server",
    "check_tasks",
    "check_workers",
    "register",
]

TAG = "fairque"
"""The tag of all these checks: ``manage.py check --tag fairque``."""


def register() -> None:
    """Register all checks of this package with Django."""
    for check in (check_configuration, check_caches, check_workers, check_tasks, check_events, check_attribution):
        checks.register(check, TAG)
    for check in (check_deployment, check_event_mistakes, check_bulk_operations, check_server):
        checks.register(check, TAG, deploy=True)
