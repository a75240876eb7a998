"""What ``manage.py demo --pipeline`` plays: a pipeline for each package of the standard library, all at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.core.management import call_command

from django_fairque import TaskState, get_queue

from .demonstration import find_files
from .endless_day import end_day
from .errors import IncompleteError, StalledError
from .loading import store_files
from .pipelines import package_pipeline
from .progress import POLL, STALLED_AFTER
from .report import plural
from .sources import standard_library
from .workers import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.core.management.base import OutputWrapper

    from django_fairque import PipelineResult

    from .tasks import Report

SHOWN = ("deferred", "queued", "started", "finished", "failed")
LINE_EVERY = 1.0
"""Seconds between two lines."""
MOST_PACKAGES = 15
MOST_FUNCTIONS = 15


class PipelineDemonstration:
    """The whole of it, with everything that it says written to ``out``; see `Demonstration` for the parameters."""

    def __init__(self, out: OutputWrapper, *, processes: int, only: Sequence[str] = ()) -> None:
        self._out = out
        self._processes = processes
        self._root = standard_library()
        self._files = find_files(self._root, only)
        self._queue = get_queue()

    def play(self) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        end_day(self._queue)  # removes the rest of a demonstration that was killed
        count = sum(map(len, self._files.values()))
        self._say(f"{plural(count, 'source file')} of {plural(len(self._files), 'package')} in {self._root}")
        documents = {owner: store_files(owner, files, self._root) for owner, files in self._files.items()}
        with Worker(self._processes) as worker:
            worker.wait_until_ready()
            runs = {owner: package_pipeline(owner, keys).enqueue() for owner, keys in documents.items()}
            self._say(f"{sum(map(len, runs.values())):,} tasks sent in {plural(len(runs), 'run')}")
            self._follow(runs, worker)
        self._tell(reports(runs))

    def _follow(self, runs: Mapping[str, PipelineResult], worker: Worker) -> None:
        shown_at, moved_at, finished = 0.0, time.monotonic(), -1
        while True:
            states = self._queue.get_stats().states
            left = sum(number for state, number in states.items() if not TaskState(state).is_ended)
            now = time.monotonic()
            if states["finished"] != finished:
                finished, moved_at = states["finished"], now
            if not left or now - shown_at >= LINE_EVERY:
                shown_at = now
                self._say("  " + "  ".join(f"{state} {states[state]:,}" for state in SHOWN))
            if not left:
                break
            if now - moved_at > STALLED_AFTER:
                raise StalledError(f"no task has ended for {STALLED_AFTER:.0f} s, and {left:,} are left")
            worker.check()
            time.sleep(POLL)
        wrong = {owner: run.state for owner, run in runs.items() if run.state != "finished"}
        if wrong:
            named = ", ".join(f"{owner} ({state})" for owner, state in wrong.items())
            raise IncompleteError(f"not every package has its report: {named}; see manage.py fairque_dlq list")

    def _tell(self, found: Sequence[Report]) -> None:
        self._say("\nWho imports whom, inside each package (the largest ones):\n")
        self._say(f"{'package':<18}{'modules':>8}{'imports':>9}{'cycle of':>10}{'outside':>9}  most imported")
        for each in sorted(found, key=lambda report: -report["imports"]["modules"])[:MOST_PACKAGES]:
            imports = each["imports"]
            most = ", ".join(f"{name} ({times})" for name, times in imports["most_imported"][:2])
            line = f"{each['package']:<18}{imports['modules']:>8,}{imports['edges']:>9,}"
            self._say(f"{line}{imports['cycle'] or '-':>10}{imports['outside']:>9,}  {most}".rstrip())
        functions = sum(each["complexity"]["functions"] for each in found)
        ranked = sorted(
            ((name, number) for each in found for name, number in each["complexity"]["most_complex"]),
            key=lambda pair: (-pair[1], pair[0]),
        )
        self._say(f"\nThe most complex of {functions:,} functions (independent ways through each):\n")
        for name, complexity in ranked[:MOST_FUNCTIONS]:
            self._say(f"{complexity:>6,}  {name}")

    def _say(self, text: str) -> None:
        self._out.write(text)


def reports(runs: Mapping[str, PipelineResult]) -> list[Report]:
    """The results of the runs' last tasks."""
    return [run.results[-1].result() for run in runs.values()]
