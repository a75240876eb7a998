"""`Core` contains the parts that are common to all processes that run tasks.

A core has slots that run tasks, an event loop for coroutines, a thread for time limits, and a `FetchThread` for each shard of
each queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque import signals
from django_fairque.conf import get_config
from django_fairque.conf.sections import import_named
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.lease import Lease, LeaseKey
from django_fairque.tasks import registry
from django_fairque.tasks.execution import Services
from django_fairque.tasks.middleware import TaskMiddleware, load_all
from django_fairque.worker.common.limits import TimeLimitThread, limit_allocation, resident_mb
from django_fairque.worker.common.log import OutcomeReporter, logger
from django_fairque.worker.execution.slot_sampler import SlotSampler
from django_fairque.worker.execution.slots import SlotPool
from django_fairque.worker.fetching.fetch_planner import FetchPlanner, ShardTurn, SlotBudget
from django_fairque.worker.fetching.fetch_thread import FetchServices, FetchThread
from django_fairque.worker.fetching.queue_context import QueueContext, RevokedLeases
from django_fairque.worker.leases.outage import Outages
from django_fairque.worker.reporting.log_capture import start_capture
from django_fairque.worker.reporting.outbox_thread import OutboxThread
from django_fairque.worker.reporting.signal_thread import SignalThread
from django_fairque.worker.supervisor.separate_tasks import SeparateTask, separate_task

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerOptions
    from django_fairque.worker.common.status_board import StatusBoard
    from django_fairque.worker.execution.event_loop import BlockedLoop

MEMORY_CHECK_SECONDS = 1.0
"""Seconds between two checks of the memory limit."""
LOG_RETRY_SECONDS = 1.0
"""Seconds for which a slot tries to send captured log lines after the end of its task. The slot can't run another task
during this time."""


class Core:
    """Runs tasks from `start` until it is stopped, a limit is reached, or all tasks of a burst are done. A core does
    not renew leases.

    Args:
        on_retire: called with the reason when the core stops because of a limit.
        on_unfit: called when the core stops before its first task, for a reason that would also stop its replacement.
        startup_timeout: seconds after which the core is stopped if no server has ever answered.
        on_blocked: called when a task blocks the event loop, and with None when the loop goes on.
        on_separate: called with each task that must run in a separate process; from then on the supervisor renews its
            lease. Without a supervisor this is None, and such tasks run in this process.
        on_unknown: called with the names of received tasks that no function is registered for, when these names change.
    """

    def __init__(
        self,
        options: WorkerOptions,
        queues: Sequence[FairQueue],
        status_board: StatusBoard,
        on_retire: Callable[[str], object] = lambda _: None,
        on_unfit: Callable[[], object] = lambda: None,
        startup_timeout: float = math.inf,
        on_blocked: Callable[[BlockedLoop | None], object] = lambda _: None,
        on_separate: Callable[[SeparateTask], object] | None = None,
        on_unknown: Callable[[list[str]], object] = lambda _: None,
    ) -> None:
        self.options = options
        self.status_board = status_board
        self.is_stopping = False
        self.is_draining = False
        self.budget = SlotBudget(options)
        self._on_retire = on_retire
        self._on_unfit = on_unfit
        self._on_blocked = on_blocked
        self._on_unknown = on_unknown
        self.unknown_tasks: list[str] | None = None
        """Names of recently received tasks that no function is registered for; None while there were none."""
        self._blocked_at: float | None = None
        """Time since which the event loop has been blocked (`time.monotonic()`)."""
        self.blocked_by: str | None = None
        """The task that blocks the event loop; empty if no task blocks the loop now; None if no task has ever blocked
        it."""
        self._on_separate = None if options.one_task else on_separate
        self._has_started_its_task = False
        """Whether the process is for only one task, and that task has begun (`run_one`)."""
        self._reporter = OutcomeReporter(options.worker_id)
        self._memory_check_due = 0.0
        self._handler = import_handler(options.handler)
        self._middleware = import_middleware()
        contexts: list[QueueContext] = []
        for queue in queues:
            scheduler = queue.create_shard_scheduler(options.users, options.steal)
            for index, shard in enumerate(queue.shards):
                contexts.append(self._queue_context(len(contexts), shard, ShardTurn(scheduler, index)))
        self.outages = Outages([context.queue for context in contexts], startup_timeout)
        self.signal_thread = SignalThread(options, queues)
        self._outbox_thread = OutboxThread()
        self.slot_pool = SlotPool(
            contexts,
            options.concurrency,
            status_board,
            close_connections=options.close_database_connections,
            urgent=self.budget.urgent,
        )
        self._sampler = SlotSampler(self.slot_pool.slots, status_board.set_activity)
        self._time_limits = TimeLimitThread([slot.guard for slot in self.slot_pool.slots], self._tick)
        services = FetchServices(
            options=options,
            status_board=status_board,
            on_leases=self.slot_pool.wake,
            wake_slot=self.slot_pool.wake_another,
            time_limits=self._time_limits,
            outages=self.outages,
            reporter=self._reporter,
            signal_thread=self.signal_thread,
            on_change=self._handle_change,
        )
        self._fetch_threads = [FetchThread(context, services) for context in contexts]

    def _queue_context(self, index: int, shard: FairQueue, turn: ShardTurn) -> QueueContext:
        planner = FetchPlanner(
            index,
            self.budget,
            batch_limits=batch_limits,
            turn=turn,
            divert=self._divert if self._on_separate is not None else None,
            fence=self.status_board.fence(index),
        )
        revoked = RevokedLeases()
        services = Services(
            queue=shard.name,
            config=shard.config,
            send_progress=shard.set_progress,
            handler=self._handler,
            timeout=self.options.task_timeout,
            revoked=revoked,
            tracing=get_config().tracing,
            middleware=self._middleware,
            own_queue=shard.parent_queue,
            capture_logs=partial(start_capture, send=shard.with_retry_timeout(LOG_RETRY_SECONDS).logs.record),
        )
        return QueueContext(shard, planner, services, revoked)

    def _divert(self, planner: FetchPlanner, lease: Lease) -> bool:
        """Pass the task on if it must run in a separate process. Return whether it was passed on."""
        task = separate_task(lease, planner.index)
        if task is None or self._on_separate is None:
            return False
        planner.separate.add(task.token)
        self._on_separate(task)
        return True

    def start(self) -> None:
        self.slot_pool.start()
        self._check_memory()  # before any task can run
        self._time_limits.start()
        self.signal_thread.send_worker_signal(signals.worker_started)
        if not self.options.one_task:
            self._outbox_thread.start(at_once=self.options.burst)
        for thread in self._fetch_threads:
            thread.start()

    def stop(self) -> None:
        """Fetch nothing more, give back leases that have not begun, and let running tasks end. Can be called from any thread."""
        self.is_stopping = True
        for thread in self._fetch_threads:
            thread.planner.is_stopping = True
            thread.wakeup.notify()

    def set_draining(self, *, is_draining: bool) -> None:
        """Fetch nothing and give back leases that have not begun, or fetch again. Can be called from any thread."""
        self.is_draining = is_draining
        self._apply_draining()

    def _apply_draining(self) -> None:
        for thread in self._fetch_threads:
            is_held = self.is_draining or self._blocked_at is not None or thread.has_other_key
            thread.planner.set_draining(is_draining=is_held)
            thread.wakeup.notify()

    def reconcile(self, shard_index: int) -> None:
        """Give back the leases that a new server of this shard has recorded for this worker and that this worker does not
        hold."""
        thread = self._fetch_threads[shard_index]
        thread.planner.is_out_of_sync = True
        thread.wakeup.notify()

    def run_one(self, task: SeparateTask) -> None:
        """Take over the lease of a task that another process has fetched, run the task, then stop. If the lease is no
        longer valid, stop at once.
        """
        if task.max_memory:
            limit_allocation(task.max_memory)
        if self._fetch_threads[task.shard_index].take_over(LeaseKey(task.task_id, task.token)):
            self._has_started_its_task = True
            self._handle_change()  # the task may have ended already
        else:
            self.stop()

    def separate_ended(self, shard_index: int, tokens: Sequence[int]) -> None:
        """Record that tasks which were passed on have ended, or were given back."""
        self._fetch_threads[shard_index].separate_ended(tokens)

    def join(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until all outcomes are reported, or until ``give_up`` returns True; then end the threads that are
        idle.
        """
        while any(thread.is_alive() for thread in self._fetch_threads) and not give_up():
            for thread in self._fetch_threads:
                thread.join(0.1)
        self._time_limits.end()
        self.status_board.end_ticking()
        self._outbox_thread.end(5.0)
        self.slot_pool.end()
        self._reporter.flush()
        self._reporter.summarize(at_end=True)

    def join_waits(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the end of each wait for work whose result is no longer needed. Return whether
        such a wait is still in progress.
        """
        return any(thread.join_wait(seconds) for thread in self._fetch_threads)

    def report_stopped(self) -> None:
        """Send the remaining signals, and the signal that the worker has stopped. Call this when no more signals will
        follow.
        """
        self.signal_thread.send_worker_signal(signals.worker_stopped)
        self.signal_thread.end(5.0)

    def _handle_change(self) -> None:
        """Stop the worker if all its work is done; otherwise wake the fetch threads. Called after each call of a fetch
        thread.
        """
        if self.is_stopping:
            return
        if 0 < self.options.max_tasks <= self.budget.finished:
            self._retire(f"it has run {self.budget.finished} {'task' if self.budget.finished == 1 else 'tasks'}")
        elif (self.options.burst and self.budget.is_everything_empty) or (
            self._has_started_its_task and self.budget.is_idle
        ):
            self.stop()
        elif len(self._fetch_threads) > 1:
            for thread in self._fetch_threads:
                if thread.planner.looks_after_calls or self.options.burst:
                    thread.wakeup.notify()

    def _tick(self) -> None:
        """Run the regular checks. The time limit thread calls this 2 to 20 times a second."""
        self.status_board.record_tick()
        self.slot_pool.wake_another()
        self.slot_pool.loop.check(self._loop_changed)
        unknown = sorted(
            {name for context in self.slot_pool.queue_contexts for name in context.services.unknown.names()}
        )
        if unknown != (self.unknown_tasks or []):
            self.unknown_tasks = unknown
            self._on_unknown(unknown)
        paused = [context.services.key_watch.is_paused for context in self.slot_pool.queue_contexts]
        if paused != [thread.has_other_key for thread in self._fetch_threads]:
            for thread, is_paused in zip(self._fetch_threads, paused, strict=True):
                thread.has_other_key = is_paused
            self._apply_draining()
        self._check_memory()
        if getattr(self.slot_pool.loop, "cannot_start", False) and not self.is_stopping:
            self._retire("it can't start the thread for its event loop")
        self._reporter.summarize()
        self._sampler.update()

    def _loop_changed(self, blocked: BlockedLoop | None) -> None:
        """Fetch no tasks and give back waiting leases while a task blocks the event loop, because other workers can run
        these tasks.
        """
        now = monotonic()
        self.blocked_by = "" if blocked is None else blocked.task or "an unknown task"
        if blocked is not None:
            self._blocked_at = self._blocked_at or now - blocked.seconds
            logger.error(
                "event loop of process %s has been blocked for %.1f s by %s; the process fetches nothing until the loop goes on. "
                "Call blocking code with asyncio.to_thread, or define the task without async. The loop's stack:\n%s",
                *(self.options.worker_id, now - self._blocked_at, self.blocked_by, blocked.stack),
            )
        elif self._blocked_at is not None:
            seconds, self._blocked_at = now - self._blocked_at, None
            logger.warning(
                "event loop of process %s goes on after %.1f s; fetching tasks again", self.options.worker_id, seconds
            )
        self._apply_draining()
        self._on_blocked(blocked)

    def _check_memory(self) -> None:
        limit, now = self.options.max_memory_mb, monotonic()
        if limit and not self.is_stopping and now >= self._memory_check_due:
            self._memory_check_due = now + MEMORY_CHECK_SECONDS
            used = resident_mb()
            if used > limit and self.budget.events:
                self._retire(f"it uses {used:.0f} MB, more than {limit}")
            elif used > limit:
                logger.error(
                    "worker %s runs no task: it uses %.0f MB before the first one, more than --max-memory (MAX_MEMORY_MB) "
                    "allows, %d; set that well above",
                    *(self.options.worker_id, used, limit),
                )
                self._on_unfit()
                self.stop()

    def _retire(self, reason: str) -> None:
        logger.info("replacing worker process %s: %s", self.options.worker_id, reason)
        self._on_retire(reason)
        self.stop()


def batch_limits(name: str) -> tuple[int, float] | None:
    """Return the batch size of a task and the seconds for which a batch waits; None if the task does not run in
    batches.
    """
    definition = registry.find(name) if name else None
    if definition is None or not definition.options.batch:
        return None
    return definition.options.batch, definition.options.batch_wait


def import_middleware() -> tuple[TaskMiddleware, ...]:
    """Return the middleware of the setting. Raises `ConfigurationError` if the setting's middleware, or the middleware
    of a task, can't be used.
    """
    for definition in filter(None, map(registry.find, registry.names())):
        load_all(definition.options.middleware)
    return load_all(get_config().middleware)


def import_handler(path: str | None) -> Callable[[Any], Any] | None:
    """Return the handler of bare payloads from its dotted path, which the configuration contains."""
    if path is None:
        return None
    handler: Callable[[Any], Any] = import_named(path, "handler", "a callable")
    if not callable(handler):
        raise ConfigurationError(f"handler: expected a callable, {path!r} is a {type(handler).__name__}")
    return handler
