"""`FairQueue`: one queue on one server. `AsyncFairQueue` (in `async_queue`) is generated from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.acts.acts import Acts
from django_fairque.engine.dead_letters.dead_letters import DeadLetterQueue
from django_fairque.engine.dependencies import dependencies, messages
from django_fairque.engine.dependencies.dependencies import XCom
from django_fairque.engine.inspection import pages as listing
from django_fairque.engine.inspection import search as finding
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.inspection.task_logs import TaskLogs
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch, Heartbeat, check_leases, check_outcomes
from django_fairque.engine.limits.limits import LimitQueue, LimitStats, top_limits
from django_fairque.engine.maintenance import operations as maintenance
from django_fairque.engine.maintenance import resharding
from django_fairque.engine.maintenance.invariants import check_invariants
from django_fairque.engine.model.durations import duration
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError
from django_fairque.engine.model.ids import Users, check_id
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.model.records import Attempt, EventCount, PushResult, TaskState
from django_fairque.engine.model.task import Task, check_task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue import executor
from django_fairque.engine.schedules.schedules import Schedules
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, Window
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.statistics import longest_waits, queue_stats
from django_fairque.engine.statistics.health import Alert, Health, health, take_alerts
from django_fairque.engine.statistics.incidents import Incidents
from django_fairque.engine.statistics.task_names import AttemptTotals, NameFigures, attempt_totals, task_names
from django_fairque.engine.transport.cluster import is_cluster
from django_fairque.engine.transport.connection import SyncClient, Transport
from django_fairque.engine.users import organizations, start_estimates, users
from django_fairque.engine.users.fairness import Fairness, fairness
from django_fairque.engine.users.organizations import OrganizationQueue, OrganizationStats
from django_fairque.engine.users.sla_ledger import SlaLedger, sla_ledger
from django_fairque.engine.users.users import UserQueue, UserStats
from django_fairque.engine.users.wait_reason import WaitReason, read_wait_reason

if TYPE_CHECKING:
    from django_fairque.engine.dependencies.dependencies import Blockers, DependencyGraph, DependencyView, RunProgress
    from django_fairque.engine.inspection.pages import PartialList, ResultPage, Sizes, WorkerRecord
    from django_fairque.engine.inspection.search import MatchingTasks, Search, SearchResult
    from django_fairque.engine.maintenance.snapshot import Violation
    from django_fairque.engine.model.lanes import LaneLimits
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.pauses import PauseEnd
    from django_fairque.engine.scripting.commands import Fields
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.statistics.longest_waits import WaitingTask
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, ShardStats

T = TypeVar("T")


class FairQueue(executor.QueueOfShards):
    """One queue on one server. Thread-safe. The client's pool holds the connections.

    ``client`` is a ``redis.Redis`` or ``RedisCluster`` client, best made by `FairQueueConfig.create_redis_client`, whose
    time-outs and retries fit the queue's. ``name`` is the queue's name, ``"default"`` by default; it is part of every key.
    ``config`` is how the queue behaves, by default a `QueueConfig` with its defaults. ``shard`` is for the package: the number
    of the one shard that this object uses (`shards`), by default all.

    Most methods take ``now``, the moment as Unix time in seconds, in place of the server's clock: tests move time by passing
    it. The engine's time never goes back, so a ``now`` before the latest one counts as the latest.

    While a node of the cluster is away, lists and figures come from the shards that can be reached, and their
    ``missing_shards`` are the numbers of the other shards. Methods that return a number or a boolean can't express
    this; they raise `ShardsAwayError`.

    Raises `ConfigurationError` if ``client`` is no such client. Every method raises `TaskValidationError` if an argument can't
    be used, before anything is written, and `RedisConnectionError` if the server can't be reached or can't be used (its
    subclasses give the reason). `django_fairque.engine` describes what each operation guarantees.
    """

    client: SyncClient
    _transport: Transport

    def __init__(
        self, client: SyncClient, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        executor.check_client(client, "FairQueue", "create_redis_client", is_awaited=False)
        super().__init__(client, name, config, shard)
        self._transport = Transport(client, self.config.request_timeout)
        self.dlq = DeadLetterQueue(self._shards, self._run, self._read_all_shards, self._write_all_shards)
        self.schedules = Schedules(self._shards, self._run, self._read_all_shards)
        self.logs = TaskLogs(self._shards, self._run, self._read_all_shards)
        self.incidents = Incidents(self._shards, self._run)
        self.acts = Acts(self._shards, self._run, self._read_all_shards, self._write_all_shards)

    def reshard(self, shards: int, *, now: float | None = None) -> tuple[int, resharding.ReshardResult | None]:
        """Move a drained queue to another number of shards, whatever is configured.

        ``shards`` is the new number, from 1 to 256. Set ``SHARDS`` to the same number afterwards. Users, their settings,
        organizations and schedules move; ended tasks are forgotten. An interrupted call can be repeated. Returns the number of
        shards before, and what was moved (None if the number is the same). Raises `QueueNotDrainedError` if the queue holds
        tasks that have not ended or dead letters, or if workers live. Nothing is changed then.
        """
        before = self._drive(resharding.read_shard_count(self._shards))
        old, new = (self._shards.with_shard_count(number) for number in (before, shards))
        return before, (self._drive(resharding.reshard(old, new, now)) if before != shards else None)

    def _run_and_carry(self, steps: Operation[T]) -> T:
        """Run the steps, then deliver the messages that they stored for other shards."""
        self._check()
        result = self._drive(steps)
        if len(self._shards.all) > 1:
            self._carry_messages()
        return result

    def push(self, task: Task, *, now: float | None = None) -> PushResult:
        """Push a task: once this returns the task is not lost.

        ``task`` is what `Task.create` returned. Returns the result: accepted, or a duplicate with the id of the task
        that is known already. Raises `BacklogFullError` if its user has too many tasks, `TaskIdConflictError` if its
        chosen id belongs to a task of another user, and for a task with dependencies what `push_graph` raises.
        """
        if check_task(task).depends_on:
            return self._run_and_carry(pushing.push(self._shards, task, now))
        return self._run(pushing.push(self._shards, task, now))

    def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        """Push many tasks, in slices of ``pipeline_batch_size`` (300 by default) per script call.

        ``tasks`` are any number of tasks. Tasks of the same user and priority keep their order. Returns one result for
        each task, in order. Raises `BacklogFullError` or `TaskIdConflictError` at the end if some are refused, and
        `ShardsAwayError` if some shards can't be reached. The other tasks are accepted; the error has the results or ids.
        """
        return self._run_and_carry(pushing.push_batch(self._reachable_shards(), tasks, now))

    def push_graph(
        self, tasks: Sequence[Task], run_id: str | None = None, *, now: float | None = None
    ) -> list[PushResult]:
        """Push tasks that depend on each other: all of them or, with an error, none.

        ``tasks`` are at most 2,000, in any order, with at most 10,000 dependencies. ``run_id`` keeps them together for `run` and
        `cancel_run`; an existing run of this id gets the tasks too. The default is the run of the first task, if it has one.
        Returns one result for each task, in their order. Raises `DependencyCycleError`, which names the cycle, if they wait for
        each other; `TaskNotFoundError` if a dependency is neither known nor among them; `BacklogFullError` if a user has too many
        tasks; `TaskIdConflictError` if a chosen id belongs to a task of another user.
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
        """Push at most 1,000 tasks that a database requests, and count the model events behind them: one call per shard.

        ``tasks`` are pushed as by `push_batch`, except that no `BacklogFullError` is raised for single tasks: their results
        contain it. ``counts`` are the counts since the last call, by event; none by default. With ``is_graph`` (False by default)
        the tasks depend on each other, as in `push_graph`, and ``run_id`` is that of `push_graph`; empty by default. With
        ``from_outbox`` (False by default) each id is accepted once, however often it is delivered, until `forget_delivered`.
        Returns one result for each task, in their order. Raises what `push_graph` raises if ``is_graph`` is set.
        """
        steps = pushing.deliver(
            self._shards, tasks, counts or {}, run_id=run_id, is_graph=is_graph, from_outbox=from_outbox, now=now
        )
        return self._run_and_carry(steps)

    def forget_delivered(self, task_ids: Iterable[str], *, now: float | None = None) -> int:
        """Forget that the tasks ``task_ids`` of an outbox were delivered, because their rows are gone. Returns how many of
        them were recorded as delivered."""
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
        """Lease the next task for ``worker``. Returns the lease, or None if no task can start. ``users``, ``steal``
        and ``lease`` are those of `pop_batch`."""
        leases = self._run(
            leasing.pop_batch(self._reachable_shards(), self._schedulers, Fetch(1, worker, users, steal, lease), now)
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
        """Lease up to ``n`` tasks (at most 1000), fairly, in one script call.

        ``worker`` is the id of the worker that gets the leases. ``users`` are the users whom it serves: ``"*"`` (the default)
        or ``["*"]`` for all, or a sequence of at most 3000 user ids. ``steal`` are users whom it serves when none of ``users``
        has a task that can start; none by default. ``lease`` is the number of seconds until a lease ends unless it is renewed;
        the queue's ``lease_seconds`` (30) by default. Returns the leases, fewer than ``n`` or none if fewer tasks can start.
        """
        return self._run(
            leasing.pop_batch(self._reachable_shards(), self._schedulers, Fetch(n, worker, users, steal, lease), now)
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
        lane_limits: LaneLimits | None = None,
        now: float | None = None,
    ) -> Settled:
        """Report outcomes and lease up to ``fetch`` new tasks, in one script call.

        ``outcomes`` are any number of outcomes, which the class methods of `Outcome` make. ``fetch`` is from 0 (the
        default) to 1000. These arguments concern the fetch:

        - ``worker``: the worker that fetches; by default the worker that holds the leases of the outcomes.
        - ``users``, ``steal`` and ``lease``: those of `pop_batch`.
        - ``woken``: whether `wait_for_work` has just returned True, so that the wake marker is passed on if there is
          more; False by default.
        - ``window``: the place of one shard (`shards`) among the others; the queue of all shards computes it.
        - ``batches``: the batch size of each task name that runs in batches; none by default. A task of such a name
          comes together with waiting tasks of its user and name, up to the batch size; together they count as one of ``fetch``.
        - ``lane_limits``: how many of ``fetch`` may be below lane urgent, and how many in lane bulk; None (the default) for
          any number.

        Returns the status of each outcome, in their order, and the new leases. An outcome whose lease is no longer
        current has the status ``stale`` and changes nothing.

        Raises `TaskValidationError` if something is to be fetched, and neither ``worker`` nor the outcomes name one worker.
        """
        checked = check_outcomes(outcomes)
        wanted = Fetch(fetch, worker, users, steal, lease, woken, window, batches or {}, lane_limits)
        return self._run(leasing.settle(self._reachable_shards(), self._schedulers, checked, wanted, now))

    def finish(self, lease: Lease, result: Any = None, *, took: float | None = None, now: float | None = None) -> None:
        """Report that a leased task is done: it becomes FINISHED.

        ``lease`` is that of the task. ``result`` is any JSON value, None by default, and is kept for ``result_ttl``
        seconds. ``took`` is the worker time in seconds that its user is charged; by default the time since the lease
        began. Raises `StaleLeaseError` if the lease is not the task's current one, and `TaskSerializationError` if the
        result is not JSON or has more than ``max_payload_bytes`` bytes. Nothing is changed then.
        """
        outcome = Outcome.finish(lease, result, took=took, limit=self.config.max_payload_bytes)
        self._run(leasing.settle_one(self._shards, outcome, now))

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
        """Report that an attempt failed: the task is scheduled again, or becomes a dead letter if its retries are used
        up.

        ``lease`` is that of the task. ``error`` is the exception, or its text. If ``retry`` is False (True by default)
        it becomes a dead letter at once. ``delay`` is the number of seconds until the next attempt; by default a
        backoff by the queue's settings. ``took`` is as in `finish`. Returns the new state: SCHEDULED, or FAILED for a
        dead letter. Raises `StaleLeaseError` if the lease is not the task's current one.
        """
        wait = duration(delay, "delay") if retry and delay is not None else None
        outcome = Outcome.fail(lease, error, delay="backoff" if retry and wait is None else wait, took=took)
        status = self._run(leasing.settle_one(self._shards, outcome, now))
        return TaskState.FAILED if status == "dead" else TaskState.SCHEDULED

    def release(self, lease: Lease, *, now: float | None = None) -> None:
        """Give the task of a ``lease`` back, at its old position in the queue. The lease neither counts as a delivery
        nor is charged. Raises `StaleLeaseError` if the lease is not the task's current one."""
        self._run(leasing.settle_one(self._shards, Outcome.release(lease), now))

    def renew(self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None) -> list[bool]:
        """Lengthen leases.

        ``leases`` are any number of leases. ``lease`` is their new length in seconds from now; the queue's ``lease_seconds`` (30)
        by default. Returns for each lease whether it was still its task's current lease; other leases were not changed.
        """
        return self._run(leasing.renew(self._shards, check_leases(leases), lease, now))

    def take_over(
        self, key: LeaseKey, worker: str, *, lease: float | None = None, now: float | None = None
    ) -> Lease | None:
        """Move a lease to another worker. Its token stays the same. From now on it is renewed and given back with the
        leases of that worker.

        ``key`` is that of the lease (`Lease.key`), ``worker`` the id of the worker that takes it over, and ``lease``
        its new length in seconds from now; the queue's ``lease_seconds`` (30) by default. Returns the lease; None if
        it is not its task's current one.
        """
        return self._run(leasing.take_over(self._shards, key, worker, lease, now))

    def heartbeat(
        self,
        worker: str,
        info: Mapping[str, str],
        *,
        lease: float | None = None,
        ttl: float = 60.0,
        requires_signatures: bool | None = None,
        now: float | None = None,
    ) -> Heartbeat:
        """Lengthen all leases of a worker, record that it lives, and read its commands and which of its tasks were
        canceled.

        ``worker`` is its id. ``info`` is recorded as its description, for `workers`, for ``ttl`` seconds (60 by default).
        ``lease`` is the new length of its leases in seconds from now; the queue's ``lease_seconds`` (30) by default.
        ``requires_signatures`` is whether the worker runs signed tasks only: if True, a push without a signature raises
        `UnsignedTaskError`, until only workers with False have sent heartbeats for ``ttl``; None (the default) changes nothing.
        Returns how many leases were lengthened, the keys of the leases whose tasks were canceled, and the last command.
        """
        return self._run(leasing.heartbeat(self._shards, worker, info, lease, ttl, requires_signatures, now))

    def set_worker_command(self, worker: str, command: str, *, now: float | None = None) -> bool:
        """Send a worker a command, which it gets with its next heartbeat, for all its processes and queues.

        ``worker`` is its id. ``command`` is ``"drain"`` (fetch no more tasks), ``"work"`` (fetch again) or ``"stop"``
        (as on SIGTERM). Returns whether such a worker lives; if not, nothing was sent.
        """
        return self._run(leasing.set_worker_command(self._shards, worker, command, now))

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
        """Give back all leases of a worker process that is gone.

        ``worker`` is its id. ``crashed`` are the tokens of the tasks that it was running when it died by itself: each
        counts as a delivery without an outcome (none by default). ``started`` are the tokens of the tasks that it was
        running when it was ended for another reason (none by default). The tasks of both count as given back after
        they had begun (`Task.given_back`). ``reason`` is written to the tasks' histories. ``forget`` removes the
        worker's record, too; False by default. Returns how many leases were given back. Raises `TaskValidationError`
        if tokens are passed and the queue has several shards: call this for the shard that handed them out (`shards`).
        """
        return self._run(leasing.release_worker(self._shards, worker, crashed, reason, forget, now, started))

    def reconcile_worker(
        self, worker: str, held: Iterable[int], *, reason: str = "the worker does not hold it", now: float | None = None
    ) -> int:
        """Give back all leases of a worker except the leases that it holds. No returned lease counts as a delivery.

        Use it for leases that a worker has never received (the reply that handed them out was lost) or cannot begin (its process
        is blocked). ``worker`` is its id, ``held`` are the tokens of the leases that stay with it, and ``reason`` is written to
        the tasks' histories; it has a default. Returns how many leases were given back. Raises `TaskValidationError` if tokens
        are passed and the queue has several shards: call this for the shard that handed them out (`shards`).
        """
        return self._run(leasing.reconcile_worker(self._shards, worker, held, reason, now))

    def sweep(self, *, now: float | None = None) -> maintenance.Sweep:
        """Do one bounded round of maintenance: start tasks that are due, take back leases that have ended, expire and
        forget tasks. Workers do this every ``sweep_interval`` seconds.

        Returns what was done, and whether there is more to do at once.
        """
        return self._run(maintenance.sweep(self._shards, now))

    def carry_messages(self, limit: int = 100, *, now: float | None = None) -> int:
        """Carry messages between shards, at most ``limit`` (100 by default) from each. Returns how many arrived.
        Workers do this."""
        return self._read_all_shards(lambda shards: messages.deliver_messages(shards, limit, now))

    def wait_for_work(self, timeout: float) -> bool:
        """Block on the server for at most ``timeout`` seconds until a task can start. Returns whether one can."""
        return self._run(leasing.wait_for_work(self._shards, timeout))

    def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Hand out no more tasks; pushes and outcomes go on. ``note`` and ``until`` are as in `UserQueue.pause`. Raises
        `ShardsAwayError` if some shards can't be reached; the others are paused."""
        self._read_all_shards(lambda shards: maintenance.pause(shards, note, until, now))

    def resume(self, *, now: float | None = None) -> None:
        """Hand out tasks again. Raises `ShardsAwayError` if some shards can't be reached; the others are resumed."""
        self._read_all_shards(lambda shards: maintenance.resume(shards, now))

    def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change the queue's pause if it is as expected on the first shard. For `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are ``paused`` and ``pause_note``. Returns whether the
        pause was as expected.
        """
        return self._read_all_shards(lambda shards: maintenance.change_pause_if(shards, act, fields, expected, now))

    def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        """Cancel a task, and with it the tasks that depend on it unless they run anyhow.

        ``task_id`` is its id. ``reason`` is written to its history; empty by default. A running task loses its lease,
        so that its outcome is refused, and its worker gets the command to stop it. Returns whether it was canceled;
        False if it had ended before. Raises `TaskNotFoundError` if the queue does not know it.
        """
        return self._run(lookup.cancel(self._shards, task_id, reason, now))

    def cancel_many(
        self, task_ids: Sequence[str], *, reason: str = "", note: lookup.Note = None, now: float | None = None
    ) -> int:
        """Cancel the given tasks that have not ended, in bounded slices.

        ``task_ids`` are their ids; unknown ids are ignored. ``reason`` is written to their histories; empty by
        default. ``note``, if given, is called after each slice with the ids of the tasks that it canceled. Returns how
        many tasks were canceled. Raises `ShardsAwayError` if some of their shards can't be reached; the tasks on the
        other shards are canceled, and the message contains their number.
        """
        return self._write_all_shards(lambda shards: lookup.cancel_some(shards, task_ids, reason, note, now))

    def run_now(self, *task_ids: str, now: float | None = None) -> int:
        """Queue the given tasks that are SCHEDULED at once, whatever their time, in bounded slices.

        ``task_ids`` are their ids; other ids are ignored. Returns how many tasks were queued. Raises `ShardsAwayError`
        if some of their shards can't be reached; the tasks on the other shards are queued.
        """
        return self._write_all_shards(lambda shards: lookup.run_now(shards, task_ids, now))

    def ignore_dependencies(self, task_id: str, *, now: float | None = None) -> bool:
        """Let the DEFERRED task ``task_id`` wait for no other task any more, only for its time. Returns whether it was
        DEFERRED; if not, nothing was changed. Raises `TaskNotFoundError` if the queue does not know it."""
        return self._run(lookup.ignore_dependencies(self._shards, task_id, now))

    def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        """Record the progress of a leased task, for `get_progress`.

        ``lease`` is that of the task. ``current`` and ``total`` are numbers of any unit. ``message`` is a text, empty
        by default. Together they have at most 4096 bytes as JSON. Raises `StaleLeaseError` if the lease is not the
        task's current one, and `TaskValidationError` if a value has another type.
        """
        self._run(lookup.set_progress(self._shards, lease, current, total, message, now))

    def cancel_run(self, run_id: str, *, reason: str = "", note: lookup.Note = None, now: float | None = None) -> int:
        """Cancel the tasks of a run that have not ended.

        ``run_id`` is that of `push_graph`. ``reason`` is written to their histories; by default that the run was
        canceled. ``note`` is that of `cancel_many`. Returns how many tasks were canceled. Raises `TaskNotFoundError` if
        the queue does not know the run, and `ShardsAwayError` if some shards can't be reached; the tasks on the other
        shards are canceled, and the message contains their number.
        """
        return self._write_all_shards(lambda shards: lookup.cancel_run(shards, run_id, reason, note, now))

    def xcom(self, namespace: str, *, user: str = "") -> XCom:
        """Return the values that tasks pass to each other under a ``namespace``: a run's id, or any text of at most 256 bytes.
        Pushed values count for ``user`` (``max_xcom_bytes``), by default for none; `TaskContext.xcom` names the task's user.
        """
        return XCom(self._shards, self._run, namespace, user)

    def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        """Take alerts about tasks: SLAs at risk or missed, promotions, deaths. Each alert is handed out once.

        ``limit`` is the largest number, from 1 to 10,000; 100 by default. Returns the alerts, the oldest first, of the
        shards that can be reached. Raises `RedisConnectionError` if there are none.
        """
        return self._write_all_shards(lambda shards: take_alerts(shards, limit, now))

    def purge(self, limit: int = 10_000, *, note: lookup.Note = None, now: float | None = None) -> int:
        """Cancel waiting tasks of all users. Running tasks go on.

        ``limit`` is the largest number of tasks; 10,000 by default. ``note`` is that of `cancel_many`. Returns how many
        tasks were canceled. Raises `ShardsAwayError` if some shards can't be reached, and the other shards had fewer
        tasks than ``limit``: their tasks are canceled, and the message contains their number.
        """
        return self._write_all_shards(lambda shards: users.purge(shards, limit, note, now))

    def user(self, user_id: str) -> UserQueue:
        """Return the settings and figures of user ``user_id``, known or not, and how to change them. Sends nothing."""
        return UserQueue(self._shards.get_shard(check_id(user_id, "user_id")), self._run, user_id)

    def organization(self, organization: str) -> OrganizationQueue:
        """Return settings and figures of an ``organization``, known or not, and how to change them. Sends nothing."""
        return OrganizationQueue(self._read_all_shards, organization)

    def limit(self, key: str, user: str | None = None) -> LimitQueue:
        """Return the limit by key ``key``, known or not, to read, close and open it; that of ``user`` if each user has a
        separate one (None, the default: all users share it). Sends nothing."""
        return LimitQueue(self._read_all_shards, key, user)

    def repair(self, *, now: float | None = None) -> list[maintenance.Repair]:
        """Check the invariants, and make indexes and counters agree with the tasks' records again. Reads every key.

        Returns each violation, and whether it was fixed. Raises `ShardsAwayError` if some shards can't be reached; the
        other shards are fixed.
        """
        return self._write_all_shards(lambda shards: maintenance.repair(shards, now))

    # --- reads: each reads a bounded part of the queue in one or a few round trips, unless its docstring says otherwise ---

    def _read_task(self, task_id: str, read: Callable[[Shards], Operation[T]]) -> T:
        """Read the task's shard, or all shards that can be reached if the task's id does not contain its shard."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return self._read_all_shards(read)
        return self._run(read(self._shards))

    def event_counts(self) -> dict[str, EventCount]:
        """Return the counts of the model events that added tasks to this queue, by event."""
        return self._run(pushing.event_counts(self._shards.home))

    def is_paused(self) -> bool:
        """Return whether `pause` is in force on all shards."""
        return self._read_all_shards(maintenance.is_paused)

    def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> SearchResult:
        """Find tasks by state, user, name and worker. The tasks have neither payloads nor results.

        ``search`` describes them; its ``look_at`` is the largest number of records that one call reads. ``limit`` is
        the largest number of tasks, from 1 to 1000; 100 by default. ``cursor`` is that of the previous result; None for
        the first result. Returns the tasks that match, and the cursor for the next result.
        """
        return self._read_all_shards(lambda shards: finding.find(shards, search, limit, cursor))

    def matching(self, search: Search) -> MatchingTasks:
        """Return the ids of all tasks that match ``search``, among the first ``look_at`` records of its state."""
        return self._read_all_shards(lambda shards: finding.find_matching_tasks(shards, search))

    def get_task(self, task_id: str) -> Task:
        """Return the task ``task_id`` as it is now. Raises `TaskNotFoundError` if the queue does not know it."""
        return self._read_task(task_id, lambda shards: lookup.get_task(shards, task_id))

    def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """Return the tasks of these ``task_ids`` that the queue knows, by id, as they are now; two hundred in a round
        trip."""
        return self._run(lookup.get_tasks(self._shards, task_ids))

    def history(self, task_id: str) -> list[Attempt]:
        """Return the attempts of task ``task_id`` and the events that brought it back, the oldest first, at most 25; none if
        it is unknown."""
        return self._read_task(task_id, lambda shards: lookup.history(shards, task_id))

    def get_progress(self, task_id: str) -> lookup.Progress | None:
        """Return the progress that task ``task_id`` has reported; None if it reported none, or is not known."""
        return self._read_task(task_id, lambda shards: lookup.get_progress(shards, task_id))

    def position(self, task_id: str) -> int | None:
        """Return how many tasks of its user are before task ``task_id`` by class and age; None unless it is QUEUED. Raises
        `TaskNotFoundError` if the queue does not know it."""
        return self._read_task(task_id, lambda shards: lookup.position(shards, task_id))

    def wait_reason(self, task_id: str) -> WaitReason:
        """Return the facts that decide whether and when task ``task_id`` starts: its user's limits and turn, its position,
        its lease. Raises `TaskNotFoundError` if the queue does not know it."""
        return self._read_task(task_id, lambda shards: read_wait_reason(shards, task_id))

    def starts_in(self, task_id: str) -> start_estimates.StartEstimate:
        """Return an estimate of the seconds until task ``task_id`` starts, or the reason why there is none. Takes up to 11
        server commands, for any number of users and tasks. Raises `TaskNotFoundError` if the queue does not know it."""
        return self._read_task(task_id, lambda shards: start_estimates.read_start_estimate(shards, task_id))

    def dependencies(self, task_id: str, nodes: int = 200, layers: int | None = None) -> DependencyView:
        """Return the tasks that wait for task ``task_id``, the tasks for which it waits, and the graph around it, of at most
        ``nodes`` tasks (200 by default) that are at most ``layers`` steps from it (None, the default, for any number; each
        step is a round trip). Raises `TaskNotFoundError` if the queue does not know it."""
        return self._run(dependencies.view(self._shards, task_id, nodes, layers))

    def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        """Return by id the tasks that still block each of ``task_ids``: at most ``most`` (10 by default), and their number."""
        return self._run(dependencies.blockers(self._shards, task_ids, most))

    def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        """Return the dependencies among the tasks of the run ``run_id``, of at most ``nodes`` tasks (2000 by default). Raises
        `TaskNotFoundError` if the queue does not know the run."""
        return self._run(dependencies.run_graph(self._shards, run_id, nodes))

    def recent_runs(self, limit: int = 20) -> PartialList[RunProgress]:
        """Return the progress of the newest runs (by their newest tasks): at most ``limit``, from 1 to 20 (the default)."""
        return self._read_all_shards(lambda shards: dependencies.recent_runs(shards, limit))

    def parent_results(self, task_id: str, load: Callable[[str, Any], Any] | None = None) -> dict[str, Any]:
        """Return the results of the tasks that task ``task_id`` depends on, by id, without tasks that have not
        finished.

        ``load`` gets the name of a task and the JSON value that it returned, and returns the result; by default the
        result is the JSON value. Raises `TaskNotFoundError` if the queue does not know the task.
        """
        return self._run(dependencies.parent_results(self._shards, task_id, load))

    def run(self, run_id: str) -> lookup.RunView:
        """Return the tasks that were pushed together under the id ``run_id``. Raises `TaskNotFoundError` if the queue does
        not know the run: it is forgotten with its last task."""
        return self._run(lookup.view_run(self._shards, run_id))

    def tasks(
        self,
        state: TaskState | str | None = None,
        user_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ResultPage[Task]:
        """Return a page of tasks, in the order of their state's registry.

        ``state`` is a state or its name; by default all states in turn. ``user_id`` limits the page to one user; None
        by default. ``limit`` is the number of records that are read, from 1 to 1000; 100 by default. ``cursor`` is that
        of the previous page; None for the first page.
        """
        return self._read_all_shards(lambda shards: listing.tasks(shards, state, user_id, limit, cursor))

    def get_queue_sizes(self, user_id: str) -> Sizes:
        """Return how many tasks of the user ``user_id`` wait, by kind, and run. All numbers are 0 for an unknown user."""
        return self._run(listing.queue_sizes(self._shards, [user_id]))[user_id]

    def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        """Return how many tasks of each of the users ``user_ids`` wait and run, by user id, in one round trip."""
        return self._run(listing.queue_sizes(self._shards, user_ids))

    def get_stats(self, minutes: int = 60) -> QueueStats:
        """Return the figures now, and those of each of the last ``minutes`` (0 to 60, the default; one read for each)."""
        return self._read_all_shards(lambda shards: queue_stats.stats(shards, minutes))

    def get_shard_stats(self) -> PartialList[ShardStats]:
        """Return the tasks on each shard, by state, and its node of the cluster."""
        return self._read_all_shards(lambda shards: queue_stats.shard_stats(shards, self.client))

    def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """Return the activity of the last ``minutes`` (1 to 1440; each is one read; 60 by default), in spans of ``per_span``
        minutes (1 by default). Up to 10080 (seven days) if ``per_span`` is a multiple of 60. Raises `TaskValidationError`
        unless ``minutes`` is a multiple of ``per_span``."""
        return self._read_all_shards(lambda shards: queue_stats.activity(shards, minutes, per_span))

    def task_names(self, hours: int = 1) -> list[NameFigures]:
        """Return the figures by task name, of this clock hour and the ``hours`` before it (1 to 24; 1 by default)."""
        return self._read_all_shards(lambda shards: task_names(shards, hours))

    def attempt_totals(self) -> dict[str, AttemptTotals]:
        """Return the attempts since the queue's first task by task name: at most 100 names, and "" for all others."""
        return self._read_all_shards(attempt_totals)

    def sla_ledger(self, hours: int = 24, *, now: float | None = None) -> SlaLedger:
        """Return the SLAs of the last ``hours`` by the clock (1 to 24; 24 by default), kept, missed and at risk, by user, lane
        and task name."""
        return self._read_all_shards(lambda shards: sla_ledger(shards, hours, now))

    def longest_waits(self, limit: int = 50) -> PartialList[WaitingTask]:
        """Return tasks that could start now, the longest wait first: at most ``limit``, from 1 to 1000; 50 by default.

        Bulk tasks are left out: they wait until no other task can start.
        """
        return self._read_all_shards(lambda shards: longest_waits.longest_waits(shards, limit))

    def busiest_users(self, sample: int = 100) -> PartialList[str]:
        """Return users with tasks that have not begun, by their number of tasks in a random sample of such tasks.

        ``sample`` is the number of tasks from each state in which tasks wait, from 1 to 1000; 100 by default. With 100,
        a user with a twentieth of the tasks of one state is missed once in 170 times.
        """
        return self._read_all_shards(lambda shards: queue_stats.busiest_users(shards, sample))

    def fairness(self, limit: int = 2000, *, user_ids: Sequence[str] = ()) -> Fairness:
        """Return the distribution of the workers' time among users: waiting users with the reasons, noisy users, and shares.

        ``limit`` is the largest number of users whose records are read, from 1 to 2000 (the default). ``user_ids`` are
        users that are read in any case; none by default.
        """
        return self._read_all_shards(lambda shards: fairness(shards, limit, user_ids))

    def health(self) -> Health:
        """Return whether the queue is good, degraded or down, and why."""
        return self._read_all_shards(health)

    def users(
        self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False, prefix: str = ""
    ) -> ResultPage[str]:
        """Return a page of the users that have, or had within the last hour, something in the queue.

        ``cursor`` is that of the previous page; None for the first page. ``limit`` is the largest number, from 1 to
        1000; 100 by default. ``busy_first`` lists users with tasks or settings before other users; False by default.
        ``prefix`` lists only users whose ids begin with this text; all users by default. Pass the same values with the
        cursor. Raises `TaskValidationError` if ``prefix`` is no text or too long.
        """
        return self._read_all_shards(lambda shards: listing.user_names(shards, cursor, limit, busy_first, prefix))

    def users_of_plan(self, plan: str, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the users of ``plan``, among ``limit`` users of the queue from 1 to 1000 (100 by default).
        ``cursor`` is that of the previous page; None for the first page. A page may be empty although more follow."""
        return self._read_all_shards(lambda shards: users.users_of_plan(shards, plan, cursor, limit))

    def busy_users(self, limit: int = 100) -> PartialList[str]:
        """Return users that have tasks or settings, and then users that had tasks lately: at most ``limit``, from 1 to
        1000 (100 by default), equally many from each shard."""
        return self._read_all_shards(lambda shards: listing.busy_users(shards, limit))

    def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        """Return the figures of the users ``user_ids``, in order; in one round trip, or two with organizations."""
        return self._run(users.user_stats(self._shards, user_ids, now))

    def organizations(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the organizations that have members or settings, by name: ``limit`` of them, from 1 to 1000
        (100 by default), after the ``cursor`` of the previous page (None for the first page)."""
        return self._read_all_shards(lambda shards: organizations.page(shards, cursor, limit))

    def organization_stats(self, names: Sequence[str]) -> PartialList[OrganizationStats]:
        """Return the figures of the organizations ``names``, in order, in one round trip."""
        return self._read_all_shards(lambda shards: organizations.stats(shards, names))

    def limits(self, limit: int = 100) -> PartialList[LimitStats]:
        """Return limits by key that are closed or have waiting tasks, most waiting first: ``limit`` (100 by default)."""
        return self._read_all_shards(lambda shards: top_limits(shards, limit))

    def workers(self, worker_id: str = "") -> PartialList[WorkerRecord]:
        """Return workers by id (`w2` before `w10`): by default all that are not lost, otherwise only ``worker_id``."""
        return self._read_all_shards(lambda shards: listing.workers(shards, worker_id))

    def check_invariants(self) -> PartialList[Violation]:
        """Return the violations of the invariants. Reads every key, so do not call it every minute; changes nothing."""
        return self._read_all_shards(check_invariants)

    # --- sending: operations over the queue's client ---

    def cancel_retries_when(self, condition: Callable[[], bool]) -> None:
        """While ``condition()`` is true, do not repeat requests that fail. The ``condition`` is called after each
        failure."""
        self._transport.is_reply_unwanted = condition

    def _run(self, steps: Operation[T]) -> T:
        self._check()
        return self._drive(steps)

    def _read_all_shards(self, read: Callable[[Shards], Operation[T]]) -> T:
        """Read all shards. Leave out the shards of a node that does not answer for `ALL_SHARDS_READ_SECONDS` seconds.

        ``read`` is called with the shards to ask, and may be called more than once. Repeating it must do no harm.
        """
        self._check()
        return self._among(self._shards, read)

    def _reachable_shards(self) -> Shards:
        if len(self._shards.all) == 1 or not is_cluster(self.client):
            return self._shards
        return executor.reachable_shards(self.client, self._shards)

    def _write_all_shards(self, change: Callable[[Shards], Operation[T]]) -> T:
        """Change all shards that can be reached. ``change`` gets these shards, with the numbers of the missing shards."""
        return self._run(change(self._reachable_shards()))

    def _carry_messages(self) -> None:
        """Deliver the stored messages to other shards. If that fails, workers deliver the messages later."""
        with suppress(FairQueueError):
            self._read_all_shards(lambda shards: messages.deliver_messages(shards, MAX_CALL_ITEMS, None))

    def _check(self) -> None:
        """Raise an error if the number of shards on the server is not the configured number."""
        if self._parent_queue is not None:
            self._parent_queue._check()  # noqa: SLF001 - an object of this class
        elif not self._is_checked and monotonic() >= self._check_at:
            self._is_checked = self._among(Shards(self.name, self.config), executor.shard_count_check(self.client))
            self._check_at = monotonic() + executor.SHARD_COUNT_RECHECK_SECONDS

    def _among(self, shards: Shards, read: Callable[[Shards], Operation[T]]) -> T:
        if len(shards) == 1 or not is_cluster(self.client):
            return self._drive(read(shards))
        rounds = executor.Rounds(self.client, shards)
        for living in rounds:
            try:
                return self._drive(read(living), executor.ALL_SHARDS_READ_SECONDS)
            except executor.FINAL_ERRORS:  # noqa: PERF203 - there are a few rounds at most
                raise
            except RedisConnectionError:
                continue
        return self._drive(read(rounds.rest))

    def _drive(self, steps: Operation[T], seconds: float | None = None) -> T:
        """Send the requests of the steps, each for at most ``seconds`` if given. The steps may catch errors."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = self._transport.send(request, seconds)
                except FairQueueError as error:  # noqa: PERF203 - each request may fail
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
