"""Users of a queue: their weights, limits, rates, backlogs and pauses, and canceling their waiting tasks.

Each change acts at once, also on an existing backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from django_fairque.engine.inspection.pages import ResultPage, Sizes, sizes, user_names
from django_fairque.engine.inspection.task_lookup import Note, cancel_noting, count_canceled
from django_fairque.engine.model import durations as units
from django_fairque.engine.model.durations import MAX_EXACT_INTEGER, check_integer, now_us, positive_us
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_id, check_ids, check_text
from django_fairque.engine.model.pauses import RESUMED, Pause, PauseEnd, decode_pause, pause_fields, pause_values
from django_fairque.engine.model.plans import (
    check_limit_value,
    check_weight,
    explicit_limits,
    plan_name,
    rate_fields,
)
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, Commands, Fields, list_fields
from django_fairque.engine.scripting.operations import (
    Driver,
    Evaluate,
    Operation,
    Read,
    read_sound,
    read_users,
    users_record,
)
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.sharding.shards import Shards, sum_over_shards
from django_fairque.engine.statistics.queue_stats import LastHour, last_hour
from django_fairque.engine.users.history import USER_DAYS, USER_HOURS, UserHistory, history
from django_fairque.engine.users.report import REPORT_HOURS, UserReport, report

T = TypeVar("T")


@dataclass(frozen=True)
class UserStats:
    """One user's figures. Times are in seconds. Counts begin when the user was last forgotten (after an idle hour);
    ``last_hour`` covers the last sixty minutes.

    ``user_id`` is the user. These are its settings, None without a limit: ``weight`` (its share, 1 by default),
    ``max_running`` (tasks at once), ``max_backlog`` (waiting tasks), ``max_backlog_bytes``, ``rate`` (such as
    ``"100/60s"``), ``sla`` (seconds within which its tasks should start), ``paused``, ``organization`` (its name).
    ``organization_paused`` is whether the organization is paused.

    These are its figures: ``sizes`` (tasks now), ``started``, ``finished`` and ``dead`` (tasks), ``busy_seconds``
    (worker time), ``waited_seconds`` (waits of the tasks that started), ``expected_seconds`` (the mean run time; None
    if unknown).
    """

    user_id: str
    weight: float
    max_running: int | None
    max_backlog: int | None
    rate: str | None
    sla: float | None
    paused: bool
    sizes: Sizes
    started: int
    finished: int
    dead: int
    busy_seconds: float
    waited_seconds: float
    expected_seconds: float | None
    last_hour: LastHour
    """The user's usage in the last sixty minutes."""
    burst: int | None = None
    """The number of tasks that may start at once under the rate; None without a rate."""
    max_backlog_bytes: int | None = None
    backlog_bytes: int = 0
    """The number of bytes of the tasks that have not ended. Only tasks that were pushed while there was a limit on
    bytes count."""
    organization: str | None = None
    organization_weight: float = 1.0
    """The weight of the user's organization among users and other organizations. `weight` is then the user's weight
    among the members."""
    organization_paused: bool = False
    organization_is_full: bool = False
    """Whether the user's organization runs as many tasks as it may at once, on this user's shard."""
    held_by: str | None = None
    """The reason why none of the user's ready tasks can start, a key of `HOLD_REASONS`; None if they can."""
    waiting: int = 0
    """The number of ready tasks that nothing holds back: they wait for a worker, and for their turn."""
    pause: Pause | None = None
    """The note and the end of the user's pause; None unless it is paused."""
    plan: str | None = None
    """The name of the user's plan in the setting ``PLANS``; None for no plan."""
    explicit: tuple[str, ...] = ()
    """Settings that calls have set while the user had a plan, such as "weight" and "plan". No plan changes these
    settings."""


HOLD_REASONS = {
    "queue_paused": "the queue is paused",
    "user_paused": "the user is paused",
    "organization_paused": "the user's organization is paused",
    "throttled": "the user has used up its rate",
    "capped": "the user runs as many tasks as it may",
    "organization_capped": "the user's organization runs as many tasks as it may",
}
"""The reasons that hold a user's ready tasks back."""


