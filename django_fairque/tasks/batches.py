"""Batch tasks: one call of the function for many tasks, each with an outcome of its own."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import short

from . import lifecycle
from .context import RunningTask, running
from .control import Discard, Retry
from .errors import TaskUsageError
from .run import failed, finished
from .tracing import around_running

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized
    from datetime import timedelta

    from django_fairque.engine.model.outcome import Outcome

    from .run import Run

UNSAID = object()


class BatchResult:
    """What became of each item of a batch; returned by a batch task that wants to say so item by item.

    An item of which nothing is said counts as failed, and is tried again: it may not have been looked at.

    Args:
        items: the list that the task was called with, or its length.
    """

    def __init__(self, items: Sized | int) -> None:
        size = items if isinstance(items, int) else len(items)
        self.outcomes: list[Any] = [UNSAID] * size

    def ok(self, index: int, value: Any = None) -> None:
        """Item ``index`` is done; ``value`` (JSON) is its result."""
        if isinstance(value, BaseException):
            raise TaskUsageError(f"BatchResult.ok: an exception is no result; use fail({index}, …), got {short(value)}")
        self._say(index, value)

    def fail(self, index: int, error: BaseException | str) -> None:
        """Item ``index`` failed; whether it is tried again is decided as for any task."""
        if not isinstance(error, (BaseException, str)):
            raise TaskUsageError(f"BatchResult.fail: expected an exception or text, got {short(error)}")
        self._say(index, error if isinstance(error, BaseException) else RuntimeError(error))

    def retry(self, index: int, delay: float | timedelta | None = None, reason: str = "") -> None:
        """As raising `Retry`, for item ``index``."""
        self._say(index, Retry(delay, reason))

    def discard(self, index: int, reason: str = "") -> None:
        """As raising `Discard`, for item ``index``."""
        self._say(index, Discard(reason))

    def __len__(self) -> int:
        return len(self.outcomes)

    def _say(self, index: int, outcome: Any) -> None:
        size = len(self.outcomes)
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
            raise TaskUsageError(
                f"BatchResult: the index of an item must be an integer from 0 to {size - 1}, got {short(index)}"
            )
        self.outcomes[index] = outcome


def run_batch(runs: Sequence[Run]) -> list[Outcome]:
    """Call the function once for all ``runs`` (of one task); one outcome for each, in their order."""
    batch = _BatchCall(runs)
    token = running.set(batch.contexts[0])
    for run in runs:
        lifecycle.send_task_started(run)
    try:
        with around_running(runs):
            value = runs[0].definition.function(batch.items)
        batch.returned(value)
    except BaseException as error:  # noqa: BLE001 - whatever a task raises is its failure
        batch.raised(error)
    finally:
        running.reset(token)
    for context in batch.contexts:
        context.flush()
    return batch.outcomes()


async def arun_batch(runs: Sequence[Run]) -> list[Outcome]:
    """As `run_batch`, for an ``async def`` task; `asyncio.CancelledError` goes through to the one who canceled."""
    batch = _BatchCall(runs)
    token = running.set(batch.contexts[0])
    for run in runs:
        await lifecycle.asend_task_started(run)
    try:
        with around_running(runs):
            value = await runs[0].definition.function(batch.items)
        batch.returned(value)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a task raises is its failure
        batch.raised(error)
    finally:
        running.reset(token)
    for context in batch.contexts:
        if context.has_reports:
            await asyncio.to_thread(context.flush)
    return batch.outcomes()


class _BatchCall:
    """One call for many runs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._said: Sequence[Any] = ()
        self._took = 0.0
        self.items = [run.args[0] for run in runs]
        self.contexts = tuple(RunningTask(run.lease, run.services, run.timeout) for run in runs)
        self.contexts[0].lead(self.contexts)
        self._started = perf_counter()

    def returned(self, value: Any) -> None:
        self._took = perf_counter() - self._started
        self._said = by_item(value, len(self._runs))

    def raised(self, error: BaseException) -> None:
        self._took = self._took or perf_counter() - self._started
        self._said = [error] * len(self._runs)

    def outcomes(self) -> list[Outcome]:
        """The time is shared equally: nobody knows which item took how much of it."""
        took = self._took / len(self._runs)
        return [_outcome(run, said, took) for run, said in zip(self._runs, self._said, strict=True)]


def _outcome(run: Run, said: Any, took: float) -> Outcome:
    return failed(run, said, took) if isinstance(said, BaseException) else finished(run, said, took)


def by_item(value: Any, size: int) -> Sequence[Any]:
    """What the function said of each item: a result, or an exception."""
    if value is None:
        return [None] * size
    if not isinstance(value, (list, tuple, BatchResult)):
        raise TaskUsageError(
            "a batch task returns None (all are done), a list with the result or exception of each item, or a "
            f"BatchResult; got {type(value).__name__}"
        )
    if len(value) != size:
        raise TaskUsageError(
            f"a batch task was called with {size} items and must answer for each of them; it returned {len(value)} answers"
        )
    if isinstance(value, BatchResult):
        unsaid = TaskUsageError("the batch task's BatchResult says nothing of this item")
        return [unsaid if said is UNSAID else said for said in value.outcomes]
    return value
