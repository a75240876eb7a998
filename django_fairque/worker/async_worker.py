"""`AsyncWorker`: runs tasks on the event loop that awaits it.

It shares its decisions with the threaded worker (`FetchPlanner`, `SlotBudget`, `LeaseBuffer`). This module has the parts that
await.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque import signals
from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError, FairQueueError, ServerRefusedError, TaskNotFoundError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.tasks.errors import SoftTimeLimitExceeded, TaskRevoked
from django_fairque.tasks.execution import aexecute, arun_batch, run_batch
from django_fairque.worker.execution import isolation, process_copies
from django_fairque.worker.execution.event_loop import (
    MAX_COROUTINE_RESTARTS,
    LoopMonitor,
    ProtectedTask,
    Stoppable,
    cancel_all,
    create_protected_task,
    extend_other_limits,
    outcomes_after_fault,
)
from django_fairque.worker.execution.isolation import CoroutineContexts, run_in_new_context
from django_fairque.worker.execution.limits import Guard, run_guarded
from django_fairque.worker.execution.task_services import (
    RevokedLeases,
    batch_limits,
    batch_sizes,
    failed_outcomes,
    import_handler,
    make_services,
    prepare_runs,
    run_one,
    timeout_of,
)
from django_fairque.worker.fetching.fetch_planner import FetchPlanner, SlotBudget, shard_places_of
from django_fairque.worker.fetching.fetch_thread import NEVER_RECEIVED_REASON, SETTLE_RETRY_SECONDS
from django_fairque.worker.leases.heartbeat import (
    DRAIN_COMMAND,
    STOP_COMMAND,
    OperatorCommands,
    ServerEpochs,
    worker_info,
    worker_status,
)
from django_fairque.worker.leases.lease_renewal import (
    ALERTS_PER_FETCH,
    SCHEDULES_PER_SWEEP,
    WORKER_RECORD_TTL_SECONDS,
    has_due_schedule,
    remaining_sweep,
    seconds_until_next_sweep,
)
from django_fairque.worker.leases.outage import Outage
from django_fairque.worker.options import WorkerOptions, unique_queues
from django_fairque.worker.reporting.log import OutcomeReporter, logger
from django_fairque.worker.reporting.signal_thread import SignalThread
from django_fairque.worker.supervisor.separate_tasks import warn_about_isolated_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.task import Task
    from django_fairque.tasks.execution import Run, Services
    from django_fairque.worker.execution.event_loop import BlockedLoop
    from django_fairque.worker.fetching.fetch_planner import FetchCall, ShardPlace, Work
    from django_fairque.worker.options import WorkerArguments


class AsyncFetcher:
    """One queue of the worker."""

    def __init__(
        self, worker: AsyncWorker, index: int, place: ShardPlace[AsyncFairQueue], threads: ThreadPoolExecutor
    ) -> None:
        options, queue = worker.options, place.queue
        self.queue = queue
        self.planner = FetchPlanner(
            index,
            worker.budget,
            poll_interval=options.poll_interval,
            batch_limits=batch_limits,
            selective=options.is_selective,
            turn=place.turn,
        )
        self.wakeup = asyncio.Event()
        self.running: dict[asyncio.Task[None], Work] = {}
        self.coroutines: set[Stoppable] = set()
        """Those of `running`."""
        self._worker = worker
        self._options = options
        self._retrying_queue = queue.with_retry_timeout(SETTLE_RETRY_SECONDS)
        self._retrying_queue.cancel_retries_when(lambda: self.planner.needs_no_reply)
        self._threads = threads
        self._outage = Outage()
        self._operator_commands = OperatorCommands()
        self._server_epochs = ServerEpochs()
        self._reporter = OutcomeReporter()
        self._revoked = RevokedLeases()
        self._stops: dict[LeaseKey, Callable[[type[BaseException]], object]] = {}
        """How to interrupt what runs. Not of batches: their other tasks are still wanted."""
        self.wait_task: asyncio.Task[None] | None = None
        """Waits for news, and ends with them."""
        self._alerts_task: asyncio.Task[None] | None = None
        """Alerts that are just fetched. Nobody else gets them, so that goes on when the worker ends."""
        self._services = self._make_services()
        self.unknown = self._services.unknown

    def _make_services(self) -> Services:
        loop = asyncio.get_running_loop()

        def send_progress(*report: Any) -> None:
            asyncio.run_coroutine_threadsafe(self.queue.set_progress(*report), loop).result()

        return make_services(
            self.queue, self._options, self._revoked, import_handler(self._options.handler), send_progress
        )

    # --- talking to the server ---

    async def fetch(self) -> None:
        try:
            await self._fetch_until_done()
        finally:
            for coroutine in self.coroutines:  # to be given back: nobody asks for its outcome any more
                coroutine.kind = coroutine.kind or TaskRevoked

    async def _fetch_until_done(self) -> None:
        planner = self.planner
        fetch_task = asyncio.current_task()
        while not planner.is_done:
            if isinstance(fetch_task, ProtectedTask):
                fetch_task.was_canceled = False  # a timeout cancels the task in which it passes, and takes that back
            now = monotonic()
            self.wakeup.clear()
            call = planner.next_call(now)
            if call is not None:
                await self._make_call(call)
                continue
            if planner.must_reconcile:
                await self._reconcile()
                continue
            seconds = planner.plan_wait(now)
            if seconds is not None:
                self.wait_task = create_protected_task(self._wait_for_work(seconds))
            self._worker.start_more()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wakeup.wait(), max(0.0005, planner.seconds_until_due(now)))
        self._worker.changed()

    async def _make_call(self, call: FetchCall) -> None:
        options = self._options
        try:
            reply = await self._retrying_queue.settle(
                call.outcomes,
                call.fetch,
                worker=options.worker_id,
                users=options.users,
                steal=options.steal,
                lease=options.lease_seconds,
                woken=call.woken,
                window=call.window,
                batches=batch_sizes() if call.fetch else None,
            )
        except FairQueueError as error:
            self.planner.call_failed(call, is_known=isinstance(error, ServerRefusedError))
            await asyncio.sleep(self._outage.record_failure(error))
            return
        self._outage.record_success()
        self.planner.call_succeeded(call, reply, monotonic())
        if reply.has_messages:
            with suppress(FairQueueError):  # sweepers carry it later
                await self.queue.parent_queue.carry_messages()
            self.planner.retry_exhausted()
        self._reporter.report(call.outcomes, reply.statuses)
        self._worker.signal_thread.send_outcome_signals(self.queue.name, call.outcomes, reply.statuses)
        self._worker.start_more()
        self._worker.changed()

    async def _reconcile(self) -> None:
        planner = self.planner
        held, planner.is_out_of_sync = [*planner.tokens, *planner.separate], False
        try:
            await self._retrying_queue.reconcile_worker(self._options.worker_id, held, reason=NEVER_RECEIVED_REASON)
        except FairQueueError as error:
            planner.is_out_of_sync = True
            await asyncio.sleep(self._outage.record_failure(error))

    async def _wait_for_work(self, seconds: float) -> None:
        woken = False
        try:
            woken = await self.queue.wait_for_work(seconds)
        except FairQueueError as error:
            await asyncio.sleep(self._outage.record_failure(error))
        self.planner.wait_ended(woken=woken)
        self.wakeup.set()

    async def renew(self) -> None:
        while True:
            try:
                heartbeat = await self.queue.heartbeat(
                    self._options.worker_id,
                    self._worker.info(),
                    lease=self._options.lease_seconds,
                    ttl=WORKER_RECORD_TTL_SECONDS,
                )
            except FairQueueError as error:
                await asyncio.sleep(self._outage.record_failure(error))
                continue
            self._revoke(heartbeat.revoked)
            self.planner.is_out_of_sync |= self._server_epochs.has_changed_server(self.queue.display_name, heartbeat)
            if loss := self._server_epochs.find_loss(self.queue.display_name, heartbeat):
                self._worker.signal_thread.announce([loss])
                if loss.kind == "emptied":
                    self._revoke([each.key for each in self.running.values() if not isinstance(each, list)])
            if command := self._operator_commands.new_command(self.queue.display_name, heartbeat.command):
                self._worker.execute_command(command)
            await asyncio.sleep(self._options.renewal_interval)

    async def sweep(self) -> None:
        while True:
            began = monotonic()
            try:
                sweep = await self.queue.sweep()
                if sweep.alerts:
                    self._alerts_task = create_protected_task(self._take_alerts())
                    await asyncio.shield(self._alerts_task)
                if has_due_schedule(sweep):
                    fired = await self.queue.schedules.fire_due(SCHEDULES_PER_SWEEP)
                    next_due = await self.queue.schedules.next_due(sweep.now)
                    sweep = remaining_sweep(sweep, self.queue.name, fired, next_due)
                if sweep.messages:
                    await self.queue.parent_queue.carry_messages()
            except FairQueueError as error:
                await asyncio.sleep(self._outage.record_failure(error))
                continue
            await asyncio.sleep(seconds_until_next_sweep(sweep, self.queue.config.sweep_interval, monotonic() - began))

    async def _take_alerts(self) -> None:
        self._worker.signal_thread.announce(await self.queue.take_alerts(ALERTS_PER_FETCH))

    async def leave(self) -> None:
        if self._alerts_task is not None:
            await asyncio.gather(self._alerts_task, return_exceptions=True)
        self._reporter.flush()
        try:
            await self.queue.release_worker(self._options.worker_id, reason="worker stopped", forget=True)
        except FairQueueError as error:
            logger.warning("what was left could not be given back, it will be when its lease ends: %s", error)

    # --- running tasks ---

    def start(self) -> None:
        """Begin what lies in the buffer, as far as slots are free."""
        while self.planner.buffer and self._worker.has_free_slot:
            work = self.planner.buffer.popleft()
            contexts = self._worker.contexts.pop()
            task = contexts.new().run(create_protected_task, self._serve(work))
            self.running[task] = work
            task.add_done_callback(partial(self._ended, contexts))

    def _ended(self, contexts: CoroutineContexts, task: asyncio.Task[None]) -> None:
        del self.running[task]
        self._worker.contexts.append(contexts)
        self._worker.start_more()
        if self.planner.should_notify:
            self.wakeup.set()

    async def _serve(self, work: Work) -> None:
        leases = work if isinstance(work, list) else [work]
        try:
            outcomes = await self._outcomes(leases)
        except asyncio.CancelledError:  # the worker ends
            self.planner.outcomes.extend(map(Outcome.release, leases))
            raise
        except Exception:  # noqa: BLE001 - a fault of ours must not leave a lease without an outcome
            outcomes = outcomes_after_fault(leases)
        self.planner.outcomes.extend(map(self._revoked.settle, outcomes))

    async def _outcomes(self, leases: list[Lease]) -> list[Outcome]:
        runs, outcomes = prepare_runs(leases, self._services)
        return outcomes + (await self._run(runs) if runs else [])

    async def _run(self, runs: list[Run]) -> list[Outcome]:
        started, timeout = monotonic(), max(map(timeout_of, runs))
        try:
            if runs[0].definition.is_async:
                return await self._on_loop(runs, started, timeout)
            return await self._in_thread(runs, started, timeout)
        finally:
            self._stops.pop(runs[0].lease.key, None)

    def _let_stop(self, runs: list[Run], stop: Callable[[type[BaseException]], object]) -> None:
        if not runs[0].definition.options.batch:
            self._stops[runs[0].lease.key] = stop

    async def _on_loop(self, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        for disturbances in count():
            coroutine = Stoppable(
                partial(self._coroutine, runs),
                timeout,
                SoftTimeLimitExceeded,
                [run.lease for run in runs],
                self.planner.index,
            )
            outcomes = await self._attempt(coroutine, runs, started)
            if disturbances == MAX_COROUTINE_RESTARTS or not coroutine.is_to_be_repeated(outcomes):
                break
        return outcomes

    async def _attempt(self, coroutine: Stoppable, runs: list[Run], started: float) -> list[Outcome]:
        self.coroutines.add(coroutine)
        self._let_stop(runs, coroutine.stop)
        try:
            outcomes: list[Outcome] = await coroutine.run()
        except asyncio.CancelledError:
            # Without a kind the worker has not canceled it: the program ends, or the task itself has raised this.
            kind = TaskRevoked if self._worker.is_canceled else asyncio.CancelledError
            return failed_outcomes(runs, (coroutine.kind or kind)(), started)
        finally:
            self.coroutines.discard(coroutine)
        return outcomes

    async def _coroutine(self, runs: list[Run]) -> list[Outcome]:
        if runs[0].definition.options.batch:
            return await arun_batch(runs)
        return [await aexecute(runs[0])]

    async def _in_thread(self, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        loop, guard = asyncio.get_running_loop(), Guard()
        stop = partial(guard.interrupt, started=started)
        timer = loop.call_later(timeout, stop, SoftTimeLimitExceeded)
        self._let_stop(runs, stop)
        close = self._options.close_database_connections
        work = loop.run_in_executor(self._threads, _run_in_thread, runs, guard, started, timeout, close)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop(TaskRevoked)
            raise
        finally:
            timer.cancel()

    def _revoke(self, leases: Sequence[LeaseKey]) -> None:
        """Stop the tasks of these leases if they run here; those that have not begun won't."""
        self._revoked.add_leases(leases)
        for lease in leases:
            if stop := self._stops.get(lease):
                stop(TaskRevoked)