def hold_reason(
    user: Mapping[bytes, bytes], organization: Mapping[bytes, bytes] | None, *, is_queue_paused: bool
) -> str | None:
    """Return the reason that holds back all of a user's tasks, a key of `HOLD_REASONS`; None if nothing does.

    ``user`` and ``organization`` are the records of the user and its organization. A user may have one urgent task more
    than its ``max_running``.
    """
    organization = organization or {}
    holds = {
        "queue_paused": is_queue_paused,
        "user_paused": b"paused" in user,
        "organization_paused": b"paused" in organization,
        "throttled": b"held" in user,
        "capped": _is_full(user, int(units.number(user.get(b"ready:7")) > 0)),
        "organization_capped": _is_full(organization),
    }
    return next((reason for reason, is_held in holds.items() if is_held), None)


def _is_full(record: Mapping[bytes, bytes], more: int = 0) -> bool:
    return b"cap" in record and units.number(record.get(b"run")) >= units.number(record[b"cap"]) + more


def change(
    commands: Commands, user_id: str, fields: dict[str, object], now: float | None, expected: Fields | None = None
) -> Operation[bool]:
    reply: int = yield commands.call("user", [user_id, *list_fields(fields), *list_fields(expected)], now)
    return reply == 1


_SETTINGS = (
    *("weight", "plan", "organization", "max_running"),
    *("rate", "burst", "sla", "max_backlog", "max_backlog_bytes"),
)


def record_change(commands: Commands, user_id: str, act: str, steps: Operation[T]) -> Operation[T]:
    """Change the user's settings, and record the act."""
    return record_act(Act(commands.name, act, "user", user_id), steps, partial(_read_settings, commands, user_id))


def _read_settings(commands: Commands, user_id: str) -> Operation[Values]:
    (user,) = yield from read_users([commands.keys.user(user_id)])
    stats = _stats(user_id, user, 0)
    return {**pause_values(stats.pause), **{name: getattr(stats, name) for name in _SETTINGS}}


def set_plan(commands: Commands, user_id: str, name: str | None, now: float | None) -> Operation[None]:
    """Give the user a plan that stays until the next call. With None, give it its usual plan, and remove its own
    limits.
    """
    plans = commands.config.plans
    if name is None:
        found = (yield Evaluate(partial(plans.look_up, [user_id]), plans.in_thread)) if plans else {}
        yield from change(commands, user_id, {"explicit": "", "plan": found.get(user_id, [""])[0] or ""}, now)
    elif plans is None:
        raise TaskValidationError(f"there is no plan {short(name)}: the setting PLANS is empty")
    else:
        yield from change(commands, user_id, {"chosen_plan": plans.get_text(name)}, now)


def user_report(commands: Commands, user_id: str, hours: int, now: float | None) -> Operation[UserReport]:
    (stats,) = yield from users_stats(commands, [user_id], now)
    found = yield from report(commands, user_id, hours, now)
    return replace(found, ready=stats.sizes.ready, held_by=stats.held_by)


def is_known(commands: Commands, user_id: str) -> Operation[bool]:
    (count,) = yield Read([("EXISTS", commands.keys.user(user_id))])
    return bool(count)


def user_stats(shards: Shards, user_ids: Sequence[str], now: float | None) -> Operation[list[UserStats]]:
    return (yield from users_stats(shards.route_names(), check_ids(user_ids, "user ids"), now))


def users_stats(commands: Commands, user_ids: Sequence[str], now: float | None = None) -> Operation[list[UserStats]]:
    if not user_ids:
        return []
    reads = [("GET", commands.keys.user(user)) for user in user_ids]
    # Use the engine's time, which never goes back.
    time, (clock, paused), *texts = yield from read_sound(
        [("TIME",), ("HMGET", commands.keys.of_user(user_ids[0])("stats"), "clock", "paused"), *reads]
    )
    moment = now_us(now) if now is not None else int(time[0]) * 1_000_000 + int(time[1])
    at = max(moment, int(clock or 0))
    records = {user: users_record(text) for user, text in zip(user_ids, texts, strict=True)}
    keys = {
        user: commands.keys.of_user(user).organization(record[b"group"].decode())
        for user, record in records.items()
        if b"group" in record
    }
    names = list(dict.fromkeys(keys.values()))
    organizations = dict(zip(names, (yield from read_sound([("HGETALL", name) for name in names])), strict=True))
    found = []
    for user, record in records.items():
        organization = organizations[keys[user]] if user in keys else None
        reason = hold_reason(record, organization, is_queue_paused=units.number(paused) != 0)
        found.append(_stats(user, record, at, organization or {}, reason))
    return found


