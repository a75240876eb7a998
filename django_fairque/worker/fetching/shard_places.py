"""Where a worker works: each shard of each of its queues is a place, with a lane of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.sharding.shard_scheduler import Order, Window
    from django_fairque.worker.options import WorkerOptions

AnyQueue = TypeVar("AnyQueue", "FairQueue", "AsyncFairQueue")


@dataclass(frozen=True)
class ShardTurn:
    """A shard among the shards of its queue, in the order that all of them share."""

    scheduler: Order
    index: int

    @property
    def position(self) -> tuple[int, float]:
        return self.scheduler.turn(self.index)

    def window(self, others: Iterable[ShardTurn]) -> Window:
        """What to say in a call to it, when these have tasks to give as well."""
        return self.scheduler.window(self.index, [other.index for other in others])


@dataclass(frozen=True)
class ShardPlace(Generic[AnyQueue]):
    """A shard as a queue of its own, and its turn."""

    queue: AnyQueue
    turn: ShardTurn


def shard_places_of(queue: AnyQueue, options: WorkerOptions) -> list[ShardPlace[AnyQueue]]:
    """One for each shard."""
    order = queue.order_for(options.users, options.steal)
    return [ShardPlace(shard, ShardTurn(order, index)) for index, shard in enumerate(queue.shards)]