def _run_in_thread(
    runs: list[Run], guard: Guard, started: float, timeout: float, close_connections: bool
) -> list[Outcome]:
    generation = process_copies.generation()

    def body() -> list[Outcome]:
        outcomes = run_batch(runs) if runs[0].definition.options.batch else [run_one(runs[0])]
        process_copies.end_if_copied(generation)
        return outcomes

    isolation.clean_up_connections(close=close_connections)
    try:
        return run_guarded(
            guard,
            started,
            timeout,
            partial(run_in_new_context, body),
            lambda error: failed_outcomes(runs, error, started),
        )
    finally:
        isolation.clean_up_connections(close=close_connections)


FIND_TASK_SECONDS = 30.0
"""Seconds for looking at a task on the loop: it may have ended meanwhile, and then nothing answers any more."""
LOOP_CHECK_SECONDS = 0.5
LOOP_CANCEL_REPEAT_SECONDS = 0.5
TASK_CANCEL_REPEAT_SECONDS = 5.0
"""Seconds after which what was canceled and has not ended is canceled again; tasks may have something to tidy up."""


class MonitorThread(threading.Thread):
    """Reports when a task blocks the running event loop. As the worker itself runs on that loop, it can do no more until the loop
    goes on; then what has not begun is given back, as it may have been handed to another worker meanwhile."""

    def __init__(self, fetchers: Sequence[AsyncFetcher]) -> None:
        super().__init__(name="fairque-loop-monitor", daemon=True)
        self._fetchers = fetchers
        self._ended = threading.Event()
        self._host = threading.get_ident()
        self._monitor = LoopMonitor(asyncio.get_running_loop(), self)

    def run(self) -> None:
        while not self._ended.wait(LOOP_CHECK_SECONDS):
            if self._monitor.check(monotonic()):
                self._report(self._monitor.blocked)

    def end(self) -> None:
        self._ended.set()

    @property
    def thread_id(self) -> int:
        return self._host

    @property
    def is_used(self) -> bool:
        return any(fetcher.running for fetcher in self._fetchers)

    def coroutines(self) -> Sequence[Stoppable]:
        return [each for fetcher in self._fetchers for each in tuple(fetcher.coroutines)]

    def give_back_waiting(self) -> None:
        """Nothing: that would take the loop."""

    def resumed(self, seconds: float, culprit: object) -> None:
        extend_other_limits(self.coroutines(), seconds, culprit)
        for fetcher in self._fetchers:
            fetcher.planner.give_back_waiting()
            fetcher.wakeup.set()

    @staticmethod
    def _report(blocked: BlockedLoop | None) -> None:
        if blocked is None:
            logger.warning("the event loop of this worker goes on")
        else:
            logger.error(
                "the event loop of this worker has been blocked for %.1f s by %s; until then, nothing is fetched and no lease "
                "is renewed. Call blocking code with asyncio.to_thread, or define the task without async. The loop's stack:\n%s",
                *(blocked.seconds, blocked.task or "something that is no task", blocked.stack),
            )


