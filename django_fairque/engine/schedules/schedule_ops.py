"""Operations on schedules: they are kept on the server, and each run time is fired once among any number of workers.

Functions that take ``shards`` find the shard of a schedule, which is that of its task's user; functions that take
``commands`` use one shard.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from django_fairque.engine.inspection.pages import PartialList
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import check_integer, duration, moment, to_us
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import check_id, check_text, new_nonce
from django_fairque.engine.model.pauses import Pause, PauseEnd, pause_fields, pause_values
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.signature import SignedFields, sign_payload
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing.push import NO_GRAPH, Graph, find_plans, push_args, push_to_shard
from django_fairque.engine.schedules.due_times import Timing
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.operations import Operation, Read, parse_scores
from django_fairque.engine.scripting.task_fields import read_task_fields

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")

MISSED_POLICIES: tuple[str, ...] = ("skip", "one", "all")
"""Policies for run times that were missed because no worker was running: fire none of them, the last of them, or
all."""
OVERLAP_POLICIES: tuple[str, ...] = ("allow", "skip", "queue")
"""Policies for a run whose predecessor has not ended: enqueue the run anyway, skip it, or let one run wait."""
NOT_ENDED = {
    state.value.encode() for state in (TaskState.SCHEDULED, TaskState.DEFERRED, TaskState.QUEUED, TaskState.STARTED)
}
SCHEDULE_KEYS = ("schedules", "schedules:due", "schedules:last", "schedules:runs")
"""Keys of a shard: definitions, next run times, last firings, and latest runs of its schedules, by name."""
KEPT_RUNS = 20
AT_LIMIT = 3
"""The reply of ``fire.lua`` if a full limit refuses the task: the run is skipped then."""
CATCH_UP_SECONDS = 60.0
"""Seconds by which the firing of a run time may be late before the run counts as missed."""
MAX_SCHEDULE_NAME_CHARACTERS = 200
DECLARED_SOURCE = "settings"
"""The ``source`` of schedules that the configuration declares."""
LAST_RUN_TIME = datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()
"""A day before the last moment of Python's calendar, so that it has a date in every time zone."""


class Template(Protocol):
    """An object that makes tasks: a call that was not sent, such as ``send_receipt.s("acme", 42)``, or a task without
    arguments.
    """

    @property
    def expires(self) -> float | None:
        """Seconds from its run time until the task is a dead letter if it has not started."""

    def to_task(self) -> Task: ...


@dataclass(frozen=True)
class LastFired:
    """The last firing of a schedule that enqueued a task."""

    run_time: float
    """The run time, as Unix time."""
    at: float
    """The moment at which the schedule was fired, as Unix time."""
    task_id: str
    """The task that was pushed."""


@dataclass(frozen=True)
class ScheduleRun:
    """One of the latest runs of a schedule, or several successive runs that were skipped, missed or refused. Times are
    Unix times.
    """

    happened: Literal["enqueued", "skipped", "missed", "refused"]
    """``skipped``: the run before had not ended, or a limit was full. ``missed``: the run time was too long ago.
    ``refused``: the task was invalid."""
    run_time: float
    """The run time; for several runs, the last run time."""
    at: float
    """The moment at which the run was fired."""
    first: float
    """The first run time; for one run, the same as ``run_time``."""
    count: int = 1
    """The number of run times. For one firing, at most 1,000 are counted."""
    behind: str = ""
    """The task that the run waits for, because it had not ended; empty if there is none."""
    task_id: str = ""
    """The task that was enqueued; empty if there is none."""


