"""``manage.py fairque_events``: the model events of this project, and when they last fired."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand

from django_fairque.conf import get_queue
from django_fairque.engine.errors import FairQueueError
from django_fairque.engine.records import EventCount
from django_fairque.events import registry
from django_fairque.monitoring.formatting import number, table

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_fairque.events.rules import Rule


class Command(BaseCommand):
    help = (
        "List the model events of all apps: what they watch, under which condition, the task they enqueue, and how often "
        "they fired. Exits with 1 if one of them is switched off because of a mistake."
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="as a JSON list")

    def handle(self, *args: Any, **options: Any) -> None:
        rules = registry.rules()
        counts, unreachable = _counts(rules)
        about = [_about(rule, counts.get(rule.name, EventCount())) for rule in rules]
        if options["json"]:
            self.stdout.write(json.dumps(about))
        else:
            self._print(about)
        for queue, error in unreachable.items():
            self.stderr.write(f"queue {queue}: its counts are not known: {error}")
        if unreachable or any(rule.problems for rule in rules):
            raise SystemExit(1)

    def _print(self, about: list[dict[str, Any]]) -> None:
        if not about:
            self.stdout.write("No model events are declared: put them into a module events of an app (docs/events.md).")
            return
        rows: list[tuple[str, ...]] = [("event", "task", "fired", "coalesced", "failed", "last fired")]
        rows += [
            (
                each["name"],
                each["task"],
                *(number(each[key]) for key in ("fired", "coalesced", "failed")),
                each["last"] or "-",
            )
            for each in about
        ]
        for line in table(rows):
            self.stdout.write(line)
        for each in about:
            for what in ("condition", "error"):
                if each[what]:
                    self.stdout.write(f"{each['name']}: {what}: {each[what]}")
            for problem in each["problems"]:
                self.stdout.write(self.style.ERROR(f"{each['name']}: switched off: {problem}"))


def _counts(rules: Any) -> tuple[dict[str, EventCount], dict[str, str]]:
    """Of all events, by name; and why a queue could not be asked."""
    found: dict[str, EventCount] = {}
    unreachable: dict[str, str] = {}
    for queue in sorted({rule.definition.options.queue for rule in rules if rule.is_on}):
        counts, error = _counts_of(queue)
        found.update(counts)
        if error:
            unreachable[queue] = error
    return found, unreachable


def _counts_of(queue: str) -> tuple[dict[str, EventCount], str]:
    try:
        return get_queue(queue).event_counts(), ""
    except FairQueueError as error:
        return {}, str(error)


def _about(rule: Rule, count: EventCount) -> dict[str, Any]:
    last = (
        None if count.last is None else datetime.fromtimestamp(count.last, timezone.utc).isoformat(timespec="seconds")
    )
    return {
        "name": rule.name,
        "model": rule.model._meta.label if rule.model is not None else None,
        "task": rule.task_name,
        "condition": "" if rule.when is None else repr(rule.when),
        "fired": count.fired,
        "coalesced": count.coalesced,
        "failed": count.failed,
        "error": count.error,
        "last": last,
        "problems": rule.problems,
    }
