"""Numbers that the engine can't take are refused in Python's words, before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.conftest import NOW

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue


@pytest.mark.parametrize("limit", [0, -1, 10_001, 2**63, 1.5, "5", True, None])
def test_alerts(queue: FairQueue, limit: Any) -> None:
    with pytest.raises(ValueError, match="limit must be a whole number from 1 to 10000, got"):
        queue.take_alerts(limit)


@pytest.mark.parametrize("most", [0, 1.5, "x"])
def test_blockers(queue: FairQueue, most: Any) -> None:
    with pytest.raises(ValueError, match="most must be a whole number from 1, got"):
        queue.blockers(["t"], most)


@pytest.mark.parametrize("limit", [0, 1e18, "x"])
def test_schedules(queue: FairQueue, limit: Any) -> None:
    with pytest.raises(ValueError, match="limit must be a whole number from 1, got"):
        queue.schedules.fire_due(limit, now=NOW)


@pytest.mark.parametrize("token", [0, "x", 1.0])
def test_tokens(queue: FairQueue, token: Any) -> None:
    with pytest.raises(ValueError, match="crashed: a token must be a whole number from 1, got"):
        queue.release_worker("w", [token])
