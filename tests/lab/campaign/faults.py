"""Faults of workers: child processes and supervisors are killed, whole groups are frozen and resumed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from .fleet import signal_all

if TYPE_CHECKING:
    import random

    from .world import World

THAWED_LATER = 0.25
"""Seconds that the children are awake before their supervisor, which ends them: they shall report what they have done."""


def kill_child(world: World, chance: random.Random) -> bool:
    """SIGKILL for a process that runs tasks; whether there was one."""
    with world.aim:
        children = world.fleet.children()
        if not children:
            return False
        victim = chance.choice(children)
        held = world.held([victim.worker]) or {}
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
        world.fleet.killed.add(victim.worker)
        name = f"children killed that were {'spawned' if world.fleet.is_spawned(victim) else 'forked'}"
        world.figures[name] = world.figures.get(name, 0) + 1
        world.recoveries.expect("child", list(held))
    return True


def kill_supervisor(world: World, chance: random.Random, groups: tuple[int, ...] = (2, 3)) -> bool:
    """SIGKILL for a supervisor, whose children die with it: as if their host was lost. Another group takes its place."""
    with world.aim:
        known = world.fleet.known()
        living = {child.supervisor for child in known}
        ready = [index for index in groups if world.fleet.groups[index].pid in living]
        if not ready:
            return False
        index = chance.choice(ready)
        group = world.fleet.groups[index]
        children = [child for child in known if child.supervisor == group.pid]
        held = world.held([child.worker for child in children]) or {}
        group.send(signal.SIGKILL)
        group.wait()
        world.recoveries.expect("supervisor", list(held))
        world.recoveries.inherit("supervisor", group.pid)
        world.fleet.replace(index, world.fleet.spawn(index))
    return True


def freeze_group(world: World, index: int) -> bool:
    """SIGSTOP for a whole group for longer than two leases: its tasks go to others, its own outcomes come too late.

    A group that has nothing in hand has no outcome that could come too late, and is left.
    """
    fleet, lease = world.fleet, world.lease
    group = fleet.groups[index]
    with world.aim:
        if not world.held([child.worker for child in fleet.of(group)]):
            return False
        fleet.frozen.add(group.pid)
        pids = [child.pid for child in psutil.Process(group.pid).children(recursive=True)]
        signal_all([group.pid, *pids], signal.SIGSTOP)
        held = world.held([child.worker for child in fleet.of(group)]) or {}
        world.recoveries.expect("zombie", list(held))
        world.recoveries.inherit("zombie", group.pid)
    time.sleep(lease * 1.5)
    world.speak_for(held)
    time.sleep(lease * 0.6)
    world.speak_for(held)
    signal_all(pids, signal.SIGCONT)
    time.sleep(THAWED_LATER)
    signal_all([group.pid], signal.SIGCONT)
    fleet.frozen.discard(group.pid)
    return True
