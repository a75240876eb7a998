"""Reports of workers about their slots and about processes that died: fields of their records, as JSON of bounded size.

A process samples its slots once a second, so a report does not slow down a task. A slot's samples are a text with a
character for each second: a letter for one of the users that are named in the report, `IDLE` or `OTHER_USERS`. The
reported line of code of a task is from the last sample. If that sample is old, the process did not respond, for example
because C code kept the interpreter lock.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import WorkerRecord

ACTIVITY_FIELD, DEATHS_FIELD, SENT_FIELD = "activity", "deaths", "sent"
"""Fields of a worker's record. `SENT_FIELD` is the worker's time when it sent the record, because the worker's clock
may differ from the server's."""
UNRESPONSIVE_FIELD = "unresponsive_since"
"""The field of a worker's record with the Unix time since which the process has not responded; empty if it responds
again."""
ACTIVITY_SECONDS = 60
MAX_REPORTED_SLOTS = 16
"""The largest number of slots of one process whose samples are reported. The field ``concurrency`` of its record has
the number of all slots."""
MAX_ACTIVITY_BYTES = 8_000
"""The largest report in bytes. A report without running tasks always fits; running tasks that do not fit are left out.
"""
MAX_LINE_CHARACTERS = 120
"""The largest number of characters of a line of code, with the names of its file and function."""
MAX_NAME_CHARACTERS = 100
"""The largest number of characters in the name of a running task or its user. Longer names are shortened."""
MAX_USER_BYTES = 300
"""The largest number of bytes of a user's id, written as JSON. Users with longer ids count as other users."""
MAX_REPORTED_DEATHS = 5
DEATHS_SECONDS = 3_600.0
"""Seconds for which the death of a process is reported."""
IDLE, OTHER_USERS = ".", "+"
_LETTERS = "abcdefghijkl"


@dataclass(frozen=True)
class ReportedTask:
    """A task that a slot runs, or a batch of ``count`` tasks; ``started_at`` is a Unix time. ``line`` is the line of
    the project's code that the task was running: file, number and function; empty if that is unknown.
    """

    task_id: str
    name: str
    user_id: str
    started_at: float
    count: int = 1
    line: str = ""


@dataclass(frozen=True)
class SlotReport:
    """One slot of a process. ``users`` has for each of the last seconds the user whose task the slot ran, the latest
    second last: empty if the slot was idle, None for a user that the report does not name. ``task`` is the task that
    the slot ran last, None if it was idle.
    """

    users: tuple[str | None, ...]
    task: ReportedTask | None

    @property
    def busy_seconds(self) -> int:
        """The number of seconds in which the slot ran a task."""
        return sum(user != "" for user in self.users)


@dataclass(frozen=True)
class ActivityReport:
    """The slots of one process at ``at``, a Unix time of the server that is not later than the heartbeat's. ``lines`` has the
    lines of code of tasks by their ids, also of tasks in slots that are not reported."""

    at: float
    slots: tuple[SlotReport, ...]
    lines: Mapping[str, str] = field(default_factory=dict)

    @property
    def utilization(self) -> float | None:
        """The part of the reported slots' time in which tasks ran, from 0 to 1; None if nothing was sampled."""
        seconds = sum(len(slot.users) for slot in self.slots)
        return sum(slot.busy_seconds for slot in self.slots) / seconds if seconds else None


class EndReason(Enum):
    """The reason why a worker process ended. The values are stored in the records of workers. A `ProcessDeath` never
    has a reason in `STOPS`.
    """

    EXITED = "exited"
    SIGNAL = "signal"
    HARD_LIMIT = "hard limit"
    MEMORY = "memory"
    LEASES_ENDED = "leases ended"
    LOOP_BLOCKED = "loop blocked"
    STOPPED_BY_SIGNAL = "stopped by signal"
    UNRESPONSIVE = "unresponsive"
    NO_OUTCOMES = "no outcomes"
    NO_PROGRESS = "no progress"
    WORKER_STOPPED = "worker stopped"
    WORKER_STOPPED_AT_ONCE = "worker stopped at once"
    WORKER_GAVE_UP = "worker gave up"


STOPS = {EndReason.WORKER_STOPPED, EndReason.WORKER_STOPPED_AT_ONCE}
"""Reasons for ends that are not deaths: an operator or a program has stopped the worker."""


@dataclass(frozen=True)
class ProcessDeath:
    """A worker process that ended unexpectedly.

    Args:
        at: a Unix time.
        worker: its id.
        reason: why it ended.
        code: its exit code, or the number of the signal, for the reasons ``EXITED`` and ``SIGNAL``; else 0.
        task_ids: a few of the tasks that it was running.
    """

    at: float
    worker: str
    reason: EndReason
    code: int = 0
    task_ids: tuple[str, ...] = ()


