"""OpenTelemetry's metrics of sending and running tasks, with the names of its conventions for messaging.

Used only where ``TRACING`` is on. Where no SDK is set up, opentelemetry-api makes instruments that record nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from django_fairque import conf

if TYPE_CHECKING:
    from opentelemetry import metrics as otel
    from opentelemetry.util.types import AttributeValue

    from django_fairque.engine.model.task import Task

SYSTEM = "fairque"
"""The messaging system, in the words of the conventions."""
DURATION_BOUNDARIES_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Of the buckets of both histograms, as the conventions recommend them."""


class Operation(NamedTuple):
    """What is measured: sending or running. ``earlier_`` names are those of version 1.24 of the conventions."""

    name: str
    type: str
    duration: str
    messages: str
    earlier_name: str
    earlier_duration: str
    earlier_messages: str


SEND = Operation(
    "enqueue",
    "send",
    "messaging.client.operation.duration",
    "messaging.client.sent.messages",
    "publish",
    "messaging.publish.duration",
    "messaging.publish.messages",
)
RUN = Operation(
    "run",
    "process",
    "messaging.process.duration",
    "messaging.client.consumed.messages",
    "deliver",
    "messaging.deliver.duration",
    "messaging.deliver.messages",
)


@cache
def has_earlier_names() -> bool:
    """Whether the names of version 1.24 of the conventions are wanted in addition: ``messaging/dup`` in
    ``OTEL_SEMCONV_STABILITY_OPT_IN``.

    Any other value changes nothing: this package has never had only the earlier names.
    """
    wanted = os.environ.get("OTEL_SEMCONV_STABILITY_OPT_IN", "").split(",")
    return "messaging/dup" in map(str.strip, wanted)


@cache
def _instruments(operation: Operation) -> tuple[list[otel.Histogram], list[otel.Counter]]:
    from opentelemetry import metrics as otel

    meter = otel.get_meter("django_fairque")
    durations, messages = [operation.duration], [operation.messages]
    if has_earlier_names():
        durations.append(operation.earlier_duration)
        messages.append(operation.earlier_messages)
    return (
        [
            meter.create_histogram(
                name,
                "s",
                f"Duration of the operation {operation.name}.",
                explicit_bucket_boundaries_advisory=DURATION_BOUNDARIES_SECONDS,
            )
            for name in durations
        ],
        [meter.create_counter(name, "{message}", f"Tasks of the operation {operation.name}.") for name in messages],
    )


def record(operation: Operation, queue: str, task_names: Sequence[str], seconds: float, error: str | None) -> None:
    """Record one operation of a queue: how long it took, and each of its tasks.

    Args:
        operation: `SEND` or `RUN`.
        queue: the queue's name.
        task_names: the name of each task.
        seconds: how long it took.
        error: the class of the error with which it ended; None for none.
    """
    durations, messages = _instruments(operation)
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation.name,
        **server_attributes(),
    }
    if error is not None:
        attributes["error.type"] = error
    counts = Counter(task_names)
    about_all = dict(attributes)
    if len(counts) == 1:
        about_all["fairque.task.name"] = task_names[0]
    if operation is SEND:  # the other duration is of one type only
        about_all["messaging.operation.type"] = operation.type
    for duration in durations:
        duration.record(seconds, about_all)
    for name, count in counts.items():
        for counter in messages:
            counter.add(count, attributes | {"fairque.task.name": name})


def around_push(queue: str, tasks: Sequence[Task]) -> AbstractContextManager[None]:
    """Around sending tasks that were enqueued before, in a transaction: it has metrics, where those are on, and no span."""
    return _measured_push(queue, tasks) if tasks and conf.get_config().tracing else nullcontext()


@contextmanager
def _measured_push(queue: str, tasks: Sequence[Task]) -> Iterator[None]:
    started, failure = perf_counter(), None
    try:
        yield
    except Exception as error:
        failure = type(error).__qualname__
        raise
    finally:
        record(SEND, queue, [task.name for task in tasks], perf_counter() - started, failure)


def server_attributes() -> dict[str, AttributeValue]:
    """Where the server is, if the configuration names one host or socket."""
    config = conf.get_config().redis
    if endpoint := config.endpoint:
        return {"server.address": endpoint[0], "server.port": endpoint[1]}
    return {"server.address": config.socket_path} if config.socket_path else {}
