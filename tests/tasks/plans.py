"""A function for ``PLAN_OF``: tests write the plan of each user into `PLAN`."""

from __future__ import annotations

from typing import Any

PLAN: dict[str, Any] = {}
CALLS: list[str] = []


def plan_of(user_id: str) -> Any:
    """Return the plan of a user, or raise it if it is an error."""
    CALLS.append(user_id)
    found = PLAN.get(user_id, "free")
    if isinstance(found, Exception):
        raise found
    return found


async def plan_in_a_coroutine(user_id: str) -> str:
    return user_id
