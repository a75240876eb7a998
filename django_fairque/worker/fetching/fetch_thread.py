"""The threads of one queue that talk to the server: they report outcomes and fetch leases, in one call per batch."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.leasing.lease_ops import Fetch
from django_fairque.engine.model.errors import FairQueueError, ServerRefusedError
from django_fairque.worker.execution.task_services import batch_sizes
from django_fairque.worker.fetching.fetch_planner import MANY
from django_fairque.worker.fetching.wakeup_thread import Watcher
from django_fairque.worker.reporting.log import logger, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.engine.model.outcome import Settled
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.execution.status_board import Board
    from django_fairque.worker.execution.thread_slots import Crew
    from django_fairque.worker.execution.time_limits import Clock
    from django_fairque.worker.fetching.fetch_planner import Call, Lane
    from django_fairque.worker.fetching.wakeup import Bell
    from django_fairque.worker.leases.outage import Outage
    from django_fairque.worker.options import WorkerOptions
    from django_fairque.worker.reporting.log import Reporter
    from django_fairque.worker.reporting.signal_thread import Herald

PATIENCE = 60.0
"""Seconds for which one settle call is repeated as it is. The server keeps the reply of a call for two minutes: as
long, a repetition gets the very leases whose first reply was lost."""

NEVER_RECEIVED = "the worker never received it"
"""Written to the history of a task whose lease was in a lost reply."""

LET_BEGIN = 0.0002
"""Seconds in which slots of a worker that had nothing to do begin, before it wakes more threads: those take the interpreter, and
a processor, away from them."""


class Puller(threading.Thread):
    """Makes the calls that its lane plans, until the lane is stopping and everything of it is settled.

    With many short tasks two calls are on their way at once, the other by a thread of its own (`Second`).

    Args:
        second: wakes that thread.
        on_change: called after each call, and at the end: other queues may have room now, or all work may be done.
    """

    def __init__(
        self,
        queue: FairQueue,
        lane: Lane,
        bell: Bell,
        second: Bell,
        crew: Crew,
        options: WorkerOptions,
        *,
        board: Board,
        clock: Clock,
        outage: Outage,
        reporter: Reporter,
        herald: Herald,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(name=f"fairque-puller-{queue.label}", daemon=True)
        self.queue = queue.repeating_for(PATIENCE)
        self.queue.give_up_when(lambda: lane.is_unheard)
        self.lane = lane
        self.bell = bell
        self._crew = crew
        self._options = options
        self._board = board
        self._clock = clock
        self._outage = outage
        self._reporter = reporter
        self._herald = herald
        self._on_change = on_change
        self._watcher = Watcher(self, queue, outage)
        self._second = Second(self, second)
        self._turn = threading.Lock()  # of the threads that ask the lane, or tell it something

    def run(self) -> None:
        lane = self.lane
        self._watcher.start()
        while not self._is_over():
            now = monotonic()
            with self._turn:
                call = lane.plan(now)
                seconds = lane.watch(now) if call is None else None
                patience = lane.patience(now)
            if call is not None:
                if len(call.outcomes) >= MANY:
                    self._second.begin()
                self.make(call)
                continue
            if lane.is_lost:
                self._recover()
                continue
            if not self._outage.is_on:
                self._board.polled(lane.index)
            if seconds is not None:
                self._watcher.watch(seconds)
            self._ask_ahead(now)
            if lane.buffer:
                self._crew.wake_another()
            self.bell.wait(patience, lambda: lane.is_calling)
        self._second.end()
        self._on_change()

    def _is_over(self) -> bool:
        """Whether everything is settled; from then on nothing is taken in, also of what a wait brings."""
        with self._turn:
            if self.lane.is_done:
                self._watcher.end()
            return self.lane.is_done

    def plan_another(self) -> Call | None:
        """A call to make beside the one that is on its way, if there is enough for one."""
        with self._turn:
            return self.lane.plan(monotonic()) if self.lane.is_flying else None

    def make(self, call: Call) -> None:
        """Make the call; the lane is told what came of it."""
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
            )
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the only thread that reports outcomes
            self.failed(call, error)
            return
        self.take(call, reply)

    def take_over(self, key: LeaseKey) -> bool:
        """Begin the task of a lease that another process has fetched; False if that can't be done any more."""
        options = self._options
        try:
            lease = self.queue.take_over(key, options.worker_id, lease=options.lease_seconds)
        except FairQueueError as error:
            logger.warning("task %s could not be taken over: %s", shown(key.task_id), error)
            return False
        if lease is None:
            return False
        with self._turn:
            self.lane.adopt(lease, monotonic())
        self._crew.wake(self.lane)
        self._clock.begin()
        self.bell.ring()
        return True

    def separate_ended(self, token: int) -> None:
        """A task that runs in a process of its own has ended there."""
        with self._turn:
            self.lane.separate_ended(token)
        self.bell.ring()
        self._on_change()

    def failed(self, call: Call, error: Exception) -> None:
        """What was said is unsaid, what was asked for may have been handed out."""
        with self._turn:
            self.lane.failed(call, is_known=isinstance(error, ServerRefusedError))
        self._met(error)

    def take(self, call: Call, reply: Settled) -> None:
        """Do as the reply to a call says."""
        lane = self.lane
        with self._turn:
            leases = lane.settled(call, reply, monotonic())
        self._taken(call, reply, leases)

    def hear(self, reply: Settled | None, *, woken: bool) -> bool:
        """What a wait has brought, from its thread. False if it came too late, or nobody has asked for it: whoever waited passes
        it on."""
        lane = self.lane
        with self._turn:
            call = lane.ahead
            if self._watcher.has_ended:
                return False
            if reply is None or call is None:
                lane.news(woken=woken)
            else:
                call.woken = woken
                leases = lane.settled(call, reply, monotonic())
        if reply is not None and call is not None:
            self._taken(call, reply, leases)
        self.bell.ring()
        return reply is None or call is not None

    def not_heard(self, error: Exception) -> None:
        """A wait has failed, and what was asked for behind it."""
        with self._turn:
            call = self.lane.ahead
            if call is not None and not self._watcher.has_ended:
                self.lane.failed(call, is_known=isinstance(error, ServerRefusedError))
        if self._watcher.has_ended:
            return
        self._met(error)
        if call is None:
            with self._turn:
                self.lane.news(woken=False)  # only now: it would begin another wait at once
        self.bell.ring()

    def _met(self, error: Exception) -> None:
        is_ours = not isinstance(error, FairQueueError)
        if is_ours:
            logger.error("the worker failed while it talked to queue %s; it goes on", self.queue.name, exc_info=error)
        time.sleep(1.0 if is_ours else self._outage.met(error))

    def _taken(self, call: Call, reply: Settled, leases: Sequence[Lease]) -> None:
        self._outage.over()
        self._board.polled(self.lane.index)
        if leases:
            self._crew.wake(self.lane)
            if call.is_ahead:
                time.sleep(LET_BEGIN)
            self._clock.begin()
        if reply.has_messages:
            self._carry()
        if call.outcomes:
            self._board.count(len(call.outcomes))
            self._reporter.report(call.outcomes, reply.statuses)
            self._herald.report(self.queue.name, call.outcomes, reply.statuses)
        self._on_change()

    def _ask_ahead(self, now: float) -> None:
        options = self._options
        with self._turn:
            call = self.lane.ask_ahead(now)
        if call is None:
            return
        fetch = Fetch(
            *(call.fetch, options.worker_id, options.users, options.steal, options.lease_seconds), batches=batch_sizes()
        )
        if not self._watcher.ask(fetch):
            with self._turn:
                self.lane.not_asked()

    def _carry(self) -> None:
        """What ended here may be waited for on another shard. If that can't be reached now, sweepers carry it later."""
        with suppress(FairQueueError):
            self.queue.whole.carry_messages()
        self.lane.expect_more()

    def _recover(self) -> None:
        """Give back the leases that the server has recorded for this worker and that it does not hold.

        A reply was lost for good, or another server answers now.
        """
        lane = self.lane
        with self._turn:
            held, lane.is_suspect = [*lane.tokens, *lane.separate], False
        try:
            count = self.queue.reconcile_worker(self._options.worker_id, held, reason=NEVER_RECEIVED)
        except FairQueueError as error:
            lane.is_suspect = True
            time.sleep(self._outage.met(error))
        else:
            self._outage.over()
            if count:
                logger.info(
                    "queue %s: %d tasks that this worker never received are ready again", self.queue.label, count
                )


class Second(threading.Thread):
    """Makes calls while its puller waits for the answer to one. Most workers never begin it."""

    def __init__(self, puller: Puller, bell: Bell) -> None:
        super().__init__(name=f"fairque-second-{puller.queue.label}", daemon=True)
        self._puller = puller
        self._bell = bell
        self._ended = False

    def begin(self) -> None:
        if self.ident is None:
            self.start()

    def end(self) -> None:
        self._ended = True
        self._bell.ring()

    def run(self) -> None:
        while not self._ended:
            call = self._puller.plan_another()
            if call is None:
                self._bell.wait(3600, lambda: self._puller.lane.is_calling)
                continue
            self._puller.make(call)
            self._puller.bell.ring()  # it looks after all else, and may be waiting for this answer