@dataclass(frozen=True)
class Schedule:
    """One recurring piece of work. Times are Unix times.

    ``name`` is its name; ``enabled`` is False while it is paused without an end. Its run times follow from ``cron`` in
    ``timezone``, or from ``every`` (seconds, counted from ``start``). ``missed`` is the policy for run times that are
    more than ``catch_up`` seconds late. ``source`` is code, settings, command or admin. ``task`` is the task that each
    firing pushes. ``next_at`` is the next run time, None during such a pause; ``last`` is the last firing that enqueued a
    task. ``runs`` are the latest runs, newest first, at most 20; empty in a list of schedules. ``overlap`` is the
    policy for a run if the run before has not ended, and ``jitter`` the largest number of seconds by which a run is
    delayed.
    """

    name: str
    task: dict[str, Any]
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    start: float = 0.0
    missed: str = "skip"
    catch_up: float = CATCH_UP_SECONDS
    overlap: str = "allow"
    jitter: float = 0.0
    expires: float | None = None
    """Seconds from a run time after which its task becomes a dead letter if it has not started."""
    enabled: bool = True
    pause_note: str = ""
    """The note of the schedule's pause."""
    pause_until: float | None = None
    """The end of the schedule's last pause that has an end. ``next_at`` is later, so nothing has to end the pause."""
    source: str = "code"
    declared: str = ""
    """The digest of the declaration, for a schedule from settings."""
    signature: str = field(default="", compare=False, repr=False)
    """The signature for all tasks that the schedule fires, made by the process that added it. A process that fires the
    schedule makes no signature, so it can't make a forged schedule genuine.
    """
    next_at: float | None = field(default=None, compare=False)
    last: LastFired | None = field(default=None, compare=False)
    runs: tuple[ScheduleRun, ...] = field(default=(), compare=False)
    stored: bytes = field(default=b"", compare=False, repr=False)
    """The definition as it was read. Another version of this package may have written it."""

    @property
    def timing(self) -> Timing:
        """The timing of the schedule: when it is due."""
        return Timing(self.cron, self.every, self.timezone, self.start)

    def get_pause(self, moment: float) -> Pause | None:
        """Return the schedule's pause at a ``moment``, as Unix time; None if it is not paused then."""
        if not self.enabled:
            return Pause(self.pause_note)
        is_over = self.pause_until is None or self.pause_until <= moment
        return None if is_over else Pause(self.pause_note, self.pause_until)

    @property
    def when(self) -> str:
        """The timing for people: ``*/5 * * * * (Europe/Berlin)`` or ``every 60 s``."""
        return f"every {self.every:g} s" if self.every is not None else f"{self.cron} ({self.timezone})"

    def to_json(self) -> bytes:
        """Return the definition as the server keeps it."""
        fields = asdict(self)
        for name in ("name", "next_at", "last", "runs", "stored"):
            del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def make_task(self, task_id: str | None, due: float | None = None, **options: Any) -> Task:
        """Return the task that the schedule pushes.

        ``task_id`` is the task's id, or None for a new one. ``due`` is the Unix time from which ``expires`` counts; by
        default the task does not expire. ``options`` are further options of `Task.create`.
        """
        expires_at = None if due is None or self.expires is None else due + self.expires
        task = Task.create(**self.task, task_id=task_id, expires_at=expires_at, **options)
        return task.with_signature(self.signature.encode())

    def make_run(self, run_time: float, behind: str) -> Task:
        """Return the task for a run time.

        ``run_time`` is the Unix time, ``behind`` the id of a task that must end before; empty if there is none.
        """
        delay = self.put_off(run_time)
        options: dict[str, Any] = {"execute_after": run_time + delay} if delay else {}
        if behind:
            options |= {"depends_on": [behind], "on_dependency_failure": "run"}
        return self.make_task(_task_id(self.name, run_time), run_time + delay, **options)

    def put_off(self, run_time: float, following: float | None = None) -> float:
        """Return the seconds by which the task of a ``run_time`` (a Unix time) starts later: the same for each call, at
        most ``jitter``, and less than the time until the next run. ``following`` is the next run time, if it is known;
        None by default.
        """
        if not self.jitter:
            return 0.0
        following = self.timing.find_next_run(run_time) if following is None else following
        most = self.jitter if following is None else min(self.jitter, following - run_time)
        digest = blake2b(_task_id(self.name, run_time).encode(), digest_size=6).digest()
        return int(most * 1_000_000 * int.from_bytes(digest, "big") / 2**48) / 1_000_000

    def signed_fields(self, prefix: str, queue: str) -> SignedFields:
        """Return the signed fields of the schedule's tasks, without the tasks' ids.

        ``prefix`` and ``queue`` are those of its queue.
        """
        task = self.make_task(None)
        return SignedFields(prefix, queue, task.name, task.user_id, task.payload_bytes)

    def iterate_next_runs(self, moment: float, count: int) -> Iterator[float]:
        """Yield the next ``count`` run times after ``moment``, as Unix times, as far as the calendar goes."""
        with suppress(OverflowError):
            for _ in range(count):
                following = self.timing.find_next_run(moment)
                if following is None or following > LAST_RUN_TIME:
                    return
                yield following
                moment = following


