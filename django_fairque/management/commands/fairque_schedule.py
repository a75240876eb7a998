"""``manage.py fairque_schedule``: shows schedules, changes them, and runs them now."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_fairque.engine.model.errors import FairQueueError, short
from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.schedules.declarations import display_version
from django_fairque.engine.schedules.due_times import find_zone
from django_fairque.engine.schedules.forecast import FORECAST_HOURS
from django_fairque.engine.schedules.schedule_ops import CATCH_UP_SECONDS, OVERLAP_POLICIES
from django_fairque.management.base import Parser, QueueCommand, add_pause_options, pause_options, positive
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import duration, pluralize, rounded_time, table
from django_fairque.monitoring.report import differing_declarations, pause_suffix
from django_fairque.tasks.schedules import DeclaredSchedules, make_step

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.schedules.forecast import Forecast
    from django_fairque.engine.schedules.schedule_ops import Schedule, ScheduleRun

    RunRow = tuple[Schedule, ScheduleRun, Task | None]


class Command(QueueCommand):
    steers = True
    help = (
        "List a queue's schedules, add or remove one, pause or resume one, run one now, see when it is due and what became of "
        "its latest runs, and the next 24 hours of all; make the declared ones of this code count."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every schedule: when, what, next and last")
        SCHEDULE_LIST.add_options(listing)
        named = {"name": "what the schedule is called"}
        add = add_action("add", "add a schedule, or change the one of this name", **named).add_argument
        add("--task", required=True, help="the name of a registered task")
        add("--cron", help="minute hour day-of-month month day-of-week")
        add("--every", type=float, metavar="SECONDS", help="instead of --cron")
        add("--timezone", help="the zone of --cron (default: the project's TIME_ZONE)")
        add("--user", help="the user that each run is for")
        add("--priority", choices=[priority.name for priority in Priority], help="of each run (default: the task's)")
        add("--lane", choices=LANES, help="of each run (default: the task's)")
        add("--args", dest="task_args", default="[]", metavar="JSON", help="a list of arguments")
        add("--kwargs", dest="task_kwargs", default="{}", metavar="JSON", help="an object of arguments")
        missed = "what becomes of run times that were missed (default: %(default)s)"
        add("--missed", default="skip", choices=("skip", "one", "all"), help=missed)
        late = "how late a run time may be without being missed (default: %(default)s)"
        add("--catch-up", type=float, default=CATCH_UP_SECONDS, metavar="SECONDS", help=late)
        overlap = "what becomes of a run if the task of the one before has not ended (default: %(default)s)"
        add("--overlap", default="allow", choices=OVERLAP_POLICIES, help=overlap)
        jitter = "start the task of each run later by a part of this time (default: none)"
        add("--jitter", type=float, default=0, metavar="SECONDS", help=jitter)
        expires = "from each run time until its task is dead if it has not started (default: the task's)"
        add("--expires", type=float, metavar="SECONDS", help=expires)
        add_action("remove", "forget it", **named)
        add_pause_options(add_action("pause", "send nothing at its run times", **named))
        add_action("resume", "end its pause", **named)
        adopt = "make the schedules of this project's settings count, whichever version of them was deployed last"
        add_action("adopt", adopt)
        add_action("run", "send its task now, in addition to its run times", **named)
        add_action("sign", "sign what it sends, as it is now: look at it first", **named)
        RUN_LIST.add_options(add_action("runs", "what became of its latest runs", **named))
        add = add_action("next", "when it is due next", **named).add_argument
        add(
            "-n",
            "--limit",
            dest="n",
            type=positive,
            default=5,
            metavar="N",
            help="how many run times (default: %(default)s)",
        )
        upcoming = add_action("upcoming", "the runs of all schedules in the next hours, and which run at the same time")
        hours = "from 1 to 48 (default: %(default)s)"
        upcoming.add_argument("--hours", type=positive, default=FORECAST_HOURS, metavar="N", help=hours)
        upcoming.add_argument("--json", action="store_true", help="as one JSON object")

    def _remove(self) -> Iterator[str]:
        name = self.options["name"]
        if not self.queue.schedules.remove(name):
            raise ValueError(f"queue {self.queue.name!r} has no schedule {name!r}")
        yield f"{name}: removed"

    def _adopt(self) -> Iterator[str]:
        declared = DeclaredSchedules()
        declared.adopt(self.queue.name)
        yield f"queue {self.queue.name!r}: the declared schedules of version {display_version(declared.version)} are in force"

    def _run(self) -> Iterator[str]:
        yield f"{self.options['name']}: task {self.queue.schedules.run_now(self.options['name'])} sent"

    def _change(self) -> Iterator[str]:
        action, name, schedules = self.options["action"], self.options["name"], self.queue.schedules
        getattr(schedules, action)(name, **(pause_options(self.options) if action == "pause" else {}))
        schedule = schedules.get(name)
        done = {"pause": _paused(schedule), "resume": "resumed", "sign": "signed"}[action]
        yield f"{name}: {done}, next {_local(schedule.next_at, schedule)}"

    _pause = _resume = _sign = _change

    def _add(self) -> Iterator[str]:
        options = self.options
        args, kwargs = _json(options["task_args"], list), _json(options["task_kwargs"], dict)
        schedule = self.queue.schedules.add(
            options["name"],
            task=make_step(
                *(options["task"], args, kwargs, self.queue.name),
                *(options["user"], options["priority"], options["lane"]),
            ),
            cron=options["cron"],
            every=options["every"],
            timezone=options["timezone"] or timezone.get_default_timezone_name(),
            **{name: options[name] for name in ("missed", "catch_up", "overlap", "jitter")},
            source="command",
            **({} if options["expires"] is None else {"expires": options["expires"]}),
        )
        yield f"{options['name']}: {schedule.when}, next {_local(schedule.next_at, schedule)}"

    def _list(self) -> Iterator[str]:
        found = self.queue.schedules.list()
        if self.options["json"]:
            return SCHEDULE_LIST.lines(found, self.options)
        lines = SCHEDULE_LIST.lines(found, self.options) if found else [f"queue {self.queue.name!r} has no schedules"]
        return chain(lines, differing_declarations(self.queue))

    def _runs(self) -> Iterator[str]:
        schedule = self.queue.schedules.get(self.options["name"])
        tasks = self.queue.get_tasks([run.task_id for run in schedule.runs if run.task_id])
        rows = [(schedule, run, tasks.get(run.task_id)) for run in schedule.runs]
        return RUN_LIST.lines(rows, self.options)

    def _next(self) -> Iterator[str]:
        schedule = self.queue.schedules.get(self.options["name"])
        for run_time in schedule.iterate_next_runs(timezone.now().timestamp(), self.options["n"]):
            yield _local(run_time, schedule)

    def _upcoming(self) -> Iterator[str]:
        found = self.queue.schedules.upcoming(self.options["hours"])
        if self.options["json"]:
            return iter([json.dumps(_forecast_fields(found))])
        return _forecast_lines(found)


def _local(moment: float | None, schedule: Schedule) -> str:
    """Format a time in the schedule's own time zone, with its offset from UTC."""
    if moment is None:
        return "never"
    return f"{datetime.fromtimestamp(moment, find_zone(schedule.timezone)):%Y-%m-%d %H:%M:%S%z}"


