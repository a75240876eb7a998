"""What lies on each shard of a queue, and where: whether the work, or the servers, are spread unevenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import clusters
from .records import TaskState
from .steps import Steps, read_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .commands import Commands


@dataclass(frozen=True)
class ShardStats:
    """One shard now: tasks by state, and how many of its users have something to start. ``node`` is the address of the cluster's
    node that has it, empty without a cluster."""

    shard: int
    node: str
    states: dict[str, int]
    users_ready: int

    @property
    def depth(self) -> int:
        """Tasks that are ready."""
        return self.states[TaskState.QUEUED.value]


def shard_stats(shards: Sequence[Commands], client: Any) -> Steps[list[ShardStats]]:
    found = yield from read_each([_reads(shard) for shard in shards])
    return [_shard(shard, client, sizes) for shard, sizes in zip(shards, found, strict=True)]


def _reads(commands: Commands) -> list[tuple[Any, ...]]:
    keys = commands.keys
    return [("ZCARD", keys("ring")), *(("ZCARD", keys.state(state.value)) for state in TaskState)]


def _shard(commands: Commands, client: Any, sizes: Sequence[int]) -> ShardStats:
    ring, *by_state = sizes
    states = {state.value: size for state, size in zip(TaskState, by_state, strict=True)}
    return ShardStats(commands.keys.shard, clusters.address(client, str(commands.keys)), states, ring)
