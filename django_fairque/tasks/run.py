"""One attempt at one task, and what its end means to the engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import duration, retry_delay
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError
from django_fairque.engine.model.outcome import Outcome

from .control import Discard, Retry
from .errors import TaskTimeoutError

if TYPE_CHECKING:
    from datetime import timedelta

    from django_fairque.engine.model.lease import Lease

    from .definition import AnyDefinition
    from .services import Services

logger = logging.getLogger("django_fairque.tasks")


@dataclass(frozen=True)
class Run:
    """An attempt that can begin; made by `prepare`. ``timeout`` is in seconds, None for no limit."""

    lease: Lease
    definition: AnyDefinition
    services: Services
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: float | None


def finished(run: Run, value: Any, took: float) -> Outcome:
    """The task returned ``value``. One that can't be kept fails it for good: trying again would give it again."""
    try:
        return Outcome.finish(run.lease, value, took=took, limit=run.services.config.max_payload_bytes)
    except TaskSerializationError as error:
        return Outcome.fail(run.lease, error.with_traceback(None), delay=None, took=took)


def failed(run: Run, error: BaseException, took: float | None = None) -> Outcome:
    """The task raised ``error``, or was stopped with it. KeyboardInterrupt and SystemExit are its failures too."""
    if isinstance(error, Retry):
        delay = _default_delay(run) if error.delay is None else error.delay
        return Outcome.retry(run.lease, str(error), delay=delay, took=took)
    if isinstance(error, Discard):
        return Outcome.discard(run.lease, str(error), took=took)
    return Outcome.fail(run.lease, error, delay=_delay_after(run, error), took=took)


def _delay_after(run: Run, error: BaseException) -> float | None:
    """Seconds until the next attempt if the budget allows one, None if ``error`` ends the task at once.

    A time limit is the worker's doing, so it is always worth another attempt.
    """
    options = run.definition.options
    if not isinstance(error, (*options.retry_on, TaskTimeoutError)):
        return None
    if callable(options.backoff):
        return _own_delay(run, error, options.backoff)
    return _default_delay(run)


def _own_delay(run: Run, error: BaseException, backoff: Any) -> float | None:
    try:
        delay: float | timedelta | None = backoff(run.lease.retry_count, error)
        return None if delay is None else duration(delay, "the delay that backoff returns")
    except (Exception, TaskValidationError):
        logger.exception("the backoff function of task %s failed; using the default delay", run.definition.name)
        return _default_delay(run)


def _default_delay(run: Run) -> float:
    config = run.services.config
    backoff = run.definition.options.backoff
    own = {} if callable(backoff) or backoff is None else backoff
    return retry_delay(
        run.lease.retry_count,
        base=own.get("base", config.retry_base_seconds),
        cap=own.get("cap", config.retry_cap_seconds),
        jitter=own.get("jitter", config.retry_jitter),
    )
