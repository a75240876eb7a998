"""A planner driven by hand: the calls that it plans, and the replies that it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.lanes import class_of
from django_fairque.engine.model.lease import LEASE_FIELDS, Lease
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.fetching.fetch_planner import FetchCall, FetchPlanner, SlotBudget
from django_fairque.worker.fetching.fetch_thread import FetchServices
from django_fairque.worker.leases.outage import Outages

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.queue.queue import FairQueue

TOKENS = iter(range(1, 10**9))


def lease(name: str = "task", user: str = "ann", lane: Lane = "normal") -> Lease:
    token, priority = next(TOKENS), str(class_of(lane, 3))
    known = {"id": f"t{token}", "token": str(token), "lease": "0", "name": name, "user": user, "priority": priority}
    return Lease([known.get(field, "").encode() for field in LEASE_FIELDS], "w", 0.0)


def planner_of(
    slots: int = 2,
    *,
    batch_limits: Callable[[str], tuple[int, float] | None] = lambda _: None,
    selective: bool = False,
    burst: bool = False,
) -> FetchPlanner:
    users = ("ann",) if selective else "*"
    return FetchPlanner(0, budget_of(slots, burst=burst, users=users), batch_limits=batch_limits)


def budget_of(slots: int, **options: Any) -> SlotBudget:
    return SlotBudget(WorkerOptions("w", concurrency=slots, poll_interval=5.0, **options))


def planned(planner: FetchPlanner, now: float) -> FetchCall:
    call = planner.next_call(now)
    assert call is not None
    return call


def answer(
    planner: FetchPlanner, call: FetchCall, leases: list[Lease], now: float, look_at: float | None = None
) -> None:
    planner.call_succeeded(call, Settled(["finished"] * len(call.outcomes), leases, now, look_at), now)


def run_all(planner: FetchPlanner, took: float = 0.0) -> None:
    """Every slot takes and ends what lies in the buffer."""
    while planner.buffer:
        work = planner.buffer.popleft()
        for one_lease in work if isinstance(work, list) else [work]:
            planner.outcomes.append(Outcome.finish(one_lease, took=took))


def short_tasks(slots: int = 4, now: float = 0.0) -> tuple[FetchPlanner, float]:
    """A planner that has measured that tasks take 10 µs, and has 200 tasks in its buffer."""
    planner = planner_of(slots)
    for _ in range(60):
        now += 0.001
        call = planner.next_call(now)
        if call is not None:
            answer(planner, call, [lease() for _ in range(call.fetch)], now + 0.0005)
        run_all(planner, took=0.00001)
    while planner.outcomes:
        answer(planner, planned(planner, now), [], now)
    planner.exhausted = False
    answer(planner, planned(planner, now), [lease() for _ in range(200)], now)
    return planner, now


def end(planner: FetchPlanner, number: int) -> None:
    """Let ``number`` tasks of the buffer run and end, at the same moment for other threads."""
    ended = [Outcome.finish(planner.buffer.popleft(), took=0.00001) for _ in range(number)]  # type: ignore[arg-type]
    planner.outcomes.extend(ended)


class Ignores:
    """Has every attribute and method, and none does anything."""

    def __getattr__(self, name: str) -> Ignores:
        return self

    def __call__(self, *args: Any, **options: Any) -> None:
        pass


def services_for(queue: FairQueue) -> FetchServices:
    """Return the services of a fetch thread of this queue; its reports to others are ignored."""
    ignores: Any = Ignores()
    return FetchServices(
        *(WorkerOptions("w"), ignores, ignores, ignores, ignores),
        Outages([queue]),
        reporter=ignores,
        signal_thread=ignores,
        on_change=ignores,
    )
