"""Limits that keep one user's tasks from taking the workers for themselves: batches, rates, endless retries."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import TaskState
from tests.worker.conftest import eventually
from tests.worker.project.tasks import STARTED

from .cases import Felt, case, percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .world import World

BATCH = 50
WINDOW = 2.0
RATE = 20
LONGEST_WAIT = 1.0
"""The longest allowed wait of others' tasks while slots are free, in seconds."""
LONGEST_WAIT_IN_LINE = 5.0
"""The longest allowed wait of tasks that are pushed together with 800 others, in seconds."""


def _waits(world: World, ids: Sequence[str]) -> list[float]:
    tasks = map(world.queue.get_task, ids)
    return [task.started_at - task.created_at for task in tasks if task.started_at]


@case(
    "C3",
    neighbor="twenty users with work, while 2,000 items of a batch task wait",
    bound=f"45 of 50 items per call; a wait of {LONGEST_WAIT_IN_LINE:g} s for 800 tasks that are pushed together",
)
def work_among_batches(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "4")
    world.queue.pause()
    items = world.push_many("acme", "gather", 2000, 0.05)
    others = [task_id for number in range(20) for task_id in world.push_many(f"user-{number}", "noop", 40)]
    world.queue.resume()
    world.wait_for([*items[-1:], *others[-1:]], TaskState.FINISHED)
    eventually(lambda: not world.queue.get_queue_sizes("acme").total)
    calls = [int(line.split()[2]) for line in world.redis.lrange(STARTED, 0, -1)]
    per_call = sum(calls) / len(calls)
    wrong = sum(state is not TaskState.FINISHED for state in world.states([*items, *others]))
    wait = percentile(_waits(world, others), 0.99)
    return Felt(
        p99_wait=wait,
        wrong_ends=wrong,
        within_bound=per_call >= 0.9 * BATCH
        and sum(calls) == len(items)
        and not wrong
        and wait <= LONGEST_WAIT_IN_LINE,
        details=f"{per_call:.1f} items per call",
    )


@case(
    "C4",
    neighbor="has a rate of 20/2s, which is changed all the time",
    bound=f"at most rate + burst in any 2 s; a wait of {LONGEST_WAIT:g} s",
)
def changes_its_rate(world: World) -> Felt:
    user = world.queue.user("mallory")
    user.set_rate(f"{RATE}/2s")
    world.start_worker("--processes", "1", "--concurrency", "4")
    limited = world.push_many("mallory", "noop", 300)
    others = []
    end = time.monotonic() + 3.5
    for number in range(1000):
        if time.monotonic() > end:
            break
        user.set_rate(f"{RATE - number % 2}/2s")
        others.append(world.push("ann", "noop"))
        time.sleep(0.1)
    world.wait_for(others, TaskState.FINISHED)
    started = sorted(task.started_at for task in map(world.queue.get_task, limited) if task.started_at)
    most = max(sum(first <= at <= first + WINDOW for at in started) for first in started)
    wait = percentile(_waits(world, others), 0.99)
    return Felt(
        p99_wait=wait,
        within_bound=most <= RATE + 1 and len(started) > RATE and wait <= LONGEST_WAIT,
        details=f"at most {most} starts in {WINDOW:g} s, {len(started)} in all",
    )


@case(
    "C5",
    neighbor="asks for another run at once, for ever",
    bound=f"1 start per second after the first 11; a wait of {LONGEST_WAIT:g} s",
)
def asks_again_at_once(world: World) -> Felt:
    world.start_worker("--processes", "1", "--concurrency", "1")
    began = time.monotonic()
    bad = world.push("mallory", "asks_again")
    others = []
    while time.monotonic() < began + 3:
        others.append(world.push("ann", "noop"))
        time.sleep(0.05)
    world.wait_for(others, TaskState.FINISHED)
    seconds = time.monotonic() - began
    starts = world.starts()[bad]
    wait = percentile(_waits(world, others), 0.99)
    return Felt(
        p99_wait=wait,
        within_bound=11 < starts <= 11 + seconds and wait <= LONGEST_WAIT,
        details=f"{starts} starts in {seconds:.1f} s",
    )
