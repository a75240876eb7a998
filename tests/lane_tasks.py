"""Urgent and bulk tasks in every state, for the pages and commands that show tasks."""

from __future__ import annotations

import time
from typing import Any

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.leases import pop

OTHER_LANES: tuple[Lane, ...] = ("urgent", "bulk")
USERS = {"urgent": "ann", "bulk": "nightly"}


def push_in_all_states(queue: FairQueue) -> dict[str, Lane]:
    """Return the lane of each task by id. The id is the lane and the state, as in ``"bulk started"``."""
    for lane, now in zip(OTHER_LANES, (time.time() - 100, time.time() - 90), strict=True):
        user = USERS[lane]

        def push(name: str, at: float, lane: Lane = lane, user: str = user, **options: Any) -> None:
            queue.push(
                Task.create(user, 3, 1, name="shop.mail", lane=lane, task_id=f"{lane} {name}", **options), now=at
            )

        push("canceled", now)
        queue.cancel(f"{lane} canceled", now=now)
        push("finished", now)
        queue.finish(pop(queue, "w", [user], now=now + 1), took=1, now=now + 1)
        push("failed", now + 1)
        queue.fail(pop(queue, "w", [user], now=now + 2), "no", retry=False, now=now + 2)
        push("started", now + 2)
        pop(queue, "w", [user], now=now + 2, lease=900)
        push("scheduled", now + 2, execute_after=now + 9000)
        push("queued", now + 2)
        queue.push_graph(
            [
                Task.create(user, 3, 1, lane=lane, task_id=f"{lane} deferred", depends_on=[f"{lane} queued"]),
                Task.create(user, 3, 1, lane=lane, task_id=f"{lane} other"),
            ],
            f"{lane} run",
            now=now + 3,
        )
    return {f"{lane} {state.value}": lane for lane in OTHER_LANES for state in TaskState}
