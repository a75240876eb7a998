"""`AsyncFairQueue`: `FairQueue`, awaited. Its methods are documented there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.dead_letters.facade import AsyncDeadLetterQueue
from django_fairque.engine.dependencies import messages
from django_fairque.engine.dependencies.xcom import AsyncXCom
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing import lease_ops_sharded as routed
from django_fairque.engine.leasing.lease_ops import Fetch, Heartbeat, check_leases, check_outcomes
from django_fairque.engine.maintenance import sharded as upkeep
from django_fairque.engine.model.ids import Users, check_id
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.model.task import check_task
from django_fairque.engine.pushing import push_sharded as pushing
from django_fairque.engine.queue.async_reads import AsyncReading
from django_fairque.engine.queue.executor import check_client
from django_fairque.engine.schedules.schedules import AsyncSchedules
from django_fairque.engine.sharding import resharding
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, Window
from django_fairque.engine.transport.connection import AsyncTransport
from django_fairque.engine.users.organization_facade import AsyncOrganizationQueue
from django_fairque.engine.users.users import AsyncUserQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django_fairque.engine.inspection.task_lookup import Note
    from django_fairque.engine.maintenance.operations import Repair, Sweep
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.records import EventCount, PushResult, TaskState
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.resharding import ReshardResult
    from django_fairque.engine.statistics.health import Alert
    from django_fairque.engine.transport.connection import AsyncClient

T = TypeVar("T")


class AsyncFairQueue(AsyncReading):
    """One queue on one server, for asyncio; like `FairQueue`, with every method a coroutine.

    Args:
        client: a ``redis.asyncio`` client, best made by `FairQueueConfig.create_async_redis_client`.
    """

    def __init__(
        self, client: AsyncClient, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        check_client(client, "AsyncFairQueue", "create_async_redis_client", is_awaited=True)
        super().__init__(client, name, config, shard)
        self._transport = AsyncTransport(client, self.config.request_timeout)
        self.dlq = AsyncDeadLetterQueue(self._shards, self._run, self._read_all_shards, self._write_all_shards)
        self.schedules = AsyncSchedules(self._shards, self._run, self._read_all_shards)

    async def reshard(self, shards: int, *, now: float | None = None) -> tuple[int, ReshardResult | None]:
        before = await self._drive(resharding.read_shard_count(self._shards))
        old, new = (self._shards.spread_over(number) for number in (before, shards))
        return before, (await self._drive(resharding.reshard(old, new, now)) if before != shards else None)

    async def _run_and_carry(self, steps: Operation[T]) -> T:
        """As `_run`, then carry what these left for other shards."""
        result = await self._run(steps)
        await self._carry_messages()
        return result

    async def push(self, task: Task, *, now: float | None = None) -> PushResult:
        if check_task(task).depends_on:
            return await self._run_and_carry(pushing.push(self._shards, task, now))
        return await self._run(pushing.push(self._shards, task, now))

    async def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        return await self._run_and_carry(pushing.push_batch(await self._reachable_shards(), tasks, now))

    async def push_graph(
        self, tasks: Sequence[Task], run_id: str | None = None, *, now: float | None = None
    ) -> list[PushResult]:
        return await self._run_and_carry(
            pushing.push_graph(self._shards, tasks, check_id(run_id, "run_id") if run_id else "", now)
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
        return await self._run_and_carry(
            pushing.deliver(
                self._shards,
                tasks,
                counts or {},
                run_id=run_id,
                is_graph=is_graph,
                from_outbox=from_outbox,
                now=now,
            )
        )

    async def forget_delivered(self, task_ids: Iterable[str], *, now: float | None = None) -> int:
        return await self._run(pushing.forget_delivered(self._shards, task_ids, now))

    async def pop(
        self,
        worker: str,
        users: Users = "*",
        steal: Users = (),
        *,
        lease: float | None = None,
        now: float | None = None,
    ) -> Lease | None:
        leases = await self._run(
            routed.pop_batch(
                await self._reachable_shards(), self._schedulers, Fetch(1, worker, users, steal, lease), now
            )
        )
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
        return await self._run(
            routed.pop_batch(
                await self._reachable_shards(), self._schedulers, Fetch(n, worker, users, steal, lease), now
            )
        )

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
        window: Window = NO_WINDOW,
        batches: Mapping[str, int] | None = None,
        now: float | None = None,
    ) -> Settled:
        return await self._run(
            routed.settle(
                await self._reachable_shards(),
                self._schedulers,
                check_outcomes(outcomes),
                Fetch(fetch, worker, users, steal, lease, woken, window, batches or {}),
                now,
            )
        )

    async def finish(
        self, lease: Lease, result: Any = None, *, took: float | None = None, now: float | None = None
    ) -> None:
        await self._run(routed.finish(self._shards, lease, result, took, now))

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
        wait = leasing.failure_delay(self._shards.home, lease, retry=retry, delay=delay)
        return await self._run(routed.fail(self._shards, lease, error, wait, took, now))

    async def release(self, lease: Lease, *, now: float | None = None) -> None:
        await self._run(routed.settle_one(self._shards, Outcome.release(lease), now))

    async def renew(
        self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None
    ) -> list[bool]:
        return await self._run(routed.renew(self._shards, check_leases(leases), lease, now))

    async def take_over(
        self, key: LeaseKey, worker: str, *, lease: float | None = None, now: float | None = None
    ) -> Lease | None:
        return await self._run(routed.take_over(self._shards, key, worker, lease, now))

    async def heartbeat(
        self,
        worker: str,
        info: Mapping[str, str],
        *,
        lease: float | None = None,
        ttl: float = 60.0,
        now: float | None = None,
    ) -> Heartbeat:
        return await self._run(upkeep.heartbeat(self._shards, worker, info, lease, ttl, now))

    async def set_worker_command(self, worker: str, command: str, *, now: float | None = None) -> bool:
        return await self._run(upkeep.set_worker_command(self._shards, worker, command, now))

    async def release_worker(
        self,
        worker: str,
        crashed: Iterable[int] = (),
        *,
        started: Iterable[int] = (),
        reason: str = "worker process died",
        forget: bool = False,
        now: float | None = None,
    ) -> int:
        return await self._run(upkeep.release_worker(self._shards, worker, crashed, reason, forget, now, started))

    async def reconcile_worker(
        self, worker: str, held: Iterable[int], *, reason: str = "the worker does not hold it", now: float | None = None
    ) -> int:
        return await self._run(upkeep.reconcile_worker(self._shards, worker, held, reason, now))

    async def sweep(self, *, now: float | None = None) -> Sweep:
        return await self._run(upkeep.sweep(self._shards, now))

    async def carry_messages(self, limit: int = 100, *, now: float | None = None) -> int:
        return await self._read_all_shards(lambda shards: messages.deliver_messages(shards, limit, now))

    async def wait_for_work(self, timeout: float) -> bool:
        return await self._run(routed.wait_for_work(self._shards, timeout))

    async def pause(self, *, now: float | None = None) -> None:
        await self._read_all_shards(lambda shards: upkeep.set_paused(shards, now, paused=True))

    async def resume(self, *, now: float | None = None) -> None:
        await self._read_all_shards(lambda shards: upkeep.set_paused(shards, now, paused=False))

    async def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        return await self._run(upkeep.cancel(self._shards, task_id, reason, now))

    async def cancel_many(
        self, task_ids: Sequence[str], *, reason: str = "", note: Note = None, now: float | None = None
    ) -> int:
        return await self._write_all_shards(lambda shards: upkeep.cancel_some(shards, task_ids, reason, note, now))

    async def run_now(self, *task_ids: str, now: float | None = None) -> int:
        return await self._write_all_shards(lambda shards: upkeep.run_now(shards, task_ids, now))

    async def ignore_dependencies(self, task_id: str, *, now: float | None = None) -> bool:
        return await self._run(upkeep.ignore_dependencies(self._shards, task_id, now))

    async def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        await self._run(routed.set_progress(self._shards, lease, current, total, message, now))

    async def cancel_run(self, run_id: str, *, reason: str = "", note: Note = None, now: float | None = None) -> int:
        return await self._write_all_shards(lambda shards: upkeep.cancel_run(shards, run_id, reason, note, now))

    def xcom(self, namespace: str) -> AsyncXCom:
        return AsyncXCom(self._shards.of(check_id(namespace, "namespace")), self._run, namespace)

    async def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        return await self._write_all_shards(lambda shards: upkeep.take_alerts(shards, limit, now))

    async def purge(self, limit: int = 10_000, *, note: Note = None, now: float | None = None) -> int:
        """Cancel at most ``limit`` tasks of what waits, of all users; returns how many. Running tasks go on."""
        return await self._write_all_shards(lambda shards: upkeep.purge(shards, limit, note, now))

    def user(self, user_id: str) -> AsyncUserQueue:
        return AsyncUserQueue(self._shards.of(check_id(user_id, "user_id")), self._run, user_id)

    def organization(self, organization: str) -> AsyncOrganizationQueue:
        return AsyncOrganizationQueue(self._read_all_shards, organization)

    async def repair(self, *, now: float | None = None) -> list[Repair]:
        return await self._write_all_shards(lambda shards: upkeep.repair(shards, now))
