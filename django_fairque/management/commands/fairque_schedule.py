"""``manage.py fairque_schedule``: look at recurring work, change it, run it now."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from django_fairque.engine.model.errors import FairQueueError, short
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.schedules.due_times import find_zone
from django_fairque.management.base import QueueCommand, positive
from django_fairque.monitoring.formatting import plain
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.schedules.operations import Schedule


class Command(QueueCommand):
    help = "List a queue's schedules, add or remove one, switch one on or off, run one now, see when it is due."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every schedule: when, what, next and last")
        listing.add_argument("--json", action="store_true", help="as one JSON object per line, a line per schedule")
        adding = add_action("add", "add a schedule, or change the one of this name")
        adding.add_argument("name", help="what the schedule is called")
        adding.add_argument("--task", required=True, help="the name of a registered task")
        adding.add_argument("--cron", help="minute hour day-of-month month day-of-week")
        adding.add_argument("--every", type=float, metavar="SECONDS", help="instead of --cron")
        adding.add_argument("--timezone", help="the zone of --cron (default: the project's TIME_ZONE)")
        adding.add_argument("--user", help="the user that each run is for")
        adding.add_argument(
            "--priority", choices=[priority.name for priority in Priority], help="of each run (default: the task's)"
        )
        adding.add_argument("--args", dest="task_args", default="[]", metavar="JSON", help="a list of arguments")
        adding.add_argument("--kwargs", dest="task_kwargs", default="{}", metavar="JSON", help="an object of arguments")
        adding.add_argument(
            "--missed",
            default="skip",
            choices=("skip", "one", "all"),
            help="what becomes of run times that were missed (default: %(default)s)",
        )
        adding.add_argument(
            "--expires",
            type=float,
            metavar="SECONDS",
            help="from each run time until its task is dead if it has not started (default: the task's)",
        )
        for name, text in (
            ("remove", "forget it"),
            ("enable", "switch it on"),
            ("disable", "switch it off"),
            ("run", "send its task now, in addition to its run times"),
            ("sign", "sign what it sends, as it is now: look at it first"),
        ):
            add_action(name, text).add_argument("name", help="what the schedule is called")
        following = add_action("next", "when it is due next")
        following.add_argument("name", help="what the schedule is called")
        following.add_argument(
            "-n", type=positive, default=5, metavar="N", help="how many run times (default: %(default)s)"
        )

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        action, schedules = options["action"], queue.schedules
        if action == "list":
            return self._list(queue, as_json=options["json"])
        name = options["name"]
        if action == "add":
            schedule = self._add(queue, options)
            return self.write_lines(f"{name}: {schedule.when}, next {_local(schedule.next_at, schedule)}")
        if action == "run":
            return self.write_lines(f"{name}: task {schedules.run_now(name)} sent")
        if action == "next":
            return self._next(schedules.get(name), options["n"])
        if action == "remove":
            if not schedules.remove(name):
                raise ValueError(f"queue {queue.name!r} has no schedule {name!r}")
            return self.write_lines(f"{name}: removed")
        act, done = {
            "enable": (schedules.enable, "enabled"),
            "disable": (schedules.disable, "disabled"),
            "sign": (schedules.sign, "signed"),
        }[action]
        act(name)
        schedule = schedules.get(name)
        return self.write_lines(f"{name}: {done}, next {_local(schedule.next_at, schedule)}")

    def _add(self, queue: FairQueue, options: dict[str, Any]) -> Schedule:
        definition = registry.find(options["task"])
        if definition is None:
            raise registry.not_registered(options["task"])
        using: dict[str, Any] = {"queue": queue.name}
        if options["user"]:
            using["user_id"] = options["user"]
        if options["priority"]:
            using["priority"] = Priority[options["priority"]]
        args, kwargs = (_json(options[name], kind) for name, kind in (("task_args", list), ("task_kwargs", dict)))
        return queue.schedules.add(
            options["name"],
            task=definition.using(**using).s(*args, **kwargs),
            cron=options["cron"],
            every=options["every"],
            timezone=options["timezone"] or timezone.get_default_timezone_name(),
            missed=options["missed"],
            source="command",
            **({} if options["expires"] is None else {"expires": options["expires"]}),
        )

    def _list(self, queue: FairQueue, *, as_json: bool) -> None:
        found = queue.schedules.list()
        if as_json:
            for schedule in found:
                fields = dataclasses.asdict(schedule)
                del fields["stored"], fields["signature"]
                self.write_lines(json.dumps(fields))
            return
        if not found:
            self.write_lines(f"queue {queue.name!r} has no schedules")
            return
        rows = [("NAME", "WHEN", "TASK", "USER", "NEXT", "LAST", "FROM"), *map(_row, found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for cells in rows:
            line = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
            self.write_lines(line.rstrip())

    def _next(self, schedule: Schedule, count: int) -> None:
        for run_time in schedule.following(timezone.now().timestamp(), count):
            self.write_lines(_local(run_time, schedule))


def _row(schedule: Schedule) -> tuple[str, ...]:
    last = "-" if schedule.last is None else _local(schedule.last.run_time, schedule)
    following = _local(schedule.next_at, schedule) if schedule.enabled else "disabled"
    task = schedule.task
    cells = (schedule.name, schedule.when, task.get("name") or "-", task["user_id"], following, last, schedule.source)
    return tuple(map(plain, cells))


def _local(moment: float | None, schedule: Schedule) -> str:
    """In the schedule's own zone, with its difference to UTC."""
    if moment is None:
        return "never"
    return f"{datetime.fromtimestamp(moment, find_zone(schedule.timezone)):%Y-%m-%d %H:%M:%S%z}"


def _json(text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FairQueueError(f"expected JSON, got {short(text)}: {error}") from error
    if not isinstance(value, kind):
        raise FairQueueError(f"expected a JSON {'list' if kind is list else 'object'}, got {short(text)}")
    return value