def _clock(moment: float) -> str:
    """Format a time in the project's time zone, with its offset from UTC."""
    return f"{datetime.fromtimestamp(moment, timezone.get_default_timezone()):%Y-%m-%d %H:%M:%S%z}"


def _forecast_lines(found: Forecast) -> Iterator[str]:
    slots = f"{pluralize(found.slots, 'slot')} of running workers" if found.slots else "no worker runs"
    yield f"from {_clock(found.begin)} to {_clock(found.end)}, {slots}"
    overlaps = Counter(name for span in found.overlaps for name in span.names)
    rows: list[tuple[str, ...]] = [("schedule", "runs", "next", "takes", "overlaps")]
    for plan in found.schedules:
        following = "-" if plan.first is None else _local(plan.first, plan.schedule)
        rows.append(
            (
                plan.schedule.name,
                f"{plan.count:,}",
                _paused(plan.schedule) or following,
                "-" if plan.expected is None else duration(rounded_time(plan.expected)),
                "-" if plan.is_frequent else f"{overlaps[plan.schedule.name]:,}",
            )
        )
    if found.schedules:
        yield from table(rows, "<")
    for spans, text in ((found.overlaps, "runs overlap"), (found.overloads, f"runs for {slots}")):
        for span in spans:
            yield f"! {_clock(span.begin)} to {_clock(span.end)}: {span.runs:,} {text}: {', '.join(span.names)}"
    for begin, count in found.scheduled:
        if count:
            yield f"{_clock(begin)}: {pluralize(count, 'scheduled task')} in this hour"


