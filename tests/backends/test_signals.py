"""`task_started` and `task_finished` of django.tasks, from the process that runs the task."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.dispatch import Signal

from django_fairque.backends import FairqueBackend
from django_fairque.backends.compat import task_finished, task_started
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.testing import run_tasks

from .conftest import Configure
from .project import tasks


@contextmanager
def listening(signal: Signal, receiver: Any) -> Iterator[None]:
    signal.connect(receiver)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.fixture
def received() -> Iterator[list[Any]]:
    """Each signal of a result: its name, status, attempts, and the exception that was handled meanwhile."""
    sent: list[Any] = []

    def started(sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is FairqueBackend
        sent.append(("started", task_result.status.value, task_result.attempts, None))

    def finished(sender: Any, task_result: Any, **_: Any) -> None:
        assert sender is FairqueBackend
        assert task_result.finished_at >= task_result.started_at
        sent.append(("finished", task_result.status.value, task_result.attempts, sys.exc_info()[0]))

    with listening(task_started, started), listening(task_finished, finished):
        yield sent


STARTED = ("started", "RUNNING", 1, None)


@pytest.mark.parametrize(
    ("work", "args", "expected"),
    [
        (tasks.add, (1, 2), [STARTED, ("finished", "SUCCESSFUL", 1, None)]),
        (tasks.add_async, (1, 2), [STARTED, ("finished", "SUCCESSFUL", 1, None)]),
        (tasks.fail, ("OwnError",), [STARTED, ("finished", "FAILED", 1, tasks.OwnError)]),
        (tasks.fail_async, ("OwnError",), [STARTED, ("finished", "FAILED", 1, tasks.OwnError)]),
        (tasks.fail, ("Retry",), [STARTED]),
    ],
)
def test_signals_are_sent_at_the_start_and_while_the_exception_is_handled_at_the_end(
    queue: FairQueue, received: list[Any], work: Any, args: tuple[Any, ...], expected: list[Any]
) -> None:
    work.enqueue(*args)
    run_tasks()
    assert received == expected


def test_the_result_of_a_signal_has_the_value_or_the_error(queue: FairQueue) -> None:
    results: list[Any] = []

    def finished(task_result: Any, **_: Any) -> None:
        results.append(task_result)

    with listening(task_finished, finished):
        tasks.add.enqueue(1, 2)
        tasks.fail.enqueue("ValueError")
        run_tasks()
    assert results[0].return_value == 3
    assert [error.exception_class for error in results[1].errors] == [ValueError]
    assert "no good: at all" in results[1].errors[0].traceback


@pytest.mark.parametrize("work", [tasks.describe, tasks.describe_async], ids=lambda work: work.name)
def test_the_last_attempt_finishes_a_task(
    queue: FairQueue, configure: Configure, received: list[Any], work: Any
) -> None:
    configure(MAX_RETRIES=1)
    work.enqueue(5)
    run_tasks()
    assert received == [STARTED, ("started", "RUNNING", 2, None), ("finished", "FAILED", 2, LookupError)]


def test_receivers_run_in_the_thread_of_the_task(queue: FairQueue) -> None:
    threads: list[str] = []

    def note(**_: Any) -> None:
        threads.append(threading.current_thread().name)

    with listening(task_started, note), listening(task_finished, note):
        tasks.add.enqueue(1)
        run_tasks()
    assert (len(threads), len(set(threads) - {threading.current_thread().name})) == (2, 1)


def test_a_failing_receiver_does_not_fail_the_task(queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
    def broken(**_: Any) -> None:
        raise LookupError("of the receiver")

    with listening(task_started, broken), listening(task_finished, broken):
        result = tasks.add.enqueue(1, 2)
        run_tasks()
    result.refresh()
    assert result.return_value == 3
    assert sum("of the receiver" in str(record.exc_info) for record in caplog.records) == 2


def test_django_logs_tasks_as_for_its_own_backends(queue: FairQueue, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("django", "django_tasks"):
        caplog.set_level(logging.DEBUG, logger=name)
    result = tasks.fail.enqueue("OwnError")
    run_tasks()
    lines = [record for record in caplog.records if record.name in ("django.tasks", "django_tasks")]
    assert [record.levelname for record in lines] == ["DEBUG", "INFO", "ERROR"]
    assert all(result.id in record.getMessage() for record in lines)
    assert "OwnError" in str(lines[-1].exc_info)
