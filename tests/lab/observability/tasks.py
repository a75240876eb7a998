"""The tasks of the checks. A tenant is called by the letters of its name, which appear nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import time

import sentry_sdk
import structlog
from opentelemetry import baggage

from django_fairque import Discard, Retry, current_task, task


def charge(amount: int) -> int:
    """A function that several tasks call."""
    raise ValueError(f"no credit for {amount}")


@task(max_retries=0)
def fails(amount: int) -> int:
    return charge(amount)


@task(max_retries=0)
def fails_too(amount: int) -> int:
    return charge(amount)


@task(max_retries=0)
async def afails(tenant: str) -> None:
    """Run next to others on the event loop."""
    sentry_sdk.set_tag("who", tenant)
    sentry_sdk.add_breadcrumb(category="who", message=tenant)
    await asyncio.sleep(0.05)
    await asyncio.to_thread(charge, 1)


@task(max_retries=0)
def leaves(tenant: str, fail: bool) -> dict[str, object]:
    """Leave behind what is the tenant's wherever a task can, and return what was there."""
    found = structlog.contextvars.get_contextvars()
    structlog.contextvars.bind_contextvars(who=tenant)
    sentry_sdk.set_tag("who", tenant)
    sentry_sdk.add_breadcrumb(category="who", message=tenant)
    if fail:
        charge(2)
    return {"structlog": found, "baggage": baggage.get_baggage("plan")}


@task(max_retries=3)
def flaky() -> int:
    if current_task().attempt == 1:
        raise ConnectionError("try again")
    return current_task().attempt


@task
def asks(what: str) -> None:
    if what == "discard":
        raise Discard("no longer wanted")
    if current_task().id not in retried:
        retried.add(current_task().id)
        raise Retry(0.01)


retried: set[str] = set()


@task(max_retries=0, timeout=0.2, isolated=True)
def overruns() -> None:
    """Not to be interrupted by the soft limit."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(BaseException):
            time.sleep(0.05)
