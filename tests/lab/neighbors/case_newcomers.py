"""New users who come faster than tasks can be run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.worker.conftest import eventually, recorded
from tests.worker.project.tasks import STARTED

from .cases import Felt, case

if TYPE_CHECKING:
    from .world import World

LENGTH = 0.1
SLOTS = 2
STARTS = 80
LOAD = 1.1


@case(
    "C1",
    neighbor="sends tasks as users never seen before, at 1.1 times the capacity",
    bound="between two turns, twice as many later users as have work, and the slots",
)
def a_stream_of_new_users(world: World) -> Felt:
    waiting = world.push_many("ann", "nap", 300, LENGTH)
    world.start_worker("--processes", "1", "--concurrency", str(SLOTS), ready=1)
    eventually(lambda: bool(recorded(world.redis, STARTED)))
    users: dict[str, str] = {}
    came: dict[str, int] = {}
    deadline = time.monotonic() + 20
    while (begun := len(recorded(world.redis, STARTED))) < STARTS and time.monotonic() < deadline:
        # By what has started, not by the clock: so it is 1.1 times the capacity on a slow machine too.
        new = [f"new{number}" for number in range(len(users), int(begun * LOAD) + SLOTS)]
        for user in new:
            task_id = world.push(user, "nap", LENGTH)
            users[task_id] = user
            came[task_id] = begun
        time.sleep(LENGTH / 10)
    starts = [task_id for task_id, _ in recorded(world.redis, STARTED)][:STARTS]
    mine = set(waiting)
    turns = [at for at, task_id in enumerate(starts) if task_id in mine]
    first_come = came[next(iter(came))]
    worst = 0.0
    for first, last in zip(turns, [*turns[1:], len(starts)], strict=True):
        if last <= first_come:
            continue
        later = sum(came.get(task_id, -1) > first for task_id in starts[first + 1 : last])
        active = 1 + sum(at <= last for at in came.values()) - sum(task_id in came for task_id in starts[:first])
        worst = max(worst, (later - 2 * SLOTS) / max(1, active))
    got = sum(at >= first_come for at in turns)
    details = f"{got} of {len(starts)} starts; most between two turns {worst:.1f} times the users with work"
    return Felt(details=details, within_bound=len(starts) == STARTS and got >= 5 and worst <= 2)
