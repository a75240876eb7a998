"""Threads that call the server for one shard: fetch threads report outcomes and fetch leases, in one call for each batch; another
thread waits on the server until there is work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.leasing.lease_ops import Fetch, PrefetchingWait
from django_fairque.engine.model.errors import FairQueueError, ServerRefusedError
from django_fairque.engine.model.outcome import Outcome, Settled
from django_fairque.tasks.registry import batch_sizes
from django_fairque.worker.common.log import OutcomeReporter, logger, printable
from django_fairque.worker.common.wakeup import Wakeup
from django_fairque.worker.fetching.pace import SECOND_CALL_OUTCOMES

if TYPE_CHECKING:
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.limits import TimeLimitThread
    from django_fairque.worker.common.options import WorkerOptions
    from django_fairque.worker.common.status_board import StatusBoard
    from django_fairque.worker.fetching.fetch_planner import FetchCall, FetchPlanner
    from django_fairque.worker.fetching.queue_context import QueueContext
    from django_fairque.worker.leases.outage import Outage, Outages
    from django_fairque.worker.reporting.signal_thread import SignalThread

SETTLE_RETRY_SECONDS = 60.0
"""Seconds for which one failed settle call is repeated without changes. The server keeps the reply to a call for two
minutes, so a repeated call gets the same leases if the first reply was lost."""

NEVER_RECEIVED_REASON = "the worker never received it"
"""Reason in the history of a task whose lease was in a reply that the worker never received."""

SLOT_START_SECONDS = 0.0002
"""Seconds that the slots of an idle worker have to begin work before more threads are woken. Each woken thread would
take the interpreter lock, and a processor, from the slots."""


@dataclass(frozen=True)
class FetchServices:
    """Objects and callbacks that the fetch threads of a worker share.

    ``on_change`` is called after each call to the server and at the end, because slots may be free for other queues, or
    all work may be done. ``on_leases`` is called when a planner's buffer has new leases. ``wake_slot`` is called
    regularly while a buffer has leases.
    """

    options: WorkerOptions
    status_board: StatusBoard
    on_leases: Callable[[FetchPlanner], None]
    wake_slot: Callable[[], None]
    time_limits: TimeLimitThread
    outages: Outages
    reporter: OutcomeReporter
    signal_thread: SignalThread
    on_change: Callable[[], None]


class FetchThread(threading.Thread):
    """Makes the calls that its planner plans, until the planner is stopping and all its outcomes are reported.

    With many short tasks two calls are in progress at once; a separate thread makes the second (`SecondFetchThread`).
    """

    def __init__(self, context: QueueContext, services: FetchServices) -> None:
        queue = context.queue
        super().__init__(name=f"fairque-fetch-{queue.display_name}", daemon=True)
        self.planner = planner = context.planner
        self.wakeup = context.wakeup
        self._parent_queue = queue
        self.queue = queue.with_retry_timeout(SETTLE_RETRY_SECONDS)
        self.queue.cancel_retries_when(lambda: planner.needs_no_reply)
        self._services = services
        self._options = services.options
        self._status_board = services.status_board
        self._outage = services.outages.for_shard(queue.display_name)
        self.has_other_key = False
        """Whether the thread fetches nothing for a while, because producers sign tasks with a key that this worker does
        not have."""
        self._wakeup_thread = WakeupThread(self, queue, self._outage)
        self._wakeup_threads: dict[Lane, WakeupThread] = {"bulk": self._wakeup_thread}
        """The threads that wait for work, by the lowest lane whose tasks end their wait. Lanes other than bulk have a
        thread only if slots are reserved."""
        self._second_wakeup = context.second_wakeup
        self._second_thread = SecondFetchThread(self, self._second_wakeup)
        self._lock = threading.Lock()  # held by each thread that uses the planner

    def run(self) -> None:
        planner = self.planner
        self._wakeup_thread.start()
        while not self._is_over():
            now = monotonic()
            with self._lock:
                call = planner.next_call(now)
                self._status_board.set_settled(planner.index, planner.settled)
                seconds = planner.plan_wait(now) if call is None else None
                seconds_until_due = planner.seconds_until_due(now)
            if call is not None:
                if len(call.outcomes) >= SECOND_CALL_OUTCOMES and self._second_thread.ident is None:
                    self._second_thread.start()
                if planner.is_call_due:
                    self._second_wakeup.notify()
                self.make_call(call)
                continue
            if planner.must_reconcile:
                self._reconcile()
                continue
            if not self._outage.is_ongoing:
                self._status_board.record_poll(planner.index)
            if seconds is not None:
                self._begin_wait(seconds, planner.wait_lane)
            self._fetch_ahead()
            if planner.buffer:
                self._services.wake_slot()
            self.wakeup.wait(seconds_until_due, lambda: planner.is_call_due)
        self._second_thread.end()
        self._services.on_change()

    def _begin_wait(self, seconds: float, lane: Lane) -> None:
        thread = self._wakeup_threads.get(lane)
        if thread is None:
            self._wakeup_threads[lane] = thread = WakeupThread(self, self._parent_queue, self._outage, lane)
            thread.start()
        thread.begin_wait(seconds)

    def _is_over(self) -> bool:
        """Return whether all leases are settled and the thread accepts no further leases, not even as the result of a
        wait.
        """
        with self._lock:
            if self.planner.is_done:
                for thread in self._wakeup_threads.values():
                    thread.end()
            return self.planner.is_done

    def join_wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the wait for work ends, if this thread no longer needs its result. Return
        whether the wait is still in progress.
        """
        waiting = [thread for thread in self._wakeup_threads.values() if thread.has_ended and thread.is_alive()]
        for thread in waiting:
            thread.join(seconds)
        return any(thread.is_alive() for thread in waiting)

    def next_second_call(self) -> FetchCall | None:
        """Return a second call to make while another call is in progress, or None if too few outcomes wait."""
        with self._lock:
            return self.planner.next_call(monotonic()) if self.planner.pending_calls else None

    def make_call(self, call: FetchCall) -> None:
        """Make the call, and pass the result to the planner."""
        options = self._options
        try:
            reply = self.queue.settle(
                call.outcomes,
                call.fetch,
                worker=options.worker_id,
                users=options.users,
                steal=options.steal,
                lease=options.lease_seconds,
                woken=call.woken,
                window=call.window,
                batches=batch_sizes() if call.fetch else None,
                lane_limits=call.lane_limits,
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the only thread that reports outcomes
            with self._lock:  # the outcomes must still be reported, and the server may have handed out leases
                self.planner.call_failed(call, is_known=isinstance(error, ServerRefusedError))
            self._record_failure(error)
            return
        with self._lock:
            leases = self.planner.call_succeeded(call, reply, monotonic())
            self._status_board.set_settled(self.planner.index, self.planner.settled)
        self._follow_reply(call, reply, leases)

    def take_over(self, key: LeaseKey) -> bool:
        """Begin the task of a lease that another process has fetched. Return False if this is no longer possible."""
        options = self._options
        try:
            lease = self.queue.take_over(key, options.worker_id, lease=options.lease_seconds)
        except FairQueueError as error:
            logger.warning("task %s could not be taken over: %s", printable(key.task_id), error)
            return False
        if lease is None:
            return False
        with self._lock:
            self.planner.add_lease(lease, monotonic())
        self._services.on_leases(self.planner)
        self._services.time_limits.begin()
        self.wakeup.notify()
        return True

    def separate_ended(self, tokens: Sequence[int]) -> None:
        """Record that tasks which run in separate processes have ended there, or were given back."""
        with self._lock:
            self.planner.separate_ended(tokens)
        self.wakeup.notify()
        self._services.on_change()

    def wait_ended(self, reply: Settled | None, lane: Lane = "bulk", *, woken: bool) -> bool:
        """Record the result of a wait for ``lane``. Return False if the result comes too late or no tasks were
        requested: then the caller must pass the result on to other workers.
        """
        planner = self.planner
        with self._lock:
            call = planner.fetch_ahead
            if self._wakeup_thread.has_ended:
                return False
            if reply is None or call is None:
                planner.wait_ended(woken=woken, lane=lane)
            else:
                call.woken = woken
                leases = planner.call_succeeded(call, reply, monotonic())
        if reply is not None and call is not None:
            self._follow_reply(call, reply, leases)
        self.wakeup.notify()
        return reply is None or call is not None

    def wait_failed(self, error: Exception, lane: Lane = "bulk") -> None:
        """Record that a wait for ``lane``, and the fetch that was sent directly after it, have failed."""
        with self._lock:
            call = self.planner.fetch_ahead
            if call is not None and not self._wakeup_thread.has_ended:
                self.planner.call_failed(call, is_known=isinstance(error, ServerRefusedError))
        if self._wakeup_thread.has_ended:
            return
        self._record_failure(error)
        if call is None:
            with self._lock:
                # must be the last step, because the planner may begin another wait at once
                self.planner.wait_ended(woken=False, lane=lane)
        self.wakeup.notify()

    def _record_failure(self, error: Exception) -> None:
        is_ours = not isinstance(error, FairQueueError)
        if is_ours:
            logger.error("calling queue %s failed; retrying", self.queue.name, exc_info=error)
        time.sleep(1.0 if is_ours else self._outage.record_failure(error))

    def _follow_reply(self, call: FetchCall, reply: Settled, leases: Sequence[Lease]) -> None:
        self._outage.record_success()
        self._status_board.record_poll(self.planner.index)
        if leases:
            self._services.on_leases(self.planner)
            if call.is_fetch_ahead:
                time.sleep(SLOT_START_SECONDS)
            self._services.time_limits.begin()
        if reply.has_messages:  # tasks on another shard may be waiting for a task that ended on this shard
            with suppress(FairQueueError):  # if this fails, a later sweep passes the message on
                self.queue.parent_queue.carry_messages()
            self.planner.retry_exhausted()
        if call.outcomes:
            self._status_board.add_done(len(call.outcomes))
            self._services.reporter.report(call.outcomes, reply.statuses)
            self._services.signal_thread.send_outcome_signals(self.queue.name, call.outcomes, reply.statuses)
        self._services.on_change()

    def _fetch_ahead(self) -> None:
        options = self._options
        with self._lock:
            call = self.planner.plan_fetch_ahead(monotonic())
        if call is None:
            return
        fetch = Fetch(
            *(call.fetch, options.worker_id, options.users, options.steal, options.lease_seconds), batches=batch_sizes()
        )
        if not self._wakeup_thread.send_fetch(fetch):
            with self._lock:
                self.planner.fetch_ahead = None

    def _reconcile(self) -> None:
        """Give back the leases that the server has recorded for this worker and that the worker does not hold.

        Such leases exist after a reply was lost, or after a failover to another server.
        """
        planner = self.planner
        with self._lock:
            held, planner.is_out_of_sync = [*planner.tokens, *planner.separate], False
        try:
            count = self.queue.reconcile_worker(self._options.worker_id, held, reason=NEVER_RECEIVED_REASON)
        except FairQueueError as error:
            planner.is_out_of_sync = True
            time.sleep(self._outage.record_failure(error))
        else:
            self._outage.record_success()
            if count:
                logger.info(
                    "queue %s: %d tasks that this worker never received are ready again", self.queue.display_name, count
                )


class SecondFetchThread(threading.Thread):
    """Makes calls while the first fetch thread waits for the reply to another call. Most workers never start this
    thread.
    """

    def __init__(self, fetch_thread: FetchThread, wakeup: Wakeup) -> None:
        super().__init__(name=f"fairque-second-fetch-{fetch_thread.queue.display_name}", daemon=True)
        self._fetch_thread = fetch_thread
        self._wakeup = wakeup
        self._ended = False

    def end(self) -> None:
        self._ended = True
        self._wakeup.notify()

    def run(self) -> None:
        planner = self._fetch_thread.planner
        while not self._ended:
            call = self._fetch_thread.next_second_call()
            if call is None:
                # If this thread has no call to make now, the first thread makes the next call, and notifies this thread
                # when a second call may be possible.
                self._wakeup.wait(3600, lambda: bool(planner.pending_calls) and planner.is_call_due)
                continue
            self._fetch_thread.make_call(call)
            # the first fetch thread handles the remaining outcomes, and may be waiting for this answer
            self._fetch_thread.wakeup.notify()


class WakeupThread(threading.Thread):
    """Waits on the server for work of ``lane`` or a higher lane, while the fetch thread continues to report
    outcomes.
    """

    def __init__(self, fetch_thread: FetchThread, queue: FairQueue, outage: Outage, lane: Lane = "bulk") -> None:
        super().__init__(name=f"fairque-wakeup-{queue.display_name}", daemon=True)
        self._fetch_thread = fetch_thread
        self._lane = lane
        self._queue = queue
        self._waiting_queue = queue.with_retry_timeout(queue.config.request_timeout)
        self._waiting_queue.cancel_retries_when(lambda: self.has_ended)
        self._outage = outage
        self._wakeup = Wakeup()
        self._wait: PrefetchingWait | None = None
        self._is_started = True
        self.has_ended = False
        """Whether the worker runs no more tasks. Set while the fetch thread's lock is held, so that no lease is
        accepted afterwards."""

    def begin_wait(self, seconds: float) -> None:
        """Begin a wait for work. The planner is notified when the wait ends."""
        self._wait, self._is_started = PrefetchingWait(self._waiting_queue, seconds, self._lane), False
        self._wakeup.notify()

    def send_fetch(self, fetch: Fetch) -> bool:
        """Send a fetch on the connection of the wait in progress, to be executed after the wait. Return False if the
        wait has ended or the fetch can't be sent.
        """
        return self._wait is not None and self._wait.send_fetch(fetch)

    def end(self) -> None:
        """End the thread. Its wait on the server may last a while longer; the result of the wait is passed on to other
        workers.
        """
        self.has_ended = True
        self._wakeup.notify()

    def run(self) -> None:
        while True:
            if self._wait is not None and not self._is_started:
                # Finish the wait even if all other work has ended: the wait has begun on the server, and its result
                # must be passed on to another worker.
                self._is_started = True
                self._finish_wait(self._wait)
            elif self.has_ended:
                return
            else:
                self._wakeup.wait(3600)

    def _finish_wait(self, wait: PrefetchingWait) -> None:
        fetch_thread = self._fetch_thread
        try:
            woken, reply = wait.end()
            was_taken = fetch_thread.wait_ended(reply, self._lane, woken=woken)
        except Exception as error:  # noqa: BLE001 - a worker without this thread would hear of nothing
            fetch_thread.wait_failed(error, self._lane)
        else:
            if not was_taken:
                self._pass_on(reply, woken=woken)

    def _pass_on(self, reply: Settled | None, *, woken: bool) -> None:
        """Release the leases that the wait has received, and notify other workers that work is ready."""
        leases = [] if reply is None else reply.leases
        if not (woken or leases):
            return
        try:
            self._queue.settle([Outcome.release(lease) for lease in leases], woken=True)
        except FairQueueError as error:  # if this fails, other workers find the tasks at their next poll
            self._outage.record_failure(error)
        except Exception:  # noqa: BLE001 - what has ended this worker may be closing its client just now
            logger.debug("queue %s: what a wait brought was not passed on", self._queue.display_name, exc_info=True)
