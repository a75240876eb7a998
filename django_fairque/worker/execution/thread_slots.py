"""The threads that run tasks. Each takes from the buffers, runs, and lays the outcome down; it never talks to the server.

A task of 20 µs must not be handed from thread to thread: waking one costs as much, and hands over the interpreter
lock besides. So a slot takes as many as it can get, one after the other, and only as many slots are woken as the
tasks are worth (`Crew.wake`).
"""

from __future__ import annotations

import _thread
import threading
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks.errors import SoftTimeLimitExceeded
from django_fairque.tasks.execution import aexecute, arun_batch, failed, prepare, run_batch
from django_fairque.tasks.stopping import TaskRevoked
from django_fairque.worker.execution import db_connections as database
from django_fairque.worker.execution import process_copies as copies
from django_fairque.worker.execution.event_loop import (
    MAX_DISTURBANCES,
    EventLoop,
    EventLoopLostError,
    Interrupted,
    Job,
    after_fault,
)
from django_fairque.worker.execution.isolation import CoroutineContexts, TaskContexts
from django_fairque.worker.execution.task_services import all_failed, is_revoked, prepare_all, run_one, timeout_of
from django_fairque.worker.execution.time_limits import Guard, guarded
from django_fairque.worker.fetching.wakeup import Parking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.tasks.execution import Run
    from django_fairque.tasks.services import Services
    from django_fairque.worker.execution.loop_monitor import BlockedLoop
    from django_fairque.worker.execution.revoked_leases import Revoked
    from django_fairque.worker.execution.status_board import Board
    from django_fairque.worker.fetching.fetch_planner import Lane, Work
    from django_fairque.worker.fetching.wakeup import Bell

W = TypeVar("W")
R = TypeVar("R")

SHORT_RUN = 0.0002
"""Run time (s) below which a second slot is woken only when the first does not get on."""


class Desk:
    """One queue as the slots see it."""

    __slots__ = ("bell", "lane", "revoked", "second", "services")

    def __init__(self, lane: Lane, services: Services, revoked: Revoked, bell: Bell, second: Bell) -> None:
        self.lane = lane
        self.services = services
        self.revoked = revoked
        self.bell = bell
        """Wakes the thread that talks to the server."""
        self.second = second
        """Wakes the one that does so while the first waits for an answer."""


class Crew:
    """All slots of a worker."""

    def __init__(
        self,
        desks: Sequence[Desk],
        slots: int,
        board: Board,
        on_blocked: Callable[[BlockedLoop | None], object] = lambda _: None,
        *,
        close_connections: bool,
    ) -> None:
        self.desks = desks
        self.board = board
        self.close_connections = close_connections
        self.loop = EventLoop(on_blocked)
        self.parking = Parking()
        self.ended = False
        self.slots = [Slot(index, self) for index in range(slots)]

    def start(self) -> None:
        for slot in self.slots:
            slot.start()

    def end(self) -> None:
        """Let the slots go that are idle or become so."""
        self.ended = True
        self.parking.wake(len(self.slots))
        self.loop.end()

    def has_work(self) -> bool:
        return self.ended or any(desk.lane.buffer for desk in self.desks)

    def wake(self, lane: Lane) -> None:
        """There is something new in the lane's buffer."""
        self.parking.wake(1 if 0 < lane.pace.mean_run < SHORT_RUN else len(lane.buffer))

    def wake_another(self) -> None:
        """Called now and then: who was woken may be busy with a long task while short ones were expected."""
        if len(self.parking) and self.has_work():
            self.parking.wake(1)

    def revoke(self, lane: int, leases: Sequence[LeaseKey]) -> None:
        """Stop the tasks of these leases of the lane if they run here; those that have not begun won't."""
        desk, keys = self.desks[lane], frozenset(leases)
        desk.revoked.hear(keys)
        for slot in self.slots:
            slot.revoke(desk, keys)


