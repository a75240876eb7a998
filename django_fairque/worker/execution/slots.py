"""The slots of a worker. A slot takes leases from the buffers, runs their tasks, and records the outcomes. Synchronous
tasks run in the slot's thread, coroutines on the event loop.

Waking a thread takes as long as a short task (20 µs), and hands over the interpreter lock besides. So a slot runs as
many tasks as it can get, one after the other, and a second slot is woken only if tasks are long enough
(`SlotPool.wake`). For the same reason the event loop takes the next coroutine of a slot itself.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.ids import this_process
from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks import registry
from django_fairque.tasks.errors import TaskRevoked
from django_fairque.tasks.execution import (
    Run,
    Services,
    aexecute,
    arun_batch,
    execute,
    failed_outcome,
    prepare,
    run_batch,
)
from django_fairque.worker.common import isolation, process_copies
from django_fairque.worker.common.isolation import CoroutineContexts, TaskContexts
from django_fairque.worker.common.limits import Guard, run_guarded
from django_fairque.worker.common.wakeup import IdleSlots
from django_fairque.worker.execution import event_loop
from django_fairque.worker.execution.code_lines import find_thread_line

if TYPE_CHECKING:
    from collections import deque
    from types import FrameType

    from django_fairque.engine.model.lease import Lease, LeaseKey
    from django_fairque.worker.common.buffer import Work
    from django_fairque.worker.common.status_board import StatusBoard
    from django_fairque.worker.fetching.fetch_planner import FetchPlanner
    from django_fairque.worker.fetching.queue_context import QueueContext

SHORT_RUN_SECONDS = 0.0002
"""Mean run time of a task in seconds. While tasks are shorter, new work wakes only one slot; another one is woken later
if that is not enough."""
MAX_LOOP_BYTES = 65_536
"""Maximum bytes of payloads that the event loop decodes at once, which takes up to 5 ms. (8 MB took 570 ms.)"""


def get_timeout(run: Run) -> float:
    """Return the time limit of a run in seconds; 30 years if it has none."""
    return 1e9 if run.timeout is None else run.timeout


def is_revoked(run: Run) -> bool:
    """Return whether the run must not start, because its lease was revoked."""
    revoked = run.services.revoked
    return bool(revoked) and run.lease.key in revoked


def run_one(run: Run) -> Outcome:
    """Run a task in this thread, or release it if its lease was revoked."""
    return Outcome.release(run.lease) if is_revoked(run) else execute(run)


def prepare_runs(leases: Sequence[Lease], services: Services) -> tuple[list[Run], list[Outcome]]:
    """Return the runs that will begin, and the outcomes of the tasks that can't run."""
    runs: list[Run] = []
    outcomes: list[Outcome] = []
    for lease in leases:
        run = prepare(lease, services)
        if isinstance(run, Outcome):
            outcomes.append(run)
        elif is_revoked(run):
            outcomes.append(Outcome.release(lease))
        else:
            runs.append(run)
    return runs, outcomes


def failed_outcomes(runs: Sequence[Run], error: BaseException, started: float) -> list[Outcome]:
    """Return the outcomes of runs that were stopped from outside with ``error``. The elapsed time is divided equally
    between the runs of a batch.
    """
    took = (monotonic() - started) / len(runs)
    return [failed_outcome(run, error, took) for run in runs]