def _task_id(name: str, run_time: float) -> str:
    return f"schedule:{name}:{to_us(run_time)}"


@dataclass(frozen=True)
class Fired:
    """One firing of the schedule ``name`` for ``run_time``, as Unix time. ``task_id`` is empty if no task was pushed:
    run times were missed or skipped, or ``error`` is the reason.

    ``is_refused``: the firing is tried again later, because the user's backlog is full or the record is damaged.
    """

    name: str
    run_time: float
    task_id: str = ""
    is_refused: bool = False
    error: str = ""


def extract_template(task: Task | Template) -> dict[str, Any]:
    """Return the arguments of `Task.create` that a schedule keeps of a task; ``unique_for`` and ``debounce`` are left out."""
    made = task if isinstance(task, Task) else task.to_task() if hasattr(task, "to_task") else None
    if made is None:
        raise TaskValidationError(f"task must be a Task, a task or a call such as my_task.s(…), got {short(task)}")
    if made.depends_on or made.execute_after is not None or made.delay is not None or made.expires_at is not None:
        raise TaskValidationError(
            "a scheduled task has no depends_on, delay, execute_after or expires_at: its schedule says when (and with expires, "
            "in seconds from each run time, until when)"
        )
    names = ("user_id", "name", "max_retries", "timeout", "sla")
    fields = {name: value for name in names if (value := getattr(made, name)) is not None}
    if made.max_deliveries:
        fields["max_deliveries"] = made.max_deliveries
    if made.lane != "normal":
        fields["lane"] = made.lane
    if made.limits:
        fields["limits"] = [list(limit) for limit in made.limits]
    return {**fields, "priority": int(made.priority), "payload": json_payload.loads(made.payload_bytes)}


def get_expiry_seconds(task: Task | Template) -> float | None:
    """Return the seconds after which the task or the call expires; None if it has no such option."""
    return getattr(task, "expires", None)


def create(name: str, task: Task | Template, now: float, options: dict[str, Any]) -> Schedule:
    """Return a checked schedule. Raises `TaskValidationError` with the reason if a value is invalid."""
    check_id(name, "a schedule's name")
    if len(name) > MAX_SCHEDULE_NAME_CHARACTERS:
        raise TaskValidationError(
            f"a schedule's name has at most {MAX_SCHEDULE_NAME_CHARACTERS} characters, got {len(name)}"
        )
    given: dict[str, Any] = {"start": now, "expires": get_expiry_seconds(task), **options}
    given = {key: value.total_seconds() if isinstance(value, timedelta) else value for key, value in given.items()}
    start = moment(given["start"], "start")
    given["start"] = now if start is None else start
    given["pause_until"] = moment(given.get("pause_until"), "pause_until")
    schedule = Schedule(name, extract_template(task), **given)
    check_text(schedule.pause_note, "pause_note")
    if schedule.missed not in MISSED_POLICIES:
        raise TaskValidationError(f"missed must be one of {', '.join(MISSED_POLICIES)}, got {short(schedule.missed)}")
    if schedule.overlap not in OVERLAP_POLICIES:
        raise TaskValidationError(
            f"overlap must be one of {', '.join(OVERLAP_POLICIES)}, got {short(schedule.overlap)}"
        )
    spans: dict[str, Any] = {name: duration(getattr(schedule, name), name) for name in ("catch_up", "jitter")}
    schedule = replace(schedule, **spans)
    if schedule.expires is not None:
        schedule = replace(schedule, expires=duration(schedule.expires, "expires"))
        if not schedule.expires:
            raise TaskValidationError("expires must be more than 0 seconds: the task could never start")
    Timing.create(schedule.cron, schedule.every, schedule.timezone, schedule.start)
    return schedule


