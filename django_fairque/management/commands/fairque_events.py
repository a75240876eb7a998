"""``manage.py fairque_events``: the model events of this project, and when they last fired."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from django_fairque.conf import get_queue
from django_fairque.events.overview import EventFacts, overview
from django_fairque.management.base import Parser, PrintingCommand
from django_fairque.monitoring.formatting import number, table
from django_fairque.monitoring.redaction import redacted_text


class Command(PrintingCommand):
    help = (
        "List the model events of all apps: what they watch, under which condition, the task they enqueue, and how often "
        "they fired. Exits with 1 if one of them is switched off because of a mistake."
    )

    def add_arguments(self, parser: Parser) -> None:
        parser.add_argument("--json", action="store_true", help="as one JSON list, an object per event")

    def handle(self, *args: Any, **options: Any) -> None:
        known = overview(get_queue)
        about = [_about(event) for event in known.events]
        if options["json"]:
            self.write_lines(json.dumps(about))
        else:
            self._print(about)
        for queue, error in known.unreachable.items():
            self.stderr.write(f"queue {queue}: its counts are not known: {error}")
        if known.unreachable or any(event.problems for event in known.events):
            raise SystemExit(1)

    def _print(self, about: list[dict[str, Any]]) -> None:
        if not about:
            self.write_lines("No model events are declared: put them into a module events of an app (docs/events.md).")
            return
        rows: list[tuple[str, ...]] = [("event", "task", "fired", "coalesced", "failed", "last fired")]
        for each in about:
            counts = (number(each[key]) for key in ("fired", "coalesced", "failed"))
            rows.append((each["name"], each["task"], *counts, each["last"] or "-"))
        self.write_lines(*table(rows))
        for each in about:
            for what in ("condition", "error"):
                if each[what]:
                    self.write_lines(f"{each['name']}: {what}: {each[what]}")
            for problem in each["problems"]:
                self.write_lines(f"{each['name']}: switched off: {problem}", style=self.style.ERROR)


def _about(event: EventFacts) -> dict[str, Any]:
    count = event.count
    last = count.last and datetime.fromtimestamp(count.last, timezone.utc).isoformat(timespec="seconds")
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
        "last": last,
        "problems": list(event.problems),
    }
