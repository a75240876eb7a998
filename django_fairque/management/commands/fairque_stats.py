"""``manage.py fairque_stats``: a queue's figures, at one moment or again and again."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

from django_fairque.engine.errors import FairQueueError
from django_fairque.management.base import QueueCommand
from django_fairque.monitoring.formatting import duration, number, rate, share, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.management.base import CommandParser

    from django_fairque.engine.histograms import Percentiles
    from django_fairque.engine.queue import FairQueue
    from django_fairque.engine.statistics import QueueStats
    from django_fairque.engine.users import UserStats

CLEAR = "\x1b[H\x1b[2J"
LATELY = 5
MOST_USERS = 1000
"""Looked at for --top."""


class Command(QueueCommand):
    help = "Print a queue's figures: tasks by state and priority, waits, run times, promises, dependencies, users."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="as one JSON object (with --watch one a line)")
        parser.add_argument(
            "--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help="again and again (every 2 seconds)"
        )
        parser.add_argument("--count", type=int, metavar="N", help="with --watch: stop after so many times")
        parser.add_argument("--user", metavar="ID", help="one user's figures instead")
        parser.add_argument("--top", type=int, default=0, metavar="N", help="with the N users who wait for most")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        pause, count = options["watch"], options["count"]
        if pause is None:
            return self._show(queue, options)
        if pause <= 0 or (count is not None and count < 1):
            raise ValueError("--watch takes a number of seconds more than 0, --count a number of at least 1")
        try:
            while True:
                if self.stdout.isatty() and not options["json"]:
                    self.stdout.write(CLEAR, ending="")
                self._look(queue, options)
                if count is not None:
                    count -= 1
                    if not count:
                        return None
                time.sleep(pause)
        except KeyboardInterrupt:
            return None

    def _look(self, queue: FairQueue, options: dict[str, Any]) -> None:
        """One of many looks: a server that is away for a while does not end them."""
        try:
            self._show(queue, options)
        except FairQueueError as error:
            self.stdout.write(self.style.ERROR(str(error)))

    def _show(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if options["user"] is not None:
            user = queue.user(options["user"]).stats()
            lines = [json.dumps(dataclasses.asdict(user))] if options["json"] else list(user_lines(user))
        else:
            stats = queue.get_stats()
            lines = [json.dumps(dataclasses.asdict(stats))] if options["json"] else list(queue_lines(stats))
            if options["top"] and not options["json"]:
                lines += ["", *top_lines(queue, options["top"])]
        self.stdout.write("\n".join(lines))


def queue_lines(stats: QueueStats) -> Iterator[str]:
    paused = ", PAUSED" if stats.paused else ""
    yield (
        f"queue {stats.queue!r}{paused}: {number(stats.users_ready)} users ready, {stats.workers} workers, "
        f"oldest wait {duration(stats.oldest_wait_seconds)}"
    )
    yield ""
    yield _listed("states", stats.states)
    yield _listed("ready", stats.depth)
    yield _listed("dead", stats.dead)
    minutes = stats.minutes[-1 - LATELY : -1]
    finished, failed = sum(each.finished for each in minutes), sum(each.failed for each in minutes)
    ended = finished + failed
    yield (
        f"{'lately':8} {rate(sum(each.pushed for each in minutes) / (60 * LATELY))} pushed  "
        f"{rate(finished / (60 * LATELY))} finished  {share(failed / ended if ended else 0)} of attempts failed "
        f"(last {LATELY} minutes)"
    )
    yield ""
    yield from table(
        [
            ("last hour", "count", "p50", "p95", "p99"),
            _row("wait", stats.wait),
            *(_row(f"  {name}", figures) for name, figures in stats.wait_by_priority.items()),
            _row("run", stats.run),
            _row("release", stats.dependencies.resolution),
        ]
    )
    yield ""
    sla, dependencies = stats.sla, stats.dependencies
    yield (
        f"{'promises':8} at risk {number(sla.at_risk)}  overdue {number(sla.overdue)}  started late "
        f"{number(sla.violated)}  moved up {number(sla.promoted)}"
    )
    yield (
        f"{'depends':8} deferred {number(dependencies.deferred)}  edges {number(dependencies.edges)}  released "
        f"{number(dependencies.resolved)}  to be told {number(dependencies.resolving)}"
    )
    yield _listed("totals", {name: value for name, value in stats.totals.items() if ":" not in name})


def user_lines(user: UserStats) -> Iterator[str]:
    sizes = user.sizes
    limits = [
        f"weight {user.weight:g}",
        *(f"{what} {value}" for what, value in (("running", user.max_running), ("backlog", user.max_backlog)) if value),
        *([f"rate {user.rate}"] if user.rate else []),
        *([f"promise {duration(user.sla)}"] if user.sla else []),
        *(["PAUSED"] if user.paused else []),
    ]
    yield f"user {user.user_id!a}: {', '.join(limits)}"
    counted = {"scheduled": sizes.scheduled, "deferred": sizes.deferred, "running": sizes.running}
    yield _listed("now", {**sizes.by_priority, **counted})
    yield _listed("ended", {"started": user.started, "finished": user.finished, "dead": user.dead})
    started = max(1, user.started)
    yield (
        f"{'times':8} {duration(user.busy_seconds)} of worker time, {duration(user.waited_seconds / started)} waited and "
        f"{duration(user.busy_seconds / started)} run on the average"
    )


def top_lines(queue: FairQueue, count: int) -> Iterator[str]:
    page = queue.users(limit=MOST_USERS)
    sizes = queue.get_queue_sizes_batch(page.items)
    ranked = sorted(sizes.items(), key=lambda pair: (-pair[1].ready, pair[0]))[:count]
    rows = [
        (ascii(user)[1:-1], number(size.ready), number(size.running), number(size.scheduled), number(size.deferred))
        for user, size in ranked
    ]
    yield from table([("user", "ready", "running", "scheduled", "deferred"), *rows])
    if page.cursor is not None:
        yield f"of the first {number(MOST_USERS)} users; there are more"


def _listed(title: str, numbers: dict[str, int]) -> str:
    return f"{title:8} " + "  ".join(f"{name} {number(value)}" for name, value in numbers.items())


def _row(title: str, figures: Percentiles) -> tuple[str, ...]:
    return (title, number(figures.count), *(duration(each) for each in (figures.p50, figures.p95, figures.p99)))