def users_with(
    shards: Shards, field: str, is_wanted: Callable[[bytes], bool], cursor: str | None, limit: int
) -> Operation[ResultPage[str]]:
    """Return the users on a page of the queue's users whose record has a wanted value in a field, in one more round trip."""
    users = yield from user_names(shards, cursor, limit, busy_first=True)
    keys = shards.route_names().keys
    records = yield from read_users([keys.user(name) for name in users.items])
    items = [
        name
        for name, record in zip(users.items, records, strict=True)
        if field.encode() in record and is_wanted(record[field.encode()])
    ]
    return ResultPage(items, users.cursor, users.missing_shards)


def users_of_plan(shards: Shards, plan: str, cursor: str | None, limit: int) -> Operation[ResultPage[str]]:
    name = check_text(plan, "plan").encode()
    return (yield from users_with(shards, "plan", lambda text: text.partition(b" ")[0] == name, cursor, limit))


def _stats(
    user_id: str,
    record: Mapping[bytes, bytes],
    now_us: int,
    organization: Mapping[bytes, bytes] = MappingProxyType({}),
    held_by: str | None = None,
) -> UserStats:
    def number(field: str) -> float:
        return units.number(record.get(field.encode()))

    rate, found = None, sizes(record)
    if b"gap" in record:
        rate = f"{number('rate'):.0f}/{number('rate') * number('gap') / 1e6:.0f}s"
    return UserStats(
        user_id=user_id,
        weight=number("weight") or 1.0,
        max_running=int(number("cap")) or None,
        max_backlog=int(number("backlog")) or None,
        max_backlog_bytes=int(number("max_bytes")) or None,
        backlog_bytes=int(number("bytes")),
        sla=number("sla") / 1_000_000 or None,
        rate=rate,
        burst=int(number("burst")) or 1 if rate else None,
        paused=b"paused" in record,
        pause=decode_pause(record),
        plan=plan_name(record),
        explicit=explicit_limits(record),
        sizes=found,
        started=int(number("started")),
        finished=int(number("finished")),
        dead=int(number("failed")),
        busy_seconds=number("busy") / 1e6,
        waited_seconds=number("waited") / 1e6,
        expected_seconds=number("mean") / 1e6 if b"mean" in record else None,
        last_hour=last_hour(record, now_us),
        organization=record[b"group"].decode() if b"group" in record else None,
        organization_weight=units.number(organization.get(b"weight"), 1.0),
        organization_paused=b"paused" in organization,
        organization_is_full=_is_full(organization),
        held_by=held_by,
        waiting=0 if held_by else found.ready,
    )


MAX_ENDED_TASKS_EXAMINED = 1000
"""The number of newest ended tasks of all users in which the tasks of one user are searched."""
_ENDED_STATES = ("finished", "failed", "canceled")


@dataclass(frozen=True)
class EndedTask:
    """A task that has ended: its ``task_id``, ``name`` and ``state`` (finished, failed: a dead letter, or canceled).

    ``started_at`` and ``ended_at`` are Unix times; ``started_at`` is the time of the last start, None if it never
    started.
    """

    task_id: str
    name: str
    state: str
    started_at: float | None
    ended_at: float


@dataclass(frozen=True)
class EndedTasks:
    """The ``tasks`` of one user that ended last, the latest first, among the newest ``examined`` ended tasks of its shard.

    ``is_whole`` is whether these are all ended tasks of the user that are kept.
    """

    tasks: list[EndedTask]
    examined: int
    is_whole: bool


def ended_tasks(commands: Commands, user_id: str, examined: int) -> Operation[EndedTasks]:
    """Return a user's tasks among the newest ended tasks, of which equally many are examined in each ended state."""
    check_integer(examined, "examined", len(_ENDED_STATES), MAX_ENDED_TASKS_EXAMINED)
    keys, part = commands.keys, examined // len(_ENDED_STATES)
    registries = [keys.state(state) for state in _ENDED_STATES]
    found = yield Read([*(("ZRANGE", key, -part, -1) for key in registries), *(("ZCARD", key) for key in registries)])
    ids = [task_id.decode() for some in found[: len(registries)] for task_id in some]
    fields = ("user", "name", "state", "started", "ended")
    records = yield from read_task_fields(keys, ids, *fields)
    tasks = [
        EndedTask(task_id, (name or b"").decode(), state.decode(), units.seconds(started), units.number(ended) / 1e6)
        for task_id, (user, name, state, started, ended) in zip(ids, records, strict=True)
        if user == user_id.encode() and state is not None and state.decode() in _ENDED_STATES
    ]
    tasks.sort(key=lambda task: task.ended_at, reverse=True)
    return EndedTasks(tasks, len(ids), len(ids) == sum(map(int, found[len(registries) :])))


