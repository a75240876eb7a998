"""Faults that are judged by what they do to everything else, so that nothing else may happen meanwhile."""

from __future__ import annotations

import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

from django_fairque.engine.models import Task
from django_fairque.engine.records import FailureType, TaskState

from .project.settings import MAX_DELIVERIES

if TYPE_CHECKING:
    from .world import World

CALM = 4.0
"""Seconds of ordinary work before, to compare with."""
STEP = 3600
"""Seconds by which the clock is set forward each time."""
LATER = 3.0
"""Seconds after which a task is due that is pushed when the clock was set right."""


def poison(world: World, count: int) -> int:
    """Tasks that end their process: each is handed out as often as allowed, and never again. How many were dead letters."""
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
        time.sleep(0.2)
    ids = [task.task_id for task in tasks]
    world.wait(lambda: all(world.queue.get_task(i).state.is_ended for i in ids), 120, "poison: still handed out")
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
            or deliveries != MAX_DELIVERIES
            or starts[task_id] > deliveries  # fewer if its process was ended by another before it could say so
        ):
            world.violations.append(
                f"poison: {task_id} is {state.value} after {deliveries} deliveries, {starts[task_id]} starts; "
                f"expected a poisoned dead letter after {MAX_DELIVERIES}"
            )
        else:
            dead += 1
    return dead


def deploy(world: World) -> None:
    """Every group in turn: another is started beside it, then it is told to stop; what it has in hand it ends."""
    since = time.time()
    for index, old in enumerate(list(world.fleet.groups)):
        new = world.fleet.wait_for(world.fleet.spawn(index))
        world.fleet.replace(index, new)
        old.send(signal.SIGTERM)
        code = old.wait(60)
        if code:
            world.violations.append(f"deploy: a worker ended with {code}, expected 0")
    world.figures.setdefault("deploys", []).append((since, time.time()))


def step_clock(world: World, seconds: int) -> None:
    """The server's clock is set forward, and then right again."""
    if world.clock is None:
        return
    _set_clock(world, seconds)
    _set_clock(world, 0)
    payload, due = {"args": [0.0, "x"], "kwargs": {}}, time.time() + LATER
    task = Task.create("delayed", 3, payload, name="campaign.work", max_retries=5, execute_after=due)
    world.tell_push([task])
    world.queue.push(task)
    world.journal.write(what="ok", ids=[task.task_id])
    world.wait(lambda: world.queue.get_task(task.task_id).state.is_ended, 20, "clock set right: time stands still")


def _set_clock(world: World, seconds: int) -> None:
    """What is being renewed stays leased, and what nobody renews does not stay so for long."""
    assert world.clock is not None
    world.fleet.wait_ready()
    before = world.counter("returned:lease_ended")
    world.clock.step(seconds)
    time.sleep(1 + world.lease * 1.5)  # long enough for every lease to be looked at
    ended = world.counter("returned:lease_ended") - before
    if ended:
        world.violations.append(f"clock {seconds:+d} s: {ended} leases of living workers ended")
    group = world.fleet.groups[2]
    held = world.held([child.worker for child in world.fleet.of(group)]) or {}
    group.send(signal.SIGKILL)
    group.wait()
    world.recoveries.expect("supervisor after a clock step", list(held))
    world.fleet.replace(2, world.fleet.wait_for(world.fleet.spawn(2)))
    world.wait(lambda: not world.recoveries.left(), 30, f"clock {seconds:+d} s: what a lost host had did not come back")
