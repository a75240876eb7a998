"""What can be read of a queue: the half of `FairQueue` that changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model.ids import check_id
from django_fairque.engine.queue import read_operations as reading
from django_fairque.engine.queue.executor import Driving
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


class Reading(Driving):
    """Each method reads a bounded part of the queue, in one round trip or a few, unless it says otherwise.

    What is told of the whole queue is told by the shards that can be reached while a node of the cluster is away: its
    ``missing_shards`` are the numbers of the others. Numbers and yes or no, which can't say that, raise `ShardsAwayError`.
    """

    def _read_task(self, task_id: str, read: Callable[[Shards], Operation[T]]) -> T:
        """A task that does not say its shard is looked for on all that can be reached."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return self._read_all_shards(read)
        return self._run(read(self._shards))

    def event_counts(self) -> dict[str, EventCount]:
        """What is known of the model events that asked for tasks of this queue, by event."""
        return self._run(reading.event_counts(self._shards))

    def is_paused(self) -> bool:
        """Whether `pause` holds everything back."""
        return self._read_all_shards(reading.is_paused)

    def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> SearchResult:
        """Tasks without payloads and results that match, of the next ``look_at`` ones in the state's registry."""
        return self._read_all_shards(lambda shards: reading.find(shards, search, limit, cursor))

    def matching(self, search: Search) -> MatchingTasks:
        """The ids of all tasks that match among the first ``look_at`` ones in the state's registry."""
        return self._read_all_shards(lambda shards: reading.matching(shards, search))

    def get_task(self, task_id: str) -> Task:
        """The task as it is now; `TaskNotFoundError` when the queue does not know it (any more)."""
        return self._read_task(task_id, lambda shards: reading.get_task(shards, task_id))

    def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """Those of these tasks that the queue knows, by id, each as it is now; two hundred in a round trip."""
        return self._run(reading.get_tasks(self._shards, task_ids))

    def history(self, task_id: str) -> list[Attempt]:
        """The attempts that did not finish the task and what brought it back, oldest first, at most 25."""
        return self._read_task(task_id, lambda shards: reading.history(shards, task_id))

    def get_progress(self, task_id: str) -> Progress | None:
        """How far the task says it is; None when it said nothing, or is not known."""
        return self._read_task(task_id, lambda shards: reading.get_progress(shards, task_id))

    def position(self, task_id: str) -> int | None:
        """How many tasks of the same user are before it by class and age; None unless it is QUEUED."""
        return self._read_task(task_id, lambda shards: reading.position(shards, task_id))

    def wait_reason(self, task_id: str) -> WaitReason:
        """What decides whether and when a task starts: its user's limits and turn, its place, its lease."""
        return self._read_task(task_id, lambda shards: reading.wait_reason(shards, task_id))

    def dependencies(self, task_id: str, nodes: int = 200) -> DependencyView:
        """Who waits for a task, what it waits for, and the graph around it (at most ``nodes`` tasks)."""
        return self._run(reading.view(self._shards, task_id, nodes))

    def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        """What still blocks each of these tasks: at most ``most`` of them, and how many there are."""
        return self._run(reading.blockers(self._shards, task_ids, most))

    def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        """What depends on what among the tasks of a run (at most ``nodes`` of them)."""
        return self._run(reading.run_graph(self._shards, run_id, nodes))

    def parent_results(self, task_id: str) -> dict[str, Any]:
        """What the tasks that it depends on returned, by id, without those that have not finished."""
        return self._run(reading.parent_results(self._shards, task_id))

    def run(self, run_id: str) -> RunView:
        """The tasks that were pushed together under this id; `TaskNotFoundError` when there are none (any more)."""
        return self._run(reading.run(self._shards, run_id))

    def tasks(
        self,
        state: TaskState | str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ResultPage[Task]:
        """A page of tasks: of one state (all states in turn for None), of one user, in the registry's order."""
        return self._read_all_shards(lambda shards: reading.tasks(shards, state, user_id, limit, cursor))

    def get_queue_sizes(self, user_id: str) -> Sizes:
        """How many tasks of a user wait, by kind, and run."""
        return self._run(reading.queue_sizes(self._shards, [user_id]))[user_id]

    def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        """As `get_queue_sizes`, of many users in one call."""
        return self._run(reading.queue_sizes(self._shards, user_ids))

    def get_stats(self, minutes: int = 60) -> QueueStats:
        """The figures now, and those of the last ``minutes`` (0 to 60): each is one more read."""
        return self._read_all_shards(lambda shards: stats(shards, minutes))

    def get_shard_stats(self) -> PartialList[ShardStats]:
        """What lies on each shard, and on which node of a cluster."""
        return self._read_all_shards(lambda shards: shard_stats(shards, self.client))

    def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """What happened in the last ``minutes`` (1 to 1440: each is one read), in spans of ``per_span`` minutes."""
        return self._read_all_shards(lambda shards: activity(shards, minutes, per_span))

    def longest_waits(self, limit: int = 50) -> PartialList[WaitingTask]:
        """Tasks that could start and have been ready longest (at most 1,000), the longest wait first."""
        return self._read_all_shards(lambda shards: reading.longest_waits(shards, limit))

    def busiest_users(self, sample: int = 100) -> PartialList[str]:
        """Users with tasks that have not begun, those first whom most of a random sample of such tasks belong to.

        The sample holds ``sample`` tasks of each state in which tasks wait: whoever has a twentieth of those in one of them
        is missed once in 170 times when it is 100. It is found however many users there are.
        """
        return self._read_all_shards(lambda shards: reading.busiest_users(shards, sample))

    def health(self) -> Health:
        """Whether the queue is good, degraded or down, and why."""
        return self._read_all_shards(health)

    def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> ResultPage[str]:
        """A page of the users that have, or lately had, something in the queue.

        ``busy_first``: who has something now, or settings, before who had; follow its cursors with it.
        """
        return self._read_all_shards(lambda shards: reading.user_names(shards, cursor, limit, busy_first))

    def busy_users(self, limit: int = 100) -> PartialList[str]:
        """Users that have something now, or settings, before those who had; as many of each shard."""
        return self._read_all_shards(lambda shards: reading.busy_users(shards, limit))

    def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        """The figures of these users, in order, with one read each in one round trip."""
        return self._run(reading.user_stats(self._shards, user_ids, now))

    def organizations(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """A page of the organizations that have members or settings, by name."""
        return self._read_all_shards(lambda shards: organizations.page(shards, cursor, limit))

    def organization_stats(self, names: Sequence[str]) -> PartialList[OrganizationStats]:
        """The figures of these organizations, in order, in one round trip."""
        return self._read_all_shards(lambda shards: organizations.stats(shards, names))

    def workers(self) -> PartialList[WorkerRecord]:
        """The workers that sent a heartbeat lately."""
        return self._read_all_shards(reading.workers)

    def check_invariants(self) -> PartialList[Violation]:
        """Compare everything the queue holds with the invariants; reads every key, so not for every minute."""
        return self._read_all_shards(reading.check_invariants)
