"""What a worker calls to run a task: `prepare` it, then `execute` or `aexecute`; several of a batch task `run_batch`.

None of them raises because of a task or of anything a task's record holds: the answer is always an `Outcome` for
`FairQueue.settle`. What may escape is only what was thrown in from outside: a `SoftTimeLimitExceeded` set in the
thread after the function had returned, or the `CancelledError` of a coroutine that its worker canceled. The worker,
which knows why it did so, then asks `failed`, or releases the lease.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from django_fairque.engine.model.errors import TaskSerializationError
from django_fairque.engine.model.outcome import Outcome

from . import lifecycle, registry, signing
from .batches import arun_batch, run_batch
from .context import RunningTask, running
from .errors import TaskSignatureError
from .run import Run, failed, finished
from .tracing import around_running

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

    from .definition import AnyDefinition
    from .errors import TaskNotRegisteredError
    from .services import Services

logger = logging.getLogger("django_fairque.tasks")

__all__ = ["Run", "aexecute", "arun_batch", "execute", "failed", "prepare", "run_batch"]


def prepare(lease: Lease, services: Services) -> Run | Outcome:
    """Find what to run and with which arguments; an outcome instead if it can't run, here or at all.

    Where to run it is for the worker to see: ``run.definition.is_async`` and ``run.definition.options.batch``.
    """
    try:
        lease.check()
        signing.check(lease, services)
        name = lease.name
        definition = registry.find(name) if name else services.bare
        if definition is None:
            return _put_off(lease, name, services)
        args, kwargs = _arguments(lease, definition)
        timeout = lease.timeout
    except (TaskSerializationError, TaskSignatureError, ValueError) as error:  # a damaged record: see Lease
        return Outcome.poison(lease, error.with_traceback(None))
    return Run(lease, definition, services, args, kwargs, limit_of(timeout, definition, services))


def limit_of(own: float | None, definition: AnyDefinition, services: Services) -> float | None:
    """Seconds a task may run that brings ``own``: else what its function says, or its queue, or the worker; None: no limit."""
    limits = (own, definition.options.timeout, services.config.default_task_timeout, services.timeout)
    return next((each for each in limits if each is not None), None)


def execute(run: Run) -> Outcome:
    """Run it in this thread; an ``async def`` task on an event loop of its own."""
    definition = run.definition
    if definition.is_async:
        return async_to_sync(aexecute)(run)
    if definition.options.batch:
        return run_batch([run])[0]
    context = RunningTask(run.lease, run.services, run.timeout)
    token = running.set(context)
    lifecycle.send_task_started(run)
    started = perf_counter()
    try:
        with around_running([run]):
            value = definition.function(*run.args, **run.kwargs)
    except BaseException as error:  # noqa: BLE001 - whatever a task raises is its failure
        outcome = failed(run, _from_the_task(error), perf_counter() - started)
    else:
        outcome = finished(run, value, perf_counter() - started)
    finally:
        running.reset(token)
    context.flush()
    return outcome


async def aexecute(run: Run) -> Outcome:
    """As `execute`, for an ``async def`` task on the running loop, in an `asyncio.Task` of its own.

    `asyncio.CancelledError` goes through: the one who canceled it says what becomes of the task.
    """
    definition = run.definition
    if definition.options.batch:
        return (await arun_batch([run]))[0]
    context = RunningTask(run.lease, run.services, run.timeout)
    token = running.set(context)
    await lifecycle.asend_task_started(run)
    started = perf_counter()
    try:
        with around_running([run]):
            value = await definition.function(*run.args, **run.kwargs)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever a task raises is its failure
        outcome = failed(run, _from_the_task(error), perf_counter() - started)
    else:
        outcome = finished(run, value, perf_counter() - started)
    finally:
        running.reset(token)
    if context.has_reports:
        await asyncio.to_thread(context.flush)
    return outcome


def _from_the_task(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the task's own code."""
    trace = error.__traceback__
    return error.with_traceback(trace.tb_next) if trace and trace.tb_next else error


def _put_off(lease: Lease, name: str, services: Services) -> Outcome:
    reason: TaskNotRegisteredError | str = (
        "a bare payload, and the worker has no HANDLER for those in FAIRQUE['WORKER']"
    )
    if name:
        reason = registry.not_registered(name)
        if services.unknown.is_to_be_warned_of(name):
            logger.warning(
                "task %.80r of user %.80r can't run: %s. Other workers may take such tasks for %g s, then they are dead letters",
                *(lease.task_id, lease.user_id, reason, services.unknown.grace),
            )
    if services.unknown.may_wait(lease.task_id):
        return Outcome.retry(lease, reason, delay=services.unknown.delay, took=0.0)
    return Outcome.fail(lease, reason, delay=None, took=0.0)


def _arguments(lease: Lease, definition: AnyDefinition) -> tuple[list[Any], dict[str, Any]]:
    payload = lease.payload
    if not lease.name:
        return [payload], {}
    if isinstance(payload, dict) and payload.keys() - {"about"} == {"args", "kwargs"}:
        args, kwargs = payload["args"], payload["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict) and _fits(definition, args, kwargs):
            return args, kwargs
    raise TaskSerializationError(
        f"the payload of task {definition.name!r} must be an object of args (a list) and kwargs (an object), as enqueue "
        "makes it; push other payloads without a name, for the worker's handler"
    )


def _fits(definition: AnyDefinition, args: list[Any], kwargs: dict[str, Any]) -> bool:
    return not definition.options.batch or (len(args) == 1 and not kwargs)
