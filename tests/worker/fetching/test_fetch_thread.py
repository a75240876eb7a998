"""The two threads that call the server."""

from __future__ import annotations

import threading
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.worker.fetching.fetch_thread import FetchThread
from django_fairque.worker.fetching.queue_context import QueueContext
from tests.worker.conftest import DEADLINE, eventually
from tests.worker.fetching.planners import Ignores, end, lease, services_for, short_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from django_fairque.engine.queue.queue import FairQueue


def test_the_second_thread_reports_the_remaining_outcomes(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, _ = short_tasks(now=monotonic())
    size = planner.pace.call_size
    both, sizes = threading.Barrier(2, timeout=DEADLINE), list[int]()

    def settle(outcomes: Sequence[Outcome], fetch: int, **_: Any) -> Settled:
        sizes.append(len(outcomes))
        if len(outcomes) == size:
            both.wait()  # the first call is answered when there is a second one
        return Settled(["finished"] * len(outcomes), [lease() for _ in range(fetch)], 0.0, None)

    ignores: Any = Ignores()
    for learns in ("record_ended", "record_round_trip"):  # the test must not depend on the speed of the machine
        monkeypatch.setattr(planner.pace, learns, ignores)
    context = QueueContext(queue, planner, ignores, ignores)
    fetch_thread = FetchThread(context, services_for(queue))
    fetch_thread.queue = SimpleNamespace(settle=settle, name=queue.name, display_name=queue.name)  # type: ignore[assignment]

    def wait_until_both_sleep() -> None:
        eventually(lambda: not planner.outcomes and context.wakeup.is_waiting and context.second_wakeup.is_waiting)

    end(planner, 200)
    fetch_thread.start()
    for _ in range(3):  # by then the second thread has been started
        wait_until_both_sleep()
        end(planner, 200)
        context.wakeup.notify()
    wait_until_both_sleep()
    planner.is_stopping = True
    context.wakeup.notify()
    fetch_thread.join(DEADLINE)
    assert not fetch_thread.is_alive()
    assert not both.broken
    assert sizes.count(size) == 8
