"""Users in organizations, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engine.conftest import NOW

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


def join(queue: FairQueue, organization: str | None, *users: str, now: float = NOW) -> None:
    for user in users:
        queue.user(user).set_organization(organization, now=now)


def members(organization: str, number: int) -> list[str]:
    return [f"{organization}.{i}" for i in range(number)]
