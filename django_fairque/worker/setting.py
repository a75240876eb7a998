"""What tasks need around them, the same for threads and for coroutines."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.conf import get_config
from django_fairque.engine.errors import ConfigurationError
from django_fairque.engine.queue import FairQueue
from django_fairque.tasks import registry
from django_fairque.tasks.execution import failed
from django_fairque.tasks.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from django_fairque.engine.aio import AsyncFairQueue
    from django_fairque.engine.outcomes import Outcome
    from django_fairque.tasks.execution import Run

    from .options import WorkerOptions


def services(
    queue: FairQueue | AsyncFairQueue,
    options: WorkerOptions,
    revoked: Container[str],
    handler: Callable[[Any], Any] | None,
    send_progress: Callable[..., object],
) -> Services:
    return Services(
        queue=queue.name,
        config=queue.config,
        send_progress=send_progress,
        handler=handler,
        timeout=options.timeout,
        revoked=revoked,
        tracing=get_config().tracing,
        own_queue=queue.whole if isinstance(queue, FairQueue) else None,
    )


def timeout_of(run: Run) -> float:
    """Seconds it may run; without a limit 30 years."""
    return 1e9 if run.timeout is None else run.timeout


def all_failed(runs: Sequence[Run], error: BaseException, started: float) -> list[Outcome]:
    """What was stopped from outside has failed with ``error``, each of a batch."""
    took = (monotonic() - started) / len(runs)
    return [failed(run, error, took) for run in runs]


def batch_of(name: str) -> tuple[int, float] | None:
    """``(size, seconds to wait)`` of a batch of the tasks of that name, None if each runs by itself."""
    definition = registry.find(name) if name else None
    if definition is None or not definition.options.batch:
        return None
    return definition.options.batch, definition.options.batch_wait


def imported(path: str | None) -> Callable[[Any], Any] | None:
    """The handler of bare payloads that the configuration names."""
    if path is None:
        return None
    from django.utils.module_loading import import_string

    try:
        handler = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f"handler: expected the dotted path of a callable, got {path!r}: {error}") from error
    if not callable(handler):
        raise ConfigurationError(f"handler: expected a callable, {path!r} is a {type(handler).__name__}")
    found: Callable[[Any], Any] = handler
    return found
