"""Starts a real server for a test, and runs the tasks in its queues."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.test import override_settings

from django_fairque.conf import close_queues, get_queue
from django_fairque.conf.current import intercept_tasks, override_options
from django_fairque.embedded import EmbeddedServer
from django_fairque.engine.scripting.commands import skipped_time

from .capture import MAX_RUN_TASKS, innermost

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

CLOCK_STEP_SECONDS = 0.001
"""Seconds after a task's due time to which the clock is set."""

_running: list[EmbeddedServer] = []


@contextmanager
def private_server(**fairque: Any) -> Iterator[FairQueue]:
    """Start a real server for a ``with`` block, in about 50 ms. The server ends with the block. Yields the default
    queue on the server.

    In the block, tasks are sent to this server and not captured. ``fairque`` contains further sections of the setting
    ``FAIRQUE``, in capitals. Needs `django-fairque[embedded]`. Raises `ConfigurationError` if no server is installed.
    """
    from django.conf import settings

    directory = tempfile.mkdtemp(prefix="fairque-")
    server = EmbeddedServer(f"{directory}/server")
    url = f"embedded://{directory}/server"
    sections = {**(getattr(settings, "FAIRQUE", None) or {}), **fairque, "REDIS": {"URL": url}}
    named = {"redis": {"url": url}}  # takes precedence over a server in the environment
    _running.append(server)
    try:
        with intercept_tasks(None), override_settings(FAIRQUE=sections), override_options(named):
            yield get_queue()
            close_queues()
    finally:
        _running.remove(server)
        skipped_time.seconds = 0.0
        server.retire()  # threads may still use the server, such as threads of a worker that has just ended
        _remove(directory)


def _remove(directory: str) -> None:
    """Remove a directory. Threads may still create files in it, for example after they lost the server."""
    for _ in range(100):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            return
        time.sleep(0.01)


def run_tasks(*queues: str, skip_delays: bool = False) -> int:
    """Run the tasks that are ready with a worker in this process. Returns how many tasks ran.

    ``queues`` are names of queues; by default the default queue. The call returns when no task is ready: tasks that
    these tasks enqueue run too, but scheduled tasks do not. With ``skip_delays`` (default: False), scheduled tasks run
    too: whenever no task is ready, the queue's clock is set to the moment at which the next task of these queues is
    due, until no task is scheduled. So delays and retries need no waiting, while ``expires`` and deadlines have their
    usual effect. The clock of the `private_server` keeps the new time until the block ends; `time.time` is not changed.

    In a test without a `private_server`, no task is in a queue. Then the call runs the captured tasks (of every queue
    if no queue is named) in the same way as `Capture.run`, and raises the tasks' errors. Raises `RuntimeError` if tasks
    are due at more than 10,000 moments.
    """
    capture = innermost()
    if capture is not None and not _running:
        return capture.run(*queues, retries=skip_delays)
    from django_fairque.worker import Worker

    names = list(queues) or ["default"]
    before = sum(_count_ended_tasks(name) for name in names)
    Worker(names, burst=True, concurrency=1).run()
    rounds = 1
    while skip_delays and _skip_to_next(names):
        if rounds == MAX_RUN_TASKS:
            raise RuntimeError(
                f"tasks were due at {MAX_RUN_TASKS} moments and there are more: do they retry without end?"
            )
        Worker(names, burst=True, concurrency=1).run()
        rounds += 1
    return sum(_count_ended_tasks(name) for name in names) - before


def _skip_to_next(names: list[str]) -> bool:
    """Set the clock to the moment at which the next task of these queues is due. Return whether there is one."""
    scheduled = [task for name in names for task in get_queue(name).tasks("scheduled").items]
    due = min((task.execute_after for task in scheduled if task.execute_after is not None), default=None)
    if due is not None:
        skipped_time.seconds = max(skipped_time.seconds, due - time.time() + CLOCK_STEP_SECONDS)
    return due is not None


def _count_ended_tasks(name: str) -> int:
    totals = get_queue(name).get_stats().totals
    return sum(totals.get(kind, 0) for kind in ("finished", "retried", "canceled", "dead:failed"))