MAX_SCHEDULES = 1000
"""The largest number of schedules in one queue."""
WRITE_ATTEMPTS = 20


class OutdatedVersionError(Exception):
    """The declarations of a newer version are in force. Nothing was changed."""


@dataclass(frozen=True)
class DeclaredChange:
    """A change of declared schedules by the version with this ``number``. ``former`` is the schedule as it was when
    this version was in force before, if it is known.
    """

    number: int
    former: Schedule | None = None

    def arguments(self, known: Schedule | None, moment: float, *, is_removal: bool = False) -> list[Any]:
        """Return the last arguments of ``schedule.lua``. A declared schedule that is replaced or removed is kept for
        its version.
        """
        last = None if is_removal or known is not None or self.former is None else self.former.last
        retired = b"" if known is None or known.source != DECLARED_SOURCE else retired_record(known, moment)
        return [self.number, retired, "" if last is None else _last_text(last)]


def retired_record(schedule: Schedule, moment: float) -> bytes:
    """Return the stored form of a removed schedule: the moment of its removal, its definition and its last run."""
    last = None if schedule.last is None else _last_text(schedule.last)
    return json.dumps([moment, schedule.stored.decode(), last], separators=(",", ":")).encode()


def parse_retired(name: str, record: bytes) -> tuple[float, Schedule]:
    """Return the moment at which a schedule was removed, and the schedule as it was before."""
    moment, definition, last = json.loads(record)
    return float(moment), _schedule(name, definition.encode(), None, None if last is None else last.encode())


def _last_text(last: LastFired) -> str:
    return json.dumps([last.run_time, last.at, last.task_id])


def add_on_shard(
    commands: Commands,
    name: str,
    task: Task | Template,
    options: dict[str, Any],
    now: float | None,
    change: DeclaredChange | None = None,
) -> Operation[Schedule]:
    moment = yield from server_time(now)
    schedule = _sign_schedule(commands, create(name, task, moment, options))
    for _ in range(WRITE_ATTEMPTS):
        known = yield from _find(commands, name)
        if known is not None and schedule.every == known.every and "start" not in options:
            schedule = replace(schedule, start=known.start)  # the run times are still counted from the earlier start
        if known is None and (yield from count([commands])) >= MAX_SCHEDULES:
            raise too_many(commands)
        following = None
        if schedule.enabled:
            same = known is not None and known.enabled and known.timing == schedule.timing
            same = same and known is not None and known.pause_until == schedule.pause_until
            begin = max(moment, schedule.pause_until or 0)
            following = known.next_at if same and known is not None else schedule.timing.find_next_run(begin)
        extra = [] if change is None else change.arguments(known, moment)
        if (yield from _set(commands, known, schedule, following, now, extra)):
            return (yield from get(commands, name))
    raise _busy(name)


def too_many(commands: Commands) -> TaskValidationError:
    return TaskValidationError(f"queue {commands.name!r} has {MAX_SCHEDULES} schedules already; remove some")


def pause(commands: Commands, name: str, note: str, until: PauseEnd, now: float | None) -> Operation[None]:
    fields = pause_fields(note, until, now)
    moment, paused = (yield from server_time(now)), int(str(fields["paused"]))
    if paused < 0:  # ``paused`` is a length of time here
        paused = to_us(moment) - paused
    end = None if paused == 1 else paused / 1_000_000
    steps = _set_pause(commands, name, Pause(str(fields["pause_note"]), end), moment, now)
    yield from record_change("pause", commands, name, steps, now)


