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
from django_fairque.tasks.execution import aexecute, arun_batch, execute, failed, prepare, run_batch

from . import database
from .bell import Parking
from .coroutines import EventLoop, Interrupted, Job
from .limits import Guard, TaskRevoked, guarded
from .log import logger
from .setting import all_failed, timeout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.lease import Lease
    from django_fairque.tasks.execution import Run
    from django_fairque.tasks.services import Services

    from .bell import Bell
    from .board import Board
    from .lane import Lane, Work

MOST_REVOKED = 10_000

SHORT_RUN = 0.0002
"""Run time (s) below which a second slot is woken only when the first does not get on."""


class Desk:
    """One queue as the slots see it."""

    __slots__ = ("bell", "lane", "second", "services")

    def __init__(self, lane: Lane, services: Services, bell: Bell, second: Bell) -> None:
        self.lane = lane
        self.services = services
        self.bell = bell
        """Wakes the thread that talks to the server."""
        self.second = second
        """Wakes the one that does so while the first waits for an answer."""


class Crew:
    """All slots of a worker."""

    def __init__(self, desks: Sequence[Desk], slots: int, board: Board, revoked: set[str]) -> None:
        self.desks = desks
        self.board = board
        self.revoked = revoked
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

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Stop these tasks if they run here; those that have not begun won't."""
        if len(self.revoked) > MOST_REVOKED:  # of tasks that had just ended: nobody asks for them any more
            self.revoked.clear()
        self.revoked.update(task_ids)
        for slot in self.slots:
            slot.revoke(task_ids)


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
                desk = desks[self._turn % len(desks)]
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
                lane.outcomes.extend(self._batch(desk, work))
            else:
                lane.outcomes.append(self._one(desk, work))
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
        revoked = self._crew.revoked
        if revoked and lease.task_id in revoked:
            revoked.discard(lease.task_id)
            return Outcome.release(lease)
        started, timeout = monotonic(), timeout_of(run)
        self._board.begin(self.index, desk.lane.index, lease, started, timeout)
        if run.definition.is_async:
            (outcome,) = self._await([run], started, timeout)
        else:
            outcome = self._execute(run, started, timeout)
        self._board.end(self.index)
        if revoked and lease.task_id in revoked:
            revoked.discard(lease.task_id)
            return Outcome.release(lease)  # the lease is not ours any more: the server will say so
        return outcome

    def _execute(self, run: Run, started: float, timeout: float) -> Outcome:
        database.tidy()
        outcome = guarded(
            self.guard,
            started,
            timeout,
            partial(execute, run),
            lambda error: failed(run, error, monotonic() - started),
        )
        database.tidy()
        return outcome

    # --- a batch ---

    def _batch(self, desk: Desk, leases: list[Lease]) -> list[Outcome]:
        prepared = [prepare(lease, desk.services) for lease in leases]
        outcomes = [each for each in prepared if isinstance(each, Outcome)]
        runs = [each for each in prepared if not isinstance(each, Outcome)]
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

        self._job = self._crew.loop.submit(begin, timeout, on_timeout=SoftTimeLimitExceeded)
        try:
            outcomes: list[Outcome] = self._job.wait()
        except Interrupted as stopped:
            return all_failed(runs, stopped.kind(), started)
        finally:
            self._job = None
        return outcomes

    def revoke(self, task_ids: Sequence[str]) -> None:
        """Interrupt what runs if it is one of these. A batch goes on: its other tasks are still wanted."""
        work, started, job = self._work, self.guard.started, self._job
        if work is None or isinstance(work, list) or work.task_id not in task_ids:
            return
        if job is not None:
            self._crew.loop.interrupt(job, TaskRevoked)
        elif self._work is work:
            self.guard.interrupt(TaskRevoked, started=started)
