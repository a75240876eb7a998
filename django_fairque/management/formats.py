"""Converts a queue's data to another format (`django_fairque.engine.model.data_format`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.resharding import read_shard_count
from django_fairque.engine.model.data_format import FORMAT_VERSIONS
from django_fairque.engine.model.errors import QueueNotDrainedError, TaskValidationError, short

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


def queue_format(queue: FairQueue) -> int | None:
    """Return the lowest format of the queue's shards; None if the queue has no data."""
    return queue._drive(read_format(_all_shards(queue)))  # noqa: SLF001 - as the queue's own methods do


def convert_queue(queue: FairQueue, number: int, *, now: float | None = None) -> int | None:
    """Convert the queue's data to the format with this ``number``, like `convert_format`."""
    return queue._drive(convert_format(_all_shards(queue), number, now))  # noqa: SLF001


def _all_shards(queue: FairQueue) -> Shards:
    """Return the shards that contain the queue's data, even if another number of shards is configured. The format is
    not checked.
    """
    shards = queue._shards  # noqa: SLF001
    return shards.with_shard_count(queue._drive(read_shard_count(shards)))  # noqa: SLF001


def read_format(shards: Shards) -> Operation[int | None]:
    """Return the lowest format of the queue's shards; None if the queue has no data."""
    found: list[int] = []
    for shard in shards:
        before = (yield shard.call("convert_format", ["", ""], None))[0]
        found += [int(before)] if before else []
    return min(found, default=None)


def convert_format(shards: Shards, number: int, now: float | None) -> Operation[int | None]:
    """Convert the data of all shards to the format with this ``number``. Return the lowest format before the
    conversion; None if there are no data.

    Raises:
        TaskValidationError: this version does not know that format.
        QueueNotDrainedError: on some shards, workers are running or tasks wait that the other format can't represent.
            These shards were not changed.
    """
    if isinstance(number, bool) or number not in FORMAT_VERSIONS:
        known = ", ".join(map(str, FORMAT_VERSIONS))
        raise TaskValidationError(f"this version can convert data to format {known}, got {short(number)}")
    before: list[int] = []
    workers: set[str] = set()
    unknown = 0
    for shard in shards:
        found, _, _, *living = yield shard.call("convert_format", ["", ""], now)
        before += [int(found)] if found else []
        workers |= {worker.decode() for worker in living}
    for shard in shards:
        if not workers:
            _, _, count, *living = yield shard.call("convert_format", [number, FORMAT_VERSIONS[number]], now)
            unknown += int(count)
            workers |= {worker.decode() for worker in living}
    refusal = f"the data of queue {shards.name!r} can't be converted to format {number}"
    if workers:
        raise QueueNotDrainedError(
            f"{refusal} while workers live ({', '.join(sorted(workers)[:5])}). Stop all its workers and run this again; a "
            "worker that was killed counts as living for a minute"
        )
    if unknown:
        raise QueueNotDrainedError(
            f"{refusal} yet: {unknown:,} {'task' if unknown == 1 else 'tasks'} with a delay or an expiry could not be checked "
            "by the older version. Let workers of this version run them first, or cancel them, and run this again"
        )
    return min(before, default=None)
