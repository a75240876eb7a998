"""`AsyncFairQueue` and its parts, generated from the synchronous classes by python -m tests.tools.async_classes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.acts import acts as sync_acts
from django_fairque.engine.acts import moves
from django_fairque.engine.dead_letters import dead_letters as sync_dead_letters
from django_fairque.engine.dead_letters.letters import DLQCounts, DLQEntry, DLQGroups, DLQMatching, Filter, Filters
from django_fairque.engine.dependencies import dependencies, messages
from django_fairque.engine.dependencies import dependencies as sync_dependencies
from django_fairque.engine.inspection import pages as listing
from django_fairque.engine.inspection import search as finding
from django_fairque.engine.inspection import task_logs as sync_task_logs
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.inspection.lost_workers import LostWorker, lost_workers
from django_fairque.engine.inspection.task_lookup import Note, cancel_waiting
from django_fairque.engine.leasing import lease_ops as leasing
from django_fairque.engine.leasing.lease_ops import Fetch, Heartbeat, check_leases, check_outcomes
from django_fairque.engine.limits import limits as sync_limits
from django_fairque.engine.limits.limits import LimitStats, top_limits
from django_fairque.engine.maintenance import operations as maintenance
from django_fairque.engine.maintenance import resharding
from django_fairque.engine.maintenance.invariants import check_invariants
from django_fairque.engine.model.durations import duration, positive_us
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError, short
from django_fairque.engine.model.ids import Users, check_id, check_text
from django_fairque.engine.model.limits import ClosingEnd, encode_end
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.engine.model.pauses import RESUMED, PauseEnd, pause_fields
from django_fairque.engine.model.plans import check_limit_value, check_share, check_weight, rate_fields
from django_fairque.engine.model.records import ActKind, Attempt, EventCount, PushResult, TaskState
from django_fairque.engine.model.task import Task, check_task
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.queue import executor
from django_fairque.engine.schedules import declarations, forecast, schedule_ops
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, Commands, Fields
from django_fairque.engine.sharding.shard_scheduler import NO_WINDOW, Window
from django_fairque.engine.sharding.shards import AsyncAllShardsReader, Shards
from django_fairque.engine.statistics import incidents as sync_incidents
from django_fairque.engine.statistics import longest_waits, queue_stats
from django_fairque.engine.statistics.health import Alert, Health, health, take_alerts
from django_fairque.engine.statistics.task_names import AttemptTotals, NameFigures, attempt_totals, task_names
from django_fairque.engine.transport.cluster import is_cluster
from django_fairque.engine.transport.connection import AsyncClient, AsyncTransport
from django_fairque.engine.users import organizations, start_estimates, users
from django_fairque.engine.users import organizations as sync_organizations
from django_fairque.engine.users import users as sync_users
from django_fairque.engine.users.fairness import Fairness, fairness
from django_fairque.engine.users.history import USER_DAYS, USER_HOURS, UserHistory, history
from django_fairque.engine.users.report import REPORT_HOURS, UserReport
from django_fairque.engine.users.sla_ledger import SlaLedger, sla_ledger
from django_fairque.engine.users.wait_reason import WaitReason, read_wait_reason

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_fairque.engine.acts.acts import TaskAct
    from django_fairque.engine.dead_letters.letters import Letter
    from django_fairque.engine.dependencies.dependencies import Blockers, DependencyGraph, DependencyView, RunProgress
    from django_fairque.engine.inspection.pages import PartialList, ResultPage, Sizes, WorkerRecord
    from django_fairque.engine.inspection.search import MatchingTasks, Search, SearchResult
    from django_fairque.engine.inspection.task_logs import AttemptLog, LogLine
    from django_fairque.engine.maintenance.snapshot import Violation
    from django_fairque.engine.model.lanes import Lane, LaneLimits
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.schedules.forecast import Forecast
    from django_fairque.engine.schedules.schedule_ops import Fired, Schedule, Template
    from django_fairque.engine.scripting.operations import AsyncDriver, Operation
    from django_fairque.engine.statistics.incidents import Incident, IncidentChange
    from django_fairque.engine.statistics.longest_waits import WaitingTask
    from django_fairque.engine.statistics.queue_stats import Activity, QueueStats, ShardStats
    from django_fairque.engine.users.organizations import OrganizationStats
    from django_fairque.engine.users.users import EndedTasks, UserStats

T = TypeVar("T")


class AsyncFairQueue(executor.QueueOfShards):
    # Generated from `FairQueue` by python -m tests.tools.async_classes.
    """One queue on one server. Thread-safe. The client's pool holds the connections.

    ``client`` is a client of ``redis.asyncio``, best made by `FairQueueConfig.create_async_redis_client`, whose
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

    client: AsyncClient
    _transport: AsyncTransport

    def __init__(
        self, client: AsyncClient, name: str = "default", config: QueueConfig | None = None, shard: int | None = None
    ) -> None:
        executor.check_client(client, "AsyncFairQueue", "create_async_redis_client", is_awaited=True)
        super().__init__(client, name, config, shard)
        self._transport = AsyncTransport(client, self.config.request_timeout)
        self.dlq = AsyncDeadLetterQueue(self._shards, self._run, self._read_all_shards, self._write_all_shards)
        self.schedules = AsyncSchedules(self._shards, self._run, self._read_all_shards)
        self.logs = AsyncTaskLogs(self._shards, self._run, self._read_all_shards)
        self.incidents = AsyncIncidents(self._shards, self._run)
        self.acts = AsyncActs(self._shards, self._run, self._read_all_shards, self._write_all_shards)

    async def reshard(self, shards: int, *, now: float | None = None) -> tuple[int, resharding.ReshardResult | None]:
        """Move a drained queue to another number of shards, whatever is configured.

        ``shards`` is the new number, from 1 to 256. Set ``SHARDS`` to the same number afterwards. Users, their settings,
        organizations and schedules move; ended tasks are forgotten. An interrupted call can be repeated. Returns the number of
        shards before, and what was moved (None if the number is the same). Raises `QueueNotDrainedError` if the queue holds
        tasks that have not ended or dead letters, or if workers live. Nothing is changed then.
        """
        before = await self._drive(resharding.read_shard_count(self._shards))
        old, new = (self._shards.with_shard_count(number) for number in (before, shards))
        return before, (await self._drive(resharding.reshard(old, new, now)) if before != shards else None)

    async def _run_and_carry(self, steps: Operation[T]) -> T:
        """Run the steps, then deliver the messages that they stored for other shards."""
        await self._check()
        result = await self._drive(steps)
        if len(self._shards.all) > 1:
            await self._carry_messages()
        return result

    async def push(self, task: Task, *, now: float | None = None) -> PushResult:
        """Push a task: once this returns the task is not lost.

        ``task`` is what `Task.create` returned. Returns the result: accepted, or a duplicate with the id of the task
        that is known already. Raises `BacklogFullError` if its user has too many tasks, `TaskIdConflictError` if its
        chosen id belongs to a task of another user, and for a task with dependencies what `push_graph` raises.
        """
        if check_task(task).depends_on:
            return await self._run_and_carry(pushing.push(self._shards, task, now))
        return await self._run(pushing.push(self._shards, task, now))

    async def push_batch(self, tasks: Iterable[Task], *, now: float | None = None) -> list[PushResult]:
        """Push many tasks, in slices of ``pipeline_batch_size`` (300 by default) per script call.

        ``tasks`` are any number of tasks. Tasks of the same user and priority keep their order. Returns one result for
        each task, in order. Raises `BacklogFullError` or `TaskIdConflictError` at the end if some are refused, and
        `ShardsAwayError` if some shards can't be reached. The other tasks are accepted; the error has the results or ids.
        """
        return await self._run_and_carry(pushing.push_batch(self._reachable_shards(), tasks, now))

    async def push_graph(
        self, tasks: Sequence[Task], run_id: str | None = None, *, now: float | None = None
    ) -> list[PushResult]:
        """Push tasks that depend on each other: all of them or, with an error, none.

        ``tasks`` are at most 2,000, in any order, with at most 10,000 dependencies. ``run_id`` keeps them together for `run` and
        `cancel_run`; an existing run of this id gets the tasks too. The default is the run of the first task, if it has one.
        Returns one result for each task, in their order. Raises `DependencyCycleError`, which names the cycle, if they wait for
        each other; `TaskNotFoundError` if a dependency is neither known nor among them; `BacklogFullError` if a user has too many
        tasks; `TaskIdConflictError` if a chosen id belongs to a task of another user.
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
        return await self._run_and_carry(steps)

    async def forget_delivered(self, task_ids: Iterable[str], *, now: float | None = None) -> int:
        """Forget that the tasks ``task_ids`` of an outbox were delivered, because their rows are gone. Returns how many of
        them were recorded as delivered."""
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
        """Lease the next task for ``worker``. Returns the lease, or None if no task can start. ``users``, ``steal``
        and ``lease`` are those of `pop_batch`."""
        leases = await self._run(
            leasing.pop_batch(self._reachable_shards(), self._schedulers, Fetch(1, worker, users, steal, lease), now)
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
        """Lease up to ``n`` tasks (at most 1000), fairly, in one script call.

        ``worker`` is the id of the worker that gets the leases. ``users`` are the users whom it serves: ``"*"`` (the default)
        or ``["*"]`` for all, or a sequence of at most 3000 user ids. ``steal`` are users whom it serves when none of ``users``
        has a task that can start; none by default. ``lease`` is the number of seconds until a lease ends unless it is renewed;
        the queue's ``lease_seconds`` (30) by default. Returns the leases, fewer than ``n`` or none if fewer tasks can start.
        """
        return await self._run(
            leasing.pop_batch(self._reachable_shards(), self._schedulers, Fetch(n, worker, users, steal, lease), now)
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
        return await self._run(leasing.settle(self._reachable_shards(), self._schedulers, checked, wanted, now))

    async def finish(
        self, lease: Lease, result: Any = None, *, took: float | None = None, now: float | None = None
    ) -> None:
        """Report that a leased task is done: it becomes FINISHED.

        ``lease`` is that of the task. ``result`` is any JSON value, None by default, and is kept for ``result_ttl``
        seconds. ``took`` is the worker time in seconds that its user is charged; by default the time since the lease
        began. Raises `StaleLeaseError` if the lease is not the task's current one, and `TaskSerializationError` if the
        result is not JSON or has more than ``max_payload_bytes`` bytes. Nothing is changed then.
        """
        outcome = Outcome.finish(lease, result, took=took, limit=self.config.max_payload_bytes)
        await self._run(leasing.settle_one(self._shards, outcome, now))

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
        """Report that an attempt failed: the task is scheduled again, or becomes a dead letter if its retries are used
        up.

        ``lease`` is that of the task. ``error`` is the exception, or its text. If ``retry`` is False (True by default)
        it becomes a dead letter at once. ``delay`` is the number of seconds until the next attempt; by default a
        backoff by the queue's settings. ``took`` is as in `finish`. Returns the new state: SCHEDULED, or FAILED for a
        dead letter. Raises `StaleLeaseError` if the lease is not the task's current one.
        """
        wait = duration(delay, "delay") if retry and delay is not None else None
        outcome = Outcome.fail(lease, error, delay="backoff" if retry and wait is None else wait, took=took)
        status = await self._run(leasing.settle_one(self._shards, outcome, now))
        return TaskState.FAILED if status == "dead" else TaskState.SCHEDULED

    async def release(self, lease: Lease, *, now: float | None = None) -> None:
        """Give the task of a ``lease`` back, at its old position in the queue. The lease neither counts as a delivery
        nor is charged. Raises `StaleLeaseError` if the lease is not the task's current one."""
        await self._run(leasing.settle_one(self._shards, Outcome.release(lease), now))

    async def renew(
        self, leases: Sequence[Lease], *, lease: float | None = None, now: float | None = None
    ) -> list[bool]:
        """Lengthen leases.

        ``leases`` are any number of leases. ``lease`` is their new length in seconds from now; the queue's ``lease_seconds`` (30)
        by default. Returns for each lease whether it was still its task's current lease; other leases were not changed.
        """
        return await self._run(leasing.renew(self._shards, check_leases(leases), lease, now))

    async def take_over(
        self, key: LeaseKey, worker: str, *, lease: float | None = None, now: float | None = None
    ) -> Lease | None:
        """Move a lease to another worker. Its token stays the same. From now on it is renewed and given back with the
        leases of that worker.

        ``key`` is that of the lease (`Lease.key`), ``worker`` the id of the worker that takes it over, and ``lease``
        its new length in seconds from now; the queue's ``lease_seconds`` (30) by default. Returns the lease; None if
        it is not its task's current one.
        """
        return await self._run(leasing.take_over(self._shards, key, worker, lease, now))

    async def heartbeat(
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
        return await self._run(leasing.heartbeat(self._shards, worker, info, lease, ttl, requires_signatures, now))

    async def set_worker_command(self, worker: str, command: str, *, now: float | None = None) -> bool:
        """Send a worker a command, which it gets with its next heartbeat, for all its processes and queues.

        ``worker`` is its id. ``command`` is ``"drain"`` (fetch no more tasks), ``"work"`` (fetch again) or ``"stop"``
        (as on SIGTERM). Returns whether such a worker lives; if not, nothing was sent.
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
        """Give back all leases of a worker process that is gone.

        ``worker`` is its id. ``crashed`` are the tokens of the tasks that it was running when it died by itself: each
        counts as a delivery without an outcome (none by default). ``started`` are the tokens of the tasks that it was
        running when it was ended for another reason (none by default). The tasks of both count as given back after
        they had begun (`Task.given_back`). ``reason`` is written to the tasks' histories. ``forget`` removes the
        worker's record, too; False by default. Returns how many leases were given back. Raises `TaskValidationError`
        if tokens are passed and the queue has several shards: call this for the shard that handed them out (`shards`).
        """
        return await self._run(leasing.release_worker(self._shards, worker, crashed, reason, forget, now, started))

    async def reconcile_worker(
        self, worker: str, held: Iterable[int], *, reason: str = "the worker does not hold it", now: float | None = None
    ) -> int:
        """Give back all leases of a worker except the leases that it holds. No returned lease counts as a delivery.

        Use it for leases that a worker has never received (the reply that handed them out was lost) or cannot begin (its process
        is blocked). ``worker`` is its id, ``held`` are the tokens of the leases that stay with it, and ``reason`` is written to
        the tasks' histories; it has a default. Returns how many leases were given back. Raises `TaskValidationError` if tokens
        are passed and the queue has several shards: call this for the shard that handed them out (`shards`).
        """
        return await self._run(leasing.reconcile_worker(self._shards, worker, held, reason, now))

    async def sweep(self, *, now: float | None = None) -> maintenance.Sweep:
        """Do one bounded round of maintenance: start tasks that are due, take back leases that have ended, expire and
        forget tasks. Workers do this every ``sweep_interval`` seconds.

        Returns what was done, and whether there is more to do at once.
        """
        return await self._run(maintenance.sweep(self._shards, now))

    async def carry_messages(self, limit: int = 100, *, now: float | None = None) -> int:
        """Carry messages between shards, at most ``limit`` (100 by default) from each. Returns how many arrived.
        Workers do this."""
        return await self._read_all_shards(lambda shards: messages.deliver_messages(shards, limit, now))

    async def wait_for_work(self, timeout: float) -> bool:
        """Block on the server for at most ``timeout`` seconds until a task can start. Returns whether one can."""
        return await self._run(leasing.wait_for_work(self._shards, timeout))

    async def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Hand out no more tasks; pushes and outcomes go on. ``note`` and ``until`` are as in `AsyncUserQueue.pause`. Raises
        `ShardsAwayError` if some shards can't be reached; the others are paused."""
        await self._read_all_shards(lambda shards: maintenance.pause(shards, note, until, now))

    async def resume(self, *, now: float | None = None) -> None:
        """Hand out tasks again. Raises `ShardsAwayError` if some shards can't be reached; the others are resumed."""
        await self._read_all_shards(lambda shards: maintenance.resume(shards, now))

    async def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change the queue's pause if it is as expected on the first shard. For `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are ``paused`` and ``pause_note``. Returns whether the
        pause was as expected.
        """
        return await self._read_all_shards(
            lambda shards: maintenance.change_pause_if(shards, act, fields, expected, now)
        )

    async def cancel(self, task_id: str, *, reason: str = "", now: float | None = None) -> bool:
        """Cancel a task, and with it the tasks that depend on it unless they run anyhow.

        ``task_id`` is its id. ``reason`` is written to its history; empty by default. A running task loses its lease,
        so that its outcome is refused, and its worker gets the command to stop it. Returns whether it was canceled;
        False if it had ended before. Raises `TaskNotFoundError` if the queue does not know it.
        """
        return await self._run(lookup.cancel(self._shards, task_id, reason, now))

    async def cancel_many(
        self, task_ids: Sequence[str], *, reason: str = "", note: lookup.Note = None, now: float | None = None
    ) -> int:
        """Cancel the given tasks that have not ended, in bounded slices.

        ``task_ids`` are their ids; unknown ids are ignored. ``reason`` is written to their histories; empty by
        default. ``note``, if given, is called after each slice with the ids of the tasks that it canceled. Returns how
        many tasks were canceled. Raises `ShardsAwayError` if some of their shards can't be reached; the tasks on the
        other shards are canceled, and the message contains their number.
        """
        return await self._write_all_shards(lambda shards: lookup.cancel_some(shards, task_ids, reason, note, now))

    async def run_now(self, *task_ids: str, now: float | None = None) -> int:
        """Queue the given tasks that are SCHEDULED at once, whatever their time, in bounded slices.

        ``task_ids`` are their ids; other ids are ignored. Returns how many tasks were queued. Raises `ShardsAwayError`
        if some of their shards can't be reached; the tasks on the other shards are queued.
        """
        return await self._write_all_shards(lambda shards: lookup.run_now(shards, task_ids, now))

    async def ignore_dependencies(self, task_id: str, *, now: float | None = None) -> bool:
        """Let the DEFERRED task ``task_id`` wait for no other task any more, only for its time. Returns whether it was
        DEFERRED; if not, nothing was changed. Raises `TaskNotFoundError` if the queue does not know it."""
        return await self._run(lookup.ignore_dependencies(self._shards, task_id, now))

    async def set_progress(
        self, lease: Lease, current: float, total: float, message: str = "", *, now: float | None = None
    ) -> None:
        """Record the progress of a leased task, for `get_progress`.

        ``lease`` is that of the task. ``current`` and ``total`` are numbers of any unit. ``message`` is a text, empty
        by default. Together they have at most 4096 bytes as JSON. Raises `StaleLeaseError` if the lease is not the
        task's current one, and `TaskValidationError` if a value has another type.
        """
        await self._run(lookup.set_progress(self._shards, lease, current, total, message, now))

    async def cancel_run(
        self, run_id: str, *, reason: str = "", note: lookup.Note = None, now: float | None = None
    ) -> int:
        """Cancel the tasks of a run that have not ended.

        ``run_id`` is that of `push_graph`. ``reason`` is written to their histories; by default that the run was
        canceled. ``note`` is that of `cancel_many`. Returns how many tasks were canceled. Raises `TaskNotFoundError` if
        the queue does not know the run, and `ShardsAwayError` if some shards can't be reached; the tasks on the other
        shards are canceled, and the message contains their number.
        """
        return await self._write_all_shards(lambda shards: lookup.cancel_run(shards, run_id, reason, note, now))

    def xcom(self, namespace: str, *, user: str = "") -> AsyncXCom:
        """Return the values that tasks pass to each other under a ``namespace``: a run's id, or any text of at most 256 bytes.
        Pushed values count for ``user`` (``max_xcom_bytes``), by default for none; `TaskContext.xcom` names the task's user.
        """
        return AsyncXCom(self._shards, self._run, namespace, user)

    async def take_alerts(self, limit: int = 100, *, now: float | None = None) -> list[Alert]:
        """Take alerts about tasks: SLAs at risk or missed, promotions, deaths. Each alert is handed out once.

        ``limit`` is the largest number, from 1 to 10,000; 100 by default. Returns the alerts, the oldest first, of the
        shards that can be reached. Raises `RedisConnectionError` if there are none.
        """
        return await self._write_all_shards(lambda shards: take_alerts(shards, limit, now))

    async def purge(self, limit: int = 10_000, *, note: lookup.Note = None, now: float | None = None) -> int:
        """Cancel waiting tasks of all users. Running tasks go on.

        ``limit`` is the largest number of tasks; 10,000 by default. ``note`` is that of `cancel_many`. Returns how many
        tasks were canceled. Raises `ShardsAwayError` if some shards can't be reached, and the other shards had fewer
        tasks than ``limit``: their tasks are canceled, and the message contains their number.
        """
        return await self._write_all_shards(lambda shards: users.purge(shards, limit, note, now))

    def user(self, user_id: str) -> AsyncUserQueue:
        """Return the settings and figures of user ``user_id``, known or not, and how to change them. Sends nothing."""
        return AsyncUserQueue(self._shards.get_shard(check_id(user_id, "user_id")), self._run, user_id)

    def organization(self, organization: str) -> AsyncOrganizationQueue:
        """Return settings and figures of an ``organization``, known or not, and how to change them. Sends nothing."""
        return AsyncOrganizationQueue(self._read_all_shards, organization)

    def limit(self, key: str, user: str | None = None) -> AsyncLimitQueue:
        """Return the limit by key ``key``, known or not, to read, close and open it; that of ``user`` if each user has a
        separate one (None, the default: all users share it). Sends nothing."""
        return AsyncLimitQueue(self._read_all_shards, key, user)

    async def repair(self, *, now: float | None = None) -> list[maintenance.Repair]:
        """Check the invariants, and make indexes and counters agree with the tasks' records again. Reads every key.

        Returns each violation, and whether it was fixed. Raises `ShardsAwayError` if some shards can't be reached; the
        other shards are fixed.
        """
        return await self._write_all_shards(lambda shards: maintenance.repair(shards, now))

    # --- reads: each reads a bounded part of the queue in one or a few round trips, unless its docstring says otherwise ---

    async def _read_task(self, task_id: str, read: Callable[[Shards], Operation[T]]) -> T:
        """Read the task's shard, or all shards that can be reached if the task's id does not contain its shard."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return await self._read_all_shards(read)
        return await self._run(read(self._shards))

    async def event_counts(self) -> dict[str, EventCount]:
        """Return the counts of the model events that added tasks to this queue, by event."""
        return await self._run(pushing.event_counts(self._shards.home))

    async def is_paused(self) -> bool:
        """Return whether `pause` is in force on all shards."""
        return await self._read_all_shards(maintenance.is_paused)

    async def find(self, search: Search, limit: int = 100, cursor: str | None = None) -> SearchResult:
        """Find tasks by state, user, name and worker. The tasks have neither payloads nor results.

        ``search`` describes them; its ``look_at`` is the largest number of records that one call reads. ``limit`` is
        the largest number of tasks, from 1 to 1000; 100 by default. ``cursor`` is that of the previous result; None for
        the first result. Returns the tasks that match, and the cursor for the next result.
        """
        return await self._read_all_shards(lambda shards: finding.find(shards, search, limit, cursor))

    async def matching(self, search: Search) -> MatchingTasks:
        """Return the ids of all tasks that match ``search``, among the first ``look_at`` records of its state."""
        return await self._read_all_shards(lambda shards: finding.find_matching_tasks(shards, search))

    async def get_task(self, task_id: str) -> Task:
        """Return the task ``task_id`` as it is now. Raises `TaskNotFoundError` if the queue does not know it."""
        return await self._read_task(task_id, lambda shards: lookup.get_task(shards, task_id))

    async def get_tasks(self, task_ids: Sequence[str]) -> dict[str, Task]:
        """Return the tasks of these ``task_ids`` that the queue knows, by id, as they are now; two hundred in a round
        trip."""
        return await self._run(lookup.get_tasks(self._shards, task_ids))

    async def history(self, task_id: str) -> list[Attempt]:
        """Return the attempts of task ``task_id`` and the events that brought it back, the oldest first, at most 25; none if
        it is unknown."""
        return await self._read_task(task_id, lambda shards: lookup.history(shards, task_id))

    async def get_progress(self, task_id: str) -> lookup.Progress | None:
        """Return the progress that task ``task_id`` has reported; None if it reported none, or is not known."""
        return await self._read_task(task_id, lambda shards: lookup.get_progress(shards, task_id))

    async def position(self, task_id: str) -> int | None:
        """Return how many tasks of its user are before task ``task_id`` by class and age; None unless it is QUEUED. Raises
        `TaskNotFoundError` if the queue does not know it."""
        return await self._read_task(task_id, lambda shards: lookup.position(shards, task_id))

    async def wait_reason(self, task_id: str) -> WaitReason:
        """Return the facts that decide whether and when task ``task_id`` starts: its user's limits and turn, its position,
        its lease. Raises `TaskNotFoundError` if the queue does not know it."""
        return await self._read_task(task_id, lambda shards: read_wait_reason(shards, task_id))

    async def starts_in(self, task_id: str) -> start_estimates.StartEstimate:
        """Return an estimate of the seconds until task ``task_id`` starts, or the reason why there is none. Takes up to 11
        server commands, for any number of users and tasks. Raises `TaskNotFoundError` if the queue does not know it."""
        return await self._read_task(task_id, lambda shards: start_estimates.read_start_estimate(shards, task_id))

    async def dependencies(self, task_id: str, nodes: int = 200, layers: int | None = None) -> DependencyView:
        """Return the tasks that wait for task ``task_id``, the tasks for which it waits, and the graph around it, of at most
        ``nodes`` tasks (200 by default) that are at most ``layers`` steps from it (None, the default, for any number; each
        step is a round trip). Raises `TaskNotFoundError` if the queue does not know it."""
        return await self._run(dependencies.view(self._shards, task_id, nodes, layers))

    async def blockers(self, task_ids: Sequence[str], most: int = 10) -> dict[str, Blockers]:
        """Return by id the tasks that still block each of ``task_ids``: at most ``most`` (10 by default), and their number."""
        return await self._run(dependencies.blockers(self._shards, task_ids, most))

    async def run_graph(self, run_id: str, nodes: int = 2000) -> DependencyGraph:
        """Return the dependencies among the tasks of the run ``run_id``, of at most ``nodes`` tasks (2000 by default). Raises
        `TaskNotFoundError` if the queue does not know the run."""
        return await self._run(dependencies.run_graph(self._shards, run_id, nodes))

    async def recent_runs(self, limit: int = 20) -> PartialList[RunProgress]:
        """Return the progress of the newest runs (by their newest tasks): at most ``limit``, from 1 to 20 (the default)."""
        return await self._read_all_shards(lambda shards: dependencies.recent_runs(shards, limit))

    async def parent_results(self, task_id: str, load: Callable[[str, Any], Any] | None = None) -> dict[str, Any]:
        """Return the results of the tasks that task ``task_id`` depends on, by id, without tasks that have not
        finished.

        ``load`` gets the name of a task and the JSON value that it returned, and returns the result; by default the
        result is the JSON value. Raises `TaskNotFoundError` if the queue does not know the task.
        """
        return await self._run(dependencies.parent_results(self._shards, task_id, load))

    async def run(self, run_id: str) -> lookup.RunView:
        """Return the tasks that were pushed together under the id ``run_id``. Raises `TaskNotFoundError` if the queue does
        not know the run: it is forgotten with its last task."""
        return await self._run(lookup.view_run(self._shards, run_id))

    async def tasks(
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
        return await self._read_all_shards(lambda shards: listing.tasks(shards, state, user_id, limit, cursor))

    async def get_queue_sizes(self, user_id: str) -> Sizes:
        """Return how many tasks of the user ``user_id`` wait, by kind, and run. All numbers are 0 for an unknown user."""
        return (await self._run(listing.queue_sizes(self._shards, [user_id])))[user_id]

    async def get_queue_sizes_batch(self, user_ids: Sequence[str]) -> dict[str, Sizes]:
        """Return how many tasks of each of the users ``user_ids`` wait and run, by user id, in one round trip."""
        return await self._run(listing.queue_sizes(self._shards, user_ids))

    async def get_stats(self, minutes: int = 60) -> QueueStats:
        """Return the figures now, and those of each of the last ``minutes`` (0 to 60, the default; one read for each)."""
        return await self._read_all_shards(lambda shards: queue_stats.stats(shards, minutes))

    async def get_shard_stats(self) -> PartialList[ShardStats]:
        """Return the tasks on each shard, by state, and its node of the cluster."""
        return await self._read_all_shards(lambda shards: queue_stats.shard_stats(shards, self.client))

    async def get_activity(self, minutes: int = 60, per_span: int = 1) -> Activity:
        """Return the activity of the last ``minutes`` (1 to 1440; each is one read; 60 by default), in spans of ``per_span``
        minutes (1 by default). Up to 10080 (seven days) if ``per_span`` is a multiple of 60. Raises `TaskValidationError`
        unless ``minutes`` is a multiple of ``per_span``."""
        return await self._read_all_shards(lambda shards: queue_stats.activity(shards, minutes, per_span))

    async def task_names(self, hours: int = 1) -> list[NameFigures]:
        """Return the figures by task name, of this clock hour and the ``hours`` before it (1 to 24; 1 by default)."""
        return await self._read_all_shards(lambda shards: task_names(shards, hours))

    async def attempt_totals(self) -> dict[str, AttemptTotals]:
        """Return the attempts since the queue's first task by task name: at most 100 names, and "" for all others."""
        return await self._read_all_shards(attempt_totals)

    async def sla_ledger(self, hours: int = 24, *, now: float | None = None) -> SlaLedger:
        """Return the SLAs of the last ``hours`` by the clock (1 to 24; 24 by default), kept, missed and at risk, by user, lane
        and task name."""
        return await self._read_all_shards(lambda shards: sla_ledger(shards, hours, now))

    async def longest_waits(self, limit: int = 50) -> PartialList[WaitingTask]:
        """Return tasks that could start now, the longest wait first: at most ``limit``, from 1 to 1000; 50 by default.

        Bulk tasks are left out: they wait until no other task can start.
        """
        return await self._read_all_shards(lambda shards: longest_waits.longest_waits(shards, limit))

    async def busiest_users(self, sample: int = 100) -> PartialList[str]:
        """Return users with tasks that have not begun, by their number of tasks in a random sample of such tasks.

        ``sample`` is the number of tasks from each state in which tasks wait, from 1 to 1000; 100 by default. With 100,
        a user with a twentieth of the tasks of one state is missed once in 170 times.
        """
        return await self._read_all_shards(lambda shards: queue_stats.busiest_users(shards, sample))

    async def fairness(self, limit: int = 2000, *, user_ids: Sequence[str] = ()) -> Fairness:
        """Return the distribution of the workers' time among users: waiting users with the reasons, noisy users, and shares.

        ``limit`` is the largest number of users whose records are read, from 1 to 2000 (the default). ``user_ids`` are
        users that are read in any case; none by default.
        """
        return await self._read_all_shards(lambda shards: fairness(shards, limit, user_ids))

    async def health(self) -> Health:
        """Return whether the queue is good, degraded or down, and why."""
        return await self._read_all_shards(health)

    async def users(
        self, cursor: str | None = None, limit: int = 100, *, busy_first: bool = False, prefix: str = ""
    ) -> ResultPage[str]:
        """Return a page of the users that have, or had within the last hour, something in the queue.

        ``cursor`` is that of the previous page; None for the first page. ``limit`` is the largest number, from 1 to
        1000; 100 by default. ``busy_first`` lists users with tasks or settings before other users; False by default.
        ``prefix`` lists only users whose ids begin with this text; all users by default. Pass the same values with the
        cursor. Raises `TaskValidationError` if ``prefix`` is no text or too long.
        """
        return await self._read_all_shards(lambda shards: listing.user_names(shards, cursor, limit, busy_first, prefix))

    async def users_of_plan(self, plan: str, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the users of ``plan``, among ``limit`` users of the queue from 1 to 1000 (100 by default).
        ``cursor`` is that of the previous page; None for the first page. A page may be empty although more follow."""
        return await self._read_all_shards(lambda shards: users.users_of_plan(shards, plan, cursor, limit))

    async def busy_users(self, limit: int = 100) -> PartialList[str]:
        """Return users that have tasks or settings, and then users that had tasks lately: at most ``limit``, from 1 to
        1000 (100 by default), equally many from each shard."""
        return await self._read_all_shards(lambda shards: listing.busy_users(shards, limit))

    async def user_stats(self, user_ids: Sequence[str], *, now: float | None = None) -> list[UserStats]:
        """Return the figures of the users ``user_ids``, in order; in one round trip, or two with organizations."""
        return await self._run(users.user_stats(self._shards, user_ids, now))

    async def organizations(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the organizations that have members or settings, by name: ``limit`` of them, from 1 to 1000
        (100 by default), after the ``cursor`` of the previous page (None for the first page)."""
        return await self._read_all_shards(lambda shards: organizations.page(shards, cursor, limit))

    async def organization_stats(self, names: Sequence[str]) -> PartialList[OrganizationStats]:
        """Return the figures of the organizations ``names``, in order, in one round trip."""
        return await self._read_all_shards(lambda shards: organizations.stats(shards, names))

    async def limits(self, limit: int = 100) -> PartialList[LimitStats]:
        """Return limits by key that are closed or have waiting tasks, most waiting first: ``limit`` (100 by default)."""
        return await self._read_all_shards(lambda shards: top_limits(shards, limit))

    async def workers(self, worker_id: str = "") -> PartialList[WorkerRecord]:
        """Return workers by id (`w2` before `w10`): by default all that are not lost, otherwise only ``worker_id``."""
        return await self._read_all_shards(lambda shards: listing.workers(shards, worker_id))

    async def check_invariants(self) -> PartialList[Violation]:
        """Return the violations of the invariants. Reads every key, so do not call it every minute; changes nothing."""
        return await self._read_all_shards(check_invariants)

    # --- sending: operations over the queue's client ---

    def cancel_retries_when(self, condition: Callable[[], bool]) -> None:
        """While ``condition()`` is true, do not repeat requests that fail. The ``condition`` is called after each
        failure."""
        self._transport.is_reply_unwanted = condition

    async def _run(self, steps: Operation[T]) -> T:
        await self._check()
        return await self._drive(steps)

    async def _read_all_shards(self, read: Callable[[Shards], Operation[T]]) -> T:
        """Read all shards. Leave out the shards of a node that does not answer for `ALL_SHARDS_READ_SECONDS` seconds.

        ``read`` is called with the shards to ask, and may be called more than once. Repeating it must do no harm.
        """
        await self._check()
        return await self._among(self._shards, read)

    def _reachable_shards(self) -> Shards:
        if len(self._shards.all) == 1 or not is_cluster(self.client):
            return self._shards
        return executor.reachable_shards(self.client, self._shards)

    async def _write_all_shards(self, change: Callable[[Shards], Operation[T]]) -> T:
        """Change all shards that can be reached. ``change`` gets these shards, with the numbers of the missing shards."""
        return await self._run(change(self._reachable_shards()))

    async def _carry_messages(self) -> None:
        """Deliver the stored messages to other shards. If that fails, workers deliver the messages later."""
        with suppress(FairQueueError):
            await self._read_all_shards(lambda shards: messages.deliver_messages(shards, MAX_CALL_ITEMS, None))

    async def _check(self) -> None:
        """Raise an error if the number of shards on the server is not the configured number."""
        if self._parent_queue is not None:
            await self._parent_queue._check()  # noqa: SLF001 - an object of this class
        elif not self._is_checked and monotonic() >= self._check_at:
            self._is_checked = await self._among(
                Shards(self.name, self.config), executor.shard_count_check(self.client)
            )
            self._check_at = monotonic() + executor.SHARD_COUNT_RECHECK_SECONDS

    async def _among(self, shards: Shards, read: Callable[[Shards], Operation[T]]) -> T:
        if len(shards) == 1 or not is_cluster(self.client):
            return await self._drive(read(shards))
        rounds = executor.Rounds(self.client, shards)
        for living in rounds:
            try:
                return await self._drive(read(living), executor.ALL_SHARDS_READ_SECONDS)
            except executor.FINAL_ERRORS:  # noqa: PERF203 - there are a few rounds at most
                raise
            except RedisConnectionError:
                continue
        return await self._drive(read(rounds.rest))

    async def _drive(self, steps: Operation[T], seconds: float | None = None) -> T:
        """Send the requests of the steps, each for at most ``seconds`` if given. The steps may catch errors."""
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


class AsyncDeadLetterQueue:
    # Generated from `DeadLetterQueue` by python -m tests.tools.async_classes.
    """The dead letters of one queue, returned by ``queue.dlq``.

    Most methods take ``now``, as those of the queue do. `list`, `letters`, `groups`, `matching`, `requeue_all` and
    `discard_all` take ``filters``, by name (`Filters`): ``failure_type`` (failed, expired, poisoned), ``user_id``, the
    task's ``name``, ``fingerprint``, ``older_than`` and ``newer_than`` (ages in seconds), ``moved_until`` (a Unix
    time). Without filters they concern all letters.
    """

    def __init__(
        self,
        shards: Shards,
        run: AsyncDriver,
        read_all_shards: AsyncAllShardsReader,
        write_all_shards: AsyncAllShardsReader,
    ) -> None:
        self._shards, self._run = shards, run
        self._read_all_shards, self._write_all_shards = read_all_shards, write_all_shards

    async def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[DLQEntry]:
        """Return a page of entries, the oldest first.

        ``limit`` is the number of letters that are read, from 1 to 1000; 100 by default. ``cursor`` is that of the
        previous page; None for the first page. ``filters`` leave out entries that do not match.
        """
        return await self._read_all_shards(
            lambda shards: sync_dead_letters.page(shards, limit, cursor, Filter.create(filters), now)
        )

    async def get(self, entry_id: str) -> DLQEntry:
        """Return an entry.

        ``entry_id`` is its id (``"task id~1"``). Raises `TaskNotFoundError` if it was requeued, discarded or
        forgotten.
        """
        return await self._run(sync_dead_letters.get(self._shards, entry_id))

    async def of_task(self, task_id: str) -> DLQEntry | None:
        """Return the entry of a task; None if the task is no dead letter.

        ``task_id`` is its id.
        """
        return await self._run(sync_dead_letters.of_task(self._shards, task_id))

    async def count(self) -> int:
        """Return the number of dead letters. Raises `ShardsAwayError` if a shard can't be reached."""
        return await self._read_all_shards(sync_dead_letters.count)

    async def counts(self) -> DLQCounts:
        """Return the number of dead letters, by failure type."""
        return await self._read_all_shards(sync_dead_letters.counts)

    async def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """Return the dead letters grouped by fingerprint, that is, by error.

        ``look_at`` is the number of letters that are read, the newest first, from 1 to 10,000; 1000 by default.
        ``filters`` leave out letters that do not match.
        """
        return await self._read_all_shards(
            lambda shards: sync_dead_letters.groups(shards, look_at, Filter.create(filters), now)
        )

    async def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """Return a page of letters without payloads and histories, which can be large, the oldest first.

        ``limit`` is the largest number, from 1 to 1000; 100 by default. At most 1000 letters are read. ``cursor`` is
        that of the previous page; None for the first page. ``filters`` leave out letters that do not match.
        """
        return await self._read_all_shards(
            lambda shards: sync_dead_letters.letters_page(shards, limit, cursor, Filter.create(filters), now)
        )

    async def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """Return how many letters match ``filters``, before all of them are requeued or discarded.

        At most the 10,000 newest letters are read. Pass ``until`` of the result as ``moved_until`` to the next call, so
        that it leaves out letters that came later.
        """
        return await self._read_all_shards(
            lambda shards: sync_dead_letters.count_matching(shards, Filter.create(filters), now)
        )

    async def requeue(
        self, entry_id: str, payload: Any = None, *, lane: Lane = "normal", now: float | None = None
    ) -> str:
        """Queue the task of an entry again, with a fresh retry budget.

        ``entry_id`` is the entry's id. ``payload`` replaces the task's payload: any JSON value, or JSON as text in
        bytes (``b"null"`` for a null); by default the payload stays.
        ``lane`` is the lane in which the task comes back: ``"urgent"``, ``"normal"`` (the default) or ``"bulk"``. In lane
        normal it has its earlier priority, or the priority 3 (normal) after another lane.

        Returns the task's id. Raises `TaskNotFoundError` if the entry was requeued, discarded or forgotten, and
        `TaskValidationError` if ``lane`` has another value, or if no ``payload`` is given and that of the entry was
        removed (``max_dead_letters``).
        """
        steps = sync_dead_letters.requeue(self._shards, entry_id, payload, lane, now)
        return await self._run(sync_dead_letters.record_letters(self._shards, "requeue", steps, entry_id, lane))

    async def requeue_many(
        self, entry_ids: Sequence[str], payload: Any = None, *, lane: Lane = "normal", now: float | None = None
    ) -> int:
        """Requeue the given entries that still exist, in bounded slices.

        ``entry_ids`` are their ids. ``payload`` and ``lane`` are those of `requeue`. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries on the other shards are requeued.
        """
        return await self._write_all_shards(
            lambda shards: sync_dead_letters.record_letters(
                shards,
                "requeue",
                sync_dead_letters.requeue_some(shards, entry_ids, payload, lane, now),
                entry_ids,
                lane,
            )
        )

    async def requeue_all(
        self,
        payload: Any = None,
        *,
        lane: Lane = "normal",
        limit: int | None = None,
        now: float | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Requeue the entries that match, in bounded slices.

        ``payload`` and ``lane`` are those of `requeue`. ``limit`` is the largest number of entries; all by default.
        ``filters`` choose the entries. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries on the other shards are requeued, and the
        message contains their number.
        """
        only = Filter.create(filters)
        return await self._write_all_shards(
            lambda shards: sync_dead_letters.record_letters(
                shards,
                "requeue",
                sync_dead_letters.requeue_all(shards, only, payload, lane, limit, now),
                str(only),
                lane,
            )
        )

    async def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Discard an entry: its task becomes CANCELED, and so do the tasks that depend on it, unless they run anyhow.

        ``entry_id`` is the entry's id. Raises `TaskNotFoundError` if it was requeued, discarded or forgotten.
        """
        await self._run(
            sync_dead_letters.record_letters(
                self._shards, "discard", sync_dead_letters.discard(self._shards, entry_id, now), entry_id
            )
        )

    async def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Discard the given entries that still exist, in bounded slices.

        ``entry_ids`` are their ids. Returns how many were discarded. Raises `ShardsAwayError` as `requeue_many` does.
        """
        return await self._write_all_shards(
            lambda shards: sync_dead_letters.record_letters(
                shards, "discard", sync_dead_letters.discard_some(shards, entry_ids, now), entry_ids
            )
        )

    async def discard_all(
        self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Discard the entries that match, in bounded slices.

        ``limit`` is the largest number of entries; all by default. ``filters`` choose the entries. Returns how many
        were discarded. Raises `ShardsAwayError` as `requeue_all` does.
        """
        only = Filter.create(filters)
        return await self._write_all_shards(
            lambda shards: sync_dead_letters.record_letters(
                shards, "discard", sync_dead_letters.discard_all(shards, only, limit, now), str(only)
            )
        )

    async def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget old entries and their tasks.

        ``older_than`` is the age in seconds. Returns how many were forgotten. Raises `ShardsAwayError` as
        `requeue_all` does.
        """
        return await self._write_all_shards(
            lambda shards: sync_dead_letters.record_letters(
                shards, "forget", sync_dead_letters.cleanup(shards, older_than, now), f"older_than {short(older_than)}"
            )
        )


class AsyncSchedules:
    # Generated from `Schedules` by python -m tests.tools.async_classes.
    """The schedules of one queue, returned by ``queue.schedules``. Most methods take ``now``, as the methods of the
    queue do.

    Methods raise `ShardsAwayError` if a schedule can't be looked up because some shards can't be reached.
    """

    def __init__(self, shards: Shards, run: AsyncDriver, read_all_shards: AsyncAllShardsReader) -> None:
        self._shards, self._run, self._read_all_shards = shards, run, read_all_shards

    async def _holder(self, name: str) -> Commands:
        return await self._read_all_shards(lambda shards: schedule_ops.holder(shards, name))

    async def add(self, name: str, *, task: Task | Template, now: float | None = None, **options: Any) -> Schedule:
        """Add a schedule, or change the schedule of this name. Unless its timing changes, its next run time stays.

        ``name`` is a text of at most 200 characters. ``task`` is pushed at each run time: a call that was not sent
        (``my_task.s(1)``), a task that needs no arguments (``my_task``), or a `Task`. Its ``unique_for`` and
        ``debounce`` are not used; a task with a delay, a moment at which it expires or dependencies is refused. These
        are the ``options``; give ``cron`` or ``every``:

        - ``cron``: five fields, minute hour day-of-month month day-of-week.
        - ``every``: seconds (or a timedelta) between two run times, at least 1.
        - ``start``: when ``every`` begins to count; now by default.
        - ``timezone``: the zone of ``cron``; UTC by default.
        - ``missed``: what happens to run times that could not be fired for more than ``catch_up`` seconds (60 by
          default): ``"skip"`` them (the default), fire ``"one"``, the last, or ``"all"``.
        - ``overlap``: what happens to a run if the task of the run before has not ended: ``"allow"`` enqueues it too
          (the default), ``"skip"`` leaves it out, ``"queue"`` lets it wait until that task ends, whatever its end; if a
          run waits already, the new run is left out.
        - ``jitter``: seconds by which the task of a run starts later at most, none by default: a part of them that is
          the same for each run time, and less than the time until the next run.
        - ``expires``: seconds from a run time (and its jitter) until its task is a dead letter if it has not started;
          by default that of the call.
        - ``enabled``: False to add it paused; True by default. ``pause_note`` and ``pause_until`` (a Unix time) are
          the note and the end of a pause, as `pause` writes them.
        - ``source``: where it is declared: code (the default), settings, command or admin.
        - ``declared``: for a schedule from settings, its declaration.

        Returns the schedule. Raises `TaskValidationError` if it can't be understood, has an unknown option, would
        never fire, or is one of more than 1000; nothing is changed then.
        """
        checked = schedule_ops.check_options(options)
        place = await self._read_all_shards(lambda shards: schedule_ops.places(shards, name, task))
        steps = schedule_ops.add(place, name, task, checked, now)
        return await self._run(schedule_ops.record_change("add", place[0], name, steps, now))

    async def remove(self, name: str, *, now: float | None = None) -> bool:
        """Remove a schedule. Tasks that it has pushed stay.

        ``name`` is its name. Returns whether there was one.
        """
        holder = await self._holder(name)
        return await self._run(
            schedule_ops.record_change("remove", holder, name, schedule_ops.remove(holder, name, now), now)
        )

    async def pause(self, name: str, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Pause a schedule: it stays, and pushes nothing. Run times during the pause do not count as missed.

        ``name`` is its name. ``note`` is a text of at most 200 characters that is shown with the pause; empty by
        default. ``until`` is the moment at which the pause ends by itself: a Unix time, an aware datetime, or a
        timedelta from now, by the server's clock. None, the default, is for no end. A later pause replaces the note and
        the end. Raises `TaskNotFoundError` if there is no such schedule, and `TaskValidationError` if the note or the
        end is invalid.
        """
        await self._run(schedule_ops.pause(await self._holder(name), name, note, until, now))

    async def resume(self, name: str, *, now: float | None = None) -> None:
        """End the pause of a schedule. Run times during the pause do not count as missed.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        await self._run(schedule_ops.resume(await self._holder(name), name, now))

    async def sign(self, name: str, *, now: float | None = None) -> None:
        """Sign the task that a schedule pushes, as it is stored now, with this process's key. Check the task first,
        with `get`.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        await self._run(schedule_ops.sign(await self._holder(name), name, now))

    async def run_now(self, name: str, *, now: float | None = None) -> str:
        """Push the task of a schedule at once, in addition to its run times.

        ``name`` is its name. Returns the task's id. Raises `TaskNotFoundError` if there is none, and what
        `AsyncFairQueue.push` raises.
        """
        return await self._run(schedule_ops.run_now(await self._holder(name), name, now))

    async def get(self, name: str) -> Schedule:
        """Return a schedule.

        ``name`` is its name. Raises `TaskNotFoundError` if there is none.
        """
        return await self._run(schedule_ops.get(await self._holder(name), name))

    async def list(self) -> PartialList[Schedule]:
        """Return all schedules, by name."""
        return await self._read_all_shards(schedule_ops.list_all)

    async def upcoming(self, hours: int = 24, *, now: float | None = None) -> Forecast:
        """Return the runs that are expected in the next hours, how long they take, and which run at the same time.

        ``hours`` is how far to look, from 1 to 48; 24 by default. Returns the `Forecast`. Nothing is changed, and at
        most seven requests are sent. Raises `TaskValidationError` for other hours.
        """
        return await self._read_all_shards(lambda shards: forecast.forecast(shards, hours, now))

    async def report_version(
        self,
        version: str,
        worker: str = "",
        *,
        action: declarations.VersionAction = "start",
        now: float | None = None,
    ) -> declarations.DeclaredVersion:
        """Report that a worker with a version of the declared schedules starts (the default), runs ("renew") or stops
        ("leave"), or make that version count ("adopt"). Workers call it.

        ``version`` is the result of `version_name`. ``worker`` is the worker's id, which counts as running for 30
        seconds; empty, the default, if there is none. ``action`` is one of the four. Returns the version that counts
        now.
        """
        return await self._run(declarations.report_version(self._shards, action, version, worker, now))

    async def declare(
        self,
        declared: Mapping[str, declarations.DeclaredSchedule],
        counting: declarations.DeclaredVersion,
        *,
        keep: Container[str] = (),
        now: float | None = None,
    ) -> bool:
        """Make the stored schedules agree with these declarations: add, change and remove schedules. A schedule that was added in
        another way stays. Workers call it.

        ``declared`` are the declarations by name. ``counting`` is what `report_version` returned for their version.
        ``keep`` contains names that are not removed; none by default. Returns False if a newer version counts
        meanwhile: nothing more was changed then. Raises `TaskValidationError` as `add` does.
        """
        return await self._read_all_shards(lambda shards: declarations.declare(shards, declared, counting, keep, now))

    async def running_versions(self, *, now: float | None = None) -> Sequence[declarations.RunningVersion]:
        """Return the versions of declared schedules that running workers have."""
        return await self._run(declarations.running_versions(self._shards, now))

    async def fire_due(self, limit: int = 100, *, now: float | None = None) -> Sequence[Fired]:
        """Push the tasks that are due. Each run time is fired once, also if several processes call this. Workers call
        it.

        ``limit`` is the largest number of firings, at least 1; 100 by default. Returns the firings, and the schedules
        that could not fire.
        """
        return await self._run(schedule_ops.fire_due(self._shards, limit, now))

    async def next_due(self, after: float | None = None) -> float | None:
        """Return when the next schedule is due, as Unix time; None if none is.

        ``after`` is the Unix time after which it is due; by default the server's time.
        """
        return await self._run(schedule_ops.next_due(self._shards, after))


class AsyncUserQueue:
    # Generated from `UserQueue` by python -m tests.tools.async_classes.
    """One user of one queue, returned by ``queue.user(user_id)``. Most methods take ``now``, as the methods of the
    queue do.

    Changes act at once, also on waiting tasks, and last until the next change, even if the user has no tasks. Methods
    raise `TaskValidationError` if a value is out of range.
    """

    def __init__(self, commands: Commands, run: AsyncDriver, user_id: str) -> None:
        self.user_id = check_id(user_id, "user_id")
        self._commands, self._run = commands, run

    async def _change(self, act: str, fields: dict[str, object], now: float | None) -> None:
        steps = sync_users.change(self._commands, self.user_id, fields, now)
        await self._run(sync_users.record_change(self._commands, self.user_id, act, steps))

    async def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change fields of the user's record if others have the expected values, in one call. For `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are those of ``lua/commands/user.lua``. Returns whether
        the values were the expected ones.
        """
        steps = sync_users.change(self._commands, self.user_id, {**fields}, now, expected)
        return await self._run(sync_users.record_change(self._commands, self.user_id, act, steps))

    async def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Start none of the user's tasks. Pushes go on, and running tasks end.

        ``note`` is a text of at most 200 characters that is shown with the pause; empty by default. ``until`` is the
        moment at which the pause ends by itself, by the server's clock: a Unix time, an aware datetime, or a timedelta
        from now. None, the default, is for no end. A later pause replaces the note and the end.
        """
        await self._change("pause", pause_fields(note, until, now), now)

    async def resume(self, *, now: float | None = None) -> None:
        """Start the user's tasks again."""
        await self._change("resume", {**RESUMED}, now)

    async def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """Set the user's share: ``weight`` times that of a user of weight 1, from 0.001 to 1000."""
        await self._change("weight", {"weight": check_weight(weight)}, now)

    async def set_plan(self, plan: str | None, *, now: float | None = None) -> None:
        """Give the user a plan of the setting ``PLANS``, whatever ``PLAN_OF`` returns for it.

        ``plan`` is its name; the user gets the values of this plan in the settings of this process. With None, the user
        gets the plan that ``PLAN_OF`` returns, and loses the limits that other ``set_…`` methods have set.
        """
        steps = sync_users.set_plan(self._commands, self.user_id, plan, now)
        await self._run(sync_users.record_change(self._commands, self.user_id, "plan", steps))

    async def set_organization(self, organization: str | None, *, now: float | None = None) -> None:
        """Make the user a member of an organization (`AsyncFairQueue.organization`), with all its tasks.

        ``organization`` is the organization's name; None for no organization. The members together get as much as one
        user of the organization's weight.
        """
        name = "" if organization is None else check_id(organization, "organization")
        await self._change("organization", {"group": name}, now)

    async def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks run at once.

        ``number`` is from 1 to 1,000,000; None for no limit.
        """
        await self._change("limits", {"cap": check_limit_value("max_running", number)}, now)

    async def set_rate(self, rate: str | None, *, burst: int = 1, now: float | None = None) -> None:
        """Limit how many tasks start per unit of time.

        ``rate`` is a number of tasks per s, m, h or d (``"100/m"``, ``"5/10s"``); None for no limit. ``burst`` is how
        many tasks may start at once after a pause, from 1 (the default) to 1,000,000. With 1 they start at equal
        distances.

        In any period of the unit's length, at most the rate plus ``burst`` tasks start. A new rate keeps the used part
        of the last rate. A task starts when a worker fetches it.
        """
        await self._change("limits", rate_fields(rate, burst), now)

    async def set_sla(self, seconds: float | None, *, now: float | None = None) -> None:
        """Set within how many seconds this user's tasks should start.

        ``seconds`` replaces the value of their priority; None restores that value. The value applies to tasks that
        become ready from now on; a task's own ``sla`` takes precedence.
        """
        await self._change("limits", {"sla": "" if seconds is None else positive_us(seconds, "sla")}, now)

    async def set_max_backlog(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks may wait: further pushes are refused (`AsyncFairQueue.push` raises `BacklogFullError`).

        ``number`` is from 1 to 1,000,000,000; None for the queue's default (``max_backlog``).
        """
        await self._change("limits", {"backlog": check_limit_value("max_backlog", number)}, now)

    async def set_max_backlog_bytes(self, number: int | None, *, now: float | None = None) -> None:
        """Limit the bytes of tasks that have not ended: further pushes are refused (`AsyncFairQueue.push` raises
        `BacklogFullError`).

        ``number`` is the bytes, from 1 to 10^15; None for the queue's default (``max_backlog_bytes``). A task counts
        with its payload and 500 bytes. Tasks that were pushed before there was a limit do not count.
        """
        await self._change("limits", {"max_bytes": check_limit_value("max_backlog_bytes", number)}, now)

    async def purge(self, limit: int | None = None, *, note: Note = None, now: float | None = None) -> int:
        """Cancel the user's waiting tasks. Running tasks go on.

        ``limit`` is the largest number of tasks, from 1; all by default. ``note``, if given, is called after each
        slice with the ids of the tasks that it canceled.

        Returns how many tasks were canceled. Raises `TaskValidationError` if ``limit`` is not a whole number from 1.
        """
        return await self._run(sync_users.purge_user(self._commands, self.user_id, limit, note, now))

    async def is_known(self) -> bool:
        """Return whether the queue has a record of the user: it has tasks, had some within the last hour, or has settings."""
        return await self._run(sync_users.is_known(self._commands, self.user_id))

    async def ended_tasks(self, examined: int = sync_users.MAX_ENDED_TASKS_EXAMINED) -> EndedTasks:
        """Return the user's tasks that ended last, without payloads and results.

        ``examined`` is how many of the newest ended tasks of all users are examined, from 3 to 1000 (the default), in
        equal parts finished tasks, dead letters and canceled tasks. A requeued dead letter has not ended.
        """
        return await self._run(sync_users.ended_tasks(self._commands, self.user_id, examined))

    async def history(self, hours: int = USER_HOURS, days: int = USER_DAYS, *, now: float | None = None) -> UserHistory:
        """Return the user's figures by hour and by day, also after the user was forgotten.

        ``hours`` is the number of hours by the clock, up to 48 (the default), and ``days`` the number of days in UTC, up to
        35 (the default). Both include the present one, and are at least 1.
        """
        return await self._run(history(self._commands, self.user_id, hours, days, now))

    async def report(self, hours: int = REPORT_HOURS, *, now: float | None = None) -> UserReport:
        """Return the user's figures by hour and by day, and its dead letters of the last hours by error, for a customer report.

        ``hours`` is the number of hours by the clock that are added up and whose errors are grouped, from 1 to 48; 2 by
        default: the present hour and the previous hour. The errors are of dead letters that are kept. Raises
        `TaskValidationError` if ``hours`` is out of range.
        """
        return await self._run(sync_users.user_report(self._commands, self.user_id, hours, now))

    async def stats(self, *, now: float | None = None) -> UserStats:
        """Return the user's figures, settings and limits now."""
        return (await self._run(sync_users.users_stats(self._commands, [self.user_id], now)))[0]


class AsyncOrganizationQueue:
    # Generated from `OrganizationQueue` by python -m tests.tools.async_classes.
    """One organization of one queue, returned by ``queue.organization(name)``: its members together get the share of
    one user.

    A user belongs to at most one organization: ``queue.user(user_id).set_organization(name)``. Most methods take
    ``now``, as the methods of the queue do. Changes hold on every shard and act at once. Methods raise
    `ShardsAwayError` if some shards can't be reached (the others are changed), and `TaskValidationError` if a value is
    out of range.
    """

    def __init__(self, read_all_shards: AsyncAllShardsReader, organization: str) -> None:
        self.organization = check_id(organization, "organization")
        self._read_all_shards = read_all_shards

    async def _change(self, act: str, fields: dict[str, object], now: float | None) -> None:
        await self._read_all_shards(
            lambda shards: sync_organizations.record_change(shards, self.organization, act, fields, now)
        )

    async def change_if(self, act: str, fields: Fields, expected: Fields, *, now: float | None = None) -> bool:
        """Change fields of the organization's record if others have the expected values on its first shard. For
        `django_fairque.audit`.

        ``act`` is the name for the audit; ``fields`` and ``expected`` are those of ``lua/commands/organization.lua``. Returns
        whether the values were the expected ones.
        """
        return await self._read_all_shards(
            lambda shards: sync_organizations.record_change(shards, self.organization, act, fields, now, expected)
        )

    async def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """Set the share of all members together: ``weight`` times that of a user of weight 1, from 0.001 to 1000."""
        await self._change("weight", {"weight": check_weight(weight)}, now)

    async def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """Limit how many tasks of all members run at once, on each shard.

        ``number`` is from 1 to 1,000,000; None for no limit.
        """
        await self._change("limits", {"cap": check_limit_value("max_running", number)}, now)

    async def set_share(self, share: float | None, *, now: float | None = None) -> None:
        """Guarantee the organization a part of the worker time of each shard while it has tasks that can start.

        ``share`` is from 0.01 to 0.9; None to guarantee nothing. The share is a minimum: an organization whose weight gives
        it more gets more, and other users get the time that it does not use. The shares of all organizations may be 0.9
        together. Raises `TaskValidationError` if the sum would be larger.
        """
        await self._change("share", {"share": check_share(share)}, now)

    async def pause(self, *, note: str = "", until: PauseEnd = None, now: float | None = None) -> None:
        """Start none of the members' tasks. Pushes go on, and running tasks end.

        ``note`` is a text of at most 200 characters that is shown with the pause; empty by default. ``until`` is the
        moment at which the pause ends by itself, by the server's clock: a Unix time, an aware datetime, or a timedelta
        from now. None, the default, is for no end. A later pause replaces the note and the end.
        """
        await self._change("pause", pause_fields(note, until, now), now)

    async def resume(self, *, now: float | None = None) -> None:
        """Start the members' tasks again."""
        await self._change("resume", {**RESUMED}, now)

    async def stats(self) -> OrganizationStats:
        """Return the organization's figures, settings and limits now."""
        return (await self._read_all_shards(lambda shards: sync_organizations.stats(shards, [self.organization])))[0]

    async def members(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Return a page of the members' ids.

        ``cursor`` is that of the previous page; None for the first page. ``limit`` is the number of users of the queue
        that are read, from 1 to 1000; 100 by default. So a page may be empty although more follow.
        """
        return await self._read_all_shards(
            lambda shards: sync_organizations.members(shards, self.organization, cursor, limit)
        )


class AsyncLimitQueue:
    # Generated from `LimitQueue` by python -m tests.tools.async_classes.
    """One limit by key of one queue, returned by ``queue.limit(key)``.

    Methods take ``now``, as the methods of the queue do. Changes take effect at once, on every shard. Methods raise
    `ShardsAwayError` if some shards can't be reached (the others are changed).
    """

    def __init__(self, read_all_shards: AsyncAllShardsReader, key: str, user: str | None = None) -> None:
        self.key = check_id(key, "the key of a limit")
        self.user = None if user is None else check_id(user, "user")
        self._read_all_shards = read_all_shards

    async def close(self, until: ClosingEnd = None, *, now: float | None = None) -> None:
        """Let no task of the limit start. Running tasks continue, and pushes are accepted.

        ``until`` is a number of seconds from now, a timedelta, or an aware datetime; None (the default) closes the
        limit until `open` is called. A moment that has passed closes nothing. Raises `TaskValidationError` if ``until``
        has another type.
        """
        end = encode_end(until)
        await self._read_all_shards(lambda shards: sync_limits.change(shards, self.key, self.user, ["close", end], now))

    async def open(self, *, now: float | None = None) -> None:
        """End the closing of the limit. Its number of tasks at once and its rate still apply."""
        await self._read_all_shards(lambda shards: sync_limits.change(shards, self.key, self.user, ["open", ""], now))

    async def stats(self, *, now: float | None = None) -> LimitStats:
        """Return the figures of the limit now."""
        return (await self._read_all_shards(lambda shards: sync_limits.stats(shards, [(self.key, self.user)], now)))[0]


class AsyncXCom:
    # Generated from `XCom` by python -m tests.tools.async_classes.
    """One namespace of values, returned by ``queue.xcom(namespace)``.

    Values are any JSON, each of at most ``max_payload_bytes`` bytes; a namespace has at most 1000 keys, and a user at
    most ``max_xcom_bytes`` bytes, each value with its key and 100 bytes. Beyond that limit, the user's values that would
    expire first are removed, unless a task may still need them: the run has not ended, or has tasks of other users. ``now``
    is that of the queue.
    """

    def __init__(self, shards: Shards, run: AsyncDriver, namespace: str, user: str = "") -> None:
        self.namespace = check_id(namespace, "namespace")
        self._shards, self._commands, self._run = shards, shards.get_shard(namespace), run
        self._user = user and check_id(user, "user")

    async def push(self, key: str, value: Any, *, ttl: float | None = None, now: float | None = None) -> None:
        """Store a value under a key, in place of an earlier value.

        ``key`` is a text of at most 256 bytes, ``value`` any JSON value. ``ttl`` is the number of seconds from now for
        which the namespace lasts at least; ``result_ttl`` (86,400) by default. All values of a namespace expire together.

        Raises `TaskValidationError` if the namespace would have too many keys, or the user too many bytes of values in
        namespaces of pipeline runs that have not ended, and `TaskSerializationError` if the value is not JSON or too large.
        """
        await self._run(sync_dependencies.push(self._shards, self.namespace, self._user, {key: value}, ttl, now))

    async def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None, now: float | None = None) -> None:
        """Store several values in one call: all of them or none.

        ``values`` are at most 1000 values by key. ``ttl`` and the errors are those of `push`.
        """
        await self._run(sync_dependencies.push(self._shards, self.namespace, self._user, values, ttl, now))

    async def pull(self, key: str, default: Any = sync_dependencies.XCOM_VALUE_MISSING) -> Any:
        """Return the value of a key.

        ``key`` is its name. ``default`` is returned if there is no value. Raises `KeyError` if there is none and no
        ``default`` is given.
        """
        return await self._run(sync_dependencies.pull(self._commands, self.namespace, key, default))

    async def items(self) -> dict[str, Any]:
        """Return all values that are kept in this namespace, as a dict from key to value."""
        return await self._run(sync_dependencies.items(self._commands, self.namespace))

    async def keys(self) -> list[str]:
        """Return the keys that have values, sorted."""
        return await self._run(sync_dependencies.keys(self._commands, self.namespace))


class AsyncTaskLogs:
    # Generated from `TaskLogs` by python -m tests.tools.async_classes.
    """The log lines of tasks that were declared with ``capture_logs``, returned by ``queue.logs``.

    ``now`` is that of the queue.
    """

    def __init__(self, shards: Shards, run: AsyncDriver, read_all_shards: AsyncAllShardsReader) -> None:
        self._shards, self._run, self._read_all_shards = shards, run, read_all_shards

    async def of_task(self, task_id: str) -> list[AttemptLog]:
        """Return the log lines of the last attempts of task ``task_id``, at most five, the oldest first.

        An attempt that has logged nothing is left out. Returns an empty list if nothing was recorded or the task is
        unknown. The texts are as they were logged, with all secrets.
        """
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return await self._read_all_shards(lambda shards: sync_task_logs.read_logs(shards, task_id))
        return await self._run(sync_task_logs.read_logs(self._shards, task_id))

    async def with_history(self, task_id: str) -> tuple[list[Attempt], list[AttemptLog]]:
        """Return the results of `AsyncFairQueue.history` and `of_task` for task ``task_id``, in one round trip."""
        if self._shards.shard_in_id(check_id(task_id, "task_id")) is None:
            return await self._read_all_shards(lambda shards: sync_task_logs.read_history_and_logs(shards, task_id))
        return await self._run(sync_task_logs.read_history_and_logs(self._shards, task_id))

    async def record(
        self, lease: Lease, lines: Sequence[LogLine], omitted: int = 0, *, now: float | None = None
    ) -> None:
        """Record the log lines of an attempt, in place of lines that were recorded for it before. Workers call this.

        ``lease`` is that of the task, ``lines`` are the last lines, of at most 65,536 bytes as JSON, and ``omitted``
        is the number of lines before them; 0 by default. Raises `StaleLeaseError` if the lease is not the task's
        current one, and `TaskSerializationError` if a text is not Unicode or there are too many lines.
        """
        await self._run(sync_task_logs.record_logs(self._shards, lease, lines, omitted, now))


class AsyncIncidents:
    # Generated from `Incidents` by python -m tests.tools.async_classes.
    """The incidents of one queue, and its lost workers, returned by ``queue.incidents``. Most methods take ``now``, as the
    methods of the queue do. The first shard keeps incidents: methods raise `RedisConnectionError` if it can't be reached.
    """

    def __init__(self, shards: Shards, run: AsyncDriver) -> None:
        self._shards, self._run = shards, run

    async def recent(self, limit: int = 100) -> list[Incident]:
        """Return incidents: the open ones first, then the latest. At most ``limit``, from 1 to 1000; 100 by default."""
        return await self._run(sync_incidents.recent_incidents(self._shards, limit))

    async def get(self, incident_id: str) -> Incident | None:
        """Return the incident ``incident_id``; None if it is not known, or was forgotten after 30 days."""
        return next(
            iter(
                await self._run(sync_incidents.read_incidents(self._shards, [check_text(incident_id, "incident_id")]))
            ),
            None,
        )

    async def record(self, alerts: Iterable[Alert], *, now: float | None = None) -> list[IncidentChange]:
        """Count ``alerts`` of `AsyncFairQueue.take_alerts` in incidents. An alert opens an incident if none is open. Return
        the changes about which this caller, and no other, has to send messages. Workers call this.
        """
        return await self._run(sync_incidents.record_alerts(self._shards, alerts, now))

    async def update(self, *, now: float | None = None) -> list[IncidentChange]:
        """Close incidents that are over, and open incidents of lost workers and of releases. Return the changes, as
        `record` does.
        """
        return await self._run(sync_incidents.update_incidents(self._shards, now))

    async def open_limit(self, name: str, text: str, *, now: float | None = None) -> list[IncidentChange]:
        """Open the incident of the limit ``name``, with ``text`` for people. Return the changes, as `record` does."""
        return await self._run(sync_incidents.open_limit(self._shards, name, text, now))

    async def close_limit(self, name: str, *, now: float | None = None) -> list[IncidentChange]:
        """Close the incident of the limit ``name``, if it is open. Return the changes, as `record` does."""
        return await self._run(sync_incidents.close_limit(self._shards, name, now))

    async def lost_workers(self) -> list[LostWorker]:
        """Return the workers that ended without a report of their stop in the last 24 hours, the latest first.

        A worker is no longer lost if it runs again, if a worker of its name has started since, or if somebody has
        acknowledged the loss.
        """
        return await self._run(lost_workers(self._shards))

    async def acknowledge(self, worker: str, *, now: float | None = None) -> bool:
        """Remove the lost ``worker`` (the id of a `LostWorker`) from the list. Returns whether it was there."""
        return await self._run(sync_incidents.acknowledge(self._shards, check_text(worker, "worker"), now))


class AsyncActs:
    # Generated from `Acts` by python -m tests.tools.async_classes.
    """The acts on many tasks of one queue, returned by ``queue.acts``. Workers carry them out. Most methods take ``now``, as
    those of the queue do. The first shard keeps the acts: methods raise `RedisConnectionError` if it can't be reached.
    """

    def __init__(
        self,
        shards: Shards,
        run: AsyncDriver,
        read_all_shards: AsyncAllShardsReader,
        write_all_shards: AsyncAllShardsReader,
    ) -> None:
        self._shards, self._run = shards, run
        self._read_all_shards, self._write_all_shards = read_all_shards, write_all_shards

    async def start(
        self,
        kind: ActKind,
        *,
        pace: float | None = None,
        trial: bool = False,
        note: str = "",
        lane: Lane = "normal",
        to: str = "",
        stop_after: int = sync_acts.STOP_AFTER,
        state: TaskState | str | None = None,
        priority: str | None = None,
        actor: str = "",
        now: float | None = None,
        **filters: Unpack[Filters],
    ) -> TaskAct:
        """Start an act on all tasks that match now, and return it. Workers begin within a second or two.

        ``kind`` is ``"retry"``, ``"discard"`` or ``"move"`` for dead letters, ``"cancel"`` for tasks that are queued or
        scheduled. ``to`` is the name of the other queue that gets moved tasks, as new ones with new ids; empty by default.
        ``filters`` are those of `AsyncDeadLetterQueue.requeue_all`. A cancel takes ``user_id`` and ``name``, at least one of
        them, ``state`` ("queued" or "scheduled"; both by default), and ``priority``: the name of one as in `QueueStats.depth`,
        such as "LOW" or "BULK"; all by default.

        ``pace`` is the number of tasks a second, from 0.01 to 1000; None (the default) for as many as possible. With ``trial``
        (False by default) one task is changed, then the act waits for `go_on`. ``note`` says why, in at most 200 characters, and
        ``actor`` who acts. ``lane`` is the lane of retried tasks. A retry stops by itself when ``stop_after`` tasks (10 by
        default) have failed again with the same error and none has succeeded.

        Raises `TaskValidationError` if an argument can't be used, or if workers already carry out 100 acts of the queue.
        """
        act = sync_acts.check_act(
            self._shards.name, kind, pace, trial, note, lane, to, stop_after, state, priority, actor, filters
        )
        return await self._write_all_shards(lambda shards: sync_acts.start(shards, act, now))

    async def get(self, act_id: str) -> TaskAct:
        """Return the act ``act_id``. Raises `TaskNotFoundError` if it is not known: acts are kept for 24 hours after their
        end.
        """
        return await self._read_all_shards(lambda shards: sync_acts.get(shards, act_id))

    async def list(self) -> Sequence[TaskAct]:
        """Return the acts that are kept, the latest first: at most 100."""
        return await self._read_all_shards(sync_acts.list_acts)

    async def go_on(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Continue the act ``act_id`` after its trial, or after it stopped. Returns it. Raises what `stop` raises."""
        return await self._run(sync_acts.change(self._shards, act_id, "go on", ("trial", "stopped"), "running", now))

    async def stop(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Stop the act ``act_id`` after the step that a worker may be taking. Returns it. Raises `TaskNotFoundError` if it is not
        known, and `TaskValidationError` if its state does not allow that."""
        return await self._run(sync_acts.change(self._shards, act_id, "stop", ("trial", "running"), "stopped", now))

    async def undo(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Let workers restore the tasks of the act ``act_id``, except tasks that were changed after the act. Returns
        the act. Raises what `stop` raises.

        Discarded dead letters become the same dead letters again; so do requeued and moved ones that have not started.
        Canceled tasks get their earlier position in the queue. Tasks that depended on them and were canceled with them
        wait again, except those on another shard.
        """
        return await self._run(sync_acts.change(self._shards, act_id, "undo", sync_acts.UNDONE_FROM, "undoing", now))

    async def withdraw(self, task_ids: Sequence[str], *, reason: str = "", now: float | None = None) -> set[str]:
        """Cancel the given tasks that are queued or scheduled, in bounded slices: the undo of a move to this queue.

        ``task_ids`` are their ids, and ``reason`` is written to their histories; empty by default. Returns the ids of all given
        tasks that are canceled now. Raises what `AsyncFairQueue.cancel_many` raises.
        """
        return await self._write_all_shards(lambda shards: cancel_waiting(shards, task_ids, reason, now))

    async def advance(self, mover: moves.Mover | None = None, *, now: float | None = None) -> Sequence[str]:
        """Take the next step of each act: workers call this. ``mover`` opens the queues to which tasks are moved; without it
        (None by default) moves wait. Returns the ids of the tasks that were canceled.
        """
        return await self._write_all_shards(lambda shards: sync_acts.advance(shards, mover, now))
