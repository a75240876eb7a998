"""What can be read of a queue, awaited: the half of `AsyncFairQueue` that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model.ids import check_id
from django_fairque.engine.queue import read_operations as reading
from django_fairque.engine.queue.executor import AsyncDriving
from django_fairque.engine.statistics.health import Health, health
from django_fairque.engine.statistics.queue_stats import QueueStats, ShardStats, shard_stats, stats
from django_fairque.engine.statistics.timeline import activity
from django_fairque.engine.users import organization_facade as organizations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.dependencies.dependencies import Blockers, DependencyGraph, DependencyView
    from django_fairque.engine.inspection.pages import PartialList, ResultPage, Sizes, WorkerRecord
    from django_fairque.engine.inspection.search import MatchingTasks, Search, SearchResult
    from django_fairque.engine.inspection.task_lookup import Progress, RunView
    from django_fairque.engine.maintenance.invariants.snapshot import Violation
    from django_fairque.engine.model.records import Attempt, EventCount, TaskState
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import WaitingTask
    from django_fairque.engine.statistics.timeline import Activity
    from django_fairque.engine.users.organizations import OrganizationStats
    from django_fairque.engine.users.users import UserStats
    from django_fairque.engine.users.wait_reason import WaitReason

T = TypeVar("T")


class AsyncReading(AsyncDriving):
    """`Reading`, with every method a coroutine."""

    async def _read_task(self, task_id: str, read: Callable[[Shards], Operation[T]]) -> T:
        """A task that does not say its shard is looked for on all that can be reached."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return await self._read_all_shards(read)
        return await self._run(read(self._shards))

    async def event_counts(self) -> dict[str, EventCount]:
        return await self._run(reading.event_counts(self._shards))

    async def is_paused(self) -> bool:
        return await self._read_all_shards(reading.is_paused)

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> SearchResult:
        return await self._read_all_shards(lambda shards: reading.find(shards, search, limit, cursor))

    async def matching(self, search: Search) -> MatchingTasks:
        return await self._read_all_shards(lambda shards: reading.matching(shards, search))

    async def get_task(self, task_id: str) -> Task:
        return await self._read_task(task_id, lambda shards: reading.get_task(shards, task_id))

    async def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        return await self._run(reading.get_tasks(self._shards, task_ids))

    async def history(self, task_id: str) -> list[Attempt]:
        return await self._read_task(task_id, lambda shards: reading.history(shards, task_id))

    async def get_progress(self, task_id: str) -> Progress | None:
        return await self._read_task(task_id, lambda shards: reading.get_progress(shards, task_id))

    async def position(self, task_id: str) -> int | None:
        return await self._read_task(task_id, lambda shards: reading.position(shards, task_id))

    async def wait_reason(self, task_id: str) -> WaitReason:
        return await self._read_task(task_id, lambda shards: reading.wait_reason(shards, task_id))

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
    ) -> ResultPage[Task]:
        return await self._read_all_shards(lambda shards: reading.tasks(shards, state, user_id, limit, cursor))

    async def get_queue_sizes(self, user_id: str) -> Sizes:
        return (await self._run(reading.queue_sizes(self._shards, [user_id])))[user_id]

    async def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        return await self._run(reading.queue_sizes(self._shards, user_ids))

    async def get_stats(self, minutes: int = 60) -> QueueStats:
        """The figures now, and those of the last ``minutes`` (0 to 60): each is one more read."""
        return await self._read_all_shards(lambda shards: stats(shards, minutes))

    async def get_shard_stats(self) -> PartialList[ShardStats]:
        """What lies on each shard, and on which node of a cluster."""
        return await self._read_all_shards(lambda shards: shard_stats(shards, self.client))

    async def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """What happened in the last ``minutes`` (1 to 1440: each is one read), in spans of ``per_span`` minutes."""
        return await self._read_all_shards(lambda shards: activity(shards, minutes, per_span))

    async def longest_waits(self, limit: int = 50) -> PartialList[WaitingTask]:
        """Tasks that could start and have been ready longest (at most 1,000), the longest wait first."""
        return await self._read_all_shards(lambda shards: reading.longest_waits(shards, limit))

    async def busiest_users(self, sample: int = 100) -> PartialList[str]:
        """Users with tasks that have not begun, those first whom most of a random sample of such tasks belong to.

        The sample holds ``sample`` tasks of each state in which tasks wait: whoever has a twentieth of those in one of them
        is missed once in 170 times when it is 100. It is found however many users there are.
        """
        return await self._read_all_shards(lambda shards: reading.busiest_users(shards, sample))

    async def health(self) -> Health:
        return await self._read_all_shards(health)

    async def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> ResultPage[str]:
        return await self._read_all_shards(lambda shards: reading.user_names(shards, cursor, limit, busy_first))

    async def busy_users(self, limit: int = 100) -> PartialList[str]:
        """Users that have something now, or settings, before those who had; as many of each shard."""
        return await self._read_all_shards(lambda shards: reading.busy_users(shards, limit))

    async def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        return await self._run(reading.user_stats(self._shards, user_ids, now))

    async def organizations(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        return await self._read_all_shards(lambda shards: organizations.page(shards, cursor, limit))

    async def organization_stats(self, names: Sequence[str]) -> PartialList[OrganizationStats]:
        return await self._read_all_shards(lambda shards: organizations.stats(shards, names))

    async def workers(self) -> PartialList[WorkerRecord]:
        return await self._read_all_shards(reading.workers)

    async def check_invariants(self) -> PartialList[Violation]:
        return await self._read_all_shards(reading.check_invariants)
