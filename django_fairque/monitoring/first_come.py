"""The waits that the tasks of the last minute would have had if tasks were served first come, first served, calculated
by a replay of the tasks that ran.

The records of at most `MAX_REPLAYED_TASKS` finished tasks are read. If more tasks finished, these are a random sample,
in which each task stands for several.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import JITTER, check_integer, number, to_us
from django_fairque.engine.model.lanes import Lane, read_lane
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.scripting.operations import Operation, Read, read_sound, read_together
from django_fairque.engine.scripting.task_fields import read_task_fields

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

REPLAYED_SECONDS = 60.0
"""Length of the replay in seconds. Tasks that started earlier are not replayed."""
MAX_REPLAYED_TASKS = 150
"""Maximum number of finished tasks, and also of running tasks, that are read to replay the last minute."""
TASKS_PER_BLOCK = 5
"""Number of neighboring tasks in a block of a sample. One command reads a block."""
MAX_REPLAYED_SLOTS = 10_000
NOTICED_SECONDS = 1.0
"""Minimum difference in seconds of a user's average wait. A smaller difference counts neither as saved nor as a
delay."""


@dataclass(frozen=True)
class ServedTask:
    """One task with the times of its real run, in seconds since the epoch. In a sample, the task stands for ``count``
    tasks.
    """

    user: str
    arrived: float
    started: float
    ended: float
    count: float = 1.0
    lane: Lane = "normal"

    @property
    def waited(self) -> float:
        """Seconds from the task's arrival to its start."""
        return max(0.0, self.started - self.arrived)

    @property
    def took(self) -> float:
        """Seconds for which the task ran."""
        return max(0.0, self.ended - self.started)


def replay(tasks: Iterable[ServedTask], slots: int, opened: float = 0.0) -> list[tuple[ServedTask, float]]:
    """Calculate the waits that the same tasks have if ``slots`` slots serve them in the order of their arrival.

    In the calculation each task takes its real run time, and no time passes between two tasks. So the waits are a lower
    bound.

    Args:
        tasks: the tasks. Tasks that arrived at the same moment keep the order in which they are given.
        slots: the number of tasks that run at once, at least 1.
        opened: the time at which the slots begin to work.

    Returns:
        Each task with its calculated wait in seconds, in the order of arrival.

    Raises:
        ValueError: ``slots`` is less than 1.
    """
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    ordered = sorted(tasks, key=lambda task: task.arrived)
    return list(zip(ordered, _serve(ordered, [opened] * slots), strict=True))


def _serve(ordered: Sequence[ServedTask], free_at: Sequence[float], stretch: float = 1.0) -> list[float]:
    """Return the wait of each task. ``free_at`` contains the times at which the slots become free.

    A free slot takes the first task, in this order, that has arrived. The task occupies the slot for ``stretch`` times
    the run time of all tasks for which it stands.
    """
    slots, waits = sorted(free_at), [0.0] * len(ordered)
    arriving = sorted(range(len(ordered)), key=lambda index: ordered[index].arrived, reverse=True)
    arrived: list[int] = []
    now = -math.inf
    while arriving or arrived:
        now = max(now, slots[0])
        if not arrived:
            now = max(now, ordered[arriving[-1]].arrived)
        while arriving and ordered[arriving[-1]].arrived <= now:
            heapq.heappush(arrived, arriving.pop())
        index = heapq.heappop(arrived)
        heapq.heapreplace(slots, now + ordered[index].took * ordered[index].count * stretch)
        waits[index] = now - ordered[index].arrived
    return waits


@dataclass(frozen=True)
class ComparedWaits:
    """The average waits in seconds of the ``tasks`` replayed tasks of the user ``user_id``. ``waited`` is the real
    average, ``first_come`` is the calculated average of first come, first served.
    """

    user_id: str
    tasks: int
    waited: float
    first_come: float

    @property
    def saved(self) -> float:
        """Seconds by which the real average wait was shorter than with first come, first served; negative if it was
        longer.
        """
        return self.first_come - self.waited


