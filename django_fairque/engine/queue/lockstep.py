"""Several reads, of one or more queues, in as many round trips as the longest of them needs. For pages and probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django_fairque.engine.maintenance.resharding import check_shard_count
from django_fairque.engine.scripting.operations import Operation, read_together
from django_fairque.engine.transport.cluster import is_cluster

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.sharding.shards import Shards


def read_in_lockstep(reads: Sequence[tuple[FairQueue, Callable[[Shards], Operation[Any]]]]) -> list[Any]:
    """Return the results of ``reads``, in order. The next requests of all reads are sent together in one round trip.

    In a cluster, where nodes may be missing, and for queues with different clients, the reads run one after the other.

    Args:
        reads: at least one pair of a queue and a function that takes the queue's shards and returns an operation that only
            reads. A queue may occur several times.

    Raises:
        RedisConnectionError: the server can't be reached, or can't be used.
        ConfigurationError: a queue lies on another number of shards than is configured.
    """
    queues = list(dict.fromkeys(queue for queue, _ in reads))
    first = queues[0]
    if is_cluster(first.client) or any(queue.client is not first.client for queue in queues):
        return [queue._read_all_shards(read) for queue, read in reads]  # noqa: SLF001 - as the queue's own methods do
    unchecked = []
    for queue in queues:
        if queue.config.shards > 1:
            queue._check()  # noqa: SLF001 - it may write the number of shards
        elif not queue._is_checked:  # noqa: SLF001
            unchecked.append(queue)
    checks = [check_shard_count(queue._shards) for queue in unchecked]  # noqa: SLF001
    parts = [read(queue._shards) for queue, read in reads]  # noqa: SLF001
    results = first._drive(read_together([*checks, *parts]))  # noqa: SLF001
    for queue in unchecked:
        queue._is_checked = True  # noqa: SLF001
    return results[len(checks) :]