def _forecast_fields(found: Forecast) -> dict[str, Any]:
    schedules = [
        {
            "name": plan.schedule.name,
            "count": plan.count,
            "expected": plan.expected,
            "paused": plan.pause is not None,
            "runs": [dataclasses.asdict(run) for run in plan.runs],
        }
        for plan in found.schedules
    ]
    collisions = {
        name: [dataclasses.asdict(span) for span in spans]
        for name, spans in (("overlaps", found.overlaps), ("overloads", found.overloads))
    }
    scheduled = [{"begin": begin, "tasks": count} for begin, count in found.scheduled]
    window = {"begin": found.begin, "end": found.end, "slots": found.slots}
    return {**window, "schedules": schedules, "scheduled": scheduled, **collisions}


def _paused(schedule: Schedule) -> str:
    """Return the pause of a queue as text; empty if the queue is not paused."""
    pause = schedule.get_pause(timezone.now().timestamp())
    return "" if pause is None else f"paused{pause_suffix(pause)}"


def _json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FairQueueError(f"expected JSON, got {short(text)}: {error}") from error
    if not isinstance(value, kind):
        raise FairQueueError(f"expected a JSON {'list' if kind is list else 'object'}, got {short(text)}")
    return value


def _last(schedule: Schedule) -> float | None:
    return None if schedule.last is None else schedule.last.run_time


def _fields(schedule: Schedule) -> dict[str, Any]:
    fields = dataclasses.asdict(schedule)
    del fields["stored"], fields["signature"], fields["runs"]
    return fields


SCHEDULE_LIST: Listing[Schedule] = Listing(
    "schedule",
    [
        Column("name", lambda schedule: schedule.name, lambda schedule: schedule.name),
        Column("when", lambda schedule: schedule.when),
        Column(
            "task", lambda schedule: schedule.task.get("name") or "-", lambda schedule: schedule.task.get("name") or ""
        ),
        Column("user", lambda schedule: schedule.task["user_id"], lambda schedule: schedule.task["user_id"]),
        Column(
            "next",
            lambda schedule: _paused(schedule) or _local(schedule.next_at, schedule),
            lambda schedule: schedule.next_at,
        ),
        Column("last", lambda schedule: "-" if schedule.last is None else _local(_last(schedule), schedule), _last),
        Column("from", lambda schedule: schedule.source, lambda schedule: schedule.source),
    ],
    fields=_fields,
    moment=_last,
    moment_name="with a last run time",
)


def _happened(row: RunRow) -> str:
    _, run, task = row
    if not run.task_id:
        return f"{run.happened}, {run.count:,} in all" if run.count > 1 else run.happened
    return "its task is not kept any more" if task is None else task.state.value


def _duration(row: RunRow) -> float | None:
    """Return the number of seconds for which a worker had the task's last attempt."""
    task = row[2]
    return None if task is None or task.started_at is None or task.ended_at is None else task.ended_at - task.started_at


def _run_fields(row: RunRow) -> dict[str, Any]:
    _, run, task = row
    return {
        **dataclasses.asdict(run),
        "state": None if task is None else task.state.value,
        "started_at": None if task is None else task.started_at,
        "duration": _duration(row),
    }


RUN_LIST: Listing[RunRow] = Listing(
    "run",
    [
        Column("run time", lambda row: _local(row[1].run_time, row[0]), lambda row: row[1].run_time),
        Column("result", _happened),
        Column("duration", lambda row: "-" if _duration(row) is None else duration(_duration(row) or 0), _duration),
        Column("task", lambda row: row[1].task_id or "-"),
    ],
    fields=_run_fields,
)
