"""The common part of `FairQueue` and `AsyncFairQueue`: objects for single shards, and the choice of shards while a
cluster node can't be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.maintenance import resharding
from django_fairque.engine.model import errors
from django_fairque.engine.model.options import MAX_RETRY_TIMEOUT_SECONDS, REPLY_RECORD_SECONDS, QueueConfig
from django_fairque.engine.sharding.shard_scheduler import ShardScheduler, ShardSchedulers
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.server_list import separate_servers

if TYPE_CHECKING:
    from typing_extensions import Self

    from django_fairque.engine.model.ids import Users
    from django_fairque.engine.scripting.operations import Operation


class QueueOfShards:
    """A queue. With ``shard``, only the shard with this number."""

    _parent_queue: Self | None = None
    _is_checked = False
    """Whether the number of shards on the server is known to be the configured number."""
    _check_at = 0.0
    """The time of the next check of the number of shards, if no shard that could be reached knew it."""

    def __init__(
        self, client: Any, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        self.name = name
        self.client = client
        self.config = config or QueueConfig()
        self._shards = Shards(name, self.config, shard)
        self._schedulers = ShardSchedulers(len(self._shards))
        self._only = shard

    @property
    def shards(self) -> Sequence[Self]:
        """Return a queue object for each shard. A queue with one shard returns itself."""
        if len(self._shards) == 1:
            return (self,)
        parts = tuple(type(self)(self.client, self.name, self.config, number) for number in range(len(self._shards)))
        for part in parts:
            part._parent_queue = self  # noqa: SLF001 - an object of this class
        return parts

    def create_shard_scheduler(self, users: Users, steal: Users) -> ShardScheduler:
        """Return a new scheduler of the queue's shards, for a worker that serves one shard after the other.

        ``users`` and ``steal`` are those of `pop_batch`.
        """
        return ShardSchedulers(len(self._shards)).get_scheduler(users, steal, self._shards.get_shard_index)

    @property
    def parent_queue(self) -> Self:
        """The queue of which this object is a shard; otherwise this queue itself."""
        return self._parent_queue or self

    def with_retry_timeout(self, seconds: float) -> Self:
        """Return the same queue or shard with another time limit for repeating requests if the server does not answer.

        ``seconds`` is the limit, at most 60. Raises `TaskValidationError` if it is larger: replies are recorded for
        120 seconds.
        """
        if not seconds <= MAX_RETRY_TIMEOUT_SECONDS:
            raise errors.TaskValidationError(
                f"a call may be repeated for at most {MAX_RETRY_TIMEOUT_SECONDS} seconds, got {seconds!r}: replies are "
                f"recorded for {REPLY_RECORD_SECONDS} seconds"
            )
        config = self.config.model_copy(update={"request_timeout": seconds})
        other = type(self)(self.client, self.name, config, self._only)
        other._parent_queue = self._parent_queue  # noqa: SLF001
        return other

    @property
    def is_away(self) -> bool:
        """Whether a node of the cluster that has a shard of this queue did not answer the last request."""
        return bool(self.missing_shards)

    @property
    def missing_shards(self) -> tuple[int, ...]:
        """The numbers of the shards on nodes that did not answer. This sends no request."""
        return nodes.unreachable_nodes(self.client).missing_shards(self.client, self._shards)

    @property
    def display_name(self) -> str:
        """The queue's name, and the shard's number if this object is one of several shards."""
        is_one_of_several = len(self._shards) == 1 and self.config.shards > 1
        return f"{self.name}/{self._shards.home.keys.shard}" if is_one_of_several else self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.display_name!r}>"


R = TypeVar("R")

ALL_SHARDS_READ_SECONDS = 1.0
"""Seconds for which a request to all shards is repeated, before it is sent only to the shards that answer."""
SHARD_COUNT_RECHECK_SECONDS = 5.0
"""Seconds until the number of shards is read again if no shard that could be reached knew it."""
FINAL_ERRORS = (errors.NotPermittedError, errors.UnsupportedServerError, errors.UntrustedServerError)
"""Errors of a shard after which a request to all shards fails at once, because they do not mean that a node is
unreachable.
"""


class Rounds:
    """The shards for each round of a request. A round leaves out the shards whose nodes did not answer in the round before."""

    def __init__(self, client: object, shards: Shards) -> None:
        self._client, self._shards = client, shards
        self.rest = shards

    def __iter__(self) -> Iterator[Shards]:
        tried: set[int] | None = None
        for _ in self._shards.all:
            missing = nodes.unreachable_nodes(self._client).missing_shards(self._client, self._shards)
            if len(missing) == len(self._shards) or (tried is not None and tried.issuperset(missing)):
                return
            tried, self.rest = set(missing), self._shards.but(missing)
            yield self.rest


def shard_count_check(client: object) -> Callable[[Shards], Operation[bool]]:
    """Return the check of the number of shards for this client's servers."""
    return partial(resharding.check_shard_count, servers=len(separate_servers(client)))


def reachable_shards(client: object, shards: Shards) -> Shards:
    def missing() -> Sequence[int]:
        return nodes.unreachable_nodes(client).missing_shards(client, shards)

    living = shards.but(missing())
    living.missing_now = missing
    return living


def check_client(client: object, queue: str, maker: str, *, is_awaited: bool) -> None:
    """Raise `ConfigurationError` if ``client`` is not a Redis client, or is a synchronous client where an asyncio
    client is needed, or the reverse.

    Args:
        client: the object to check.
        queue: the name of the queue's class.
        maker: the configuration's method that makes a client for it.
        is_awaited: whether calls of the queue, and so those of its client, are awaited.
    """
    kind = type(client)  # errors name only the type, because an address may contain a password
    if not all(callable(getattr(kind, name, None)) for name in ("execute_command", "pipeline")):
        raise errors.ConfigurationError(
            f"{queue} takes a redis client, as {maker}() of a FairQueueConfig makes one, got {_class_name(kind)}; "
            "get_queue() makes a client and a queue from the project's configuration"
        )
    # The modules of the classes decide, not their methods: a tracing tool may have wrapped a method.
    modules = [base.__module__ for base in kind.__mro__]
    is_of_asyncio = any(module.startswith("redis.asyncio") for module in modules)
    if is_of_asyncio and not is_awaited:
        raise errors.ConfigurationError(
            f"{queue} takes a client that is not awaited, as {maker}() makes one, got {_class_name(kind)}"
        )
    if is_awaited and not is_of_asyncio and any(module.startswith("redis.") for module in modules):
        raise errors.ConfigurationError(
            f"{queue} takes a client of redis.asyncio, as {maker}() makes one, got {_class_name(kind)}"
        )


def _class_name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
