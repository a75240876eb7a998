"""``manage.py fairque_stats``: prints a queue's figures once or repeatedly."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any

from django.utils import timezone, translation

from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics.releases import compare_releases
from django_fairque.engine.statistics.task_names import MAX_HOURS
from django_fairque.engine.users.history import USER_HOURS
from django_fairque.engine.users.report import REPORT_HOURS
from django_fairque.management.base import Parser, QueueCommand, when
from django_fairque.management.listing import Column, Listing, age
from django_fairque.monitoring.formatting import duration, number, plain, share
from django_fairque.monitoring.monitor import exceeded_limits
from django_fairque.monitoring.report import (
    history_lines,
    queue_lines,
    reserved_slots,
    shard_lines,
    top_lines,
    top_users,
    user_lines,
    with_figures_of_users,
)
from django_fairque.monitoring.reports.incident_impact import HOUR_SECONDS
from django_fairque.monitoring.reports.sizing import measure_sizing, sizing_lines
from django_fairque.monitoring.reports.sla_report import ledger_csv, ledger_lines, ledger_object
from django_fairque.monitoring.reports.user_report import report_csv, report_json, report_lines

if TYPE_CHECKING:
    from django_fairque.engine.statistics.releases import ReleaseComparison
    from django_fairque.engine.statistics.task_names import NameFigures

HOME, ERASE_LINE, ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
"""Terminal codes: move the cursor to the first line; erase the rest of the line; erase everything below it."""
STOP_CHECK_SECONDS = 0.5
"""Maximum seconds until Ctrl-C is noticed."""
INTERVAL_MAX_SECONDS = 86_400


class Command(QueueCommand):
    tells_missing = False  # the figures already name missing shards
    help = "Print a queue's figures: tasks by state and priority, waits, run times, SLA, dependencies, users."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--json", action="store_true", help="as one JSON object (with --watch one a line)")
        watch = "again and again (every 2 seconds)"
        add("--watch", nargs="?", type=float, const=2.0, metavar="SECONDS", help=watch)
        add("--count", type=int, metavar="N", help="with --watch: stop after N times")
        add("--user", metavar="ID", help="one user's figures instead")
        add(
            "--report",
            action="store_true",
            help="with --user: its last 2 hours in one sentence, by hour and day, and its errors",
        )
        add("--csv", action="store_true", help="with --report or --sla: as CSV")
        add(
            "--sla",
            action="store_true",
            help="the SLAs of the last 24 hours, kept, missed and at risk by lane, user and task name, with causes instead",
        )
        add(
            "--names",
            action="store_true",
            help="the tasks of this hour and the one before by name instead, most attempts first",
        )
        since = (
            f"with --names: the tasks of this hour and of the hours before it, from 1h (the default) to {MAX_HOURS}h"
        )
        since = f"{since}; with --sla: by the clock, 24h by default; with --report: up to {USER_HOURS}h by the clock"
        add("--since", type=age, metavar="AGE", help=since)
        NAME_LIST.add_options(parser, with_json=False)
        add(
            "--sizing",
            action="store_true",
            help="slots, processes and server cores for the load of the last day instead",
        )
        add("--top", type=int, metavar="N", help="with the N users who have most ready tasks (of 1,000 looked at)")

    def run(self) -> None:
        _check(self.options)
        if self.options["watch"] is None:
            self._write(self._figures())
            return
        with suppress(KeyboardInterrupt):
            for before in count():
                self._look(before)
                if before + 1 == self.options["count"]:
                    return
                _sleep(self.options["watch"])

    def _look(self, before: int) -> None:
        """Print the figures once. If the server can't be reached, print the error instead, because the server may
        answer the next time.
        """
        try:
            lines = list(self._figures())
        except RedisConnectionError as error:
            self.stderr.write(str(error))
            return
        if not self.options["json"]:
            lines.insert(0, when(timezone.now().timestamp()))
            if self.stdout.isatty():
                self._draw(lines)
                return
            if before:
                lines.insert(0, "")
        self._write(lines)

    def _draw(self, lines: list[str]) -> None:
        """Overwrite the screen line by line, because erasing the whole screen first would flicker."""
        size = shutil.get_terminal_size()
        shown = [self.choose_style(line)(plain(line)[: size.columns - 1]) for line in lines[: size.lines - 1]]
        self.stdout.write(HOME + "".join(f"{line}{ERASE_LINE}\n" for line in shown) + ERASE_BELOW, ending="")
        self.stdout.flush()

    def _write(self, lines: Iterable[str]) -> None:
        self.write_lines(*lines)
        self.stdout.flush()  # flush, because output to a pipe is buffered and the next output may come late

    def _figures(self) -> Iterator[str]:
        queue, options = self.queue, self.options
        if options["report"] or options["sla"]:
            yield from self._ledger() if options["sla"] else self._report()
            return
        if options["user"] is not None:
            user = queue.user(options["user"])
            figures, history = user.stats(), user.history()
            yield from (
                [json.dumps({**asdict(figures), "history": asdict(history)})]
                if options["json"]
                else [*user_lines(figures), *history_lines(history)]
            )
            return
        if options["sizing"]:
            sizing = measure_sizing(queue)
            yield from [json.dumps(sizing and asdict(sizing))] if options["json"] else sizing_lines(sizing)
            return
        if options["names"]:
            hours = round((options["since"] or HOUR_SECONDS) / HOUR_SECONDS)
            yield from NAME_LIST.lines(queue.task_names(hours), options)
            return
        stats = with_figures_of_users(queue, queue.get_stats())
        top = top_users(queue, stats, options["top"]) if options["top"] else None
        over = exceeded_limits(queue, stats)
        compared = read_in_lockstep([(queue, compare_releases)])[0] if queue.config.release else None
        shards = queue.get_shard_stats()
        reserved = reserved_slots(queue.workers())
        if options["json"]:
            parts = [asdict(shard) for shard in shards]
            whole = {**asdict(stats), "shards": parts, "reserved": reserved, "over_limit": over}
            releases = {} if compared is None else {"releases": [_describe_comparison(one) for one in compared]}
            yield json.dumps({**whole, **releases, **({"top": asdict(top)} if top else {})})
            return
        yield from queue_lines(stats)
        if reserved:
            yield f"slots    reserved {reserved}"
        if len(shards) > 1:
            yield ""
            yield from shard_lines(shards)
        if notices := [*over, *(str(comparison) for comparison in compared or () if comparison.is_worse)]:
            yield ""
            yield from (f"! {line}" for line in notices)
        if top:
            yield ""
            yield from top_lines(top)

    def _ledger(self) -> Iterator[str]:
        options = self.options
        ledger = self.queue.sla_ledger(round((options["since"] or MAX_HOURS * HOUR_SECONDS) / HOUR_SECONDS))
        with translation.override("en"):  # commands print English in every locale
            if options["json"]:
                yield json.dumps(ledger_object(ledger))
            else:
                yield from ledger_csv(ledger).splitlines() if options["csv"] else ledger_lines(ledger)

    def _report(self) -> Iterator[str]:
        options, hours = self.options, (self.options["since"] or REPORT_HOURS * HOUR_SECONDS) / HOUR_SECONDS
        report = self.queue.user(options["user"]).report(round(hours))
        with translation.override("en"):  # commands print English in every locale
            if options["json"]:
                yield report_json(report)
            elif options["csv"]:
                yield from report_csv(report).splitlines()
            else:
                yield from report_lines(report)


def _describe_comparison(comparison: ReleaseComparison) -> dict[str, Any]:
    """Return a comparison of releases for JSON, with a sentence if the tasks are worse."""
    names = ("release", "first_at", "attempts", "failed", "median")
    sides = {
        side: {name: getattr(figures, name) for name in names}
        for side, figures in (("before", comparison.before), ("since", comparison.since), ("now", comparison.now))
    }
    worse = str(comparison) if comparison.is_worse else None
    return {"name": comparison.name, **sides, "ratio": comparison.ratio, "worse": worse}


def _sleep(seconds: float) -> None:
    """Sleep in short intervals. A Ctrl-C that comes just before the system's sleep has no effect until the sleep
    ends.
    """
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, STOP_CHECK_SECONDS))


def _check(options: dict[str, Any]) -> None:
    if options["sizing"] and (options["names"] or options["top"] is not None or options["user"] is not None):
        raise ValueError("--sizing does not go with --names, --top and --user")
    _check_times(options)
    _check_rows(options)


def _check_times(options: dict[str, Any]) -> None:
    watch, count = options["watch"], options["count"]
    if watch is not None and not 0 < watch <= INTERVAL_MAX_SECONDS:
        raise ValueError(
            f"--watch takes a number of seconds more than 0 and at most {INTERVAL_MAX_SECONDS:,}, got {watch:g}"
        )
    if count is not None and (watch is None or count < 1):
        raise ValueError("--count takes a number of at least 1, and goes with --watch")
    since = options["since"]
    if since is not None and not (options["names"] or options["report"] or options["sla"]):
        raise ValueError("--since belongs to --names, --report or --sla: give both")
    most = USER_HOURS if options["report"] else MAX_HOURS
    if since is not None and since not in range(HOUR_SECONDS, (most + 1) * HOUR_SECONDS, HOUR_SECONDS):
        raise ValueError(f"--since takes whole hours from 1h to {most}h, got {duration(since)}")


def _check_rows(options: dict[str, Any]) -> None:
    watch, top = options["watch"], options["top"]
    if not options["names"] and (options["limit"] or options["sort"] or options["reverse"]):
        raise ValueError("--limit, --sort and --reverse belong to --names: give both")
    if options["report"] and (options["user"] is None or watch is not None):
        raise ValueError("--report goes with --user, and not with --watch")
    if options["csv"] and (options["json"] or not (options["report"] or options["sla"])):
        raise ValueError("--csv goes with --report or --sla, and not with --json")
    if options["sla"] and (options["names"] or options["sizing"] or top is not None or options["user"] is not None):
        raise ValueError("--sla does not go with --names, --sizing, --top and --user")
    if options["names"] and (top is not None or options["user"] is not None):
        raise ValueError("--names does not go with --top and --user")
    if top is not None and (top < 1 or options["user"] is not None):
        raise ValueError("--top takes a number of at least 1, and does not go with --user")


NAME_LIST: Listing[NameFigures] = Listing(
    "task name",
    [
        Column("name", lambda row: row.name or "(other names)", lambda row: row.name),
        Column("attempts", lambda row: number(row.attempts), lambda row: row.attempts, is_number=True),
        Column("failed", lambda row: number(row.failed), lambda row: row.failed, is_number=True),
        Column("share", lambda row: share(row.failed_share), lambda row: row.failed_share, is_number=True),
        Column(
            "p50",
            lambda row: duration(row.run.p50) if row.run.count else "-",
            lambda row: row.run.p50 if row.run.count else None,
            is_number=True,
        ),
        Column(
            "p95",
            lambda row: duration(row.run.p95) if row.run.count else "-",
            lambda row: row.run.p95 if row.run.count else None,
            is_number=True,
        ),
        Column("retrying", lambda row: number(row.retrying), lambda row: row.retrying, is_number=True),
    ],
    fields=asdict,
)
