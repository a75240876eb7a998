"""The work that customers order."""

from __future__ import annotations

import time

from django_fairque import task

SECONDS_PER_EXPORT = 0.02


@task(user="customer")
def export(customer: str, report: int) -> str:
    """Write a report of a customer; here it only takes a while."""
    time.sleep(SECONDS_PER_EXPORT)
    return f"report {report} of {customer}"