def resume(commands: Commands, name: str, now: float | None) -> Operation[None]:
    steps = _set_pause(commands, name, None, (yield from server_time(now)), now)
    yield from record_change("resume", commands, name, steps, now)


def record_change(act: str, commands: Commands, name: str, steps: Operation[T], now: float | None) -> Operation[T]:
    """Change a schedule, and record the act."""

    def read_values() -> Operation[Values]:
        found = yield from _find(commands, name)
        if found is None:
            return {}
        return {
            **pause_values(found.get_pause((yield from server_time(now)))),
            **{name: getattr(found, name) for name in _RECORDED_OPTIONS},
            "task": found.task.get("name"),
            "user": found.task["user_id"],
        }

    return record_act(Act(commands.name, act, "schedule", name), steps, read_values)


_RECORDED_OPTIONS = ("cron", "every", "timezone", "missed", "catch_up", "overlap", "jitter", "expires")


def _set_pause(commands: Commands, name: str, pause: Pause | None, moment: float, now: float | None) -> Operation[None]:
    note, until = ("", None) if pause is None else (pause.note, pause.until)
    is_enabled = pause is None or until is not None
    for _ in range(WRITE_ATTEMPTS):
        known = yield from get(commands, name)
        if known.get_pause(moment) == pause:
            return
        changed = replace(known, enabled=is_enabled, pause_note=note, pause_until=until)
        following = known.timing.find_next_run(until or moment) if is_enabled else None
        if (yield from _set(commands, known, changed, following, now)):
            return
    raise _busy(name)


def sign(commands: Commands, name: str, now: float | None) -> Operation[None]:
    def change() -> Operation[None]:
        for _ in range(WRITE_ATTEMPTS):
            known = yield from get(commands, name)
            if (yield from _set(commands, known, _sign_schedule(commands, known), known.next_at, now)):
                return
        raise _busy(name)

    yield from record_act(Act(commands.name, "sign", "schedule", name), change())


def remove(commands: Commands, name: str, now: float | None) -> Operation[bool]:
    args = ["remove", check_id(name, "a schedule's name"), "*", "", ""]
    return bool((yield from change(commands, args, now)))


def retire(commands: Commands, schedule: Schedule, number: int, now: float | None) -> Operation[None]:
    """Remove a declared schedule, because the version with this number does not declare it. Keep it for the version
    that declared it.
    """
    moment = yield from server_time(now)
    for _ in range(WRITE_ATTEMPTS):
        known = yield from _find(commands, schedule.name)
        if known is None or known.source != DECLARED_SOURCE:
            return
        extra = DeclaredChange(number).arguments(known, moment, is_removal=True)
        if (yield from change(commands, ["remove", known.name, known.stored, "", "", *extra], now)):
            return
    raise _busy(schedule.name)


def run_now(commands: Commands, name: str, now: float | None) -> Operation[str]:
    def push() -> Operation[str]:
        schedule = yield from get(commands, name)
        run_time = None if schedule.expires is None else (yield from server_time(now))
        result = yield from push_to_shard(commands, schedule.make_task(None, run_time), now)
        return result.task_id

    act = Act(commands.name, "run now", "schedule", name)
    return (yield from record_act(act, push(), describe=lambda task_id: {"task": task_id}))


def get(commands: Commands, name: str) -> Operation[Schedule]:
    found = yield from _find(commands, check_id(name, "a schedule's name"))
    if found is None:
        raise TaskNotFoundError(f"queue {commands.name!r} has no schedule {name!r}")
    return found


def schedules_of_shard(commands: Commands) -> Operation[list[Schedule]]:
    found, _ = yield from read_schedules([commands])
    return [schedule for _, schedule in found]


