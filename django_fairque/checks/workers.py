"""The workers' settings, and whether they can work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from .messages import configured, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage

    from django_fairque.conf import FairQueueConfig, WorkerConfig


def check_workers(**_: Any) -> list[CheckMessage]:
    """Check for handlers that can't be called, leases that a worker can't hold, and queues that no worker serves.
    Returns the messages.
    """
    config = configured()
    if config is None:
        return []
    workers = (config.worker, *config.workers.values())
    return [*_handlers(workers), *_short_leases(config, workers), *_unserved(config)]


def _handlers(workers: tuple[WorkerConfig, ...]) -> Iterator[CheckMessage]:
    for path in sorted({each.handler for each in workers if each.handler}):
        try:
            problem = "" if callable(import_string(path)) else "it is not callable"
        except ImportError as failed:
            problem = str(failed)
        if problem:
            text = f"the worker's handler {path!r} can't be used: {problem}"
            yield error("fairque.E007", text, "HANDLER is the dotted path of a callable.")


def _short_leases(config: FairQueueConfig, workers: tuple[WorkerConfig, ...]) -> Iterator[CheckMessage]:
    from django_fairque.worker.options import WorkerOptions

    patience = config.redis.socket_timeout
    shortest = min((WorkerOptions.from_config(each) for each in workers), key=lambda options: options.lease_seconds)
    if shortest.renewal_interval + patience >= shortest.fence_after:
        yield warning(
            "fairque.W003",
            f"a worker with lease_seconds {shortest.lease_seconds:g} renews its leases every {shortest.renewal_interval:g} s and "
            f"may wait {patience:g} s for the answer (redis.socket_timeout): beyond "
            f"{shortest.fence_after:g} s it must stop working",
            "While one renewal waits for an answer, all leases end, and other workers repeat the tasks: make the lease longer "
            "than twice the time-out.",
        )


def _unserved(config: FairQueueConfig) -> Iterator[CheckMessage]:
    """Only who lists workers says that there are no others."""
    served = {name for worker in config.workers.values() for name in worker.queues}
    for name in config.queues if config.workers else ():
        if name not in served and name != "default":  # which is always declared
            yield warning(
                "fairque.W008",
                f"none of the WORKERS serves the queue {name!r}: its tasks would wait for ever",
                "Name it among the QUEUES of a worker. Silence this number if a worker is started with --queue.",
            )
