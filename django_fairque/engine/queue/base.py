"""What a queue is before it sends anything: a name, a client, a configuration, and shards that are queues themselves.

`FairQueue` and `AsyncFairQueue` share it; what they send is in `driving`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.options import LONGEST_REPEATING, REPLIES_RECORDED, QueueConfig
from django_fairque.engine.sharding.shard_scheduler import Order, Orders
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.transport import node_health as nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from django_fairque.engine.leasing.lease_ops import Users


class QueueOfShards:
    """Or one of its shards, as a queue of its own: then ``shard`` is its number."""

    _whole: Self | None = None
    _is_checked = False
    """Whether the number of shards that is written down is known to be the configured one."""
    _check_at = 0.0
    """When to look it up again, if nobody who could be reached knew it."""

    def __init__(
        self, client: Any, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        self.name = name
        self.client = client
        self.config = config or QueueConfig()
        self._shards = Shards(name, self.config, shard)
        self._orders = Orders(len(self._shards))
        self._only = shard

    @property
    def shards(self) -> Sequence[Self]:
        """Each shard as a queue of its own, for who works on all of them; of one shard, this queue itself."""
        if len(self._shards) == 1:
            return (self,)
        parts = tuple(type(self)(self.client, self.name, self.config, number) for number in range(len(self._shards)))
        for part in parts:
            part._whole = self  # noqa: SLF001 - of its own kind
        return parts

    def order_for(self, users: Users, steal: Users) -> Order:
        """A new order of its shards, for who goes round them to serve these."""
        return Orders(len(self._shards)).of(users, steal, self._shards.number_of)

    @property
    def whole(self) -> Self:
        """The queue of which this is a shard; else this queue itself."""
        return self._whole or self

    def repeating_for(self, seconds: float) -> Self:
        """The same queue or shard, repeating its calls for so long when the server does not answer."""
        if not seconds <= LONGEST_REPEATING:
            raise TaskValidationError(
                f"a call may be repeated for at most {LONGEST_REPEATING} seconds, got {seconds!r}: replies are recorded for "
                f"{REPLIES_RECORDED} seconds"
            )
        config = self.config.model_copy(update={"request_timeout": seconds})
        other = type(self)(self.client, self.name, config, self._only)
        other._whole = self._whole  # noqa: SLF001
        return other

    @property
    def is_away(self) -> bool:
        """Whether a node of the cluster that has one of its shards did not answer when it was last asked anything."""
        return bool(self.missing_shards)

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """The numbers of the shards that lie there. Nothing is asked for this."""
        return nodes.absence(self.client).missing(self.client, self._shards)

    @property
    def label(self) -> str:
        """The queue's name, and the shard's number if this is one of several."""
        is_one_of_several = len(self._shards) == 1 and self.config.shards > 1
        return f"{self.name}/{self._shards.home.keys.shard}" if is_one_of_several else self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label!r}>"