def encode_activity(at: float, slots: Sequence[tuple[Sequence[str], ReportedTask | None]]) -> bytes:
    """Encode a report of slots: their samples (user ids, empty when idle), their running tasks, and the lines of code
    of the tasks that have run longest.
    """
    shown = slots[:MAX_REPORTED_SLOTS]
    count = Counter(user for samples, _ in shown for user in samples if user)
    named = [user for user, _ in count.most_common() if len(encode_json(user)) <= MAX_USER_BYTES][: len(_LETTERS)]
    letters = {"": IDLE, **dict(zip(named, _LETTERS, strict=False))}
    rows = [["".join([letters.get(user, OTHER_USERS) for user in samples]), _details(task)] for samples, task in shown]
    report = encode_json({"at": round(at, 1), "users": named, "slots": rows})
    for row in reversed(rows):
        if len(report) <= MAX_ACTIVITY_BYTES:
            break
        row[1] = None
        report = encode_json({"at": round(at, 1), "users": named, "slots": rows})
    lines = _group_by_line([task for _, task in slots if task], MAX_ACTIVITY_BYTES - len(report) - len(',"lines":{}'))
    return b'%s,"lines":%s}' % (report[:-1], encode_json(lines)) if lines else report


def _group_by_line(tasks: Iterable[ReportedTask], room: int) -> dict[str, list[str]]:
    """Return the ids of the tasks at each line of code. Only the tasks that have run longest are included, as many as
    fit into ``room`` bytes.
    """
    groups: dict[str, list[str]] = {}
    for task in sorted(tasks, key=lambda task: task.started_at):
        line = task.line[:MAX_LINE_CHARACTERS]
        size = len(encode_json(task.task_id)) + 1 + (0 if line in groups else len(encode_json(line)) + 4)
        if line and size <= room:
            room -= size
            groups.setdefault(line, []).append(task.task_id)
    return groups


def encode_json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _details(task: ReportedTask | None) -> list[Any] | None:
    if task is None:
        return None
    return [task.task_id, short_name(task.name), short_name(task.user_id), round(task.started_at, 1), task.count]


def short_name(name: str) -> str:
    """Return the name, shortened to at most `MAX_NAME_CHARACTERS`."""
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 1]}…"


def encode_deaths(deaths: Iterable[ProcessDeath]) -> str:
    """Encode the last few deaths as the value of `DEATHS_FIELD`."""
    latest = list(deaths)[-MAX_REPORTED_DEATHS:]
    return json.dumps(
        [[round(death.at, 1), death.worker, death.reason.value, death.code, list(death.task_ids)] for death in latest]
    )


def decode_activity(record: WorkerRecord) -> ActivityReport | None:
    """Return the report of a worker about its slots; None if there is none, or if it can't be read."""
    try:
        report = json.loads(record.info.get(ACTIVITY_FIELD, ""))
        sent = record.info.get(SENT_FIELD)
        skew = 0.0 if sent is None else record.seen_at - _finite(sent)
        names = dict(zip(_LETTERS, map(valid_text, report["users"]), strict=False))
        names[IDLE] = ""
        lines = {
            valid_text(task_id): valid_text(line)[:MAX_LINE_CHARACTERS]
            for line, task_ids in dict(report.get("lines", {})).items()
            for task_id in task_ids
        }
        slots = tuple(
            SlotReport(
                tuple(names.get(letter) for letter in valid_text(samples)[-ACTIVITY_SECONDS:]),
                None if task is None else _running_task(lines, skew, *task),
            )
            for samples, task in report["slots"][:MAX_REPORTED_SLOTS]
        )
        return ActivityReport(min(_finite(report["at"]) + skew, record.seen_at), slots, lines)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


def list_recent_deaths(records: Iterable[WorkerRecord], now: float) -> list[ProcessDeath]:
    """Return the deaths that workers reported in the last hour, each once, the latest first."""
    found = {death for record in records for death in _deaths(record) if 0 <= now - death.at <= DEATHS_SECONDS}
    return sorted(found, key=lambda death: (-death.at, death.worker))


def _deaths(record: WorkerRecord) -> list[ProcessDeath]:
    try:
        return [
            ProcessDeath(
                _finite(at), valid_text(worker), EndReason(reason), int(code), tuple(map(valid_text, task_ids))
            )
            for at, worker, reason, code, task_ids in json.loads(record.info.get(DEATHS_FIELD, "[]"))[
                -MAX_REPORTED_DEATHS:
            ]
        ]
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return []


def _running_task(
    lines: Mapping[str, str], skew: float, task_id: Any, name: Any, user_id: Any, started_at: Any, count: Any
) -> ReportedTask:
    started = _finite(started_at) + skew
    return ReportedTask(
        valid_text(task_id), valid_text(name), valid_text(user_id), started, int(count), lines.get(task_id, "")
    )


def valid_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError  # the record is damaged
    value.encode()  # raises a ValueError for half a surrogate pair, which no id or name contains
    return value


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError  # the record is damaged
    return number
