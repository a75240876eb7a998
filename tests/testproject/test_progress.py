"""Tests of the progress that the demonstration shows while it waits."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management.base import OutputWrapper
from library.errors import StalledError
from library.progress import STALLED_AFTER, Progress

from django_fairque import Task

if TYPE_CHECKING:
    from django_fairque import FairQueue


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def three(queue: FairQueue) -> FairQueue:
    """A queue with three tasks of two users."""
    for user in ("acme", "acme", "other"):
        queue.push(Task.create(user, 3, {}))
    return queue


def finish(queue: FairQueue, count: int) -> None:
    for lease in queue.pop_batch(count, "worker"):
        queue.finish(lease)


def test_progress_in_a_log_is_a_line_from_time_to_time(three: FairQueue) -> None:
    out = StringIO()
    progress = Progress(3, OutputWrapper(out))
    assert progress.see(three.get_stats(), 100.0)
    finish(three, 2)
    assert progress.see(three.get_stats(), 100.2)
    assert progress.see(three.get_stats(), 102.0)
    finish(three, 1)
    assert not progress.see(three.get_stats(), 102.2)
    assert out.getvalue().splitlines() == [
        "  0 of 3 tasks done (0/s), users waiting: 2",
        "  2 of 3 tasks done (1/s), users waiting: 1",
        "  3 of 3 tasks done (1/s), users waiting: 0",
    ]


def test_progress_on_a_terminal_is_one_line_that_is_rewritten(three: FairQueue) -> None:
    out = Terminal()
    progress = Progress(3, OutputWrapper(out))
    progress.see(three.get_stats(), 100.0)
    finish(three, 3)
    progress.see(three.get_stats(), 100.2)
    empty, full = out.getvalue().removesuffix("\n").split("\r\x1b[K")[1:]
    assert empty.startswith(f"  [{'.' * 24}] 0 of 3")
    assert full.startswith(f"  [{'#' * 24}] 3 of 3")
    assert out.getvalue().count("\n") == 1


def test_watching_ends_if_no_task_ends_for_long(three: FairQueue) -> None:
    progress = Progress(3, OutputWrapper(StringIO()))
    progress.see(three.get_stats(), 100.0)
    finish(three, 1)
    progress.see(three.get_stats(), 200.0)
    progress.see(three.get_stats(), 200.0 + STALLED_AFTER)
    with pytest.raises(StalledError, match="and 2 are left"):
        progress.see(three.get_stats(), 200.1 + STALLED_AFTER)
