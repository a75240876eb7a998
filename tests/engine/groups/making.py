"""Users in groups, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engine.conftest import NOW

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


def join(queue: FairQueue, group: str | None, *users: str, now: float = NOW) -> None:
    for user in users:
        queue.user(user).set_group(group, now=now)


def members(group: str, number: int) -> list[str]:
    return [f"{group}.{i}" for i in range(number)]
