"""Users in organizations, for tests."""

from __future__ import annotations

from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW


def join(queue: FairQueue, organization: str | None, *users: str, now: float = NOW) -> None:
    for user in users:
        queue.user(user).set_organization(organization, now=now)


def members(organization: str, number: int) -> list[str]:
    return [f"{organization}.{i}" for i in range(number)]