class Slot(threading.Thread):
    """Runs one thing at a time."""

    def __init__(self, index: int, crew: Crew) -> None:
        super().__init__(name=f"fairque-slot-{index}", daemon=True)
        self.index = index
        self.guard = Guard()
        self._contexts = TaskContexts()
        self._coroutine_contexts = CoroutineContexts(close_connections=crew.close_connections)
        self._crew = crew
        self._board = crew.board
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._desk: Desk | None = None
        self._work: Work | None = None
        self._interrupt: Callable[[type[BaseException]], object] | None = None
        """Interrupts the coroutine that it waits for."""
        self._turn = index
        self._generation = copies.generation()
        self._fence = 0
        """The lane's fence number before the work was taken."""

    def run(self) -> None:
        try:
            while True:
                desk = self._take()
                if desk is None:
                    return
                self._serve(desk)
        finally:
            database.leave()
            self._coroutine_contexts.end()

    def _take(self) -> Desk | None:
        """Take work from the next desk that has some; None when there will be none any more."""
        desks = self._crew.desks
        while True:
            for _ in desks:
                self._turn += 1
                self._desk = desk = desks[self._turn % len(desks)]
                self._fence = desk.lane.fence
                try:
                    self._work = desk.lane.buffer.popleft()
                except IndexError:
                    continue
                return desk
            if self._crew.ended:
                return None
            self._crew.parking.park(self._lock, self._crew.has_work)

    def _serve(self, desk: Desk) -> None:
        work, lane = self._work, desk.lane
        assert work is not None  # noqa: S101 - just taken
        try:
            if isinstance(work, list):
                outcomes = [desk.revoked.settle(outcome) for outcome in self._batch(desk, work)]
                for outcome in outcomes:
                    self._board.log(self.index, lane.index, outcome)
                lane.outcomes.extend(outcomes)
            else:
                outcome = desk.revoked.settle(self._one(desk, work))
                self._board.log(self.index, lane.index, outcome)
                lane.outcomes.append(outcome)
        except BaseException:  # noqa: BLE001 - a fault of ours must not cost a slot, nor leave a lease without an outcome
            lane.outcomes.extend(after_fault(work if isinstance(work, list) else [work]))
        self._work = None
        bell = desk.bell if desk.bell.asleep else desk.second
        if bell.asleep and lane.wants_notice:
            bell.ring()

    # --- one task ---

    def _one(self, desk: Desk, lease: Lease) -> Outcome:
        run = prepare(lease, desk.services)
        if isinstance(run, Outcome):
            return run
        started, timeout = monotonic(), timeout_of(run)
        self._board.begin(self.index, desk.lane.index, lease, started, timeout)
        if self._board.fences[desk.lane.index] != self._fence:
            self._board.end(self.index)
            return Outcome.release(lease)
        try:
            if run.definition.is_async:
                (outcome,) = self._await(desk, [run], started, timeout)
            else:
                outcome = self._execute(run, started, timeout)
        finally:
            self._board.end(self.index)
        return outcome

    def _execute(self, run: Run, started: float, timeout: float) -> Outcome:
        close = self._crew.close_connections
        database.tidy(close=close)
        outcome = guarded(
            self.guard,
            started,
            timeout,
            partial(self._unless_copied, run_one, run),
            lambda error: failed(run, error, monotonic() - started),
        )
        database.tidy(close=close)
        return outcome

    def _unless_copied(self, run: Callable[[W], R], what: W) -> R:
        """Run it in a new context; if it has forked, the copy of this process ends here."""
        outcome = self._contexts.run(partial(run, what))
        copies.end_if_copied(self._generation)
        return outcome

    # --- a batch ---

    def _batch(self, desk: Desk, leases: list[Lease]) -> list[Outcome]:
        runs, outcomes = prepare_all(leases, desk.services)
        if not runs:
            return outcomes
        started, timeout = monotonic(), max(map(timeout_of, runs))
        self._board.begin_batch(self.index, desk.lane.index, [run.lease for run in runs], started, timeout)
        if self._board.fences[desk.lane.index] != self._fence:
            self._board.end(self.index)
            return [*outcomes, *(Outcome.release(run.lease) for run in runs)]
        try:
            if runs[0].definition.is_async:
                outcomes += self._await(desk, runs, started, timeout)
            else:
                outcomes += self._execute_batch(runs, started, timeout)
        finally:
            self._board.end(self.index)
        return outcomes

    def _execute_batch(self, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        close = self._crew.close_connections
        database.tidy(close=close)
        outcomes = guarded(
            self.guard,
            started,
            timeout,
            partial(self._unless_copied, run_batch, runs),
            lambda error: all_failed(runs, error, started),
        )
        database.tidy(close=close)
        return outcomes

    # --- coroutines ---

    def _await(self, desk: Desk, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        """Wait for the coroutine's end. Start it again if another task canceled what it waited for, or the event loop broke:
        that must not cost it a retry."""
        loop, is_lost, disturbances = self._crew.loop, False, 0
        while True:
            job = self._job(desk, runs, timeout)
            try:
                # The loop runs the coroutine in a copy of the context in which it is submitted.
                submit = partial(loop.submit_alone if is_lost else loop.submit, job)
                self._interrupt = self._coroutine_contexts.new().run(submit)
                if self._is_revoked(runs):
                    self._interrupt(TaskRevoked)
                outcomes: list[Outcome] = job.wait()
            except Interrupted as stopped:
                outcomes = all_failed(runs, stopped.kind(), started)
            except EventLoopLostError:
                if is_lost:  # it ran alone, so it is the one that breaks loops
                    return all_failed(runs, RuntimeError("the task broke the event loop that it ran on"), started)
                is_lost = job.has_begun
                started = self._begin_again(desk, runs, timeout)
                continue
            finally:
                self._interrupt = None
            if disturbances == MAX_DISTURBANCES or not job.is_to_be_repeated(outcomes):
                return outcomes
            disturbances += 1
            started = self._begin_again(desk, runs, timeout)

    def _job(self, desk: Desk, runs: list[Run], timeout: float) -> Job:
        async def begin() -> Any:
            return await arun_batch(runs) if runs[0].definition.options.batch else [await aexecute(runs[0])]

        leases = [run.lease for run in runs]
        return Job(
            begin, timeout, SoftTimeLimitExceeded, leases, desk.lane.index, partial(self._board.extend, self.index)
        )

    def _is_revoked(self, runs: list[Run]) -> bool:
        return not runs[0].definition.options.batch and is_revoked(runs[0])

    def _begin_again(self, desk: Desk, runs: list[Run], timeout: float) -> float:
        """Let the time limits begin anew; returns when (`time.monotonic()`)."""
        started = monotonic()
        self._board.end(self.index)
        self._board.begin_batch(self.index, desk.lane.index, [run.lease for run in runs], started, timeout)
        return started

    def revoke(self, desk: Desk, leases: AbstractSet[LeaseKey]) -> None:
        """Interrupt what runs if it is one of these. A batch goes on: its other tasks are still wanted."""
        # In this order: what is interrupted is the work that is looked at, or has ended; never the next one.
        started, interrupt = self.guard.started, self._interrupt
        work = self._work
        if work is None or isinstance(work, list) or self._desk is not desk or work.key not in leases:
            return
        if interrupt is not None:
            interrupt(TaskRevoked)
        else:
            self.guard.interrupt(TaskRevoked, started=started)
