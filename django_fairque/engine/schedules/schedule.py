"""One schedule: recurring work as it is kept, and what can be checked about it before it is."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, Protocol

from django_fairque.engine.encoding import payload as json_payload
from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.shortening import short
from django_fairque.engine.model.signature import Envelope
from django_fairque.engine.model.task import Task
from django_fairque.engine.schedules.due_times import Timing

if TYPE_CHECKING:
    from collections.abc import Iterator

Missed = Literal["skip", "one", "all"]
"""What becomes of instants at which no worker lived: none of them, the last one, or all of them are fired."""
MISSED: tuple[str, ...] = ("skip", "one", "all")
SOURCES = ("code", "settings", "command", "admin")
GRACE = 60.0
"""Seconds by which an instant may be late without being missed."""
MAX_NAME = 200
LATEST = datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()
"""A day before the last moment of Python's calendar, so that it has a date in every time zone."""


class Template(Protocol):
    """What makes a task: a call that was not sent, such as ``send_receipt.s("acme", 42)``, or what can be called so."""

    @property
    def expires(self) -> float | None:
        """Seconds from its instant until it is dead if it has not started."""

    def to_task(self) -> Task: ...


@dataclass(frozen=True)
class LastFired:
    """``instant``: for when; ``at``: when it was fired."""

    instant: float
    at: float
    task_id: str


@dataclass(frozen=True)
class Schedule:
    """One recurring piece of work. Moments in seconds since the epoch.

    ``cron`` or ``every`` (seconds, counted from ``start``); ``missed`` says what becomes of instants that are more than
    ``grace`` seconds late. ``source`` is code, settings, command or admin. ``task`` is what each firing pushes.
    """

    name: str
    task: dict[str, Any]
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    start: float = 0.0
    missed: str = "skip"
    grace: float = GRACE
    expires: float | None = None
    """Seconds from an instant until its task is dead if it has not started."""
    enabled: bool = True
    source: str = "code"
    declared: str = ""
    """Of one from settings: which declaration it was made from."""
    seal: str = field(default="", compare=False, repr=False)
    """Made by who added it, for all tasks that it fires: firing needs no key, and makes no forgery genuine."""
    next_at: float | None = field(default=None, compare=False)
    last: LastFired | None = field(default=None, compare=False)
    stored: bytes = field(default=b"", compare=False, repr=False)
    """The definition as it was read: another version may have written it."""

    @property
    def timing(self) -> Timing:
        return Timing(self.cron, self.every, self.timezone, self.start)

    @property
    def when(self) -> str:
        """For people: ``*/5 * * * * (Europe/Berlin)`` or ``every 60 s``."""
        return f"every {self.every:g} s" if self.every is not None else f"{self.cron} ({self.timezone})"

    def to_json(self) -> bytes:
        fields = asdict(self)
        for name in ("name", "next_at", "last", "stored"):
            del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def make_task(self, task_id: str | None, instant: float | None = None) -> Task:
        """What it pushes, for ``instant`` if it matters when."""
        expires_at = None if instant is None or self.expires is None else instant + self.expires
        return Task.create(**self.task, task_id=task_id, expires_at=expires_at).sealed(self.seal.encode())

    def envelope(self, prefix: str, queue: str) -> Envelope:
        """What its tasks are sealed as, whatever their ids will be."""
        task = self.make_task(None)
        return Envelope(prefix, queue, task.name, task.user_id, task.payload_bytes)

    def following(self, moment: float, count: int) -> Iterator[float]:
        """The next ``count`` instants after a moment, as far as the calendar goes."""
        for _ in range(count):
            try:
                following = self.timing.following(moment)
            except OverflowError:
                return
            if following is None or following > LATEST:
                return
            yield following
            moment = following


@dataclass(frozen=True)
class Fired:
    """One firing; ``task_id`` is empty if no task was pushed: missed run times were skipped, or ``error`` says why.

    ``is_refused``: it is tried again, because the user's backlog is full or the record is damaged.
    """

    name: str
    instant: float
    task_id: str = ""
    is_refused: bool = False
    error: str = ""


def template_of(task: Task | Template) -> dict[str, Any]:
    """What a schedule keeps of a task, as the arguments of `Task.create`: not ``unique_for`` and ``debounce``."""
    made = task if isinstance(task, Task) else task.to_task() if hasattr(task, "to_task") else None
    if made is None:
        raise TaskValidationError(f"task must be a Task, a task or a call such as my_task.s(…), got {short(task)}")
    is_dated = made.expires_at is not None and expires_of(task) is None
    if made.depends_on or made.execute_after is not None or is_dated:
        raise TaskValidationError(
            "a scheduled task has no depends_on, execute_after or expires_at: its schedule says when (and with expires, "
            "in seconds from each instant, until when)"
        )
    fields = {
        "user_id": made.user_id,
        "priority": int(made.priority),
        "payload": json_payload.loads(made.payload_bytes),
        "name": made.name,
        "max_retries": made.max_retries,
        "timeout": made.timeout,
        "sla": made.sla,
    }
    return {key: value for key, value in fields.items() if value is not None or key == "payload"}


def expires_of(task: Task | Template) -> float | None:
    """Seconds, if the call says so. A `Task` knows its moment alone."""
    return None if isinstance(task, Task) else getattr(task, "expires", None)


def create(name: str, task: Task | Template, now: float, options: dict[str, Any]) -> Schedule:
    """A schedule with everything about it checked; `TaskValidationError` says what is wrong."""
    check_id(name, "a schedule's name")
    if len(name) > MAX_NAME:
        raise TaskValidationError(f"a schedule's name has at most {MAX_NAME} characters, got {len(name)}")
    given: dict[str, Any] = {"start": now, "expires": expires_of(task), **options}
    given = {key: value.total_seconds() if isinstance(value, timedelta) else value for key, value in given.items()}
    start = moment(given["start"], "start")
    given["start"] = now if start is None else start
    schedule = Schedule(name, template_of(task), **given)
    if schedule.missed not in MISSED:
        raise TaskValidationError(f"missed must be one of {', '.join(MISSED)}, got {short(schedule.missed)}")
    if isinstance(schedule.grace, bool) or not isinstance(schedule.grace, (int, float)) or schedule.grace < 0:
        raise TaskValidationError(f"grace must be a number of seconds, at least 0, got {short(schedule.grace)}")
    if schedule.expires is not None:
        schedule = replace(schedule, expires=duration(schedule.expires, "expires"))
        if not schedule.expires:
            raise TaskValidationError("expires must be more than 0 seconds: the task could never start")
    Timing.create(schedule.cron, schedule.every, schedule.timezone, schedule.start)
    return schedule
