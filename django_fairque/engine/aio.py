"""`AsyncFairQueue`: `FairQueue`, awaited. What each method promises is said there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from . import delivering, leasing, lookup, maintenance, pushing, runs
from .aio_reading import AsyncReading
from .alerts import take_alerts
from .commands import Commands
from .dead_letters import AsyncDeadLetters
from .ids import check_id
from .leasing import Fetch, Heartbeat, Users
from .options import QueueConfig
from .outcomes import Outcome, Settled
from .repairing import Repair, repair
from .schedules import AsyncSchedules
from .transport import AsyncClient, AsyncTransport
from .users import AsyncUserQueue
from .waiting import purge
from .xcom import AsyncXCom

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .alerts import Alert
    from .lease import Lease
    from .maintenance import Sweep
    from .models import Task
    from .records import EventCount, PushResult, TaskState
    from .steps import Steps

T = TypeVar("T")


class AsyncFairQueue(AsyncReading):
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

    async def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        return await self._run(lookup.cancel(self._commands, task_id, reason, now))

    async def cancel_many(self, task_ids: Sequence[str], *, reason: str = "", now: float | None = None) -> int:
        return await self._run(lookup.cancel_some(self._commands, task_ids, reason, now))

    async def run_now(self, *task_ids: str, now: float | None = None) -> int:
        return await self._run(lookup.run_now(self._commands, task_ids, now))

    async def run_regardless(self, task_id: str, *, now: float | None = None) -> bool:
        return await self._run(lookup.run_regardless(self._commands, task_id, now))

    async def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        await self._run(lookup.set_progress(self._commands, lease, current, total, message, now))

    async def cancel_run(self, run_id: str, *, reason: str = "", now: float | None = None) -> int:
        return await self._run(runs.cancel(self._commands, run_id, reason, now))

    def xcom(self, namespace: str) -> AsyncXCom:
        return AsyncXCom(self._commands, self._run, namespace)

    async def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        return await self._run(take_alerts(self._commands, limit, now))

    async def purge(self, limit: int = 10_000, *, now: float | None = None) -> int:
        """Cancel at most ``limit`` tasks of what waits, of all users; returns how many. Running tasks go on."""
        return await self._run(purge(self._commands, limit, now))

    def user(self, user_id: str) -> AsyncUserQueue:
        return AsyncUserQueue(self._commands, self._run, user_id)

    async def repair(self, *, now: float | None = None) -> list[Repair]:
        return await self._run(repair(self._commands, now))
