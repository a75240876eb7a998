"""A real server for a test, and running what is in its queues."""

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
from django_fairque.conf.current import intercepting, overriding
from django_fairque.embedded import EmbeddedServer

from .capture import innermost

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

_running: list[EmbeddedServer] = []


@contextmanager
def private_server(**fairque: Any) -> Iterator[FairQueue]:
    """Start a real server for this block, in some 50 ms; it ends with the block. Yields the default queue on it.

    Tasks are not captured in the block but sent to this server.
    ``fairque`` are more sections of the setting, in capitals. It needs `django-fairque[embedded]`. Raises
    `ConfigurationError` if no server is installed.
    """
    from django.conf import settings

    directory = tempfile.mkdtemp(prefix="fairque-")
    server = EmbeddedServer(f"{directory}/server")
    url = f"embedded://{directory}/server"
    sections = {**(getattr(settings, "FAIRQUE", None) or {}), **fairque, "REDIS": {"URL": url}}
    named = {"redis": {"url": url}}  # also where the environment names another server
    _running.append(server)
    try:
        with intercepting(None), override_settings(FAIRQUE=sections), overriding(named):
            yield get_queue()
            close_queues()
    finally:
        _running.remove(server)
        server.retire()  # threads may be using it still, such as a worker's that has just ended
        _remove(directory)


def _remove(directory: str) -> None:
    """Remove a directory in which threads may still create files: one that has just found its server ended, for example."""
    for _ in range(100):
        shutil.rmtree(directory, ignore_errors=True)
        if not Path(directory).exists():
            return
        time.sleep(0.01)


def run_tasks(*queues: str) -> int:
    """Run the tasks that are ready with a worker in this process. Returns how many tasks ran.

    ``queues`` are names of queues; the default one if none is named. It ends when nothing is ready: tasks that these
    tasks enqueue run too, those that are scheduled for later do not.

    In a test without a `private_server` nothing is in a queue: it runs the captured tasks instead (of every queue if none
    is named), as `Capture.run` does, which raises the tasks' errors.
    """
    capture = innermost()
    if capture is not None and not _running:
        return capture.run(*queues)
    from django_fairque.worker import Worker

    names = list(queues) or ["default"]
    before = sum(_ended(name) for name in names)
    Worker(names, burst=True, concurrency=1).run()
    return sum(_ended(name) for name in names) - before


def _ended(name: str) -> int:
    totals = get_queue(name).get_stats().totals
    return sum(totals.get(each, 0) for each in ("finished", "retried", "canceled", "dead:failed"))
