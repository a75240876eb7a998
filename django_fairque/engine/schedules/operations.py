"""Recurring work: schedules kept in Redis, each instant fired once among any number of workers."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.ids import check_id, new_nonce
from django_fairque.engine.model.signature import seal
from django_fairque.engine.pushing.push import push, push_args
from django_fairque.engine.schedules.schedule import Fired, LastFired, Schedule, create, template_of
from django_fairque.engine.scripting.operations import Read, Steps, scored

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.schedule import Template
    from django_fairque.engine.scripting.commands import Commands

MOST = 1000
"""Schedules of one queue."""
ATTEMPTS = 20


def add(
    commands: Commands, name: str, task: Task | Template, options: dict[str, Any], now: float | None
) -> Steps[Schedule]:
    moment = yield from server_time(now)
    schedule = _sealed(commands, create(name, task, moment, options))
    for _ in range(ATTEMPTS):
        known = yield from _find(commands, name)
        if known is not None and schedule.every == known.every and "start" not in options:
            schedule = replace(schedule, start=known.start)  # counted on from where it was
        if known is None and (yield from count(commands)) >= MOST:
            raise too_many(commands)
        following = None
        if schedule.enabled:
            same = known is not None and known.enabled and known.timing == schedule.timing
            following = known.next_at if same and known is not None else schedule.timing.following(moment)
        if (yield from _set(commands, known, schedule, following, now)):
            return (yield from get(commands, name))
    raise _busy(name)


def too_many(commands: Commands) -> TaskValidationError:
    return TaskValidationError(f"queue {commands.name!r} has {MOST} schedules already; remove some")


def set_enabled(commands: Commands, name: str, *, enabled: bool, now: float | None) -> Steps[None]:
    moment = yield from server_time(now)
    for _ in range(ATTEMPTS):
        known = yield from get(commands, name)
        if known.enabled is enabled:
            return
        following = known.timing.following(moment) if enabled else None
        if (yield from _set(commands, known, replace(known, enabled=enabled), following, now)):
            return
    raise _busy(name)


def sign(commands: Commands, name: str, now: float | None) -> Steps[None]:
    for _ in range(ATTEMPTS):
        known = yield from get(commands, name)
        if (yield from _set(commands, known, _sealed(commands, known), known.next_at, now)):
            return
    raise _busy(name)


def remove(commands: Commands, name: str, now: float | None) -> Steps[bool]:
    args = ["remove", check_id(name, "a schedule's name"), "*", "", ""]
    removed = yield commands.call("schedule", args, now, reply=new_nonce())
    return bool(removed)


def run_now(commands: Commands, name: str, now: float | None) -> Steps[str]:
    schedule = yield from get(commands, name)
    instant = None if schedule.expires is None else (yield from server_time(now))
    result = yield from push(commands, schedule.make_task(None, instant), now)
    return result.task_id


def get(commands: Commands, name: str) -> Steps[Schedule]:
    found = yield from _find(commands, check_id(name, "a schedule's name"))
    if found is None:
        raise TaskNotFoundError(f"queue {commands.name!r} has no schedule {name!r}")
    return found


def list_all(commands: Commands) -> Steps[list[Schedule]]:
    keys = commands.keys
    definitions, due, last = yield Read(
        [
            ("HGETALL", keys("schedules")),
            ("ZRANGE", keys("schedules:due"), 0, -1, "WITHSCORES"),
            ("HGETALL", keys("schedules:last")),
        ]
    )
    moments = dict(scored(due))
    return [
        _schedule(name.decode(), definition, moments.get(name), last.get(name))
        for name, definition in sorted(definitions.items())
    ]


def count(commands: Commands) -> Steps[int]:
    (number,) = yield Read([("HLEN", commands.keys("schedules"))])
    return int(number)


def fire_due(commands: Commands, limit: int, now: float | None) -> Steps[list[Fired]]:
    """Fire due schedules, at most ``limit`` times; a schedule that another process is firing is left to it.

    Due schedules take turns, so that one with many missed run times does not delay the others. One that can't be fired now
    stays due, and does not count towards ``limit``.
    """
    moment = yield from server_time(now)
    read = ("ZRANGEBYSCORE", commands.keys("schedules:due"), "-inf", to_us(moment), "LIMIT", 0, MOST)
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


def next_due(commands: Commands, after: float) -> Steps[float | None]:
    read = ("ZRANGEBYSCORE", commands.keys("schedules:due"), f"({to_us(after)}", "+inf", "WITHSCORES", "LIMIT", 0, 1)
    (found,) = yield Read([read])
    return next((score / 1_000_000 for _, score in scored(found)), None)


def _fire(commands: Commands, schedule: Schedule, moment: float, now: float | None) -> Steps[Fired | None]:
    """One firing, or one step over instants that were missed; None if somebody else was faster."""
    assert schedule.next_at is not None  # noqa: S101 - it is due
    instant, timing = schedule.next_at, schedule.timing
    is_fired = True
    if moment - instant > schedule.grace and schedule.missed != "all":
        instant = timing.last_until(moment - schedule.grace - 1e-6, instant)  # what is late by the grace is not missed
        is_fired = schedule.missed == "one"
    following = timing.following(instant)
    tasks: list[Task] = []
    pushed, error = push_args(commands, tasks), ""
    if is_fired:
        try:
            made = schedule.make_task(f"schedule:{schedule.name}:{to_us(instant)}", instant)
            pushed, tasks = push_args(commands, [made]), [made]
        except TaskValidationError as invalid:  # of a limit that was lowered, for example
            error = str(invalid)
    last = json.dumps([instant, moment, tasks[0].task_id]) if tasks else ""
    args = [
        *(
            schedule.name,
            schedule.stored,
            to_us(schedule.next_at),
            "" if following is None else to_us(following),
            last,
        ),
        *pushed,
    ]
    code = yield commands.call("fire", args, now, reply=new_nonce())
    if not code:
        return None
    task_id = tasks[0].task_id if tasks and code == 1 else ""
    return Fired(schedule.name, instant, task_id, is_refused=code == 2, error=error)


def _set(
    commands: Commands, known: Schedule | None, schedule: Schedule, following: float | None, now: float | None
) -> Steps[bool]:
    expected = b"" if known is None else known.stored
    args = ["set", schedule.name, expected, schedule.to_json(), "" if following is None else to_us(following)]
    done = yield commands.call("schedule", args, now, reply=new_nonce())
    return bool(done)


def _sealed(commands: Commands, schedule: Schedule) -> Schedule:
    return replace(schedule, seal=seal(schedule.envelope(commands.config.prefix, commands.name)).decode())


def _find(commands: Commands, name: str) -> Steps[Schedule | None]:
    keys = commands.keys
    definition, due, last = yield Read(
        [
            ("HGET", keys("schedules"), name),
            ("ZSCORE", keys("schedules:due"), name),
            ("HGET", keys("schedules:last"), name),
        ]
    )
    return None if definition is None else _schedule(name, definition, due, last)


def _schedule(name: str, definition: bytes, due: Any, last: bytes | None) -> Schedule:
    known = {key: value for key, value in json.loads(definition).items() if key in Schedule.__dataclass_fields__}
    return Schedule(
        name,
        **known,
        stored=definition,
        next_at=None if due is None else float(due) / 1_000_000,
        last=None if last is None else LastFired(*json.loads(last)),
    )


def _busy(name: str) -> TaskValidationError:
    return TaskValidationError(f"schedule {name!r} is being changed by somebody else all the time; try again")


def user_of(task: Task | Template) -> str:
    """Whose task a schedule would push."""
    return str(template_of(task)["user_id"])
