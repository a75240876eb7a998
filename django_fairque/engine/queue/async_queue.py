"""`AsyncFairQueue`, generated from `FairQueue` by python -m tests.async_classes."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.dead_letters.facade import AsyncDeadLetterQueue
from django_fairque.engine.dependencies import messages
from django_fairque.engine.dependencies.xcom import AsyncXCom
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch, Heartbeat, check_leases, check_outcomes
from django_fairque.engine.maintenance import operations as maintenance
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.engine.model.ids import Users, check_id
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.model.task import check_task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue import read_operations as reading
from django_fairque.engine.queue.executor import (
    ALL_SHARDS_READ_SECONDS,
    FINAL_ERRORS,
    SHARD_COUNT_RECHECK_SECONDS,
    QueueOfShards,
    Rounds,
    check_client,
    reachable_shards,
)
from django_fairque.engine.schedules.schedules import AsyncSchedules
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.sharding import resharding
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, Window
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.statistics.health import Health, health, take_alerts
from django_fairque.engine.statistics.queue_stats import QueueStats, ShardStats, shard_stats, stats
from django_fairque.engine.statistics.timeline import activity
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.connection import AsyncTransport
from django_fairque.engine.users import organization_facade as organizations
from django_fairque.engine.users.organization_facade import AsyncOrganizationQueue
from django_fairque.engine.users.users import AsyncUserQueue, purge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from django_fairque.engine.dependencies.dependencies import Blockers, DependencyGraph, DependencyView
    from django_fairque.engine.inspection.pages import PartialList, ResultPage, Sizes, WorkerRecord
    from django_fairque.engine.inspection.search import MatchingTasks, Search, SearchResult
    from django_fairque.engine.inspection.task_lookup import Note, Progress, RunView
    from django_fairque.engine.maintenance.invariants.snapshot import Violation
    from django_fairque.engine.maintenance.operations import Repair, Sweep
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.records import Attempt, EventCount, PushResult, TaskState
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.resharding import ReshardResult
    from django_fairque.engine.statistics.health import Alert
    from django_fairque.engine.statistics.queue_stats import WaitingTask
    from django_fairque.engine.statistics.timeline import Activity
    from django_fairque.engine.transport.connection import AsyncClient
    from django_fairque.engine.users.organizations import OrganizationStats
    from django_fairque.engine.users.users import UserStats
    from django_fairque.engine.users.wait_reason import WaitReason

T = TypeVar("T")


class AsyncFairQueue(QueueOfShards):
    # Generated from `FairQueue` by python -m tests.async_classes.
    """One queue on one server. Every method is a coroutine. It holds no connection of its own, the client's pool does.

    Args:
        client: a client of ``redis.asyncio``, best made by
            `FairQueueConfig.create_async_redis_client`, whose time-outs and retries fit the queue's.
        name: the queue's name; part of every key.
        config: how the queue behaves; the defaults when None.

    Every method takes ``now`` (seconds since the epoch) in place of the server's clock: tests move time by
    passing it. The engine's time never goes back, so a ``now`` before the latest one counts as the latest.

    While a node of the cluster is away, lists and figures come from the shards that can be reached, and their ``missing_shards``
    are the numbers of the others. Numbers and yes or no, which can't say that, raise `ShardsAwayError`.

    Raises:
        ConfigurationError: when it is made, of what is no client.
        RedisConnectionError: the server can't be reached, or can't be used (its subclasses say why).
    """

    client: AsyncClient
    _transport: AsyncTransport

    def __init__(
        self, client: AsyncClient, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        check_client(client, "AsyncFairQueue", "create_async_redis_client", is_awaited=True)
        super().__init__(client, name, config, shard)
        self._transport = AsyncTransport(client, self.config.request_timeout)
        self.dlq = AsyncDeadLetterQueue(self._shards, self._run, self._read_all_shards, self._write_all_shards)
        self.schedules = AsyncSchedules(self._shards, self._run, self._read_all_shards)

    async def reshard(self, shards: int, *, now: float | None = None) -> tuple[int, ReshardResult | None]:
        """Spread a drained queue over another number of shards (1 to 256), whatever is configured.

        Returns on how many it lay, and what was moved (None: it lies on so many already). ``SHARDS`` must say the same
        from then on. `QueueNotDrainedError` when it holds live tasks or dead letters, or workers live.
        """
        before = await self._drive(resharding.read_shard_count(self._shards))
        old, new = (self._shards.spread_over(number) for number in (before, shards))
        return before, (await self._drive(resharding.reshard(old, new, now)) if before != shards else None)

    async def _run_and_carry(self, steps: Operation[T]) -> T:
        """As `_run`, then carry what these left for other shards."""
        await self._check()
        result = await self._drive(steps)
        if len(self._shards) > 1:
            await self._carry_messages()
        return result

    async def push(self, task: Task, *, now: float | None = None) -> PushResult:
        """Hand a task to the engine; once this returns it is not lost. `BacklogFullError` if its user has too many."""
        if check_task(task).depends_on:
            return await self._run_and_carry(pushing.push(self._shards, task, now))
        return await self._run(pushing.push(self._shards, task, now))

    async def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        """Push many tasks, in slices of ``pipeline_batch_size`` per script call; one result for each, in order.

        Tasks of one user and priority keep their order. If backlog limits refuse some, the others are accepted
        and `BacklogFullError` is raised at the end with all results.
        """
        return await self._run_and_carry(pushing.push_batch(await self._reachable_shards(), tasks, now))

    async def push_graph(
        self, tasks: Sequence[Task], run_id: str | None = None, *, now: float | None = None
    ) -> list[PushResult]:
        """Push tasks that depend on each other: all of them or, with an error, none.

        Args:
            tasks: at most 2,000, in any order, with at most 10,000 dependencies.
            run_id: keeps them together for `run` and `cancel_run`; a run of this id that exists is added to.

        Raises:
            DependencyCycleError: names the cycle. TaskNotFoundError: a dependency is neither known nor among them.
            BacklogFullError: a user has too many tasks.
        """
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
        """Push at most 1,000 tasks that a database asks for, and count the model events behind them, in one call.

        Args:
            counts: what happened since the last call, by event.
            run_id, is_graph: these tasks depend on each other, as in `push_graph`.
            from_outbox: accept each id once, however often it is delivered; until `forget_delivered`.

        Unlike `push_batch` this raises no `BacklogFullError` for single tasks: their results say so.
        """
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
        """Say that these tasks' rows are gone from their outbox; returns how many were delivered lately."""
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
        """Lease the next task, or None. See `pop_batch`."""
        leases = await self._run(
            leasing.pop_batch(
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
        """Lease up to ``n`` (at most 1000) tasks, fairly, in one script call.

        Args:
            worker: this worker's id.
            users: whom it serves: ``"*"`` or a sequence of user ids (at most 3000).
            steal: whom it serves when none of ``users`` has anything.
            lease: seconds until the lease must be renewed; ``lease_seconds`` by default.
        """
        return await self._run(
            leasing.pop_batch(
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
        """Report outcomes and lease up to ``fetch`` new tasks, in one script call.

        Args:
            worker: who fetches; by default the worker whose leases the outcomes are of.
            users, steal, lease: as of `pop_batch`.
            woken: `wait_for_work` has just returned True: the wake marker is passed on if there is more.
            window: of one of several shards (`shards`): its place among them. A queue as a whole knows it by itself.
            batches: the batch size of each task name that runs in batches. A task of such a name comes together with waiting
                tasks of its user and name, up to the batch size; together they count as one of ``fetch``.

        Raises:
            TaskValidationError: something is to be fetched, and neither ``worker`` nor the outcomes say for whom.
        """
        return await self._run(
            leasing.settle(
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
        """The task is done; ``result`` (any JSON value) is kept for ``result_ttl``. `StaleLeaseError` if fenced."""
        await self._run(leasing.finish(self._shards, lease, result, took, now))

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
        """The attempt failed: SCHEDULED again after a backoff (or ``delay`` seconds), or FAILED, a dead letter.

        It is a dead letter when its retries are used up or ``retry`` is False. `StaleLeaseError` if fenced.
        """
        wait = leasing.failure_delay(self._shards.home, lease, retry=retry, delay=delay)
        return await self._run(leasing.fail(self._shards, lease, error, wait, took, now))

    async def release(self, lease: Lease, *, now: float | None = None) -> None:
        """Give the task back unharmed: to its old place, not counted, not charged. `StaleLeaseError` if fenced."""
        await self._run(leasing.settle_one(self._shards, Outcome.release(lease), now))

    async def renew(
        self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None
    ) -> list[bool]:
        """Lengthen leases; for each whether it was still the current one."""
        return await self._run(leasing.renew(self._shards, check_leases(leases), lease, now))

    async def take_over(
        self, key: LeaseKey, worker: str, *, lease: float | None = None, now: float | None = None
    ) -> Lease | None:
        """Move a lease to another worker, for ``lease`` seconds from now; None if it is not its task's current one.

        Its token stays the same. From now on it is renewed and given back with the leases of that worker.
        """
        return await self._run(leasing.take_over(self._shards, key, worker, lease, now))

    async def heartbeat(
        self,
        worker: str,
        info: Mapping[str, str],
        *,
        lease: float | None = None,
        ttl: float = 60.0,
        now: float | None = None,
    ) -> Heartbeat:
        """Lengthen every lease of a worker, record ``info`` of it for ``ttl`` seconds, learn what was canceled."""
        return await self._run(leasing.heartbeat(self._shards, worker, info, lease, ttl, now))

    async def set_worker_command(self, worker: str, command: str, *, now: float | None = None) -> bool:
        """Send a worker the command to ``"drain"`` (fetch no more tasks), to ``"work"`` again, or to ``"stop"`` as on SIGTERM.

        It gets the command with its next heartbeat, for all its processes and queues. False when no such worker lives.
        """
        return await self._run(leasing.set_worker_command(self._shards, worker, command, now))

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
        """Give back all leases of a worker that is gone; returns how many.

        Those whose tokens are in ``crashed`` count as a delivery without an outcome, the others do not. Those in ``started``
        count as given back after they had begun (``Task.given_back``), as those in ``crashed`` do.
        ``forget`` removes its record too. `TaskValidationError` for tokens if the queue has several shards: say it to
        the shard whose they are (`shards`).
        """
        return await self._run(leasing.release_worker(self._shards, worker, crashed, reason, forget, now, started))

    async def reconcile_worker(
        self, worker: str, held: Iterable[int], *, reason: str = "the worker does not hold it", now: float | None = None
    ) -> int:
        """Give back all leases of a worker except those with these tokens; returns how many were given back.

        For leases that a worker has never received (the reply that handed them out was lost) or cannot begin (its process
        is blocked). They do not count as deliveries.

        Args:
            worker: its id.
            held: the tokens of the leases that stay with it.
            reason: is written to the tasks' histories.

        Raises:
            TaskValidationError: tokens were given and the queue has several shards: call this for the shard that handed them
                out (`shards`).
        """
        return await self._run(leasing.reconcile_worker(self._shards, worker, held, reason, now))

    async def sweep(self, *, now: float | None = None) -> Sweep:
        """One bounded round of maintenance: start what is due, take back ended leases, expire, forget."""
        return await self._run(maintenance.sweep(self._shards, now))

    async def carry_messages(self, limit: int = 100, *, now: float | None = None) -> int:
        """Carry news between the shards, at most ``limit`` messages of each; returns how many arrived. Workers do."""
        return await self._read_all_shards(lambda shards: messages.deliver_messages(shards, limit, now))

    async def wait_for_work(self, timeout: float) -> bool:
        """Sleep on the server until work comes, at most ``timeout`` seconds; whether it came."""
        return await self._run(leasing.wait_for_work(self._shards, timeout))

    async def pause(self, *, now: float | None = None) -> None:
        """Hand out nothing more; pushes and outcomes go on.

        `ShardsAwayError` names shards that could not be reached; the others are paused.
        """
        await self._read_all_shards(lambda shards: maintenance.set_paused(shards, now, paused=True))

    async def resume(self, *, now: float | None = None) -> None:
        """End the `pause`: hand out tasks again; `ShardsAwayError` as there."""
        await self._read_all_shards(lambda shards: maintenance.set_paused(shards, now, paused=False))

    async def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        """Cancel a task; False if it had ended before, `TaskNotFoundError` if it is not known.

        A running task loses its lease (its outcome will be refused) and its worker gets the command to stop it.
        """
        return await self._run(lookup.cancel(self._shards, task_id, reason, now))

    async def cancel_many(
        self, task_ids: Sequence[str], *, reason: str = "", note: Note = None, now: float | None = None
    ) -> int:
        """Cancel those of these tasks that have not ended, in bounded slices; returns how many.

        Args:
            note: is called with the ids of those that this call has canceled, slice by slice.

        Raises:
            ShardsAwayError: some of their shards can't be reached; on the others it is done, and the text says how many
                tasks that were.
        """
        return await self._write_all_shards(lambda shards: lookup.cancel_some(shards, task_ids, reason, note, now))

    async def run_now(self, *task_ids: str, now: float | None = None) -> int:
        """Queue those of these tasks that are SCHEDULED now, whatever their time, in bounded slices; returns how many.

        Raises:
            ShardsAwayError: as `cancel_many`.
        """
        return await self._write_all_shards(lambda shards: lookup.run_now(shards, task_ids, now))

    async def ignore_dependencies(self, task_id: str, *, now: float | None = None) -> bool:
        """Let a DEFERRED task wait for no other any more, only for its time; False if it is not (any more) one."""
        return await self._run(lookup.ignore_dependencies(self._shards, task_id, now))

    async def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        """Record how far a leased task is; `StaleLeaseError` if fenced."""
        await self._run(lookup.set_progress(self._shards, lease, current, total, message, now))

    async def cancel_run(self, run_id: str, *, reason: str = "", note: Note = None, now: float | None = None) -> int:
        """Cancel what has not ended of a run; returns how many tasks.

        Args:
            note: as of `cancel_many`.

        Raises:
            TaskNotFoundError: nobody knows the run. ShardsAwayError: some shards can't be reached; on the others it is done,
                and the text says how many tasks that were.
        """
        return await self._write_all_shards(lambda shards: lookup.cancel_run(shards, run_id, reason, note, now))

    def xcom(self, namespace: str) -> AsyncXCom:
        """The values that tasks pass to each other under a name (a run's id, or one of your own)."""
        return AsyncXCom(self._shards.of(check_id(namespace, "namespace")), self._run, namespace)

    async def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        """SLAs at risk or missed, and tasks that moved up, each handed out once, the oldest first.

        Those of shards that can't be reached stay there; an error is raised only if there is nothing else to hand out.
        """
        return await self._write_all_shards(lambda shards: take_alerts(shards, limit, now))

    async def purge(self, limit: int = 10_000, *, note: Note = None, now: float | None = None) -> int:
        """Cancel at most ``limit`` tasks of what waits, of all users; returns how many. Running tasks go on.

        Args:
            note: as of `cancel_many`.

        Raises:
            ShardsAwayError: some shards can't be reached, and the others had fewer than ``limit``: those are canceled, and
                the text says how many they were.
        """
        return await self._write_all_shards(lambda shards: purge(shards, limit, note, now))

    def user(self, user_id: str) -> AsyncUserQueue:
        """What holds for one user, and how to change it."""
        return AsyncUserQueue(self._shards.of(check_id(user_id, "user_id")), self._run, user_id)

    def organization(self, organization: str) -> AsyncOrganizationQueue:
        """What holds for an organization, and how to change it."""
        return AsyncOrganizationQueue(self._read_all_shards, organization)

    async def repair(self, *, now: float | None = None) -> list[Repair]:
        """Check, and make indexes and counters agree with the tasks' records again; what was found, fixed or not.

        Raises:
            ShardsAwayError: some shards can't be reached; the others are fixed.
        """
        return await self._write_all_shards(lambda shards: maintenance.repair(shards, now))

    # --- reads: each is a bounded part of the queue, in one round trip or a few, unless it says otherwise ---

    async def _read_task(self, task_id: str, read: Callable[[Shards], Operation[T]]) -> T:
        """A task that does not say its shard is looked for on all that can be reached."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return await self._read_all_shards(read)
        return await self._run(read(self._shards))

    async def event_counts(self) -> dict[str, EventCount]:
        """What is known of the model events that added tasks to this queue, by event."""
        return await self._run(reading.event_counts(self._shards))

    async def is_paused(self) -> bool:
        """Whether `pause` holds everything back."""
        return await self._read_all_shards(reading.is_paused)

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> SearchResult:
        """Tasks without payloads and results that match, of the next ``look_at`` ones in the state's registry."""
        return await self._read_all_shards(lambda shards: reading.find(shards, search, limit, cursor))

    async def matching(self, search: Search) -> MatchingTasks:
        """The ids of all tasks that match among the first ``look_at`` ones in the state's registry."""
        return await self._read_all_shards(lambda shards: reading.matching(shards, search))

    async def get_task(self, task_id: str) -> Task:
        """The task as it is now; `TaskNotFoundError` when the queue does not know it (any more)."""
        return await self._read_task(task_id, lambda shards: lookup.get_task(shards, task_id))

    async def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """Those of these tasks that the queue knows, by id, each as it is now; two hundred in a round trip."""
        return await self._run(lookup.get_tasks(self._shards, task_ids))

    async def history(self, task_id: str) -> list[Attempt]:
        """The attempts that did not finish the task and what brought it back, oldest first, at most 25."""
        return await self._read_task(task_id, lambda shards: lookup.history(shards, task_id))

    async def get_progress(self, task_id: str) -> Progress | None:
        """The progress that the task has reported; None if it reported none, or is not known."""
        return await self._read_task(task_id, lambda shards: lookup.get_progress(shards, task_id))

    async def position(self, task_id: str) -> int | None:
        """How many tasks of the same user are before it by class and age; None unless it is QUEUED."""
        return await self._read_task(task_id, lambda shards: reading.position(shards, task_id))

    async def wait_reason(self, task_id: str) -> WaitReason:
        """What decides whether and when a task starts: its user's limits and turn, its place, its lease."""
        return await self._read_task(task_id, lambda shards: reading.wait_reason(shards, task_id))

    async def dependencies(self, task_id: str, nodes: int = 200) -> DependencyView:
        """Who waits for a task, what it waits for, and the graph around it (at most ``nodes`` tasks)."""
        return await self._run(reading.view(self._shards, task_id, nodes))

    async def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        """What still blocks each of these tasks: at most ``most`` of them, and how many there are."""
        return await self._run(reading.blockers(self._shards, task_ids, most))

    async def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        """What depends on what among the tasks of a run (at most ``nodes`` of them)."""
        return await self._run(reading.run_graph(self._shards, run_id, nodes))

    async def parent_results(self, task_id: str) -> dict[str, Any]:
        """What the tasks that it depends on returned, by id, without those that have not finished."""
        return await self._run(reading.parent_results(self._shards, task_id))

    async def run(self, run_id: str) -> RunView:
        """The tasks that were pushed together under this id; `TaskNotFoundError` when there are none (any more)."""
        return await self._run(lookup.view_run(self._shards, run_id))

    async def tasks(
        self,
        state: TaskState | str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ResultPage[Task]:
        """A page of tasks: of one state (all states in turn for None), of one user, in the registry's order."""
        return await self._read_all_shards(lambda shards: reading.tasks(shards, state, user_id, limit, cursor))

    async def get_queue_sizes(self, user_id: str) -> Sizes:
        """How many tasks of a user wait, by kind, and run."""
        return (await self._run(reading.queue_sizes(self._shards, [user_id])))[user_id]

    async def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        """As `get_queue_sizes`, of many users in one call."""
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

        The sample holds ``sample`` tasks of each state in which tasks wait: a user with a twentieth of those in one of them
        is missed once in 170 times when it is 100. It is found however many users there are.
        """
        return await self._read_all_shards(lambda shards: reading.busiest_users(shards, sample))

    async def health(self) -> Health:
        """Whether the queue is good, degraded or down, and why."""
        return await self._read_all_shards(health)

    async def users(self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False) -> ResultPage[str]:
        """A page of the users that have, or lately had, something in the queue.

        ``busy_first``: who has something now, or settings, before who had; follow its cursors with it.
        """
        return await self._read_all_shards(lambda shards: reading.user_names(shards, cursor, limit, busy_first))

    async def busy_users(self, limit: int = 100) -> PartialList[str]:
        """Users that have something now, or settings, before those who had; as many of each shard."""
        return await self._read_all_shards(lambda shards: reading.busy_users(shards, limit))

    async def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        """The figures of these users, in order, with one read each in one round trip."""
        return await self._run(reading.user_stats(self._shards, user_ids, now))

    async def organizations(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """A page of the organizations that have members or settings, by name."""
        return await self._read_all_shards(lambda shards: organizations.page(shards, cursor, limit))

    async def organization_stats(self, names: Sequence[str]) -> PartialList[OrganizationStats]:
        """The figures of these organizations, in order, in one round trip."""
        return await self._read_all_shards(lambda shards: organizations.stats(shards, names))

    async def workers(self) -> PartialList[WorkerRecord]:
        """The workers that sent a heartbeat lately."""
        return await self._read_all_shards(reading.workers)

    async def check_invariants(self) -> PartialList[Violation]:
        """Compare everything the queue holds with the invariants; reads every key, so not for every minute."""
        return await self._read_all_shards(reading.check_invariants)

    # --- sending: operations over the queue's client ---

    def cancel_retries_when(self, condition: Callable[[], bool]) -> None:
        """Let calls that have failed be repeated no more while this holds."""
        self._transport.is_reply_unwanted = condition

    async def _run(self, steps: Operation[T]) -> T:
        await self._check()
        return await self._drive(steps)

    async def _read_all_shards(self, read: Callable[[Shards], Operation[T]]) -> T:
        """What all shards know or, when a node does not answer for `ALL_SHARDS_READ_SECONDS` seconds, what the others do.

        ``read`` is called with the shards to ask, more than once if need be; it changes nothing, or nothing twice.
        """
        await self._check()
        return await self._among(self._shards, read)

    async def _reachable_shards(self) -> Shards:
        """All shards but those whose nodes are known to be away."""
        if len(self._shards) == 1 or not nodes.can_miss_shards(self.client):
            return self._shards
        await nodes.recheck_nodes_async(self.client)
        return reachable_shards(self.client, self._shards)

    async def _write_all_shards(self, change: Callable[[Shards], Operation[T]]) -> T:
        """Change all shards; ``change`` gets those that can be reached, and the numbers of the others."""
        return await self._run(change(await self._reachable_shards()))

    async def _carry_messages(self) -> None:
        """Carry what was left for other shards. If that fails workers do it: it is written down."""
        with suppress(FairQueueError):
            await self._read_all_shards(lambda shards: messages.deliver_messages(shards, MAX_CALL_ITEMS, None))

    async def _check(self) -> None:
        """The number of shards that is written down is the configured one."""
        if self._parent_queue is not None:
            await self._parent_queue._check()  # noqa: SLF001 - an object of this class
        elif not self._is_checked and monotonic() >= self._check_at:
            self._is_checked = await self._among(Shards(self.name, self.config), resharding.check_shard_count)
            self._check_at = monotonic() + SHARD_COUNT_RECHECK_SECONDS

    async def _among(self, shards: Shards, read: Callable[[Shards], Operation[T]]) -> T:
        if len(shards) == 1 or not nodes.can_miss_shards(self.client):
            return await self._drive(read(shards))
        await nodes.recheck_nodes_async(self.client)
        rounds = Rounds(self.client, shards)
        for living in rounds:
            try:
                return await self._drive(read(living), ALL_SHARDS_READ_SECONDS)
            except FINAL_ERRORS:  # noqa: PERF203 - there are a few rounds at most
                raise
            except RedisConnectionError:
                continue
        return await self._drive(read(rounds.rest))

    async def _drive(self, steps: Operation[T], seconds: float | None = None) -> T:
        """With ``seconds`` each request is repeated no longer than that. An error is raised in the steps, which may take it."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = await self._transport.send(request, seconds)
                except FairQueueError as error:  # noqa: PERF203 - each request may fail
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
