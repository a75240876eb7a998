"""Retries in tests: at once in `eager` and `Capture.run`, and on a private server without waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import Retry, TaskState, current_task, task
from django_fairque.testing import capture_tasks, eager, private_server, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.engine.queue.queue import FairQueue

MOST_RUNS = 40


class Flaky:
    """A task that raises what ``make`` returns for the number of a run, until that is None."""

    def __init__(self, make: Any, **options: Any) -> None:
        self.seen: list[tuple[int, int]] = []

        @task(name="flaky", **options)
        def flaky() -> int:
            self.seen.append((current_task().attempt, current_task().retries_left))
            error = make(len(self.seen)) if len(self.seen) < MOST_RUNS else None
            if error is not None:
                raise error
            return len(self.seen)

        self.task = flaky


CASES: list[tuple[Any, dict[str, Any], int, TaskState]] = [
    (lambda run: OSError("net") if run < 3 else None, {"max_retries": 2}, 3, TaskState.FINISHED),
    (lambda run: OSError("net"), {"max_retries": 2}, 3, TaskState.FAILED),
    (lambda run: OSError("net"), {"max_retries": 2, "retry_on": (ValueError,)}, 1, TaskState.FAILED),
    (lambda run: OSError("net"), {"backoff": lambda retries, error: None if retries else 5}, 2, TaskState.FAILED),
    (lambda run: Retry(60) if run < 9 else None, {"max_retries": 2}, 9, TaskState.FINISHED),
    (lambda run: Retry(60, counts=True), {"max_retries": 2}, 3, TaskState.FAILED),
    (lambda run: Retry(60, max=4), {"max_retries": 2}, 5, TaskState.FAILED),
    (lambda run: Retry(60, deadline=200), {"max_retries": 2}, 4, TaskState.FAILED),
    (lambda run: Retry(60), {"expires": 200}, 4, TaskState.FAILED),
]


@pytest.mark.parametrize(("make", "options", "runs", "state"), CASES)
@pytest.mark.parametrize("way", ["eager", "run"])
def test_retries_run_at_once_with_the_limits_of_a_worker(
    way: str, make: Any, options: dict[str, Any], runs: int, state: TaskState
) -> None:
    flaky = Flaky(make, **options)
    if way == "eager":
        with eager(retries=True, raise_errors=False):
            handle = flaky.task.enqueue()
    else:
        with capture_tasks() as captured:
            handle = flaky.task.enqueue()
            assert captured.run(retries=True, raise_errors=False) == runs
            assert handle.state is state
        return
    assert len(flaky.seen) == runs


def test_an_eager_task_raises_the_error_of_its_last_retry() -> None:
    flaky = Flaky(lambda run: OSError(f"run {run}"), max_retries=2)
    with eager(retries=True), pytest.raises(OSError, match="run 3"):
        flaky.task.enqueue()
    assert flaky.seen == [(1, 2), (2, 1), (3, 0)]


def test_an_eager_task_without_retries_runs_once() -> None:
    flaky = Flaky(lambda run: OSError(f"run {run}"))
    with eager(), pytest.raises(OSError, match="run 1"):
        flaky.task.enqueue()


@pytest.fixture(scope="module")
def server() -> Iterator[FairQueue]:
    with private_server() as queue:
        yield queue


@pytest.mark.django_db(transaction=True)
def test_tests_on_a_private_server_skip_delays(server: FairQueue) -> None:
    del server
    began = time.monotonic()
    for make, options, runs, state in CASES:
        flaky = Flaky(make, **options)
        is_delayed = state is TaskState.FINISHED
        handle = flaky.task.using(delay=86_400 if is_delayed else 0).enqueue()
        assert run_tasks() == (0 if is_delayed else 1)
        run_tasks(skip_delays=True)
        assert (len(flaky.seen), handle.state) == (runs, state), options
    assert time.monotonic() - began < 60
