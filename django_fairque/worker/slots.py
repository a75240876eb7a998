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
from typing import TYPE_CHECKING, Any

from django_fairque.engine.outcomes import Outcome
from django_fairque.tasks.errors import SoftTimeLimitExceeded
from django_fairque.tasks.execution import aexecute, arun_batch, failed, prepare, run_batch
from django_fairque.tasks.stopping import TaskRevoked

from . import database
from .bell import Parking
from .coroutines import EventLoop, Interrupted, Job
from .limits import Guard, guarded
from .log import logger
from .setting import all_failed, is_revoked, prepare_all, run_one, timeout_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from django_fairque.engine.lease import Lease, LeaseKey
    from django_fairque.tasks.execution import Run
    from django_fairque.tasks.services import Services

    from .bell import Bell
    from .board import Board
    from .lane import Lane, Work
    from .revoked import Revoked

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

    def __init__(self, desks: Sequence[Desk], slots: int, board: Board) -> None:
        self.desks = desks
        self.board = board
        self.loop = EventLoop()
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
        self._crew = crew
        self._board = crew.board
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._desk: Desk | None = None
        self._work: Work | None = None
        self._job: Job | None = None
        self._turn = index

    def run(self) -> None:
        database.join()
        try:
            while True:
                desk = self._take()
                if desk is None:
                    return
                self._serve(desk)
        finally:
            database.leave()

    def _take(self) -> Desk | None:
        """Take work from the next desk that has some; None when there will be none any more."""
        desks = self._crew.desks
        while True:
            for _ in desks:
                self._turn += 1
                self._desk = desk = desks[self._turn % len(desks)]
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
                lane.outcomes.extend(map(desk.revoked.settle, self._batch(desk, work)))
            else:
                lane.outcomes.append(desk.revoked.settle(self._one(desk, work)))
        except Exception:  # noqa: BLE001 - a fault of ours must not cost a slot, nor leave a lease without an outcome
            logger.exception("the worker itself failed while it ran a task; the task is given back as crashed")
            leases = work if isinstance(work, list) else [work]
            lane.outcomes.extend(Outcome.crash(lease, "the worker failed while it ran this task") for lease in leases)
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
        if run.definition.is_async:
            (outcome,) = self._await([run], started, timeout)
        else:
            outcome = self._execute(run, started, timeout)
        self._board.end(self.index)
        return outcome

    def _execute(self, run: Run, started: float, timeout: float) -> Outcome:
        database.tidy()
        outcome = guarded(
            self.guard,
            started,
            timeout,
            partial(run_one, run),
            lambda error: failed(run, error, monotonic() - started),
        )
        database.tidy()
        return outcome

    # --- a batch ---

    def _batch(self, desk: Desk, leases: list[Lease]) -> list[Outcome]:
        runs, outcomes = prepare_all(leases, desk.services)
        if not runs:
            return outcomes
        started, timeout = monotonic(), max(map(timeout_of, runs))
        self._board.begin_batch(self.index, desk.lane.index, [run.lease for run in runs], started, timeout)
        if runs[0].definition.is_async:
            outcomes += self._await(runs, started, timeout)
        else:
            outcomes += self._execute_batch(runs, started, timeout)
        self._board.end(self.index)
        return outcomes

    def _execute_batch(self, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        database.tidy()
        outcomes = guarded(
            self.guard, started, timeout, partial(run_batch, runs), lambda error: all_failed(runs, error, started)
        )
        database.tidy()
        return outcomes

    # --- coroutines ---

    def _await(self, runs: list[Run], started: float, timeout: float) -> list[Outcome]:
        is_batch = bool(runs[0].definition.options.batch)

        async def begin() -> Any:
            return await arun_batch(runs) if is_batch else [await aexecute(runs[0])]

        self._job = job = self._crew.loop.submit(begin, timeout, on_timeout=SoftTimeLimitExceeded)
        if not is_batch and is_revoked(runs[0]):
            self._crew.loop.interrupt(job, TaskRevoked)
        try:
            outcomes: list[Outcome] = job.wait()
        except Interrupted as stopped:
            return all_failed(runs, stopped.kind(), started)
        finally:
            self._job = None
        return outcomes

    def revoke(self, desk: Desk, leases: AbstractSet[LeaseKey]) -> None:
        """Interrupt what runs if it is one of these. A batch goes on: its other tasks are still wanted."""
        # In this order: what is interrupted is the work that is looked at, or has ended; never the next one.
        started, job = self.guard.started, self._job
        work = self._work
        if work is None or isinstance(work, list) or self._desk is not desk or work.key not in leases:
            return
        if job is not None:
            self._crew.loop.interrupt(job, TaskRevoked)
        else:
            self.guard.interrupt(TaskRevoked, started=started)
