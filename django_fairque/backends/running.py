"""Runs a task of `django.tasks` in a worker, with Django's task context and signals.

Django's signals report the result of the function. These signals are sent in the process and thread that ran the
function, before the queue has the outcome. The signals of `django_fairque.signals` are sent later, when the queue has
recorded the outcome.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.utils import timezone
from django.utils.module_loading import import_string

from django_fairque.conf.current import current_interceptor
from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.safely import get_logger, is_a, traceback_text, type_name
from django_fairque.tasks import registry
from django_fairque.tasks.context import RunningTask, current_task
from django_fairque.tasks.errors import Retry, SoftTimeLimitExceeded
from django_fairque.tasks.results import aget_result_queue, get_result_queue
from django_fairque.tasks.retries import NextStep, decide_next_step, replace_cancellation

from . import results
from .compat import TaskContext, TaskError, TaskResultStatus, normalize_json, task_finished, task_started

if TYPE_CHECKING:
    from datetime import timedelta

    from django.dispatch import Signal

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.records import Attempt

    from .compat import AnyResult, AnyTask

logger = get_logger("django_fairque.tasks")

ResultBackoffFunction = Callable[[BaseException, "AnyResult"], "float | timedelta | None"]
"""A function ``(error, task_result)`` that returns the seconds or timedelta until the next attempt; None to stop
retrying."""
MAX_FAILED_RESULTS = 1000
_failed_results: dict[LeaseKey, AnyResult] = {}
"""The results of attempts that raised an error, by lease. A result is kept until the next attempt is planned."""


class ResultBackoff:
    """A backoff function that gets the error and the result, as in Django's proposal. ``function`` is the function, or
    its dotted path, which is imported when a task first fails.
    """

    takes_lease = True
    """Whether the function is called with the lease instead of the number of retries. `plan_retry` reads this."""

    def __init__(self, function: ResultBackoffFunction | str) -> None:
        self._given = function

    @cached_property
    def _function(self) -> ResultBackoffFunction:
        found: ResultBackoffFunction = import_string(self._given) if isinstance(self._given, str) else self._given
        return found

    def __call__(self, lease: Lease, error: BaseException) -> float | timedelta | None:
        """Return the function's value for a failed attempt. The result that is passed to the function contains the
        error with its traceback, and includes the attempt.
        """
        result = _failed_results.pop(lease.key, None)
        if result is None:  # a time limit ended the attempt, so no result was recorded
            definition: Any = registry.find(lease.name)
            result = results.build_running_result(definition.task, lease, definition.options.queue, ())
            results.update(result, **_ended(result, error))
        return self._function(error, result)


def runner(task: AnyTask) -> Callable[..., Any]:
    """Return the function that a worker calls: the task's own function. If it takes the task's context, the context is
    passed as first argument.
    """
    run = _async_runner(task) if inspect.iscoroutinefunction(task.func) else _sync_runner(task)
    functools.update_wrapper(run, task.func)
    signature = inspect.signature(task.func)
    parameters = list(signature.parameters.values())
    if task.takes_context:
        del parameters[0]  # callers pass all arguments except the context
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # read by inspect.signature
    return run


def _sync_runner(task: AnyTask) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, _earlier())
        _announce(task_started, attempt)
        try:
            value = attempt.record_result(task.func(*attempt.add_context(args), **kwargs))
        except BaseException as error:
            if attempt.record_error(error):
                _announce(task_finished, attempt)
            raise
        _announce(task_finished, attempt)
        return value

    return run


def _async_runner(task: AnyTask) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        attempt = _Attempt(task, await _aearlier())
        await _aannounce(task_started, attempt)
        try:
            value = attempt.record_result(await _await_call(task.func(*attempt.add_context(args), **kwargs)))
        except BaseException as error:
            if attempt.record_error(error):
                # asend_robust is not used, because the asyncio tasks that it creates for receivers do not have the
                # error that is handled here.
                await sync_to_async(_announce)(task_finished, attempt)
            raise
        await _aannounce(task_finished, attempt)
        return value

    return run


def _announce(signal: Signal, attempt: _Attempt) -> None:
    """Send a signal. Django logs errors of receivers; this logging may raise errors too, which are caught."""
    try:
        signal.send_robust(sender=attempt.sender, task_result=attempt.result)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        logger.exception("the receivers of a signal about task %s could not be called", attempt.result.id)


async def _aannounce(signal: Signal, attempt: _Attempt) -> None:
    """Send a signal from a coroutine, like `_announce`."""
    try:
        await signal.asend_robust(sender=attempt.sender, task_result=attempt.result)
    except SoftTimeLimitExceeded:
        raise
    except Exception:
        logger.exception("the receivers of a signal about task %s could not be called", attempt.result.id)


async def _await_call(call: Awaitable[Any]) -> Any:
    """Await the call. If a time limit cancels it, raise the exception that a task in a thread would get."""
    try:
        return await call
    except asyncio.CancelledError as canceled:
        error = replace_cancellation(canceled)
        if not is_a(error, SoftTimeLimitExceeded):
            raise
        raise error from None


class _Attempt:
    """One attempt, and the result that receivers and the task's context see during it."""

    def __init__(self, task: AnyTask, earlier: Sequence[Attempt]) -> None:
        lease = _get_running_task().lease
        self._task = task
        self.result: AnyResult = results.build_running_result(task, lease, _get_running_task().queue, earlier)
        self.sender = type(self.result.task.get_backend())

    def add_context(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (TaskContext(task_result=self.result), *args) if self._task.takes_context else args

    def record_result(self, value: Any) -> Any:
        """Record the returned value as JSON. Raises `TypeError` or `ValueError` if it can't be JSON."""
        value = normalize_json(value)
        ended = {"status": TaskResultStatus.SUCCESSFUL, "finished_at": timezone.now()}
        results.update(self.result, **ended, _return_value=value)
        return value

    def record_error(self, error: BaseException) -> bool:
        """Record the error if it ends the task, and return whether it does. Otherwise the task is retried, or another
        worker has the task.
        """
        definition, cause = registry.find(self._task.module_path), replace_cancellation(error)
        step = decide_next_step(cause, definition, _get_running_task().retries_left)
        if definition is not None and isinstance(definition.options.backoff, ResultBackoff) and not is_a(cause, Retry):
            self._keep_for_backoff(error)
        if step not in (NextStep.FAIL, NextStep.CANCEL):
            return False
        results.update(self.result, **_ended(self.result, error))
        return True

    def _keep_for_backoff(self, error: BaseException) -> None:
        while len(_failed_results) >= MAX_FAILED_RESULTS:  # remove results whose next attempt never came
            _failed_results.pop(next(iter(_failed_results), None), None)  # type: ignore[arg-type]
        result = copy.copy(self.result)
        results.update(result, **_ended(result, error))
        _failed_results[_get_running_task().lease.key] = result


def _ended(result: AnyResult, error: BaseException) -> dict[str, Any]:
    """Return the fields of the result of an attempt that raised ``error``."""
    kind = type_name(error)
    path = kind if "." in kind else f"builtins.{kind}"
    described = TaskError(exception_class_path=path, traceback=traceback_text(error))
    errors = [*result.errors, described]
    return {"status": TaskResultStatus.FAILED, "finished_at": timezone.now(), "errors": errors}


def _get_running_task() -> RunningTask:
    context = current_task()
    if not isinstance(context, RunningTask):
        raise RuntimeError("only a worker runs this; call the task with task.call() or task.acall()")  # noqa: TRY004
    return context


def _earlier() -> Sequence[Attempt]:
    """Read the earlier attempts of the task, if there were any."""
    context = _get_running_task()
    try:
        return () if _is_first(context) else get_result_queue(context.queue, current_interceptor()).history(context.id)
    except RedisConnectionError as error:
        return _not_known(context, error)


async def _aearlier() -> Sequence[Attempt]:
    context = _get_running_task()
    try:
        if _is_first(context):
            return ()
        return await (await aget_result_queue(context.queue, current_interceptor())).history(context.id)
    except RedisConnectionError as error:
        return _not_known(context, error)


def _is_first(context: RunningTask) -> bool:
    lease = context.lease
    # A task that raised Retry has not failed, but is scheduled.
    return lease.retry_count == 0 and lease.delivery == 1 and lease.task.execute_after is None


def _not_known(context: RunningTask, error: Exception) -> Sequence[Attempt]:
    """Log that the earlier attempts can't be read, and return no attempts, so that the task runs nevertheless."""
    logger.warning("the earlier attempts of task %s can't be read; it runs without (%s)", context.id, error)
    return ()