class UserQueue:
    """One user of one queue, returned by ``queue.user(user_id)``. Most methods take ``now``, as the methods of the
    queue do.

    Changes act at once, also on waiting tasks, and last until the next change, even if the user has no tasks. Methods
    raise `TaskValidationError` if a value is out of range.
    """

    def __init__(self, commands: Commands, run: Driver, user_id: str) -> None:
        self.user_id = check_id(user_id, "user_id")
        self._commands, self._run = commands, run

    def _change(self, act: str, fields: dict[str, object], now: float | None) -> None:
        steps = change(self._commands, self.user_id, fields, now)
        self._run(record_change(self._commands, self.user_id, act, steps))

    def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change fields of the user's record if others have the expected values, in one call. For `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are those of ``lua/commands/user.lua``. Returns whether
        the values were the expected ones.
        """
        steps = change(self._commands, self.user_id, {**fields}, now, expected)
        return self._run(record_change(self._commands, self.user_id, act, steps))

    def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Start none of the user's tasks. Pushes go on, and running tasks end.

        ``note`` is a text of at most 200 characters that is shown with the pause; empty by default. ``until`` is the
        moment at which the pause ends by itself, by the server's clock: a Unix time, an aware datetime, or a timedelta
        from now. None, the default, is for no end. A later pause replaces the note and the end.
        """
        self._change("pause", pause_fields(note, until, now), now)

    def resume(self, *, now: float | None = None) -> None:
        """Start the user's tasks again."""
        self._change("resume", {**RESUMED}, now)

    def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """Set the user's share: ``weight`` times that of a user of weight 1, from 0.001 to 1000."""
        self._change("weight", {"weight": check_weight(weight)}, now)

    def set_plan(self, plan: str | None, *, now: float | None = None) -> None:
        """Give the user a plan of the setting ``PLANS``, whatever ``PLAN_OF`` returns for it.

        ``plan`` is its name; the user gets the values of this plan in the settings of this process. With None, the user
        gets the plan that ``PLAN_OF`` returns, and loses the limits that other ``set_…`` methods have set.
        """
        steps = set_plan(self._commands, self.user_id, plan, now)
        self._run(record_change(self._commands, self.user_id, "plan", steps))

    def set_organization(self, organization: str | None, *, now: float | None = None) -> None:
        """Make the user a member of an organization (`FairQueue.organization`), with all its tasks.

        ``organization`` is the organization's name; None for no organization. The members together get as much as one
        user of the organization's weight.
        """
        name = "" if organization is None else check_id(organization, "organization")
        self._change("organization", {"group": name}, now)

    def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks run at once.

        ``number`` is from 1 to 1,000,000; None for no limit.
        """
        self._change("limits", {"cap": check_limit_value("max_running", number)}, now)

    def set_rate(self, rate: str | None, *, burst: int = 1, now: float | None = None) -> None:
        """Limit how many tasks start per unit of time.

        ``rate`` is a number of tasks per s, m, h or d (``"100/m"``, ``"5/10s"``); None for no limit. ``burst`` is how
        many tasks may start at once after a pause, from 1 (the default) to 1,000,000. With 1 they start at equal
        distances.

        In any period of the unit's length, at most the rate plus ``burst`` tasks start. A new rate keeps the used part
        of the last rate. A task starts when a worker fetches it.
        """
        self._change("limits", rate_fields(rate, burst), now)

    def set_sla(self, seconds: float | None, *, now: float | None = None) -> None:
        """Set within how many seconds this user's tasks should start.

        ``seconds`` replaces the value of their priority; None restores that value. The value applies to tasks that
        become ready from now on; a task's own ``sla`` takes precedence.
        """
        self._change("limits", {"sla": "" if seconds is None else positive_us(seconds, "sla")}, now)

    def set_max_backlog(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks may wait: further pushes are refused (`FairQueue.push` raises `BacklogFullError`).

        ``number`` is from 1 to 1,000,000,000; None for the queue's default (``max_backlog``).
        """
        self._change("limits", {"backlog": check_limit_value("max_backlog", number)}, now)

    def set_max_backlog_bytes(self, number: int | None, *, now: float | None = None) -> None:
        """Limit the bytes of tasks that have not ended: further pushes are refused (`FairQueue.push` raises
        `BacklogFullError`).

        ``number`` is the bytes, from 1 to 10^15; None for the queue's default (``max_backlog_bytes``). A task counts
        with its payload and 500 bytes. Tasks that were pushed before there was a limit do not count.
        """
        self._change("limits", {"max_bytes": check_limit_value("max_backlog_bytes", number)}, now)

    def purge(self, limit: int | None = None, *, note: Note = None, now: float | None = None) -> int:
        """Cancel the user's waiting tasks. Running tasks go on.

        ``limit`` is the largest number of tasks, from 1; all by default. ``note``, if given, is called after each
        slice with the ids of the tasks that it canceled.

        Returns how many tasks were canceled. Raises `TaskValidationError` if ``limit`` is not a whole number from 1.
        """
        return self._run(purge_user(self._commands, self.user_id, limit, note, now))

    def is_known(self) -> bool:
        """Return whether the queue has a record of the user: it has tasks, had some within the last hour, or has settings."""
        return self._run(is_known(self._commands, self.user_id))

    def ended_tasks(self, examined: int = MAX_ENDED_TASKS_EXAMINED) -> EndedTasks:
        """Return the user's tasks that ended last, without payloads and results.

        ``examined`` is how many of the newest ended tasks of all users are examined, from 3 to 1000 (the default), in
        equal parts finished tasks, dead letters and canceled tasks. A requeued dead letter has not ended.
        """
        return self._run(ended_tasks(self._commands, self.user_id, examined))

    def history(self, hours: int = USER_HOURS, days: int = USER_DAYS, *, now: float | None = None) -> UserHistory:
        """Return the user's figures by hour and by day, also after the user was forgotten.

        ``hours`` is the number of hours by the clock, up to 48 (the default), and ``days`` the number of days in UTC, up to
        35 (the default). Both include the present one, and are at least 1.
        """
        return self._run(history(self._commands, self.user_id, hours, days, now))

    def report(self, hours: int = REPORT_HOURS, *, now: float | None = None) -> UserReport:
        """Return the user's figures by hour and by day, and its dead letters of the last hours by error, for a customer report.

        ``hours`` is the number of hours by the clock that are added up and whose errors are grouped, from 1 to 48; 2 by
        default: the present hour and the previous hour. The errors are of dead letters that are kept. Raises
        `TaskValidationError` if ``hours`` is out of range.
        """
        return self._run(user_report(self._commands, self.user_id, hours, now))

    def stats(self, *, now: float | None = None) -> UserStats:
        """Return the user's figures, settings and limits now."""
        return self._run(users_stats(self._commands, [self.user_id], now))[0]


