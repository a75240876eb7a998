"""One queue (or a shard of one) of an `AsyncWorker`: asking for tasks, running them, reporting what became of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import FairQueueError, ServerRefusedError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks.errors import SoftTimeLimitExceeded, TaskRevoked
from django_fairque.tasks.execution import aexecute, arun_batch, run_batch
from django_fairque.worker.execution import db_connections as database
from django_fairque.worker.execution import process_copies as copies
from django_fairque.worker.execution.event_loop import (
    MAX_COROUTINE_RESTARTS,
    Stoppable,
    outcomes_after_fault,
    protected,
)
from django_fairque.worker.execution.isolation import run_in_new_context
from django_fairque.worker.execution.revoked_leases import RevokedLeases
from django_fairque.worker.execution.task_services import (
    all_failed,
    batch_limits,
    batch_sizes,
    import_handler,
    make_services,
    prepare_all,
    run_one,
    timeout_of,
)
from django_fairque.worker.execution.time_limits import Guard, guarded
from django_fairque.worker.fetching.fetch_planner import FetchPlanner
from django_fairque.worker.fetching.fetch_thread import NEVER_RECEIVED_REASON, SETTLE_RETRY_SECONDS
from django_fairque.worker.leases.lease_renewal import (
    ALERTS_PER_FETCH,
    SCHEDULES_PER_SWEEP,
    WORKER_RECORD_TTL_SECONDS,
    after_firing,
    has_due_schedule,
    pause_after,
)
from django_fairque.worker.leases.operator_commands import OperatorCommands
from django_fairque.worker.leases.outage import Outage
from django_fairque.worker.leases.server_epochs import ServerEpochs
from django_fairque.worker.reporting.log import OutcomeReporter, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.tasks.execution import Run, Services
    from django_fairque.worker.async_worker import AsyncWorker
    from django_fairque.worker.execution.isolation import CoroutineContexts
    from django_fairque.worker.fetching.fetch_planner import FetchCall, Work
    from django_fairque.worker.fetching.shard_places import ShardPlace


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
        self._retrying_queue = queue.repeating_for(SETTLE_RETRY_SECONDS)
        self._retrying_queue.give_up_when(lambda: self.planner.needs_no_reply)
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
        while not planner.is_done:
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
                self.wait_task = protected(self._wait_for_work(seconds))
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
                await self.queue.whole.carry_messages()
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
            self.planner.is_out_of_sync |= self._server_epochs.has_changed_server(self.queue.label, heartbeat)
            if loss := self._server_epochs.find_loss(self.queue.label, heartbeat):
                self._worker.signal_thread.announce([loss])
                if loss.kind == "emptied":
                    self._revoke([each.key for each in self.running.values() if not isinstance(each, list)])
            if command := self._operator_commands.new_command(self.queue.label, heartbeat.wish):
                self._worker.execute_command(command)
            await asyncio.sleep(self._options.renew_every)

    async def sweep(self) -> None:
        while True:
            began = monotonic()
            try:
                sweep = await self.queue.sweep()
                if sweep.alerts:
                    self._alerts_task = protected(self._take_alerts())
                    await asyncio.shield(self._alerts_task)
                if has_due_schedule(sweep):
                    fired = await self.queue.schedules.fire_due(SCHEDULES_PER_SWEEP)
                    next_due = await self.queue.schedules.next_due(sweep.now)
                    sweep = after_firing(sweep, self.queue.name, fired, next_due)
                if sweep.messages:
                    await self.queue.whole.carry_messages()
            except FairQueueError as error:
                await asyncio.sleep(self._outage.record_failure(error))
                continue
            await asyncio.sleep(pause_after(sweep, self.queue.config.sweep_interval, monotonic() - began))

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
            task = contexts.new().run(protected, self._serve(work))
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
        runs, outcomes = prepare_all(leases, self._services)
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
            return all_failed(runs, (coroutine.kind or kind)(), started)
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
    generation = copies.generation()

    def body() -> list[Outcome]:
        outcomes = run_batch(runs) if runs[0].definition.options.batch else [run_one(runs[0])]
        copies.end_if_copied(generation)
        return outcomes

    database.clean_up_connections(close=close_connections)
    try:
        return guarded(
            guard,
            started,
            timeout,
            partial(run_in_new_context, body),
            lambda error: all_failed(runs, error, started),
        )
    finally:
        database.clean_up_connections(close=close_connections)