class AsyncWorker:
    """Runs ``async def`` tasks on the running event loop, others in threads.

    ``queues`` are names or `AsyncFairQueue` objects; by default the configured ones. ``arguments`` are those of
    `Worker`, without ``max_memory_mb``. Raises `ConfigurationError` as that does.

    Its leases are renewed on the same loop, so a task that blocks the loop for longer than a lease loses that lease,
    and all others. The loop belongs to the program: a task that lets `SystemExit` through, or stops the loop, ends the
    program (`Worker` and ``fairque_worker`` prevent this).
    """

    def __init__(
        self, queues: Sequence[str | AsyncFairQueue] | None = None, **arguments: Unpack[WorkerArguments]
    ) -> None:
        given = None if queues is None else unique_queues(queues)
        names = None if given is None else [each if isinstance(each, str) else each.name for each in given]
        self.options = WorkerOptions.from_arguments(names, arguments)
        self._given = given
        if self.options.max_memory_mb:
            raise ConfigurationError("max_memory_mb is for Worker: a coroutine can't give its process up")
        self.signal_thread = SignalThread(self.options, self._find_task)
        self._budget = SlotBudget(self.options.concurrency, max_tasks=self.options.max_tasks, burst=self.options.burst)
        self.contexts = [
            CoroutineContexts(close_connections=self.options.close_database_connections)
            for _ in range(self.options.concurrency)
        ]
        """Those that no task uses now."""
        self._fetchers: list[AsyncFetcher] = []
        self._fetch_tasks: list[ProtectedTask] = []
        self._is_stopping = False
        self._is_draining = False
        self._had_unknown = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Work until `stop`, or until a limit or the end of a burst is reached. Call it once."""
        self._loop = asyncio.get_running_loop()
        warn_about_isolated_tasks()
        config = get_config()
        # A client of its own, which ends with it: the loop's other users keep theirs.
        client: Any = config.redis.model_copy(update={"decode_responses": False}).create_async_redis_client()
        queues = [
            AsyncFairQueue(client, each, config.queue_config(each)) if isinstance(each, str) else each
            for each in self._given or self.options.queues
        ]
        try:
            await self._work(queues)
        finally:
            await client.aclose()

    async def _work(self, queues: Sequence[AsyncFairQueue]) -> None:
        threads = ThreadPoolExecutor(self.options.concurrency, "fairque-slot")
        places = [place for queue in queues for place in shard_places_of(queue, self.options)]
        self._fetchers = [AsyncFetcher(self, index, place, threads) for index, place in enumerate(places)]
        self.signal_thread.send_worker_signal(signals.worker_started)
        helpers = [
            create_protected_task(each) for fetcher in self._fetchers for each in (fetcher.renew(), fetcher.sweep())
        ]
        self._fetch_tasks = fetch_tasks = [create_protected_task(fetcher.fetch()) for fetcher in self._fetchers]
        monitor = MonitorThread(self._fetchers)
        monitor.start()
        if self._is_stopping:
            self.stop()
        try:
            await self._ended(fetch_tasks)
        finally:
            loops = [*fetch_tasks, *helpers, *(fetcher.wait_task for fetcher in self._fetchers if fetcher.wait_task)]
            await cancel_all(loops, LOOP_CANCEL_REPEAT_SECONDS)
            await cancel_all(
                (task for fetcher in self._fetchers for task in fetcher.running), TASK_CANCEL_REPEAT_SECONDS
            )
            threads.shutdown(wait=False)
            monitor.end()
            for contexts in self.contexts:
                contexts.end()
            for fetcher in self._fetchers:
                await fetcher.leave()
            self.signal_thread.send_worker_signal(signals.worker_stopped)
            await asyncio.to_thread(self.signal_thread.end, 5.0)

    def _find_task(self, queue: str, task_id: str) -> Task | None:
        """Called from the signal thread, while the loop runs."""
        assert self._loop is not None  # noqa: S101 - news come from what runs on it
        place = next(fetcher.queue for fetcher in self._fetchers if fetcher.queue.name == queue)
        try:
            return asyncio.run_coroutine_threadsafe(place.parent_queue.get_task(task_id), self._loop).result(
                FIND_TASK_SECONDS
            )
        except TaskNotFoundError:
            return None

    def stop(self) -> None:
        """Begin to stop: fetch nothing more, give back tasks that have not begun, and wait for running ones. From any
        thread.
        """
        self._is_stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_fetchers)

    def execute_command(self, command: str) -> None:
        """Execute an operator's ``command``: drain, work or stop."""
        logger.info("worker %s got the command to %s", self.options.worker_id, command)
        if command == STOP_COMMAND:
            self.stop()
            return
        self._is_draining = command == DRAIN_COMMAND
        for fetcher in self._fetchers:
            fetcher.planner.set_draining(is_draining=self._is_draining)
            fetcher.wakeup.set()

    def _stop_fetchers(self) -> None:
        for fetcher in self._fetchers:
            fetcher.planner.is_stopping = True
            fetcher.wakeup.set()

    async def _ended(self, fetch_tasks: Sequence[asyncio.Future[None]]) -> None:
        """Until all is settled; after a stop at most the time given for that."""
        deadline = None
        while True:
            done, _ = await asyncio.wait(fetch_tasks, timeout=0.1, return_when=asyncio.ALL_COMPLETED)
            for fetch_task in done:
                fetch_task.result()
            if len(done) == len(fetch_tasks):
                return
            if self._is_stopping:
                deadline = deadline or monotonic() + self.options.shutdown_timeout
                if monotonic() > deadline:
                    logger.warning(
                        "some tasks did not end within %g s; they are given back", self.options.shutdown_timeout
                    )
                    return

    def changed(self) -> None:
        """React to a call that a fetcher has made."""
        if self._is_stopping:
            return
        if self._budget.has_reached_max_tasks or (self._budget.burst and self._budget.is_everything_empty):
            self.stop()
        else:
            for fetcher in self._fetchers:
                if len(self._fetchers) > 1 and (fetcher.planner.wants_tasks or self._budget.burst):
                    fetcher.wakeup.set()

    @property
    def budget(self) -> SlotBudget:
        """Divides its slots between its queues."""
        return self._budget

    @property
    def is_canceled(self) -> bool:
        """Whether its own coroutines are canceled, as by `asyncio.run` at the end of the program, and all tasks with them."""
        return any(fetch_task.was_canceled for fetch_task in self._fetch_tasks)

    @property
    def has_free_slot(self) -> bool:
        """Whether it could run one more task now."""
        return sum(len(fetcher.running) for fetcher in self._fetchers) < self.options.concurrency

    def start_more(self) -> None:
        """Start tasks that were fetched, as far as there are slots."""
        for fetcher in self._fetchers:
            fetcher.start()

    def info(self) -> dict[str, str]:
        """Return the description of it that its heartbeats send."""
        return worker_info(
            self.options,
            done=self._budget.finished,
            running=sum(len(fetcher.running) for fetcher in self._fetchers),
            status=worker_status(is_draining=self._is_draining, is_stopping=self._is_stopping),
            unknown_tasks=self._unknown_tasks(),
        )

    def _unknown_tasks(self) -> list[str] | None:
        """Names of tasks that came lately and that no function is registered for; None as long as there were none."""
        names = sorted({name for fetcher in self._fetchers for name in fetcher.unknown.names()})
        self._had_unknown = self._had_unknown or bool(names)
        return names if self._had_unknown else None
