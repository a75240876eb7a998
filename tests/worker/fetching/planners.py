"""A lane driven by hand: what it plans, and the answers that it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.worker.fetching.fetch_planner import Call, Lane
from django_fairque.worker.fetching.slot_budget import Budget

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = iter(range(1, 10**9))


def lease(name: str = "task", user: str = "ann") -> Lease:
    token = next(TOKENS)
    known = {"id": f"t{token}", "token": str(token), "lease": "0", "name": name, "user": user}
    return Lease([known.get(field, "").encode() for field in LEASE_FIELDS], "w", 0.0)


def lane_of(
    slots: int = 2,
    *,
    batch_of: Callable[[str], tuple[int, float] | None] = lambda _: None,
    selective: bool = False,
    burst: bool = False,
) -> Lane:
    return Lane(0, Budget(slots, burst=burst), poll=5.0, batch_of=batch_of, selective=selective)


def planned(lane: Lane, now: float) -> Call:
    call = lane.plan(now)
    assert call is not None
    return call


def answer(lane: Lane, call: Call, leases: list[Lease], now: float, look_at: float | None = None) -> None:
    lane.settled(call, Settled(["finished"] * len(call.outcomes), leases, now, look_at), now)


def run_all(lane: Lane, took: float = 0.0) -> None:
    """Every slot takes and ends what lies in the buffer."""
    while lane.buffer:
        work = lane.buffer.popleft()
        for each in work if isinstance(work, list) else [work]:
            lane.outcomes.append(Outcome.finish(each, took=took))
