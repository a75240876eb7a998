"""``manage.py fairque_stats``: a queue's figures at one moment."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from django_fairque.management.base import QueueCommand

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_fairque.engine.queue import FairQueue
    from django_fairque.engine.statistics import Percentiles


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"


class Command(QueueCommand):
    help = "Print a queue's figures: tasks by state and priority, totals, and the last hour's wait and run times."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="as one JSON object")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        stats = queue.get_stats()
        if options["json"]:
            self.stdout.write(json.dumps(dataclasses.asdict(stats)))
            return
        paused = ", paused" if stats.paused else ""
        heading = f"queue {stats.queue!r}{paused}: {stats.users_ready:,} users ready, {stats.workers} workers"
        self.stdout.write(f"{heading}, oldest wait {_duration(stats.oldest_wait_seconds)}")
        for title, numbers in (("states", stats.states), ("ready", stats.depth), ("totals", stats.totals)):
            listed = "  ".join(f"{name} {number:,}" for name, number in numbers.items())
            self.stdout.write(f"{title:8} {listed}")
        self.stdout.write(f"{'wait':8} {self._line(stats.wait)}")
        for name, figures in stats.wait_by_priority.items():
            self.stdout.write(f"{'':8} {name:10} {self._line(figures)}")
        self.stdout.write(f"{'run':8} {self._line(stats.run)}")

    @staticmethod
    def _line(figures: Percentiles) -> str:
        times = f"p50 {_duration(figures.p50)}  p95 {_duration(figures.p95)}  p99 {_duration(figures.p99)}"
        return f"{times}  ({figures.count:,} in the last hour)"