class SlotPool:
    """All slots of a worker."""

    def __init__(
        self,
        queue_contexts: Sequence[QueueContext],
        slots: int,
        status_board: StatusBoard,
        *,
        close_connections: bool,
        urgent: deque[int],
    ) -> None:
        self.queue_contexts = queue_contexts
        self.urgent = urgent
        """The numbers of planners that have urgent work (`SlotBudget.urgent`)."""
        self.status_board = status_board
        self.close_connections = close_connections
        self.loop: event_loop.EventLoop | event_loop.RunningLoop = event_loop.EventLoop(
            close_connections=close_connections
        )
        self.idle_slots = IdleSlots()
        self.ended = False
        self.slots = [Slot(index, self) for index in range(slots)]

    def start(self) -> None:
        for slot in self.slots:
            slot.start()

    def end(self) -> None:
        """End the threads of the slots as soon as they are idle."""
        self.ended = True
        self.idle_slots.wake(len(self.slots))
        self.loop.end()

    def has_work(self) -> bool:
        return self.ended or any(queue_context.planner.buffer for queue_context in self.queue_contexts)

    def add_idle(self, slot: Slot) -> bool:
        """Let the slot wait for work, and wake the planners that want to fetch. Return False if there is work
        already.
        """
        if not self.idle_slots.add(slot, self.has_work):
            return False
        if len(self.queue_contexts) > 1:  # the slot may now be free for a planner other than the one of its last task
            for context in self.queue_contexts:
                if context.planner.wants_tasks:
                    context.wakeup.notify()
        return True

    def wake(self, planner: FetchPlanner) -> None:
        """Wake slots for the new leases in the planner's buffer."""
        waiting = planner.list_waiting()
        # synchronous tasks need a thread, and must not wait for the event loop, which may be blocked
        if not all(map(is_for_loop, waiting)):
            self.idle_slots.wake(1 if 0 < planner.pace.mean_run < SHORT_RUN_SECONDS else len(waiting))
        elif slots := self.idle_slots.take(len(waiting)):
            self.loop.serve(slots)

    def wake_another(self) -> None:
        """Wake one more slot if work is waiting. Called regularly, because a slot that was woken may run a long
        task.
        """
        if len(self.idle_slots) and self.has_work():
            self.idle_slots.wake(1)

    def revoke(self, shard_index: int, leases: Sequence[LeaseKey]) -> None:
        """Interrupt the tasks of these leases if they run in this worker, and prevent the start of those that have not
        begun.
        """
        queue_context, keys = self.queue_contexts[shard_index], frozenset(leases)
        queue_context.revoked.add_leases(keys)
        for slot in self.slots:
            slot.revoke(queue_context, keys)

    def give_back(self) -> None:
        """Interrupt all running tasks and batches, and give them back."""
        for slot in self.slots:
            slot.give_back()


def is_for_loop(work: Work) -> bool:
    """Return whether the event loop may begin this work without the slot's thread: the task is a coroutine, and
    decoding its arguments can't block the loop. A large payload, or types whose loading calls the project's code, could
    block it.
    """
    leases = work if isinstance(work, list) else [work]
    definition = registry.find(leases[0].name)
    if definition is None or not definition.is_async or sum(lease.payload_size for lease in leases) > MAX_LOOP_BYTES:
        return False
    return definition.types is None or not definition.types.loads_by_project


@dataclass
class Coroutine:
    """The work of a slot that runs on the event loop: a task, or a batch.

    Attributes:
        outcomes: the outcomes of those tasks of a batch that can't run.
        runs: the tasks that run.
        started: the time at which the runs began (`time.monotonic()`).
        timeout: the time limit of the runs in seconds.
        job: the job that runs the current attempt.
        runs_alone: whether the coroutine runs on a separate event loop, because the shared loop broke while it ran.
        restarts: the number of restarts after another task canceled an asyncio task that the coroutine awaited.
    """

    outcomes: list[Outcome]
    runs: list[Run]
    started: float
    timeout: float
    job: event_loop.Job | None = None
    runs_alone: bool = False
    restarts: int = 0


