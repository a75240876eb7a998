"""`FairQueue`: the synchronous face of a queue. `AsyncFairQueue` (in `aio`) is the same, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.dead_letters.facade import DeadLetterQueue
from django_fairque.engine.dependencies import messages
from django_fairque.engine.dependencies.xcom import XCom
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing import lease_ops_sharded as routed
from django_fairque.engine.leasing.lease_ops import Fetch, Heartbeat, check_leases, check_outcomes
from django_fairque.engine.maintenance import sharded as upkeep
from django_fairque.engine.model.ids import Users, check_id
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.model.task import check_task
from django_fairque.engine.pushing import push_sharded as pushing
from django_fairque.engine.queue.executor import check_client
from django_fairque.engine.queue.reads import Reading
from django_fairque.engine.schedules.schedules import Schedules
from django_fairque.engine.sharding import resharding
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, Window
from django_fairque.engine.transport.connection import Transport
from django_fairque.engine.users.organization_facade import OrganizationQueue
from django_fairque.engine.users.users import UserQueue

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
    from django_fairque.engine.transport.connection import SyncClient

T = TypeVar("T")


class FairQueue(Reading):
    """One queue on one server. Thread-safe; holds no connection of its own, the client's pool does.

    Args:
        client: a ``redis.Redis`` or ``RedisCluster`` client, best made by
            `FairQueueConfig.create_redis_client`, whose time-outs and retries fit the queue's.
        name: the queue's name; part of every key.
        config: how the queue behaves; the defaults when None.

    Every method takes ``now`` (seconds since the epoch) in place of the server's clock: tests move time by
    passing it. The engine's time never goes back, so a ``now`` before the latest one counts as the latest.

    Raises:
        ConfigurationError: when it is made, of what is no client.
        RedisConnectionError: the server can't be reached, or can't be used (its subclasses say why).
    """

    def __init__(
        self, client: SyncClient, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        check_client(client, "FairQueue", "create_redis_client", is_awaited=False)
        super().__init__(client, name, config, shard)
        self._transport = Transport(client, self.config.request_timeout)
        self.dlq = DeadLetterQueue(self._shards, self._run, self._read_all_shards, self._write_all_shards)
        self.schedules = Schedules(self._shards, self._run, self._read_all_shards)

    def reshard(self, shards: int, *, now: float | None = None) -> tuple[int, ReshardResult | None]:
        """Spread a drained queue over another number of shards (1 to 256), whatever is configured.

        Returns on how many it lay, and what was moved (None: it lies on so many already). ``SHARDS`` must say the same
        from then on. `QueueNotDrainedError` when it holds live tasks or dead letters, or workers live.
        """
        before = self._drive(resharding.read_shard_count(self._shards))
        old, new = (self._shards.spread_over(number) for number in (before, shards))
        return before, (self._drive(resharding.reshard(old, new, now)) if before != shards else None)

    def _run_and_carry(self, steps: Operation[T]) -> T:
        """As `_run`, then carry what these left for other shards."""
        result = self._run(steps)
        self._carry_messages()
        return result

    def push(self, task: Task, *, now: float | None = None) -> PushResult:
        """Hand a task to the engine; once this returns it is not lost. `BacklogFullError` if its user has too many."""
        if check_task(task).depends_on:
            return self._run_and_carry(pushing.push(self._shards, task, now))
        return self._run(pushing.push(self._shards, task, now))

    def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        """Push many tasks, in slices of ``pipeline_batch_size`` per script call; one result for each, in order.

        Tasks of one user and priority keep their order. If backlog limits refuse some, the others are accepted
        and `BacklogFullError` is raised at the end with all results.
        """
        return self._run_and_carry(pushing.push_batch(self._reachable_shards(), tasks, now))

    def push_graph(
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
        return self._run_and_carry(
            pushing.push_graph(self._shards, tasks, check_id(run_id, "run_id") if run_id else "", now)
        )

    def deliver(
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
        return self._run_and_carry(
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

    def forget_delivered(self, task_ids: Iterable[str], *, now: float | None = None) -> int:
        """Say that these tasks' rows are gone from their outbox; returns how many were delivered lately."""
        return self._run(pushing.forget_delivered(self._shards, task_ids, now))

    def pop(
        self,
        worker: str,
        users: Users = "*",
        steal: Users = (),
        *,
        lease: float | None = None,
        now: float | None = None,
    ) -> Lease | None:
        """Lease the next task, or None. See `pop_batch`."""
        leases = self._run(
            routed.pop_batch(self._reachable_shards(), self._schedulers, Fetch(1, worker, users, steal, lease), now)
        )
        return leases[0] if leases else None

    def pop_batch(
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
        return self._run(
            routed.pop_batch(self._reachable_shards(), self._schedulers, Fetch(n, worker, users, steal, lease), now)
        )

    def settle(
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
        return self._run(
            routed.settle(
                self._reachable_shards(),
                self._schedulers,
                check_outcomes(outcomes),
                Fetch(fetch, worker, users, steal, lease, woken, window, batches or {}),
                now,
            )
        )

    def finish(self, lease: Lease, result: Any = None, *, took: float | None = None, now: float | None = None) -> None:
        """The task is done; ``result`` (any JSON value) is kept for ``result_ttl``. `StaleLeaseError` if fenced."""
        self._run(routed.finish(self._shards, lease, result, took, now))

    def fail(
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
        return self._run(routed.fail(self._shards, lease, error, wait, took, now))

    def release(self, lease: Lease, *, now: float | None = None) -> None:
        """Give the task back unharmed: to its old place, not counted, not charged. `StaleLeaseError` if fenced."""
        self._run(routed.settle_one(self._shards, Outcome.release(lease), now))

    def renew(self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None) -> list[bool]:
        """Lengthen leases; for each whether it was still the current one."""
        return self._run(routed.renew(self._shards, check_leases(leases), lease, now))

    def take_over(
        self, key: LeaseKey, worker: str, *, lease: float | None = None, now: float | None = None
    ) -> Lease | None:
        """Move a lease to another worker, for ``lease`` seconds from now; None if it is not its task's current one.

        Its token stays the same. From now on it is renewed and given back with the leases of that worker.
        """
        return self._run(routed.take_over(self._shards, key, worker, lease, now))

    def heartbeat(
        self,
        worker: str,
        info: Mapping[str, str],
        *,
        lease: float | None = None,
        ttl: float = 60.0,
        now: float | None = None,
    ) -> Heartbeat:
        """Lengthen every lease of a worker, record ``info`` of it for ``ttl`` seconds, learn what was canceled."""
        return self._run(upkeep.heartbeat(self._shards, worker, info, lease, ttl, now))

    def set_worker_command(self, worker: str, command: str, *, now: float | None = None) -> bool:
        """Send a worker the command to ``"drain"`` (fetch no more tasks), to ``"work"`` again, or to ``"stop"`` as on SIGTERM.

        It gets the command with its next heartbeat, for all its processes and queues. False when no such worker lives.
        """
        return self._run(upkeep.set_worker_command(self._shards, worker, command, now))

    def release_worker(
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
        return self._run(upkeep.release_worker(self._shards, worker, crashed, reason, forget, now, started))

    def reconcile_worker(
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
        return self._run(upkeep.reconcile_worker(self._shards, worker, held, reason, now))

    def sweep(self, *, now: float | None = None) -> Sweep:
        """One bounded round of maintenance: start what is due, take back ended leases, expire, forget."""
        return self._run(upkeep.sweep(self._shards, now))

    def carry_messages(self, limit: int = 100, *, now: float | None = None) -> int:
        """Carry news between the shards, at most ``limit`` messages of each; returns how many arrived. Workers do."""
        return self._read_all_shards(lambda shards: messages.deliver_messages(shards, limit, now))

    def wait_for_work(self, timeout: float) -> bool:
        """Sleep on the server until work comes, at most ``timeout`` seconds; whether it came."""
        return self._run(routed.wait_for_work(self._shards, timeout))

    def pause(self, *, now: float | None = None) -> None:
        """Hand out nothing more; pushes and outcomes go on.

        `ShardsAwayError` names shards that could not be told; the others are.
        """
        self._read_all_shards(lambda shards: upkeep.set_paused(shards, now, paused=True))

    def resume(self, *, now: float | None = None) -> None:
        """End the `pause`: hand out tasks again; `ShardsAwayError` as there."""
        self._read_all_shards(lambda shards: upkeep.set_paused(shards, now, paused=False))

    def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        """Cancel a task; False if it had ended before, `TaskNotFoundError` if it is not known.

        A running task loses its lease (its outcome will be refused) and its worker is told to stop it.
        """
        return self._run(upkeep.cancel(self._shards, task_id, reason, now))

    def cancel_many(
        self, task_ids: Sequence[str], *, reason: str = "", note: Note = None, now: float | None = None
    ) -> int:
        """Cancel those of these tasks that have not ended, in bounded slices; returns how many.

        Args:
            note: is called with the ids of those that this call has canceled, slice by slice.

        Raises:
            ShardsAwayError: some of their shards can't be reached; on the others it is done, and the text says how many
                tasks that were.
        """
        return self._write_all_shards(lambda shards: upkeep.cancel_some(shards, task_ids, reason, note, now))

    def run_now(self, *task_ids: str, now: float | None = None) -> int:
        """Queue those of these tasks that are SCHEDULED now, whatever their time, in bounded slices; returns how many.

        Raises:
            ShardsAwayError: as `cancel_many`.
        """
        return self._write_all_shards(lambda shards: upkeep.run_now(shards, task_ids, now))

    def ignore_dependencies(self, task_id: str, *, now: float | None = None) -> bool:
        """Let a DEFERRED task wait for no other any more, only for its time; False if it is not (any more) one."""
        return self._run(upkeep.ignore_dependencies(self._shards, task_id, now))

    def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        """Record how far a leased task is; `StaleLeaseError` if fenced."""
        self._run(routed.set_progress(self._shards, lease, current, total, message, now))

    def cancel_run(self, run_id: str, *, reason: str = "", note: Note = None, now: float | None = None) -> int:
        """Cancel what has not ended of a run; returns how many tasks.

        Args:
            note: as of `cancel_many`.

        Raises:
            TaskNotFoundError: nobody knows the run. ShardsAwayError: some shards can't be reached; on the others it is done,
                and the text says how many tasks that were.
        """
        return self._write_all_shards(lambda shards: upkeep.cancel_run(shards, run_id, reason, note, now))

    def xcom(self, namespace: str) -> XCom:
        """The values that tasks pass to each other under a name (a run's id, or one of your own)."""
        return XCom(self._shards.of(check_id(namespace, "namespace")), self._run, namespace)

    def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        """SLAs at risk or missed, and tasks that moved up, each handed out once, the oldest first.

        Those of shards that can't be reached stay there; an error is raised only if there is nothing else to hand out.
        """
        return self._write_all_shards(lambda shards: upkeep.take_alerts(shards, limit, now))

    def purge(self, limit: int = 10_000, *, note: Note = None, now: float | None = None) -> int:
        """Cancel at most ``limit`` tasks of what waits, of all users; returns how many. Running tasks go on.

        Args:
            note: as of `cancel_many`.

        Raises:
            ShardsAwayError: some shards can't be reached, and the others had fewer than ``limit``: those are canceled, and
                the text says how many they were.
        """
        return self._write_all_shards(lambda shards: upkeep.purge(shards, limit, note, now))

    def user(self, user_id: str) -> UserQueue:
        """What holds for one user, and how to change it."""
        return UserQueue(self._shards.of(check_id(user_id, "user_id")), self._run, user_id)

    def organization(self, organization: str) -> OrganizationQueue:
        """What holds for an organization, and how to change it."""
        return OrganizationQueue(self._read_all_shards, organization)

    def repair(self, *, now: float | None = None) -> list[Repair]:
        """Check, and make indexes and counters agree with the tasks' records again; what was found, fixed or not.

        Raises:
            ShardsAwayError: some shards can't be reached; the others are fixed.
        """
        return self._write_all_shards(lambda shards: upkeep.repair(shards, now))