@dataclass(frozen=True)
class FirstComeComparison:
    """The replay of the tasks that started in the last ``seconds``: of ``tasks`` tasks, from the records of ``replayed`` of them.

    ``users`` are the users whose average waits would have been different, the largest difference first; empty if all
    tasks belonged to one user.
    """

    seconds: float
    tasks: int
    replayed: int
    users: list[ComparedWaits] = field(default_factory=list)
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now, so their tasks are not included in the comparison."""

    @property
    def helped(self) -> list[ComparedWaits]:
        """Users whose tasks waited less, by at least `NOTICED_SECONDS`; the most saved first."""
        return [user for user in self.users if user.saved >= NOTICED_SECONDS]

    @property
    def delayed(self) -> list[ComparedWaits]:
        """Users whose tasks waited longer, by at least `NOTICED_SECONDS`; the longest delay first."""
        return [user for user in self.users if user.saved <= -NOTICED_SECONDS]

    @property
    def saved_seconds(self) -> float:
        """The sum of the seconds by which the average waits of the `helped` users were shorter."""
        return sum(user.saved for user in self.helped)


def compare_waits(tasks: Iterable[ServedTask], begin: float, slots: int) -> list[ComparedWaits]:
    """Compare the waits of users with their waits first come, first served.

    The tasks that started from ``begin`` on are replayed twice: in the order in which they started, and in the order of
    their arrival. The difference between the two replays is added to the real waits. So causes that do not depend on
    the order, such as a minute without workers or a user's own limit, have no effect on the result. Bulk tasks occupy
    slots, but are not included in the waits of users, because bulk tasks are expected to wait for other tasks.

    In a sample, each task stands for several tasks, so the replay uses fewer slots. The alternative would be to let
    each task occupy a slot for the run time of all tasks for which it stands. Then tasks would wait for these long
    tasks in both orders, and the difference would be too small.

    Args:
        tasks: tasks that ran or are running. Tasks that started before ``begin`` occupy a slot until they end.
        begin: when the replay begins, in seconds since the epoch.
        slots: the number of tasks that can run at once. If more tasks really ran at once, their number is used.

    Returns:
        The users, the largest difference first; empty if the tasks are of fewer than two users.
    """
    known = sorted(tasks, key=lambda task: (task.started, task.arrived))
    replayed = [task for task in known if task.started >= begin]
    if len({task.user for task in replayed}) < 2:
        return []
    slots = max(slots, _most_at_once(known, begin))
    per_task = sum(task.count for task in replayed) / len(replayed)
    used_slots = max(1, round(slots / per_task))
    stretch = used_slots / slots
    before = [task for task in known if task.started < begin < task.ended]
    occupied = min(used_slots, len(before), round(sum(task.count for task in before) * stretch))
    ends = sorted(task.ended for task in before)
    free_at = [ends[index * len(ends) // occupied] for index in range(occupied)] + [begin] * (used_slots - occupied)
    by_arrival = sorted(range(len(replayed)), key=lambda index: replayed[index].arrived)
    first_come = dict(zip(by_arrival, _serve([replayed[index] for index in by_arrival], free_at, stretch), strict=True))
    sums: dict[str, list[float]] = {}
    for index, (task, wait) in enumerate(zip(replayed, _serve(replayed, free_at, stretch), strict=True)):
        if task.lane == "bulk":
            continue
        total = sums.setdefault(task.user, [0.0, 0.0, 0.0])
        total[0] += task.count
        total[1] += task.count * task.waited
        total[2] += task.count * (first_come[index] - wait)
    found = [
        ComparedWaits(user, round(count), waited / count, max(0.0, (waited + difference) / count))
        for user, (count, waited, difference) in sums.items()
    ]
    return sorted(found, key=lambda user: (-abs(user.saved), user.user_id))


def _most_at_once(tasks: Sequence[ServedTask], begin: float) -> int:
    """Return the maximum number of tasks that ran at the same moment, but at least the average number from ``begin``
    on, because few tasks of a sample ran at the same moment.
    """
    changes = sorted([*((task.started, 1) for task in tasks), *((task.ended, -1) for task in tasks)])
    running = most = 0
    for _moment, change in changes:
        running += change
        most = max(most, running)
    replayed = [task for task in tasks if task.started >= begin]
    length = max(task.ended for task in replayed) - replayed[0].started
    work = sum(task.count * task.took for task in replayed)
    return max(most, math.ceil(work / length) if length > 0 else 0)


def first_come_waits(queue: FairQueue, slots: int = 1) -> FirstComeComparison:
    """Compare the waits of the last minute with the waits that users would have had with first come, first served.

    ``slots`` is the number of tasks that run at once, from 1 to 10,000; 1 by default. If more tasks really ran at once,
    their number is used.
    """
    check_integer(slots, "slots", 1, MAX_REPLAYED_SLOTS)
    (comparison,) = read_in_lockstep([(queue, lambda shards: _compare(shards, slots))])
    return comparison  # type: ignore[no-any-return]


def _compare(shards: Shards, slots: int) -> Operation[FirstComeComparison]:
    present = tuple(shards)
    most = -(-MAX_REPLAYED_TASKS // max(1, len(present)))
    found = yield from read_together([_read_served_tasks(shard, most) for shard in present])
    tasks = [task for some, _now in found for task in some]
    begin = max((now for _some, now in found), default=0.0) - REPLAYED_SECONDS
    replayed = [task for task in tasks if task.started >= begin]
    return FirstComeComparison(
        seconds=REPLAYED_SECONDS,
        tasks=round(sum(task.count for task in replayed)),
        replayed=len(replayed),
        users=compare_waits(tasks, begin, slots),
        missing_shards=shards.missing,
    )


def _read_served_tasks(commands: Commands, most: int) -> Operation[tuple[list[ServedTask], float]]:
    """Read the tasks of one shard that finished in the last minute or are running, and the time of the server."""
    keys = commands.keys
    time, running = yield Read([("TIME",), ("ZRANGE", keys.state("started"), 0, most - 1)])
    now = int(time[0]) + int(time[1]) / 1_000_000
    first = to_us(
        now - REPLAYED_SECONDS + commands.config.result_ttl
    )  # finished tasks are sorted by the time at which they will be removed
    total, count = yield Read(
        [("ZCARD", keys.state("finished")), ("ZCOUNT", keys.state("finished"), first, "+inf")],
    )
    blocks = yield from read_sound(
        [("ZRANGE", keys.state("finished"), begin, end) for begin, end in _blocks(int(total), int(count), most)]
    )
    finished = list(dict.fromkeys(task_id for block in blocks for task_id in block))
    ids = [task_id.decode() for task_id in [*finished, *running]]
    records = yield from read_task_fields(keys, ids, "user", "ready", "created", "started", "ended", "priority")
    tasks = []
    for index, (user, ready, created, started, ended, priority) in enumerate(records):
        has_finished = index < len(finished)
        if user is None or started is None or (has_finished and ended is None):
            continue  # the task is gone, or started again after its id was read
        arrived, begun, end = (number(moment) / 1_000_000 for moment in (ready or created, started, ended))
        last, stands_for = (max(begun, end), int(count) / len(finished)) if has_finished else (max(begun, now), 1.0)
        tasks.append(ServedTask(user.decode(), arrived, begun, last, stands_for, read_lane(priority or b"3")))
    return tasks, now


def _blocks(total: int, count: int, most: int) -> list[tuple[int, int]]:
    """Choose ranks (first, last) among the last ``count`` of ``total`` tasks: all tasks, or one random block in each of
    equal parts.
    """
    if count <= most:
        return [(total - count, total - 1)] if count else []
    parts = max(1, most // TASKS_PER_BLOCK)
    size = count / parts
    begins = [total - count + int(index * size + JITTER.random() * (size - TASKS_PER_BLOCK)) for index in range(parts)]
    return [(begin, begin + TASKS_PER_BLOCK - 1) for begin in begins]