class Slot(threading.Thread):
    """A thread that runs one task or batch at a time: a function in the thread itself, or a coroutine on the event loop.

    While a coroutine runs, the thread sleeps. When the coroutine has ended, the event loop takes the slot's next work,
    and wakes the thread only for work that could block other coroutines. The thread and the loop never use the slot at
    the same time, so the attributes need no lock.
    """

    def __init__(self, index: int, slot_pool: SlotPool) -> None:
        super().__init__(name=f"fairque-slot-{index}", daemon=True)
        self.index = index
        self.guard = Guard()
        self._contexts = TaskContexts()
        self._connection_checks = isolation.ConnectionChecks(close=slot_pool.close_connections)
        self._coroutine_contexts = CoroutineContexts(close_connections=slot_pool.close_connections)
        self._slot_pool = slot_pool
        self._status_board = slot_pool.status_board
        self._outcome_log = slot_pool.status_board.outcome_logs[index]
        self._lock = _thread.allocate_lock()
        self._lock.acquire()
        self._queue_context: QueueContext | None = None
        self._work: Work | None = None
        self._runs: list[Run] = []
        """The runs that have begun and have not ended."""
        self._coroutine: Coroutine | None = None
        self._interrupt: Callable[[type[BaseException]], object] | None = None
        """Function that interrupts the slot's coroutine; None while the slot has no coroutine."""
        self._last_queue = index
        self._process = this_process.get()
        self._fence = 0
        """The planner's fence number, read before the slot took its work."""

    @property
    def work(self) -> Work | None:
        """Return the work that the slot has taken and not ended; None while the slot is idle. Any thread may read
        it.
        """
        return self._work

    @property
    def started(self) -> float | None:
        """Return the time (`time.monotonic()`) at which the slot's work began; None if no work has begun. Any thread
        may read it.
        """
        return self._status_board.read_start(self.index)

    def find_line(self, stacks: Mapping[int, FrameType]) -> str:
        """Return the line of the project's code that the slot's work runs; empty if no work has begun. ``stacks`` are
        the innermost frames of the threads. Any thread may call this.
        """
        coroutine = self._coroutine
        if coroutine is None or coroutine.job is None:
            return find_thread_line(stacks.get(self.ident or 0))
        return coroutine.job.find_line(stacks)

    def run(self) -> None:
        slot_pool = self._slot_pool
        self._status_board.set_thread(self.index, threading.get_native_id())
        try:
            while True:
                if self._coroutine is not None:  # the coroutine has ended, and this thread reports it for the loop
                    must_wait = self._end_coroutine(self._coroutine)
                elif self._work is not None or self._take():
                    must_wait = self._start()
                elif slot_pool.ended:
                    return
                else:
                    must_wait = slot_pool.add_idle(self)
                if must_wait:
                    self._lock.acquire()
        finally:
            isolation.close_connections()
            self._coroutine_contexts.end()

    def wake(self) -> None:
        """Let the slot's thread continue. Only two callers may do this: the event loop while it uses the slot, or code
        that has removed the slot from the idle slots.
        """
        self._lock.release()

    def go_on(self) -> None:
        """Take work and begin it. Runs on the event loop. Work that the event loop must not begin is left to the slot's
        thread.
        """
        slot_pool = self._slot_pool
        while True:
            if self._take():
                if not is_for_loop(self._taken_work()):
                    self.wake()
                    return
                if self._start():
                    return
            elif slot_pool.ended:
                self.wake()
                return
            elif slot_pool.add_idle(self):
                return

    def _take(self) -> bool:
        """Take work from the next queue that has work. Return whether any work was found."""
        queue_contexts = self._slot_pool.queue_contexts
        if self._slot_pool.urgent:
            with suppress(IndexError):  # another slot has taken the work
                self._last_queue = self._slot_pool.urgent.popleft() - 1
        for _ in queue_contexts:
            self._last_queue += 1
            self._queue_context = queue_context = queue_contexts[self._last_queue % len(queue_contexts)]
            self._fence = queue_context.planner.fence
            try:
                self._work = queue_context.planner.buffer.popleft()
            except IndexError:
                continue
            return True
        return False

    def _taken_work(self) -> Work:
        assert self._work is not None  # noqa: S101 - just taken
        return self._work

    def _start(self) -> bool:
        """Run the work that the slot has taken. Return True if it runs on the event loop: then only the loop may use
        the slot.
        """
        work = self._taken_work()
        try:
            outcomes = self._run_batch(work) if isinstance(work, list) else self._run_one(work)
        except BaseException:  # noqa: BLE001 - a fault of ours must not cost a slot, nor leave a lease without an outcome
            outcomes = event_loop.outcomes_after_fault(work if isinstance(work, list) else [work])
        if outcomes is None:
            return True
        self._finish(outcomes)
        return False

    def _finish(self, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of the work."""
        work, queue_context = self._taken_work(), self._get_queue_context()
        planner = queue_context.planner
        try:
            runs, self._runs, self._coroutine, self._interrupt = self._runs, [], None, None
            if runs:
                self._status_board.end(self.index)
            if queue_context.revoked:
                outcomes = [queue_context.revoked.settle(outcome) for outcome in outcomes]
            for outcome in outcomes:
                self._outcome_log.add(planner.index, outcome)
            if runs and runs[0].log_capture is not None:
                # The time limits do not apply any more, because the task has ended. Its lease has not ended, so the
                # server accepts the log lines.
                runs[0].log_capture.close()
            planner.outcomes.extend(outcomes)
            self._status_board.record_outcomes(self.index, planner.index, len(outcomes))
        except BaseException:  # noqa: BLE001 - as above
            outcomes = event_loop.outcomes_after_fault(work if isinstance(work, list) else [work])
            planner.outcomes.extend(outcomes)
            self._status_board.record_outcomes(self.index, planner.index, len(outcomes))
        self._work = None
        wakeup = queue_context.wakeup if queue_context.wakeup.is_waiting else queue_context.second_wakeup
        if wakeup.is_waiting and planner.should_notify:
            wakeup.notify()

    def _get_queue_context(self) -> QueueContext:
        assert self._queue_context is not None  # noqa: S101 - work was taken
        return self._queue_context

    def _run_one(self, lease: Lease) -> list[Outcome] | None:
        queue_context = self._get_queue_context()
        run = prepare(lease, queue_context.services)
        if isinstance(run, Outcome):
            self._connection_checks.record_use()
            return [run]
        started, timeout = monotonic(), get_timeout(run)
        self._status_board.begin(self.index, queue_context.planner.index, lease, started, timeout)
        return self._run([], [run], started, timeout, lambda: [run_one(run)])

    def _run_batch(self, leases: list[Lease]) -> list[Outcome] | None:
        runs, outcomes = prepare_runs(leases, self._get_queue_context().services)
        if outcomes:
            self._connection_checks.record_use()
        if not runs:
            return outcomes
        started, timeout = monotonic(), max(map(get_timeout, runs))
        self._begin(runs, started, timeout)
        return self._run(outcomes, runs, started, timeout, partial(run_batch, runs))

    def _begin(self, runs: list[Run], started: float, timeout: float) -> None:
        leases = [run.lease for run in runs]
        self._status_board.begin_batch(self.index, self._get_queue_context().planner.index, leases, started, timeout)

    def _run(
        self,
        others: list[Outcome],
        runs: list[Run],
        started: float,
        timeout: float,
        body: Callable[[], list[Outcome]],
    ) -> list[Outcome] | None:
        """Run tasks whose start is recorded on the status board. Release their leases if the supervisor has raised the
        fence in the meantime.

        Returns the outcomes of these tasks and ``others``; None if the tasks run on the event loop.
        """
        self._runs = runs
        types = runs[0].definition.types
        # loading values calls the project's code, which may leave a transaction open
        if types is not None and types.loads_by_project:
            self._connection_checks.record_use()
        if self._status_board.fences[self._get_queue_context().planner.index] != self._fence:
            return others + [Outcome.release(run.lease) for run in runs]
        if runs[0].definition.is_async:
            self._submit(Coroutine(others, runs, started, timeout))
            return None
        self._connection_checks.check_before(started)
        outcomes = run_guarded(
            self.guard,
            started,
            timeout,
            partial(self._unless_copied, body),
            lambda error: failed_outcomes(runs, error, started),
        )
        self._connection_checks.check_after()
        return others + outcomes

    def _unless_copied(self, body: Callable[[], list[Outcome]]) -> list[Outcome]:
        """Run ``body`` in a new context. If ``body`` has forked, the copied process ends here."""
        outcomes = self._contexts.run(body)
        process_copies.end_if_copied(self._process)
        return outcomes

    # --- coroutines ---

    def _submit(self, coroutine: Coroutine) -> None:
        """Start the coroutine on the event loop. From now on only the loop may use the slot."""
        loop, run = self._slot_pool.loop, coroutine.runs[0]
        coroutine.job = job = self._job(coroutine)
        self._coroutine, self._interrupt = coroutine, job.interrupt
        # The loop runs the coroutine in a copy of the context that is current here.
        self._coroutine_contexts.new().run(loop.submit_alone if coroutine.runs_alone else loop.submit, job)
        if not run.definition.options.batch and is_revoked(run):
            job.interrupt(TaskRevoked)

    def _job(self, coroutine: Coroutine) -> event_loop.Job:
        runs = coroutine.runs

        async def begin() -> Any:
            return await arun_batch(runs) if runs[0].definition.options.batch else [await aexecute(runs[0])]

        return event_loop.Job(
            begin,
            coroutine.timeout,
            [run.lease for run in runs],
            self._get_queue_context().planner.index,
            on_extended=partial(self._status_board.extend, self.index),
            on_end=self._on_coroutine_end,
            on_lost=lambda _: self.wake(),
        )

    def _on_coroutine_end(self, job: event_loop.Job) -> None:
        """Record the outcomes of the ended coroutine and begin the slot's next work. Runs on the event loop."""
        coroutine = self._coroutine
        if coroutine is None or coroutine.job is not job:  # the job was not submitted to the loop
            return
        if coroutine.runs[0].log_capture is not None:  # sending the log lines to the server would block the loop
            self.wake()
        elif not self._end_coroutine(coroutine):
            self.go_on()

    def _end_coroutine(self, coroutine: Coroutine) -> bool:
        """Record the outcomes of a coroutine that has ended, or start the coroutine again. Return whether it was
        started again. A coroutine is started again, without using up a retry, if another task disturbed it or the event
        loop broke.
        """
        work, runs, job = self._taken_work(), coroutine.runs, coroutine.job
        assert job is not None  # noqa: S101 - it was submitted
        try:
            try:
                outcomes: list[Outcome] = job.result()
            except event_loop.Interrupted as stopped:
                outcomes = failed_outcomes(runs, stopped.kind(), coroutine.started)
            except event_loop.EventLoopLostError:
                if not coroutine.runs_alone:
                    coroutine.runs_alone = job.has_begun
                    self._restart(coroutine)
                    return True
                error = RuntimeError("the task broke the event loop that it ran on")  # no other task ran on this loop
                outcomes = failed_outcomes(runs, error, coroutine.started)
            if coroutine.restarts < event_loop.MAX_COROUTINE_RESTARTS and job.is_to_be_repeated(outcomes):
                coroutine.restarts += 1
                self._restart(coroutine)
                return True
            outcomes = coroutine.outcomes + outcomes
        except BaseException:  # noqa: BLE001 - as above
            outcomes = event_loop.outcomes_after_fault(work if isinstance(work, list) else [work])
        self._finish(outcomes)
        return False

    def _restart(self, coroutine: Coroutine) -> None:
        """Start the coroutine again, with new time limits."""
        coroutine.started = monotonic()
        self._status_board.end(self.index)
        self._begin(coroutine.runs, coroutine.started, coroutine.timeout)
        self._submit(coroutine)

    def revoke(self, queue_context: QueueContext, leases: AbstractSet[LeaseKey]) -> None:
        """Interrupt the running task if it has one of these leases. A batch continues, because its other tasks are
        still wanted.
        """
        # Read the interrupt before the work: then the interrupt can only stop the work that is checked here, or nothing
        # if that work has ended, and never the slot's next work.
        started, interrupt = self.guard.started, self._interrupt
        work = self._work
        if work is None or isinstance(work, list) or self._queue_context is not queue_context or work.key not in leases:
            return
        self._revoke(started, interrupt)

    def give_back(self) -> None:
        """Interrupt the running work, and return its tasks to the queue even if they finish."""
        started, interrupt = self.guard.started, self._interrupt
        work, queue_context = self._work, self._queue_context
        if work is None or queue_context is None:
            return
        queue_context.revoked.add_leases([lease.key for lease in (work if isinstance(work, list) else [work])])
        self._revoke(started, interrupt)

    def _revoke(self, started: float, interrupt: Callable[[type[BaseException]], object] | None) -> None:
        if interrupt is not None:
            interrupt(TaskRevoked)
        else:
            self.guard.interrupt(TaskRevoked, started=started)