TASKS_PURGED_PER_CALL = min(500, MAX_CALL_ITEMS)
"""The number of tasks that one script call cancels, which takes some 10 ms of the server's time."""

NOT_READY_COUNTERS = {"deferred": "deferred", "scheduled": "sched"}
"""States of tasks that wait for other tasks or for their time, and the field of a user's record that counts them. These
states are purged first, because their tasks may become ready meanwhile.
"""


def purge(shards: Shards, limit: int, note: Note, now: float | None) -> Operation[int]:
    """Cancel waiting tasks, at most ``limit``; return the number of canceled tasks. Raises `TaskValidationError` if
    ``limit`` is below 1.
    """

    def cancel(commands: Commands, left: int | None) -> Operation[int]:
        most = check_integer(left, "limit", 1)
        total = 0
        for state in (*NOT_READY_COUNTERS, "queued"):
            index = 0
            while total < most:
                last = index + min(TASKS_PURGED_PER_CALL, most - total) - 1
                (ids,) = yield Read([("ZRANGE", commands.keys.state(state), index, last)])
                if not ids:
                    break
                done = yield from _cancel_tasks(commands, ids, note, now)
                total += done
                index += len(ids) - done
        return total

    def read_waiting() -> Operation[Values]:
        keys = [shard.keys.state(state) for shard in shards for state in (*NOT_READY_COUNTERS, "queued")]
        return {"waiting": sum((yield Read([("ZCARD", key) for key in keys])))}

    steps = sum_over_shards(shards, cancel, "tasks were canceled", limit)
    return (yield from record_act(Act(shards.name, "purge", "queue"), steps, read_waiting, count_canceled))


