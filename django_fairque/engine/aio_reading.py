"""What can be read of a queue, awaited: the half of `AsyncFairQueue` that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from .activity import activity
from .health import Health, health
from .routing import reading
from .shard_stats import ShardStats, shard_stats
from .statistics import QueueStats, stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .activity import Activity
    from .dependencies import Blockers, DependencyGraph, DependencyView
    from .finding import Found, Matching, Search
    from .listing import Page, Sizes, WorkerRecord
    from .lookup import Progress
    from .models import Task
    from .records import Attempt, EventCount, TaskState
    from .runs import RunView
    from .shards import Shards
    from .snapshot import Violation
    from .standing import Standing
    from .steps import Steps
    from .transport import AsyncClient
    from .users import UserStats
    from .waiting import Waiting

T = TypeVar("T")


class AsyncReading:
    """`Reading`, with every method a coroutine."""

    _shards: Shards
    client: AsyncClient

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    async def event_counts(self) -> dict[str, EventCount]:
        return await self._run(reading.event_counts(self._shards))

    async def is_paused(self) -> bool:
        return await self._run(reading.is_paused(self._shards))

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> Found:
        return await self._run(reading.find(self._shards, search, limit, cursor))

    async def matching(self, search: Search) -> Matching:
        return await self._run(reading.matching(self._shards, search))

    async def get_task(self, task_id: str) -> Task:
        return await self._run(reading.get_task(self._shards, task_id))

    async def history(self, task_id: str) -> list[Attempt]:
        return await self._run(reading.history(self._shards, task_id))

    async def get_progress(self, task_id: str) -> Progress | None:
        return await self._run(reading.get_progress(self._shards, task_id))

    async def position(self, task_id: str) -> int | None:
        return await self._run(reading.position(self._shards, task_id))

    async def standing(self, task_id: str) -> Standing:
        return await self._run(reading.standing(self._shards, task_id))

    async def dependencies(self, task_id: str, nodes: int = 200) -> DependencyView:
        return await self._run(reading.view(self._shards, task_id, nodes))

    async def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        return await self._run(reading.blockers(self._shards, task_ids, most))

    async def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        return await self._run(reading.run_graph(self._shards, run_id, nodes))

    async def parent_results(self, task_id: str) -> dict[str, Any]:
        return await self._run(reading.parent_results(self._shards, task_id))

    async def run(self, run_id: str) -> RunView:
        return await self._run(reading.run(self._shards, run_id))

    async def tasks(
        self,
        state: TaskState | str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Task]:
        return await self._run(reading.tasks(self._shards, state, user_id, limit, cursor))

    async def get_queue_sizes(self, user_id: str) -> Sizes:
        return (await self._run(reading.queue_sizes(self._shards, [user_id])))[user_id]

    async def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        return await self._run(reading.queue_sizes(self._shards, user_ids))

    async def get_stats(self, minutes: int = 60) -> QueueStats:
        """The figures now, and those of the last ``minutes`` (0 to 60): each is one more read."""
        return await self._run(stats(self._shards.all, minutes))

    async def get_shard_stats(self) -> list[ShardStats]:
        """What lies on each shard, and on which node of a cluster."""
        return await self._run(shard_stats(self._shards.all, self.client))

    async def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """What happened in the last ``minutes`` (1 to 1440: each is one read), in spans of ``per_span`` minutes."""
        return await self._run(activity(self._shards.all, minutes, per_span))

    async def longest_waits(self, limit: int = 50) -> list[Waiting]:
        """Tasks that have been ready longest (at most 1,000), the longest wait first."""
        return await self._run(reading.longest_waits(self._shards, limit))

    async def busiest_users(self, sample: int = 100) -> list[str]:
        """Users with tasks that have not begun, those first whom most of a random sample of such tasks belong to.

        The sample holds ``sample`` tasks of each state in which tasks wait: whoever has a twentieth of those in one of them
        is missed once in 170 times when it is 100. It is found however many users there are.
        """
        return await self._run(reading.busiest_users(self._shards, sample))

    async def health(self) -> Health:
        return await self._run(health(self._shards.all))

    async def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> Page[str]:
        return await self._run(reading.user_names(self._shards, cursor, limit, busy_first))

    async def busy_users(self, limit: int = 100) -> list[str]:
        """Users that have something now, or settings, before those who had; as many of each shard."""
        return await self._run(reading.busy_users(self._shards, limit))

    async def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        return await self._run(reading.user_stats(self._shards, user_ids, now))

    async def workers(self) -> list[WorkerRecord]:
        return await self._run(reading.workers(self._shards))

    async def check_invariants(self) -> list[Violation]:
        return await self._run(reading.check_invariants(self._shards))