def read_schedules(
    shards: Iterable[Commands], others: Sequence[tuple[Any, ...]] = ()
) -> Operation[tuple[list[tuple[Commands, Schedule]], list[Any]]]:
    """Read the schedules of these shards by name, each with its shard, and the replies to other commands, in one round
    trip."""
    living = tuple(shards)
    reads: list[tuple[Any, ...]] = []
    for shard in living:
        stored, due_at, fired, _ = map(shard.keys, SCHEDULE_KEYS)
        reads += [("HGETALL", stored), ("ZRANGE", due_at, 0, -1, "WITHSCORES"), ("HGETALL", fired)]
    replies = yield Read([*reads, *others])
    found: list[tuple[Commands, Schedule]] = []
    for shard, index in zip(living, range(0, len(reads), 3), strict=True):
        definitions, due, last = replies[index : index + 3]
        moments = dict(parse_scores(due))
        found += [
            (shard, _schedule(name.decode(), definition, moments.get(name), last.get(name)))
            for name, definition in definitions.items()
        ]
    return sorted(found, key=lambda pair: pair[1].name), replies[len(reads) :]


def count(shards: Iterable[Commands]) -> Operation[int]:
    """Return the number of schedules on these shards."""
    return sum(map(int, (yield Read([("HLEN", shard.keys("schedules")) for shard in shards]))))


def _fire_due_on_shard(commands: Commands, limit: int, now: float | None) -> Operation[list[Fired]]:
    """Fire due schedules, at most ``limit`` times; a schedule that another process is firing is left to it.

    Due schedules take turns, so that a schedule with many missed run times does not delay others. A schedule that can't
    be fired now stays due, and does not count towards ``limit``.
    """
    moment = yield from server_time(now)
    read = ("ZRANGEBYSCORE", commands.keys("schedules:due"), "-inf", to_us(moment), "LIMIT", 0, MAX_SCHEDULES)
    (names,) = yield Read([read])
    fired: list[Fired] = []
    refused: list[Fired] = []
    due = deque(name.decode() for name in names)
    while due and len(fired) < limit:
        name = due.popleft()
        try:
            schedule = yield from _find(commands, name)
        except (ValueError, TypeError, LookupError) as error:
            refused.append(Fired(name, moment, is_refused=True, error=f"its record is damaged: {error!r:.200}"))
            continue
        if schedule is None or schedule.next_at is None or schedule.next_at > moment:
            continue
        firing = yield from _fire(commands, schedule, moment, now)
        if firing is not None and firing.is_refused:
            refused.append(firing)
        elif firing is not None:
            fired.append(firing)
            due.append(name)
    return fired + refused


def _fire(commands: Commands, schedule: Schedule, moment: float, now: float | None) -> Operation[Fired | None]:
    """Fire once, or skip missed run times once. Return None if another process was faster."""
    assert schedule.next_at is not None  # noqa: S101 - it is due
    run_time, timing = schedule.next_at, schedule.timing
    run = ScheduleRun("enqueued", run_time, moment, run_time)
    if moment - run_time > schedule.catch_up and schedule.missed != "all":
        # A run time that is late by exactly catch_up is not missed.
        run_time = timing.find_last_run(moment - schedule.catch_up - 1e-6, run_time)
        count = timing.count_runs(schedule.next_at, run_time)
        run = replace(
            run, happened="enqueued" if schedule.missed == "one" else "missed", run_time=run_time, count=count
        )
    if run.happened == "enqueued" and schedule.overlap != "allow":
        run = yield from _avoid_overlap(commands, schedule, run)
    following = timing.find_next_run(run_time)
    pushed, task_id, error = push_args(commands, []), "", ""
    if run.happened == "enqueued":
        try:
            made = schedule.make_run(run_time, run.behind)
            plans = yield from find_plans(commands, [made])
            pushed = push_args(commands, [made], Graph(mode=1) if run.behind else NO_GRAPH, plans=plans)
            task_id = made.task_id
        except TaskValidationError as invalid:  # the push was refused, for example because a limit was lowered
            run, error = replace(run, happened="refused"), str(invalid)
    before = [schedule.name, schedule.stored, to_us(schedule.next_at), due_argument(following)]
    last = json.dumps([run_time, moment, task_id]) if task_id else ""
    args = [*before, last, _runs_text(schedule.runs, run), *pushed]
    code = yield commands.call("fire", args, now, reply=new_nonce())
    if code == AT_LIMIT:
        skipped = _runs_text(schedule.runs, replace(run, happened="skipped", behind=""))
        args = [*before, "", skipped, *push_args(commands, [])]
        task_id, code = "", (yield commands.call("fire", args, now, reply=new_nonce()))
    if not code:
        return None
    return Fired(schedule.name, run_time, task_id if code == 1 else "", is_refused=code == 2, error=error)