def purge_user(commands: Commands, user_id: str, limit: int | None, note: Note, now: float | None) -> Operation[int]:
    """Cancel the waiting tasks of one user, as `purge` does: at most ``limit`` tasks, or all."""

    def read_waiting() -> Operation[Values]:
        (user,) = yield from read_users([commands.keys.user(user_id)])
        found = sizes(user)
        return {"waiting": found.total - found.running}

    act, steps = Act(commands.name, "purge", "user", user_id), _purge_user(commands, user_id, limit, note, now)
    return (yield from record_act(act, steps, read_waiting, count_canceled))


def _purge_user(commands: Commands, user_id: str, limit: int | None, note: Note, now: float | None) -> Operation[int]:
    limit = check_integer(MAX_EXACT_INTEGER if limit is None else limit, "limit", 1)
    total = 0
    for state, counter in NOT_READY_COUNTERS.items():
        while total < limit and (yield from _read_counter(commands, user_id, counter)):
            done = yield from _cancel_in_registry(commands, state, user_id, limit - total, note, now)
            if not done:
                break
            total += done
    total += yield from _purge_ready(commands, user_id, limit - total, note, now)
    if total < limit and (yield from _read_counter(commands, user_id, "limited")):
        total += yield from _purge_limited(commands, user_id, limit - total, note, now)
    return total


def _read_counter(commands: Commands, user_id: str, counter: str) -> Operation[int]:
    (record,) = yield from read_users([commands.keys.user(user_id)])
    return int(units.number(record.get(counter.encode())))


def _cancel_in_registry(
    commands: Commands, state: str, user_id: str, limit: int, note: Note, now: float | None
) -> Operation[int]:
    """Cancel a user's tasks in a registry of all users, in one pass. Stop when the user has none left.

    Canceling a task also cancels its dependents, so other tasks may move to indexes that were already read.
    """
    keys, user = commands.keys, user_id.encode()
    index = total = 0
    while total < limit:
        (ids,) = yield Read([("ZRANGE", keys.state(state), index, index + TASKS_PURGED_PER_CALL - 1)])
        if not ids:
            break
        owners = yield from read_task_fields(keys, [task_id.decode() for task_id in ids], "user")
        places = [place for place, (owner,) in enumerate(owners) if owner == user][: limit - total]
        looked_at = places[-1] + 1 if len(places) == limit - total else len(ids)
        done = 0
        if places:
            done = yield from _cancel_tasks(commands, [ids[place] for place in places], note, now)
            total += done
            if not (yield from _read_counter(commands, user_id, NOT_READY_COUNTERS[state])):
                break
        index += looked_at - done
    return total


def _purge_ready(commands: Commands, user_id: str, limit: int, note: Note, now: float | None) -> Operation[int]:
    keys, total = commands.keys, 0
    while total < limit:
        last = min(TASKS_PURGED_PER_CALL, limit - total) - 1
        reads = [("LRANGE", keys.critical(user_id), 0, last), ("ZRANGE", keys.normal(user_id), 0, last)]
        critical, normal = yield Read(reads)
        ids = [*critical, *normal][: last + 1]
        done = (yield from _cancel_tasks(commands, ids, note, now)) if ids else 0
        if not done:
            break
        total += done
    return total


def _purge_limited(commands: Commands, user_id: str, limit: int, note: Note, now: float | None) -> Operation[int]:
    """Cancel a user's tasks that wait at limits by key, page by page of the limits with waiting tasks."""
    keys, total, index = commands.keys, 0, 0
    while total < limit:
        (names,) = yield Read([("ZRANGE", keys("limits"), index, index + TASKS_PURGED_PER_CALL - 1)])
        if not names:
            break
        last = min(TASKS_PURGED_PER_CALL, limit - total)
        queues = yield Read([("ZRANGE", keys.limit_queue(name.decode(), user_id), 0, last - 1) for name in names])
        ids = [task_id for queue in queues for task_id in queue][:last]
        done = (yield from _cancel_tasks(commands, ids, note, now)) if ids else 0
        total += done
        index += 0 if done else len(names)
    return total


def _cancel_tasks(commands: Commands, ids: list[bytes], note: Note, now: float | None) -> Operation[int]:
    return len((yield from cancel_noting(commands, [task_id.decode() for task_id in ids], "purged", note, now)))
