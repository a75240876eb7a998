"""What lies on each shard of a queue, and where: whether the work, or the servers, are spread unevenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import Listed
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.operations import Steps, read_each
from django_fairque.engine.transport import cluster as clusters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class ShardStats:
    """One shard now: tasks by state, and how many of its users have something to start. ``node`` is the address of the cluster's
    node that has it, empty without a cluster. Unless ``is_up`` it can't be reached, and nothing is known of it: all is 0."""

    shard: int
    node: str
    states: dict[str, int]
    users_ready: int
    is_up: bool = True

    @property
    def depth(self) -> int:
        """Tasks that are ready."""
        return self.states[TaskState.QUEUED.value]


def shard_stats(shards: Shards, client: Any) -> Steps[Listed[ShardStats]]:
    """Of every shard, also of the missing ones."""
    found = iter((yield from read_each([_reads(shard) for shard in shards])))
    each = [
        _shard(shard, client, next(found)) if shards.is_present(shard) else _away(shard, client) for shard in shards.all
    ]
    return Listed(each, shards.missing)


def _away(commands: Commands, client: Any) -> ShardStats:
    nothing = dict.fromkeys((state.value for state in TaskState), 0)
    return ShardStats(commands.keys.shard, clusters.address(client, str(commands.keys)), nothing, 0, is_up=False)


def _reads(commands: Commands) -> list[tuple[Any, ...]]:
    keys = commands.keys
    return [
        ("ZCARD", keys("ring")),
        ("HGET", keys("stats"), "behind"),
        *(("ZCARD", keys.state(state.value)) for state in TaskState),
    ]


def _shard(commands: Commands, client: Any, sizes: Sequence[int]) -> ShardStats:
    ring, behind, *by_state = sizes
    states = {state.value: size for state, size in zip(TaskState, by_state, strict=True)}
    return ShardStats(
        commands.keys.shard, clusters.address(client, str(commands.keys)), states, ring + int(behind or 0)
    )
