"""What every process that runs tasks consists of: slots, an event loop, a clock, and a puller per queue.

A queue of several shards has a puller for each.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque import signals
from django_fairque.engine.model.lease import LeaseKey
from django_fairque.worker.execution.memory import limit_data, resident_mb
from django_fairque.worker.execution.revoked_leases import Revoked
from django_fairque.worker.execution.task_services import batch_of, imported, services
from django_fairque.worker.execution.thread_slots import Crew, Desk
from django_fairque.worker.execution.time_limits import Clock
from django_fairque.worker.fetching.fetch_planner import Lane
from django_fairque.worker.fetching.fetch_thread import Puller
from django_fairque.worker.fetching.shard_places import places_of
from django_fairque.worker.fetching.slot_budget import Budget
from django_fairque.worker.fetching.wakeup import Bell
from django_fairque.worker.leases.outage import Outages
from django_fairque.worker.reporting.log import Reporter, logger
from django_fairque.worker.reporting.outbox_thread import Courier
from django_fairque.worker.reporting.signal_thread import Herald
from django_fairque.worker.reporting.task_endings import finder
from django_fairque.worker.supervisor.separate_tasks import separate_task

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.execution.loop_monitor import BlockedLoop
    from django_fairque.worker.execution.status_board import Board
    from django_fairque.worker.fetching.shard_places import Place, Turn
    from django_fairque.worker.supervisor.separate_tasks import SeparateTask

    from .options import WorkerOptions

LOOK_AT_MEMORY = 1.0
"""Seconds between looks at the memory limit."""


class Core:
    """Works from `start` until it is stopped, or a limit or the end of a burst is reached; does not renew leases.

    Args:
        on_retire: called when it stops because of a limit, with the reason.
        on_unfit: called when it stops because the next one could not run a task either.
        patience: seconds after which it will be ended if no server has ever answered.
        on_blocked: called when a task blocks the event loop, and with None when the loop goes on.
        on_separate: called with each task that must run in a process of its own, whose lease is then the supervisor's to keep.
            None if there is no supervisor: they run here, as all others.
        on_unknown: called when other names than before are those of tasks that no function is registered for.
    """

    def __init__(
        self,
        options: WorkerOptions,
        queues: Sequence[FairQueue],
        board: Board,
        on_retire: Callable[[str], object] = lambda _: None,
        on_unfit: Callable[[], object] = lambda: None,
        patience: float = math.inf,
        on_blocked: Callable[[BlockedLoop | None], object] = lambda _: None,
        on_separate: Callable[[SeparateTask], object] | None = None,
        on_unknown: Callable[[list[str]], object] = lambda _: None,
    ) -> None:
        self.options = options
        self.board = board
        self.is_stopping = False
        self.is_quiet = False
        self.budget = Budget(options.concurrency, max_tasks=options.max_tasks, burst=options.burst)
        self._on_retire = on_retire
        self._on_unfit = on_unfit
        self._on_blocked = on_blocked
        self._on_unknown = on_unknown
        self.unknown_tasks: list[str] | None = None
        """Names of tasks that came lately, and that no function is registered for; None as long as there were none."""
        self._blocked_at: float | None = None
        """Since when the event loop has been blocked (`time.monotonic()`)."""
        self.blocked_by: str | None = None
        """The task that blocks it, empty when none does any more; None as long as none has."""
        self._on_separate = None if options.one_task else on_separate
        self._has_its_task = False
        """The one task that it is for was begun (`run_one`)."""
        self._reporter = Reporter()
        self._memory_due = 0.0
        handler = imported(options.handler)
        places = [place for queue in queues for place in places_of(queue, options)]
        self.outages = Outages([place.queue for place in places], patience)
        desks = [self._desk(index, place, handler) for index, place in enumerate(places)]
        self.herald = Herald(options, finder(queues))
        self._courier = Courier()
        self._crew = Crew(
            desks, options.concurrency, board, self._loop_changed, close_connections=options.close_database_connections
        )
        self._clock = Clock([slot.guard for slot in self._crew.slots], self._tick)
        self._pullers = [
            Puller(
                place.queue,
                desk.lane,
                desk.bell,
                desk.second,
                self._crew,
                options,
                board=board,
                clock=self._clock,
                outage=self.outages.of(place.queue.label),
                reporter=self._reporter,
                herald=self.herald,
                on_change=self._changed,
            )
            for place, desk in zip(places, desks, strict=True)
        ]

    def _desk(self, index: int, place: Place[FairQueue], handler: Callable[[Any], Any] | None) -> Desk:
        revoked = Revoked()
        around = services(place.queue, self.options, revoked, handler, place.queue.set_progress)
        return Desk(self._lane(index, place.turn), around, revoked, Bell(), Bell())

    def _lane(self, index: int, turn: Turn) -> Lane:
        return Lane(
            index,
            self.budget,
            poll=self.options.poll_interval,
            batch_of=batch_of,
            selective=self.options.is_selective,
            place=turn,
            fetches=not self.options.one_task,
            divert=self._divert if self._on_separate is not None else None,
            fence=self.board.fence(index),
        )

    def _divert(self, lane: Lane, lease: Lease) -> bool:
        """Pass on what must run in a process of its own."""
        task = separate_task(lease, lane.index)
        if task is None or self._on_separate is None:
            return False
        lane.separate[task.token] = not task.why
        self._on_separate(task)
        return True

    def start(self) -> None:
        self._crew.start()
        self._look_at_memory()  # before there can be a task
        self._clock.start()
        self.herald.worker(signals.worker_started)
        if not self.options.one_task:
            self._courier.start(at_once=self.options.burst)
        for puller in self._pullers:
            puller.start()

    def stop(self) -> None:
        """Fetch nothing more, give back what has not begun, let run what runs. From any thread."""
        self.is_stopping = True
        for puller in self._pullers:
            puller.lane.stopping = True
            puller.bell.ring()

    def be_quiet(self, *, is_quiet: bool) -> None:
        """Fetch nothing and give back what has not begun, or fetch again. From any thread."""
        self.is_quiet = is_quiet
        self._follow_quiet()

    def _follow_quiet(self) -> None:
        for puller in self._pullers:
            puller.lane.be_quiet(is_quiet=self.is_quiet or self._blocked_at is not None)
            puller.bell.ring()

    def revoke(self, lane: int, leases: Sequence[LeaseKey]) -> None:
        """Stop the tasks of these leases if they run here: they were canceled."""
        self._crew.revoke(lane, leases)

    def suspect(self, lane: int) -> None:
        """Another server answers there: give back what it has recorded for this worker and this worker does not hold."""
        puller = self._pullers[lane]
        puller.lane.is_suspect = True
        puller.bell.ring()

    def run_one(self, task: SeparateTask) -> None:
        """Take over the lease that another process has fetched, run its task, then stop; also if it is no longer current."""
        if task.max_memory:
            limit_data(task.max_memory)
        if self._pullers[task.lane].take_over(LeaseKey(task.task_id, task.token)):
            self._has_its_task = True
            self._changed()  # it may have ended already
        else:
            self.stop()

    def separate_ended(self, lane: int, token: int) -> None:
        """A task that was passed on has ended, or was given back."""
        self._pullers[lane].separate_ended(token)

    def join(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until everything is settled, or ``give_up`` says so; then end the threads that are idle."""
        while any(puller.is_alive() for puller in self._pullers) and not give_up():
            for puller in self._pullers:
                puller.join(0.1)
        self._clock.end()
        self.board.end_ticking()
        self._courier.end(5.0)
        self._crew.end()
        self._reporter.flush()

    def say_goodbye(self) -> None:
        """Tell what is still to be told, and that it has stopped: when nobody brings news any more."""
        self.herald.worker(signals.worker_stopped)
        self.herald.end(5.0)

    def _changed(self) -> None:
        """A puller has made a call."""
        if self.is_stopping:
            return
        if self.budget.is_spent:
            self._retire(f"it has run {self.budget.finished} tasks")
        elif (self.budget.burst and self.budget.is_drained) or (self._has_its_task and self.budget.is_idle):
            self.stop()
        elif len(self._pullers) > 1:
            for puller in self._pullers:
                if puller.lane.is_hungry or self.budget.burst:
                    puller.bell.ring()

    def _tick(self) -> None:
        """Called by the clock, 2 to 20 times a second."""
        self.board.tick()
        self._crew.wake_another()
        self._crew.loop.check()
        unknown = sorted({name for desk in self._crew.desks for name in desk.services.unknown.names()})
        if unknown != (self.unknown_tasks or []):
            self.unknown_tasks = unknown
            self._on_unknown(unknown)
        self._look_at_memory()

    def _loop_changed(self, blocked: BlockedLoop | None) -> None:
        """A task blocks the event loop, or none does any more. While one does, fetch nothing and keep nothing that has not
        begun: other workers can run it."""
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
        self._follow_quiet()
        self._on_blocked(blocked)

    def _look_at_memory(self) -> None:
        limit, now = self.options.max_memory_mb, monotonic()
        if limit and not self.is_stopping and now >= self._memory_due:
            self._memory_due = now + LOOK_AT_MEMORY
            used = resident_mb()
            if used > limit and self.budget.has_begun:
                self._retire(f"it uses {used:.0f} MB, more than {limit}")
            elif used > limit:
                self._refuse(used)

    def _refuse(self, used: float) -> None:
        logger.error(
            "worker %s runs no task: it uses %.0f MB before the first one, more than --max-memory (MAX_MEMORY_MB) allows, %d; "
            "set that well above",
            *(self.options.worker_id, used, self.options.max_memory_mb),
        )
        self._on_unfit()
        self.stop()

    def _retire(self, reason: str) -> None:
        logger.info("worker %s makes room for a new one: %s", self.options.worker_id, reason)
        self._on_retire(reason)
        self.stop()
