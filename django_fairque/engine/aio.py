"""`AsyncFairQueue`: `FairQueue`, awaited. What each method promises is said there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from . import delivering, dependencies, finding, leasing, lookup, maintenance, pushing, runs
from .activity import activity
from .alerts import take_alerts
from .commands import Commands
from .dead_letters import AsyncDeadLetters
from .health import Health, health
from .ids import check_id
from .invariants import check_invariants
from .leasing import Fetch, Heartbeat, Users
from .listing import Page, Sizes, WorkerRecord, queue_sizes, tasks, users, workers
from .options import QueueConfig
from .outcomes import Outcome, Settled
from .repairing import Repair, repair
from .schedules import AsyncSchedules
from .standing import Standing, standing
from .statistics import QueueStats, stats
from .transport import AsyncClient, AsyncTransport
from .users import AsyncUserQueue, UserStats, users_stats
from .waiting import longest_waits, purge
from .xcom import AsyncXCom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .activity import Activity
    from .alerts import Alert
    from .dependencies import Blockers, DependencyGraph, DependencyView
    from .finding import Found, Search
    from .lease import Lease
    from .lookup import Progress
    from .maintenance import Sweep
    from .models import Task
    from .records import Attempt, EventCount, PushResult, TaskState
    from .runs import RunView
    from .snapshot import Violation
    from .steps import Steps
    from .waiting import Waiting

T = TypeVar("T")


class AsyncFairQueue:
    """One queue on one server, for asyncio; like `FairQueue`, with every method a coroutine.

    Args:
        client: a ``redis.asyncio`` client, best made by `FairQueueConfig.create_async_redis_client`.
    """

    def __init__(self, client: AsyncClient, name: str = "default", config: QueueConfig | None = None) -> None:
        self.name = name
        self.client = client
        self.config = config or QueueConfig()
        self._commands = Commands(name, self.config)
        self._transport = AsyncTransport(client, self.config.pipeline_timeout)
        self.dlq = AsyncDeadLetters(self._commands, self._run)
        self.schedules = AsyncSchedules(self._commands, self._run)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def _run(self, steps: Steps[T]) -> T:
        try:
            request = next(steps)
            while True:
                request = steps.send(await self._transport.send(request))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def push(self, task: Task, *, now: float | None = None) -> PushResult:
        return await self._run(pushing.push(self._commands, task, now))

    async def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        return await self._run(pushing.push_batch(self._commands, tasks, now))

    async def push_graph(
        self, tasks: Sequence[Task], run_id: str | None = None, *, now: float | None = None
    ) -> list[PushResult]:
        return await self._run(
            pushing.push_graph(self._commands, tasks, check_id(run_id, "run_id") if run_id else "", now)
        )

    async def deliver(
        self,
        tasks: Sequence[Task],
        counts: Mapping[str, EventCount] | None = None,
        *,
        run_id: str = "",
        is_graph: bool = False,
        from_outbox: bool = False,
        now: float | None = None,
    ) -> list[PushResult]:
        return await self._run(
            delivering.deliver(
                self._commands,
                tasks,
                counts or {},
                run_id=run_id,
                is_graph=is_graph,
                from_outbox=from_outbox,
                now=now,
            )
        )

    async def forget_delivered(self, task_ids: Iterable[str], *, now: float | None = None) -> int:
        return await self._run(delivering.forget_delivered(self._commands, task_ids, now))

    async def event_counts(self) -> dict[str, EventCount]:
        return await self._run(delivering.event_counts(self._commands))

    async def pop(
        self,
        worker: str,
        users: Users = "*",
        steal: Users = (),
        *,
        lease: float | None = None,
        now: float | None = None,
    ) -> Lease | None:
        leases = await self._run(leasing.pop_batch(self._commands, Fetch(1, worker, users, steal, lease), now))
        return leases[0] if leases else None

    async def pop_batch(
        self,
        n: int,
        worker: str,
        users: Users = "*",
        steal: Users = (),
        *,
        lease: float | None = None,
        now: float | None = None,
    ) -> list[Lease]:
        return await self._run(leasing.pop_batch(self._commands, Fetch(n, worker, users, steal, lease), now))

    async def settle(
        self,
        outcomes: Sequence[Outcome],
        fetch: int = 0,
        *,
        worker: str = "",
        users: Users = "*",
        steal: Users = (),
        lease: float | None = None,
        woken: bool = False,
        now: float | None = None,
    ) -> Settled:
        return await self._run(
            leasing.settle(self._commands, outcomes, Fetch(fetch, worker, users, steal, lease, woken), now)
        )

    async def finish(
        self, lease: Lease, result: Any = None, *, took: float | None = None, now: float | None = None
    ) -> None:
        await self._run(leasing.finish(self._commands, lease, result, took, now))

    async def fail(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        retry: bool = True,
        delay: float | None = None,
        took: float | None = None,
        now: float | None = None,
    ) -> TaskState:
        wait = leasing.failure_delay(self._commands, lease, retry=retry, delay=delay)
        return await self._run(leasing.fail(self._commands, lease, error, wait, took, now))

    async def release(self, lease: Lease, *, now: float | None = None) -> None:
        await self._run(leasing.settle_one(self._commands, Outcome.release(lease), now))

    async def renew(
        self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None
    ) -> list[bool]:
        return await self._run(leasing.renew(self._commands, leases, lease, now))

    async def heartbeat(
        self,
        worker: str,
        info: Mapping[str, str],
        *,
        lease: float | None = None,
        ttl: float = 60.0,
        now: float | None = None,
    ) -> Heartbeat:
        return await self._run(leasing.heartbeat(self._commands, worker, info, lease, ttl, now))

    async def tell_worker(self, worker: str, wish: str, *, now: float | None = None) -> bool:
        return await self._run(leasing.tell_worker(self._commands, worker, wish, now))

    async def release_worker(
        self,
        worker: str,
        crashed: Iterable[int] = (),
        *,
        reason: str = "worker process died",
        forget: bool = False,
        now: float | None = None,
    ) -> int:
        return await self._run(leasing.release_worker(self._commands, worker, crashed, reason, forget, now))

    async def sweep(self, *, now: float | None = None) -> Sweep:
        return await self._run(maintenance.sweep(self._commands, now))

    async def wait_for_work(self, timeout: float) -> bool:
        return await self._run(leasing.wait_for_work(self._commands, timeout))

    async def pause(self, *, now: float | None = None) -> None:
        await self._run(maintenance.set_paused(self._commands, now, paused=True))

    async def resume(self, *, now: float | None = None) -> None:
        await self._run(maintenance.set_paused(self._commands, now, paused=False))

    async def is_paused(self) -> bool:
        return await self._run(maintenance.is_paused(self._commands))

    async def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        return await self._run(lookup.cancel(self._commands, task_id, reason, now))

    async def cancel_many(self, task_ids: Sequence[str], *, reason: str = "", now: float | None = None) -> int:
        return await self._run(lookup.cancel_some(self._commands, task_ids, reason, now))

    async def run_now(self, *task_ids: str, now: float | None = None) -> int:
        return await self._run(lookup.run_now(self._commands, task_ids, now))

    async def run_regardless(self, task_id: str, *, now: float | None = None) -> bool:
        return await self._run(lookup.run_regardless(self._commands, task_id, now))

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> Found:
        return await self._run(finding.find(self._commands, search, limit, cursor))

    async def get_task(self, task_id: str) -> Task:
        return await self._run(lookup.get_task(self._commands, task_id))

    async def history(self, task_id: str) -> list[Attempt]:
        return await self._run(lookup.history(self._commands, task_id))

    async def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        await self._run(lookup.set_progress(self._commands, lease, current, total, message, now))

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

    async def cancel_run(self, run_id: str, *, reason: str = "", now: float | None = None) -> int:
        return await self._run(runs.cancel(self._commands, run_id, reason, now))

    def xcom(self, namespace: str) -> AsyncXCom:
        return AsyncXCom(self._commands, self._run, namespace)

    async def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        return await self._run(take_alerts(self._commands, limit, now))

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

    async def purge(self, limit: int = 10_000, *, now: float | None = None) -> int:
        """Cancel at most ``limit`` tasks of what waits, of all users; returns how many. Running tasks go on."""
        return await self._run(purge(self._commands, limit, now))

    async def health(self) -> Health:
        return await self._run(health(self._commands))

    async def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> Page[str]:
        return await self._run(users(self._commands, cursor, limit, busy_first))

    async def user_stats(self, user_ids: Sequence[str]) -> list[UserStats]:
        return await self._run(users_stats(self._commands, user_ids))

    def user(self, user_id: str) -> AsyncUserQueue:
        return AsyncUserQueue(self._commands, self._run, user_id)

    async def workers(self) -> list[WorkerRecord]:
        return await self._run(workers(self._commands))

    async def check_invariants(self) -> list[Violation]:
        return await self._run(check_invariants(self._commands))

    async def repair(self, *, now: float | None = None) -> list[Repair]:
        return await self._run(repair(self._commands, now))
