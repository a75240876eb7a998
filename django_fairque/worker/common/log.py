"""Log lines about tasks: one line for each task while few tasks end, sums when many end, and a summary each minute. The
number of lines of one user is limited, so that other users get lines too.

The line of a failed task has the level WARNING or ERROR. The lines of other tasks have the level DEBUG, which
``fairque_worker -v 2`` shows.

Names, ids and users are escaped unless they are printable text without spaces. Arguments and results are never logged.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.model.task import Task

logger = get_logger("django_fairque.worker")
task_logger = get_logger("django_fairque.worker.tasks")
"""Logger of the lines about single tasks, so that a project can switch them on and off."""

LOG_LINES_PER_SECOND = 100
"""Maximum number of log lines per second of each kind (finished tasks, other tasks), for all users together. 100 lines
take 4 ms; lines for all 10,000 tasks that a process may finish in a second would take 0.4 s. A single user gets half of
the lines (see `_Lines`)."""

SUMMARY_SECONDS = 60.0
"""Seconds between two summaries of a process. No summary is logged for a minute without outcomes."""
MAX_LOGGED_ID_CHARACTERS = 80


def set_up_logging(*, with_tasks: bool = False) -> None:
    """Log to stderr if the project's settings do not configure a handler for this package's messages.

    Args:
        with_tasks: also write a line for each task that succeeded. Default: False.
    """
    if with_tasks:
        task_logger.setLevel(logging.DEBUG)
    package = logging.getLogger("django_fairque")
    if package.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


def printable(text: str) -> str:
    """Return an id in a form that is safe in a log line: without line breaks and control characters, and cut to a
    maximum length.
    """
    plain = text.isprintable() and " " not in text
    return (text if plain else ascii(text))[:MAX_LOGGED_ID_CHARACTERS]


def describe_leases(leases: Sequence[Lease]) -> str:
    """Return the text that names a task, or the tasks of a batch, in a log line."""
    words = "task {} {} of user {}".format(*_identify(leases[0]))
    return words if len(leases) == 1 else f"{words} (and {len(leases) - 1} more in its batch)"


def log_ending(task: Task, status: str, error: str, delay: float | None) -> None:
    """Log that a task failed because its process was killed at the task's limit of time or memory. Other failures are
    logged by the process that ran the task.

    Args:
        task: the current state of the task in the queue.
        status: the new status of the task: dead or retried.
        error: the text of the error, which begins with its class.
        delay: seconds until the task is tried again; None if it is not tried again.
    """
    kind = error_type(error)
    if not kind.endswith((".TaskTimeoutError", ".TaskMemoryError")):
        return
    words = "failed for good" if delay is None or status == "dead" else f"failed, again in {delay:.3g} s"
    task_logger.error(
        "task %s %s of user %s was ended with its process and %s: %s",
        *(*_identify(task), words, _first_line(error.encode(errors="replace"))),
        extra=_extra_fields(task, status, kind),
    )


def _identify(task: Task | Lease) -> tuple[str, str, str]:
    """Return the id, name and user of a task for a log line."""
    return printable(task.task_id), printable(task.name) or "(payload)", printable(task.user_id)


def _extra_fields(task: Task | Lease, status: str, kind: str) -> dict[str, str]:
    """Return the fields of a log record about a task, with the class of its error."""
    identity = {"task_id": task.task_id, "task_name": task.name, "user_id": task.user_id}
    return {**identity, "action": status, "traceparent": task.trace.parent, "error_type": kind}


class _Lines:
    """Divides the log lines of one kind in one second between the users.

    A user gets another line if the number of its lines in this second is less than the number of lines that are left.
    So a single user gets half of the lines, and n users with many lines get 1/(n + 1) of them each. A user without a
    line still gets one, unless a hundred other users came first.
    """

    def __init__(self) -> None:
        self.omitted: Counter[str] = Counter()
        """The number of outcomes that got no line, by user."""
        self._left = LOG_LINES_PER_SECOND
        self._taken: dict[str, int] = {}

    def take(self, user: str) -> bool:
        taken = self._taken.get(user, 0)
        if taken >= self._left:
            self.omitted[user] += 1
            return False
        self._taken[user] = taken + 1
        self._left -= 1
        return True


class OutcomeReporter:
    """Logs the outcomes of tasks. Thread-safe.

    Args:
        worker_id: the worker id of the process, which its summaries show.
    """

    def __init__(self, worker_id: str = "") -> None:
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        """Outcomes since the last summary, by status."""
        self._summarized_at = monotonic()
        self._second = 0
        self._lines = {True: _Lines(), False: _Lines()}

    def report(self, outcomes: Sequence[Outcome], statuses: Sequence[str]) -> None:
        with self._lock:
            self._counts.update(statuses)
            if not task_logger.isEnabledFor(logging.ERROR):
                return
            if (second := int(monotonic())) != self._second:
                self.flush()
                self._second = second
            logs_finished = task_logger.isEnabledFor(logging.DEBUG)
            for outcome, status in zip(outcomes, statuses, strict=True):
                done = status == "finished"
                if status == "released" or (done and not logs_finished):
                    continue
                if self._lines[done].take(outcome.lease.user_id):
                    self._log_line(outcome, status)

    def flush(self) -> None:
        """Log the number of outcomes that got no line of their own, then start to count the lines of a new second."""
        if done := self._lines[True].omitted:
            task_logger.debug("... and %d more finished, %d of them of user %s", *_sum_omitted(done))
        if not_done := self._lines[False].omitted:
            task_logger.warning("... and %d more did not finish, %d of them of user %s", *_sum_omitted(not_done))
        self._lines = {True: _Lines(), False: _Lines()}

    def summarize(self, *, at_end: bool = False) -> None:
        """Log the number of tasks by the way in which they ended, if the last summary is a minute old or the process
        ends.
        """
        now = monotonic()
        if not at_end and now - self._summarized_at < SUMMARY_SECONDS:
            return
        with self._lock:
            counts, self._counts = self._counts, Counter()
            seconds, self._summarized_at = now - self._summarized_at, now
        parts = [f"{counts[status]:,} {words}" for status, words in SUMMARY_WORDS.items() if counts[status]]
        if parts:
            logger.info("process %s, last %.0f s: %s", self._worker_id, seconds, ", ".join(parts))

    def _log_line(self, outcome: Outcome, status: str) -> None:
        lease = outcome.lease
        level, words = _WORDS.get(status, (logging.DEBUG, status))
        if status == "stale":
            if outcome.kind == "release":
                level, words = logging.DEBUG, "stopped: it is not this worker's any more (canceled?)"
            elif outcome.kind == "finish":
                level = logging.WARNING
        if outcome.is_put_off and status == "retried":
            level, words = logging.DEBUG, "snoozed" if outcome.kind == "later" else "put off"
        if status == "retried" and outcome.delay is not None:
            words += f" for {outcome.delay:.3g} s" if outcome.is_put_off else f", again in {outcome.delay:.3g} s"
        took = "" if outcome.took is None else f" after {_duration(outcome.took)}"
        error = _first_line(outcome.body) if outcome.kind not in ("finish", "release") else ""
        task_logger.log(
            level,
            "task %s %s of user %s %s%s%s",
            *(*_identify(lease), words, took, f": {error}" if error else ""),
            extra=_extra_fields(lease, status, error_type(error)),
        )
        if error and outcome.trace and task_logger.isEnabledFor(logging.DEBUG):
            task_logger.debug("%s", outcome.trace.decode("utf-8", "replace"))


def error_type(text: str) -> str:
    """Return the class name with which the text of an error begins; an empty text if it begins with no class name."""
    name, colon, _ = text.partition(":")
    is_class = name.replace(".", "_").isidentifier() and (colon or name != text.lower())
    return name if is_class else ""


def _sum_omitted(omitted: Counter[str]) -> tuple[int, int, str]:
    """Return the sum of all counts, the highest count, and the user with the highest count."""
    ((user, count),) = omitted.most_common(1)
    return sum(omitted.values()), count, printable(user)


_WORDS = {
    "finished": (logging.DEBUG, "finished"),
    "retried": (logging.WARNING, "failed"),
    "dead": (logging.ERROR, "failed for good"),
    "canceled": (logging.DEBUG, "was discarded"),
    "stale": (logging.WARNING, "ended, but not as this worker's task: its lease was over"),
}


SUMMARY_WORDS = {
    "finished": "finished",
    "retried": "to be tried again",
    "dead": "failed for good",
    "canceled": "discarded",
    "stale": "ended after their lease",
}
"""Words for statuses in a summary. Tasks that were given back are left out, because they have not ended."""


def _duration(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _first_line(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip().split("\n", 1)[0]
    return "".join(char if char.isprintable() else "?" for char in text)[:200]