def _avoid_overlap(commands: Commands, schedule: Schedule, run: ScheduleRun) -> Operation[ScheduleRun]:
    """Let a run wait for the task of the run before, or skip it, if that task has not ended.

    At most two tasks of a schedule have not ended: a task, and the next task, which waits for it. The waiting task can
    end first, if it is canceled.
    """
    if schedule.last is None:
        return run
    former = next((former.behind for former in schedule.runs if former.happened == "enqueued"), "")
    names = [schedule.last.task_id, former] if former else [schedule.last.task_id]
    states = yield from read_task_fields(commands.keys, names, "state")
    unended = [name for name, (state,) in zip(names, states, strict=True) if state in NOT_ENDED]
    if not unended:
        return run
    if schedule.overlap == "skip" or len(unended) > 1:
        return replace(run, happened="skipped")
    return replace(run, behind=unended[0])


def _runs_text(runs: Sequence[ScheduleRun], run: ScheduleRun) -> str:
    """Return the latest runs with a new one, as the server keeps them."""
    if runs and run.happened == runs[0].happened != "enqueued":
        run = replace(run, first=runs[0].first, count=runs[0].count + run.count)
        runs = runs[1:]
    return json.dumps([astuple(run)[:-1] for run in (run, *runs)][:KEPT_RUNS], separators=(",", ":"))


def read_runs(name: str, text: bytes | None, limit: int = KEPT_RUNS) -> tuple[ScheduleRun, ...]:
    """Return the latest runs, at most ``limit``; none if the text is damaged, so that the schedule goes on."""
    try:
        runs = [ScheduleRun(*fields) for fields in json.loads(text or b"[]")[:limit]]
        return tuple(
            replace(run, task_id=_task_id(name, run.run_time) if run.happened == "enqueued" else "") for run in runs
        )
    except (ValueError, TypeError):
        return ()


def due_argument(moment: float | None) -> int | str:
    """Return the next run time of a schedule, as the scripts take it."""
    return "" if moment is None else to_us(moment)


def _set(
    commands: Commands,
    known: Schedule | None,
    schedule: Schedule,
    following: float | None,
    now: float | None,
    extra: Sequence[Any] = (),
) -> Operation[bool]:
    expected = b"" if known is None else known.stored
    args = ["set", schedule.name, expected, schedule.to_json(), due_argument(following), *extra]
    return bool((yield from change(commands, args, now)))


def change(commands: Commands, args: Sequence[Any], now: float | None) -> Operation[int]:
    """Send a change. Returns 1 if the schedule was changed, 0 if it is not as expected.

    Raises:
        OutdatedVersionError: a newer version of the declared schedules counts.
    """
    code = int((yield commands.call("schedule", args, now, reply=new_nonce())))
    if code == 2:
        raise OutdatedVersionError
    return code


def _sign_schedule(commands: Commands, schedule: Schedule) -> Schedule:
    fields = schedule.signed_fields(commands.config.prefix, commands.name)
    return replace(schedule, signature=sign_payload(fields, commands.config.signing_key.read()).decode())


