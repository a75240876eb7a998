"""Faults that are judged by their effect on everything else, so no other fault may happen meanwhile."""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from typing import TYPE_CHECKING

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.model.task import Task
from tests.lab.campaign.world import DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lab.campaign.world import World
    from tests.worker.conftest import WorkerProcess

CALM = 10.0
"""Seconds of ordinary work before, to compare with."""
AT_EASE = 10
"""Tasks that wait when workers keep up."""
EVERY = 1.0
"""Seconds between two poisoned tasks."""
AT_ONCE = 3
"""Groups that are started at a time, on two cores or more."""
STEP = 3600
"""Seconds by which the clock is set forward each time."""
SEEN_WITHIN = 10.0
"""Seconds within which the server must have seen that its clock was set: it looks once a second."""
LATER = 6.0
"""Seconds after which a task is due that is pushed when the clock is set right."""
PRECISION = 0.1
"""Seconds between two processes' idea of now."""


def poison(world: World, count: int) -> int:
    """Tasks that end their process: each is handed out as often as allowed, and never again. How many were dead letters."""
    world.wait(lambda: world.queue.get_stats(0).states["queued"] < AT_EASE, 30, "poison: the fleet was never at ease")
    since = time.time()
    time.sleep(CALM)
    until = time.time()
    tasks = [
        Task.create(f"poisoner{n % 3}", 3, {"args": [0.0, "x"], "kwargs": {}}, name="campaign.poison", max_retries=5)
        for n in range(count)
    ]
    world.tell_push(tasks)
    for task in tasks:
        world.queue.push(task)
        world.journal.write(what="ok", ids=[task.task_id])
        time.sleep(EVERY)
    ids = [task.task_id for task in tasks]
    # A look costs as much as several tasks, whose waiting is measured here.
    world.wait(
        lambda: all(world.queue.get_task(i).state.is_ended for i in reversed(ids)),
        *(120, "poison: still handed out"),
        look_every=0.5,
    )
    world.figures["waits"] = [(since, until), (until, time.time())]
    starts = Counter(line["id"] for line in world.fleet.effects() if line["what"] == "start")
    dead = 0
    for task_id in ids:
        task = world.queue.get_task(task_id)
        state = task.state
        entry = world.queue.dlq.get(f"{task_id}~1") if state is TaskState.FAILED else None
        deliveries = task.delivery
        if (
            entry is None
            or entry.failure_type is not FailureType.POISONED
            or deliveries != DELIVERIES
            or starts[task_id] > deliveries  # fewer if its process was ended by another before it could say so
        ):
            world.violations.append(
                f"poison: {task_id} is {state.value} after {deliveries} deliveries, {starts[task_id]} starts; "
                f"expected a poisoned dead letter after {DELIVERIES}"
            )
        else:
            dead += 1
    return dead


def deploy(world: World, times: int) -> None:
    """Replace every group ``times`` times: start a new group, then stop the old one, which ends its running tasks."""
    since = time.time()
    starting: deque[tuple[int, WorkerProcess]] = deque()
    leaving = []

    def succeed() -> None:
        index, new = starting.popleft()
        world.fleet.wait_for(new)
        leaving.append(world.fleet.groups[index])
        world.fleet.replace(index, new)
        leaving[-1].send(signal.SIGTERM)

    for index in list(range(len(world.fleet.groups))) * times:
        while len(starting) >= AT_ONCE or any(index == other for other, _ in starting):
            succeed()
        starting.append((index, world.fleet.spawn(index)))
    while starting:
        succeed()
    codes = [old.wait(60) for old in leaving]
    if any(codes):
        world.violations.append(f"deploy: workers ended with {codes}, expected 0")
    world.figures["deploys"] = [(since, time.time())]


def step_clock(world: World, seconds: int) -> None:
    """The server's clock is set forward, and then right again: what is delayed by then becomes due in time."""
    if world.clock is None:
        return
    _set_clock(world, seconds)
    payload, due = {"args": [0.0, "x"], "kwargs": {}}, time.time() + LATER
    task = Task.create("delayed", 3, payload, name="campaign.work", max_retries=5, execute_after=due)

    def push() -> None:
        world.tell_push([task])
        world.queue.push(task)
        world.journal.write(what="ok", ids=[task.task_id])

    _set_clock(world, 0, meanwhile=push)
    world.wait(lambda: world.queue.get_task(task.task_id).state.is_ended, 20, "clock set right: time stands still")
    started = world.queue.get_task(task.task_id).started_at or 0.0
    if started < due - PRECISION:
        world.violations.append(f"clock set right: a task was started {due - started:.1f} s before it was due")


def _set_clock(world: World, seconds: int, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Set the clock and check that renewed leases last and that those of a killed group end soon."""
    assert world.clock is not None
    world.fleet.wait_ready()
    before = world.counter("returned:lease_ended")
    world.clock.step(seconds)
    world.wait(
        lambda: abs(world.client.time()[0] - time.time() - seconds) < STEP / 2, SEEN_WITHIN, "the clock was not set"
    )
    meanwhile()
    time.sleep(world.lease * 1.5)  # long enough for every lease to be looked at
    ended = world.counter("returned:lease_ended") - before
    if ended:
        world.violations.append(f"clock {seconds:+d} s: {ended} leases of living workers ended")
    group = world.fleet.groups[2]
    workers = [child.worker for child in world.fleet.of(group)]
    held = world.held(workers) or {}
    group.send(signal.SIGKILL)
    group.wait()
    world.recoveries.expect("supervisor after a clock step", list(held))
    world.fleet.replace(2, world.fleet.spawn(2))
    # Also what they were handed between being asked and being killed: the next step would count it as leases of living ones.
    world.wait(
        lambda: not world.recoveries.left() and world.held(workers) == {},
        30,
        f"clock {seconds:+d} s: what a lost host had did not come back",
    )
