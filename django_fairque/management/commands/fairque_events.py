"""``manage.py fairque_events``: the model events of this project, and when they last fired."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from django.core.management.base import CommandError

from django_fairque.documentation import page_address
from django_fairque.management.base import Parser, PrintingCommand, queues_with_timeout
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.events_overview import EventFacts, overview
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.redaction import redacted_text


class Command(PrintingCommand):
    help = (
        "List the model events of all apps: what they watch, under which condition, the task they enqueue, and how often "
        "they fired. Exits with 1 if one of them is switched off because of a mistake."
    )

    def add_arguments(self, parser: Parser) -> None:
        EVENT_LIST.add_options(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with queues_with_timeout() as open_queue:
            known = overview(open_queue)
        try:
            if known.events or options["json"]:
                self.write_lines(*EVENT_LIST.lines(known.events, options))
            else:
                self.write_lines(
                    "No model events are declared: put them into a module events of an app "
                    f"({page_address('guides/model-events')})."
                )
        except ValueError as error:
            raise CommandError(str(error)) from error
        if not options["json"]:
            self._print_details(known.events)
        for queue, reason in known.unreachable.items():
            self.stderr.write(f"queue {queue}: its counts are not known: {reason}")
        if known.unreachable or any(event.problems for event in known.events):
            raise SystemExit(1)

    def _print_details(self, events: Iterable[EventFacts]) -> None:
        for event in map(_describe_event, events):
            for what in ("condition", "error"):
                if event[what]:
                    self.write_lines(f"{event['name']}: {what}: {event[what]}")
            for problem in event["problems"]:
                self.write_lines(f"{event['name']}: switched off: {problem}", style=self.style.ERROR)


def _describe_event(event: EventFacts) -> dict[str, Any]:
    count = event.count
    return {
        "name": event.name,
        "model": event.model,
        "task": event.task,
        "queue": event.queue or None,
        "condition": event.condition,
        "fired": count.fired,
        "coalesced": count.coalesced,
        "failed": count.failed,
        "error": redacted_text(count.error),
        "last": _last(event),
        "problems": list(event.problems),
    }


def _last(event: EventFacts) -> str | None:
    last = event.count.last
    return datetime.fromtimestamp(last, timezone.utc).isoformat(timespec="seconds") if last else None


EVENT_LIST: Listing[EventFacts] = Listing(
    "event",
    [
        Column("event", lambda event: event.name, lambda event: event.name),
        Column("task", lambda event: event.task, lambda event: event.task),
        Column("fired", lambda event: number(event.count.fired), lambda event: event.count.fired, is_number=True),
        Column("coalesced", lambda event: number(event.count.coalesced), is_number=True),
        Column("failed", lambda event: number(event.count.failed), lambda event: event.count.failed, is_number=True),
        Column("last fired", lambda event: _last(event) or "-"),
    ],
    fields=_describe_event,
    moment=lambda event: event.count.last or None,
    moment_name="that fired last",
)
