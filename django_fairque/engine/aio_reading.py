"""What can be read of a queue, awaited: the half of `AsyncFairQueue` that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from . import delivering, dependencies, finding, lookup, maintenance, runs
from .activity import activity
from .health import Health, health
from .invariants import check_invariants
from .listing import Page, Sizes, WorkerRecord, queue_sizes, tasks, users, workers
from .standing import Standing, standing
from .statistics import QueueStats, stats
from .users import UserStats, users_stats
from .waiting import longest_waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .activity import Activity
    from .commands import Commands
    from .dependencies import Blockers, DependencyGraph, DependencyView
    from .finding import Found, Search
    from .lookup import Progress
    from .models import Task
    from .records import Attempt, EventCount, TaskState
    from .runs import RunView
    from .snapshot import Violation
    from .steps import Steps
    from .waiting import Waiting

T = TypeVar("T")


class AsyncReading:
    """`Reading`, with every method a coroutine."""

    _commands: Commands

    async def _run(self, steps: Steps[T]) -> T:
        raise NotImplementedError

    async def event_counts(self) -> dict[str, EventCount]:
        return await self._run(delivering.event_counts(self._commands))

    async def is_paused(self) -> bool:
        return await self._run(maintenance.is_paused(self._commands))

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> Found:
        return await self._run(finding.find(self._commands, search, limit, cursor))

    async def get_task(self, task_id: str) -> Task:
        return await self._run(lookup.get_task(self._commands, task_id))

    async def history(self, task_id: str) -> list[Attempt]:
        return await self._run(lookup.history(self._commands, task_id))

    async def get_progress(self, task_id: str) -> Progress | None:
        return await self._run(lookup.get_progress(self._commands, task_id))

    async def position(self, task_id: str) -> int | None:
        return await self._run(lookup.position(self._commands, task_id))

    async def standing(self, task_id: str) -> Standing:
        return await self._run(standing(self._commands, task_id))

    async def dependencies(self, task_id: str, nodes: int = 200) -> DependencyView:
        return await self._run(dependencies.view(self._commands, task_id, nodes))

    async def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        return await self._run(dependencies.blockers(self._commands, task_ids, most))

    async def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        return await self._run(dependencies.run_graph(self._commands, run_id, nodes))

    async def parent_results(self, task_id: str) -> dict[str, Any]:
        return await self._run(dependencies.parent_results(self._commands, task_id))

    async def run(self, run_id: str) -> RunView:
        return await self._run(runs.view(self._commands, run_id))

    async def tasks(
        self,
        state: TaskState | str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Task]:
        return await self._run(tasks(self._commands, state, user_id, limit, cursor))

    async def get_queue_sizes(self, user_id: str) -> Sizes:
        return (await self._run(queue_sizes(self._commands, [user_id])))[user_id]

    async def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        return await self._run(queue_sizes(self._commands, user_ids))

    async def get_stats(self, minutes: int = 60) -> QueueStats:
        """The figures now, and those of the last ``minutes`` (0 to 60): each is one more read."""
        return await self._run(stats(self._commands, minutes))

    async def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """What happened in the last ``minutes`` (1 to 1440: each is one read), in spans of ``per_span`` minutes."""
        return await self._run(activity(self._commands, minutes, per_span))

    async def longest_waits(self, limit: int = 50) -> list[Waiting]:
        """Tasks that have been ready longest (at most 1,000), the longest wait first."""
        return await self._run(longest_waits(self._commands, limit))

    async def health(self) -> Health:
        return await self._run(health(self._commands))

    async def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> Page[str]:
        return await self._run(users(self._commands, cursor, limit, busy_first))

    async def user_stats(self, user_ids: Sequence[str]) -> list[UserStats]:
        return await self._run(users_stats(self._commands, user_ids))

    async def workers(self) -> list[WorkerRecord]:
        return await self._run(workers(self._commands))

    async def check_invariants(self) -> list[Violation]:
        return await self._run(check_invariants(self._commands))