def _find(commands: Commands, name: str) -> Operation[Schedule | None]:
    stored, due_at, fired, latest = map(commands.keys, SCHEDULE_KEYS)
    definition, due, last, runs = yield Read(
        [("HGET", stored, name), ("ZSCORE", due_at, name), ("HGET", fired, name), ("HGET", latest, name)]
    )
    if definition is None:
        return None
    return replace(_schedule(name, definition, due, last), runs=read_runs(name, runs))


def _schedule(name: str, definition: bytes, due: Any, last: bytes | None) -> Schedule:
    known = {key: value for key, value in json.loads(definition).items() if key in Schedule.__dataclass_fields__}
    next_at = None if due is None else float(due) / 1_000_000
    last_fired = None if last is None else LastFired(*json.loads(last))
    return Schedule(name, **known, stored=definition, next_at=next_at, last=last_fired)


def _busy(name: str) -> TaskValidationError:
    return TaskValidationError(f"schedule {name!r} is being changed by somebody else all the time; try again")


SCHEDULE_OPTIONS = (
    *("cron", "every", "timezone", "start", "missed", "catch_up", "overlap", "jitter", "expires", "enabled"),
    *("pause_note", "pause_until", "source", "declared"),
)


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in SCHEDULE_OPTIONS:
            hint = suggestion(name, SCHEDULE_OPTIONS)
            raise TaskValidationError(f"schedules.add() has no option {short(name)}; {hint}")
    return options


def places(shards: Shards, name: str, task: Task | Template) -> Operation[tuple[Commands, Sequence[Commands]]]:
    """Return the shard for a schedule, and the shards from which to remove it because its task had another user before."""
    there = shards.get_shard(str(extract_template(task)["user_id"]))
    if len(shards) == 1:
        return there, ()
    holders = yield from _holders(shards, name)
    if not holders and (yield from count(shards)) >= MAX_SCHEDULES:
        raise too_many(shards.home)
    return there, [shard for shard in holders if shard is not there]


def add(
    place: tuple[Commands, Sequence[Commands]],
    name: str,
    task: Task | Template,
    options: dict[str, Any],
    now: float | None,
) -> Operation[Schedule]:
    """Add a schedule. If its task has another user than before, first remove the schedule from the former shard."""
    there, others = place
    for shard in others:
        yield from remove(shard, name, now)
    return (yield from add_on_shard(there, name, task, options, now))


def list_all(shards: Shards) -> Operation[PartialList[Schedule]]:
    found, _ = yield from read_schedules(shards)
    return PartialList([schedule for _, schedule in found], shards.missing)


def fire_due(shards: Shards, limit: int, now: float | None) -> Operation[list[Fired]]:
    check_integer(limit, "limit", 1)
    fired: list[Fired] = []
    for shard in shards:
        left = limit - sum(not firing.is_refused for firing in fired)
        if left > 0:
            fired += yield from _fire_due_on_shard(shard, left, now)
    return fired


def next_due(shards: Shards, after: float | None) -> Operation[float | None]:
    start = to_us((yield from server_time(moment(after, "after"))))
    found: list[float] = []
    for shard in shards:
        read = ("ZRANGEBYSCORE", shard.keys("schedules:due"), f"({start}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
        (reply,) = yield Read([read])
        found += (score / 1_000_000 for _, score in parse_scores(reply))
    return min(found, default=None)


def holder(shards: Shards, name: str) -> Operation[Commands]:
    """Return the shard of a schedule. If no shard has it, return the home shard, which reports it as unknown."""
    return next(iter((yield from _holders(shards, name))), shards.home)


def _holders(shards: Shards, name: str) -> Operation[list[Commands]]:
    if len(shards) == 1:
        return [shards.home]
    check_id(name, "a schedule's name")
    living = tuple(shards)
    known = yield Read([("HEXISTS", shard.keys("schedules"), name) for shard in living])
    holders = [shard for shard, is_there in zip(living, known, strict=True) if is_there]
    if not holders:
        shards.check_present(f"the schedule {name!r} can't be looked up")
    return holders
