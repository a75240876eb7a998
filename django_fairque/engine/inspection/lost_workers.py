"""Workers that ended without a report of a stop: their machine failed, or they were killed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import MAX_PAGE_SIZE, WorkerRecord, read_worker_records
from django_fairque.engine.inspection.worker_activity import decode_activity
from django_fairque.engine.scripting.operations import Operation, Read, parse_scores

if TYPE_CHECKING:
    from django_fairque.engine.inspection.worker_activity import ReportedTask
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

LOST_SECONDS = 24 * 3_600.0
"""Seconds for which a lost worker is listed (``lua/lib/lost_workers.lua``)."""
_WORKER_ID = re.compile(r"((.+)-\d+-[0-9a-f]{6})(?:\.\d+\.\d+)?")
"""The form of a worker id that `new_worker_id` made, with or without the numbers of a process."""


@dataclass(frozen=True)
class LostWorker:
    """A worker that ended without a report of its stop. ``worker`` is its id, and ``name`` the part of the id that a
    successor also has. ``seen_at`` is the time of its last heartbeat, and ``lost_at`` the time at which its record
    expired (Unix times). ``tasks`` are the tasks that it was running by its last report.
    """

    worker: str
    name: str
    seen_at: float
    lost_at: float
    processes: tuple[WorkerRecord, ...]

    @property
    def slots(self) -> int:
        return sum(int(record.info.get("concurrency") or 0) for record in self.processes)

    @property
    def tasks(self) -> list[ReportedTask]:
        reports = filter(None, map(decode_activity, self.processes))
        return [slot.task for report in reports for slot in report.slots if slot.task]

    def __str__(self) -> str:
        count, tasks = len(self.processes), self.tasks
        ran = (
            f"; it ran {', '.join(f'{task.name or task.task_id} of {task.user_id!r}' for task in tasks[:3])}"
            if tasks
            else ""
        )
        more = f" and {len(tasks) - 3:,} more" if len(tasks) > 3 else ""
        seen = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(self.seen_at))
        processes = f"{count} process{'' if count == 1 else 'es'}"
        return f"worker {self.worker} ({processes}, {self.slots} slots) is lost: last heartbeat at {seen}{ran}{more}"


def lost_workers(shards: Shards) -> Operation[list[LostWorker]]:
    return (yield from read_lost(shards.home, None))[0]


def read_lost(home: Commands, now: float | None) -> Operation[tuple[list[LostWorker], list[str], float]]:
    """Return the lost workers, the ids of lost workers that run again or have a successor, and the current time."""
    names = [home.keys(name) for name in ("workers", "workers:lost")]
    reads: list[tuple[Any, ...]] = [("ZRANGE", name, 0, MAX_PAGE_SIZE, "WITHSCORES") for name in names]
    lists = yield Read([*reads, ("TIME",)] if now is None else reads)
    moment = int(lists[2][0]) + int(lists[2][1]) / 1_000_000 if now is None else now
    living, lost = ({worker.decode(): at / 1_000_000 for worker, at in parse_scores(some)} for some in lists[:2])
    lost.update((worker, end) for worker, end in living.items() if end <= moment)
    lost = {worker: at for worker, at in lost.items() if moment - at < LOST_SECONDS}
    if not lost:
        return [], [], moment
    living = {worker: end for worker, end in living.items() if end > moment}
    records = yield from read_worker_records(home, [*lost, *living])
    began: dict[str, float] = {}
    for record in records:
        if record.worker in living:
            name = _split_id(record.worker)[1]
            began[name] = max(began.get(name, 0.0), float(record.info.get("started") or 0.0))
    returned = [worker for worker in lost if worker in living]
    groups: dict[str, list[WorkerRecord]] = {}
    for record in records:
        if record.worker in lost and record.worker not in living:
            worker, name = _split_id(record.worker)
            if began.get(name, 0.0) > record.seen_at:
                returned.append(record.worker)
            else:
                groups.setdefault(worker, []).append(record)
    found = [
        LostWorker(
            *(worker, _split_id(worker)[1], max(record.seen_at for record in group)),
            lost_at=max(lost[record.worker] for record in group),
            processes=tuple(group),
        )
        for worker, group in groups.items()
    ]
    return sorted(found, key=lambda worker: (-worker.lost_at, worker.worker)), returned, moment


def _split_id(worker: str) -> tuple[str, str]:
    """Return the id of the worker to which a process belongs, and the name that the worker's successors also have."""
    found = _WORKER_ID.fullmatch(worker)
    return (found[1], found[2]) if found else (worker, worker)
