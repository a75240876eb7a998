"""The event loop that runs a worker's ``async def`` tasks: either a loop in a separate thread (`EventLoop`), or the
loop that the program runs (`RunningLoop`).

Each coroutine occupies a slot of the worker, so coroutines and threads share one limit. When a coroutine ends, the loop
records the outcome and takes the slot's next task itself, without waking the slot's thread (`Slot.go_on`).

The coroutines of all users share the loop, so none of them may end it. `LoopThread` refuses ``loop.stop()`` and similar
calls. If a coroutine raises `SystemExit`, the loop is started again. `ProtectedTask` refuses to be canceled by the
coroutines of other tasks. If a loop breaks nevertheless, a new loop replaces it, and its coroutines start again, each
on a separate loop. The loop of a program (`RunningLoop`) is not protected, and never replaced, stopped or closed.

`LoopMonitor` notices that a loop is blocked: a coroutine computes or waits without ``await``, so no other coroutine can
continue.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.conf import aclose_queues
from django_fairque.engine.model.outcome import Outcome
from django_fairque.safely import report_lost_line, type_name
from django_fairque.tasks.errors import SoftTimeLimitExceeded, TaskRevoked
from django_fairque.tasks.retries import Stop, stopped
from django_fairque.worker.common import isolation
from django_fairque.worker.common.log import describe_leases, logger
from django_fairque.worker.execution.code_lines import find_coroutine_line

if TYPE_CHECKING:
    from types import FrameType

    from django_fairque.engine.model.lease import Lease
    from django_fairque.worker.common.wakeup import IdleSlot


LOOP_REQUEST_SECONDS = 0.4
"""Seconds between two requests that the monitor sends to the loop, while the loop has coroutines."""
LOOP_BLOCKED_SECONDS = 0.9
"""Seconds without an answer after which the loop counts as blocked. The check runs twice a second, so a blocked loop is
noticed within 2 seconds."""
LOOP_STOPPED_SECONDS = 5.0
"""Seconds after which an idle event loop of the program counts as stopped. A program may call ``run_until_complete``
several times, and its loop is idle in between."""
SLOTS_PER_TURN = 16
"""Maximum number of slots that take work in one turn of the loop, about 0.1 ms each. Between turns, other callbacks of
the loop run."""
MAX_STACK_CHARACTERS = 4_000
"""Maximum characters of a logged stack. The end of the stack is kept, because the blocking call is there."""


@dataclass(frozen=True)
class BlockedLoop:
    """Describes a loop that is blocked. Leases are ``(shard index, token)``; for a batch, the lease of its first
    task.
    """

    task: str
    """The task that blocks the loop, as text for a log line; empty if the task is not known."""
    stack: str
    seconds: float
    culprit: tuple[int, int] | None
    """The lease of the task that blocks the loop. None if it is unknown, or if the task has ended but its code still runs."""
    others: frozenset[tuple[int, int]]
    """Leases of the other coroutines on the loop, whose tasks do not block it."""


class LoopMonitor:
    """Sends requests to a loop to notice that the loop is blocked. A single thread, other than the loop's thread, calls
    `check`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: JobLoop) -> None:
        self.blocked: BlockedLoop | None = None
        """The result of the last `check`: None if the loop is not blocked."""
        self._loop = loop
        self._host = host
        self._lock = threading.Lock()
        self._requested_at: float | None = None
        """The time (`time.monotonic()`) of the request that the loop has not answered yet."""
        self._next_request = 0.0
        self.is_blocked = False
        """Whether the loop is blocked, so that no work can begin on it now. Any thread may read this."""
        self._culprit: Job | None = None

    def check(self, now: float) -> bool:
        """Update `blocked`. Return True if the state has changed: a different task blocks the loop, or the loop is no
        longer blocked.
        """
        requested_at = self._requested_at
        if requested_at is None:
            if now >= self._next_request and self._host.is_used:
                self._requested_at, self._next_request = now, now + LOOP_REQUEST_SECONDS
                self._host.call_soon(self._answer)
        elif now - requested_at >= LOOP_BLOCKED_SECONDS:
            return self._examine(requested_at, now)
        goes_on = self.blocked is not None and not self.is_blocked
        if goes_on:
            self.blocked = None
        return goes_on

    def _answer(self) -> None:
        """Answer the monitor's request. Runs on the loop."""
        with self._lock:
            requested_at, self._requested_at = self._requested_at, None
            was_blocked, self.is_blocked = self.is_blocked, False
        if was_blocked and requested_at is not None:
            self._host.extend_limits(monotonic() - requested_at, self._culprit)

    def _examine(self, requested_at: float, now: float) -> bool:
        frame = sys._current_frames().get(self._host.thread_id)  # noqa: SLF001 - the documented way to another thread's stack
        frames = [] if frame is None else [caller for caller, _ in traceback.walk_stack(frame)]
        context = find_context(reversed(frames))
        task = asyncio.current_task(self._loop)
        if frame is None or (context is None and task is None):
            return False  # no code runs on the loop, so its answer is only late, because the machine is busy
        coroutines = self._host.coroutines()
        # Event loops of other libraries may have no Python frames.
        owner: Any = getattr(task, "owner", None) if context is None else context.get(stopped)
        culprit = next((job for job in coroutines if job is owner), None)
        with self._lock:
            if self._requested_at != requested_at:
                return False  # the loop has just answered
            self.is_blocked, self._culprit = True, culprit
        self._host.give_back_waiting()
        lease = None if culprit is None else _lease_key(culprit)
        if self.blocked is not None and self.blocked.culprit == lease:
            return False
        leases = getattr(owner, "leases", ())  # the owner may have ended, and left code running
        self.blocked = BlockedLoop(
            describe_leases(leases) if leases else "",
            _format_stack(frames),
            now - requested_at,
            lease,
            frozenset(_lease_key(job) for job in coroutines if job is not culprit),
        )
        return True


def _format_stack(frames: Sequence[FrameType]) -> str:
    """Format the stack of the code that runs on the loop, without the frames of the loop itself."""
    lines = traceback.format_stack(frames[0])
    depth = next((index for index, frame in enumerate(frames) if _is_handle_frame(frame)), len(lines))
    return "".join(lines[-depth:] if depth else lines)[-MAX_STACK_CHARACTERS:].rstrip()


def _is_handle_frame(frame: FrameType) -> bool:
    return frame.f_code is asyncio.Handle._run.__code__  # noqa: SLF001 - to recognize it, not to call it


def find_context(frames: Iterable[FrameType]) -> Context | None:
    """Return the context in which one of these stack frames runs a callback or a step of a coroutine; None if no frame
    does.
    """
    for frame in frames:
        if _is_handle_frame(frame):
            handle: Any = frame.f_locals.get("self")
            if sys.version_info >= (3, 12):
                found = handle.get_context()
            else:
                found = getattr(handle, "_context", None)
            if isinstance(found, Context):
                return found
    return None


def _lease_key(job: Job) -> tuple[int, int]:
    return job.shard_index, job.leases[0].token


MAX_COROUTINE_RESTARTS = 3
"""Maximum number of times that a coroutine is started again because another task canceled an asyncio task that it
awaited."""
WORKER_FAULT_RETRY_SECONDS = 5.0
"""Seconds after which a task is tried again when the worker itself failed. The task is not tried at once, because the
worker may fail again."""
PROTECTED_LOOP_METHODS = ("stop", "close", "shutdown_asyncgens", "shutdown_default_executor")
"""Methods of an event loop that end the loop or a resource that all its coroutines share."""


class Interrupted(Exception):  # noqa: N818 - says what was done to it
    """Raised for a coroutine that the worker stopped. ``kind`` is the class of the exception that stopped it."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__(kind)
        self.kind = kind


def outcomes_after_fault(leases: Sequence[Lease]) -> list[Outcome]:
    """Return the outcomes of tasks after an error of the worker itself. Call it in an ``except`` block. The tasks are not the
    cause, so no retry is counted until the worker has failed at `QueueConfig.max_deliveries` starts in a row."""
    logger.exception(
        "%s: the worker itself failed while it ran this task; it is tried again in %g s. After MAX_DELIVERIES such starts it "
        "counts as a failure of the task",
        *(describe_leases(leases), WORKER_FAULT_RETRY_SECONDS),
    )
    error = sys.exc_info()[1]
    kind = "" if error is None else f" ({type_name(error)})"
    reason = f"the worker failed while it ran this task{kind}; its log has the reason"
    return [Outcome.fault(lease, reason, delay=WORKER_FAULT_RETRY_SECONDS) for lease in leases]


class EventLoopLostError(Exception):
    """Raised when the event loop broke before a coroutine began or while it ran."""


class ProtectedTask(asyncio.Task[Any]):
    """An `asyncio.Task` that can't be canceled by the coroutines of other queue tasks.

    If a queue task cancels all asyncio tasks of the loop, only asyncio tasks of the same queue task are canceled. Code
    that belongs to no queue task (the program in which an `AsyncWorker` runs) is not restricted.
    """

    owner: Job | None = None
    """The job of the queue task that runs in this asyncio task."""

    def cancel(self, msg: Any | None = None) -> bool:
        caller = stopped.get()
        if caller is self.owner or not isinstance(caller, Job):
            return super().cancel(msg)
        if self.owner is not None:
            self.owner.was_disturbed = True
        if caller.is_first_report():
            logger.warning(
                "%s tried to cancel coroutines of other tasks, which was refused; let it cancel only what it has created itself",
                describe_leases(caller.leases),
            )
        return False


class Job(Stop):
    """A coroutine that runs a queue task in an `asyncio.Task`, with a time limit. ``kind`` is the class of the
    exception that stopped the coroutine.

    Args:
        begin: creates the coroutine.
        timeout: seconds after which the coroutine is stopped with `SoftTimeLimitExceeded`.
        leases: the leases of the task, or of the tasks of a batch, that the coroutine runs.
        shard_index: the index of the leases' shard among all shards of this worker.
        on_extended: called with the number of seconds by which the time limit was moved.
        on_end: called with the job, on the loop, when the coroutine has ended.
        on_lost: called instead of ``on_end``, from any thread, when the job was given back or its loop broke.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[Any]],
        timeout: float,
        leases: Sequence[Lease],
        shard_index: int,
        on_extended: Callable[[float], object],
        on_end: Callable[[Job], object],
        on_lost: Callable[[Job], object],
    ) -> None:
        super().__init__()
        self.leases = leases
        self.shard_index = shard_index
        self.has_begun = False
        """Whether the code of the task has begun."""
        self.was_disturbed = False
        """Whether another task's coroutine tried to cancel this job, and so may have canceled asyncio tasks for which
        the job waits."""
        self.loop: JobLoop | None = None
        """The loop on which the job runs or will begin."""
        self._begin = begin
        self._timeout = timeout
        self._on_extended = on_extended
        self._on_end = on_end
        self._on_lost = on_lost
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._was_reported = False
        self._is_given_back = False
        self._is_lost = False
        self._is_over = _thread.allocate_lock()
        """A lock that is acquired when the end of the job is reported, so that the end is reported only once. A job
        that was given back can still end on its loop later."""

    # --- on the loop ---

    def start(self) -> None:
        if self._is_given_back:
            return
        self._task = task = ProtectedTask(self._run(), loop=asyncio.get_running_loop())
        task.owner = self
        task.add_done_callback(self._end)

    async def _run(self) -> Any:
        token = stopped.set(self)
        # before the time limit begins, because the thread for synchronous code may be busy with a query of another
        # coroutine
        await isolation.clean_up_coroutine()
        if not self._begins():
            stopped.reset(token)
            return None
        loop = asyncio.get_running_loop()
        # A canceled timer keeps its context for a while. An empty context does not keep values of the task alive.
        self._timer = loop.call_later(self._timeout, self.stop, SoftTimeLimitExceeded, context=Context())
        try:
            return await self._begin()
        finally:
            self._timer.cancel()
            await isolation.clean_up_coroutine()
            # Reset the variable, because a reference from the context to this job would keep the task's values alive
            # until the next garbage collection.
            stopped.reset(token)

    def _begins(self) -> bool:
        """Return whether the code of the task begins. False if the job was given back."""
        assert self.loop is not None  # noqa: S101 - it was accepted
        with self.loop.lock:
            self.has_begun = not self._is_given_back
        return self.has_begun

    def _end(self, task: ProtectedTask) -> None:
        task.owner = None  # remove the reference, which would keep the job alive
        if self.loop is not None:
            self.loop.forget(self)
        if self._is_over.acquire(blocking=False):
            self._on_end(self)

    def stop(self, kind: type[BaseException], *, again: bool = False) -> None:
        """Cancel the coroutine, unless this was done before. With ``again``, cancel it in any case."""
        if self._task is not None and not self._task.done() and (again or self.kind is None):
            self.kind = self.kind or kind
            # `ProtectedTask.cancel` would refuse this if a coroutine of another queue task is the caller.
            asyncio.Task.cancel(self._task)

    def extend(self, seconds: float) -> None:
        """Extend the time limit by the ``seconds`` for which another task blocked the loop."""
        if self._timer is None or self.kind is not None:
            return
        when = self._timer.when() + seconds
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self.stop, SoftTimeLimitExceeded)
        self._on_extended(seconds)

    # --- from any thread ---

    def is_to_be_repeated(self, outcomes: Sequence[Outcome]) -> bool:
        """Return whether the coroutine must be started again, because it failed after another task canceled an asyncio
        task that it awaited.
        """
        return self.was_disturbed and self.kind is None and any(outcome.kind == "fail" for outcome in outcomes)

    def is_first_report(self) -> bool:
        """Return True for the first report that this job tried to harm other tasks, and False later. Only the first
        report is logged.
        """
        was_reported, self._was_reported = self._was_reported, True
        return not was_reported

    def find_line(self, stacks: Mapping[int, FrameType]) -> str:
        """Return the line of the project's code that the coroutine awaits or runs; empty before it has begun. ``stacks`` are the
        innermost frames of the threads."""
        if self._task is None or self.loop is None:
            return ""
        return find_coroutine_line(self._task.get_coro(), stacks.get(self.loop.thread_id))

    def give_back(self) -> None:
        """Mark the job as given back, so that its slot returns the task to the queue. Called before the job begins, or
        if the loop has stopped.
        """
        self._is_given_back = True
        self._report_lost()

    def lose(self) -> None:
        """Report that the loop of this job broke, so that the slot starts the coroutine again."""
        self._is_lost = self._task is None or not self._task.done()
        self._report_lost()

    def _report_lost(self) -> None:
        if self._is_over.acquire(blocking=False):
            self._on_lost(self)

    def interrupt(self, kind: type[BaseException]) -> None:
        """Stop the coroutine. Can be called from any thread."""
        if self.loop is not None:
            self.loop.call_soon(self.stop, kind)

    def result(self) -> Any:
        """Return the coroutine's result, or raise its exception.

        Raises:
            Interrupted: the coroutine was stopped before it returned.
            EventLoopLostError: the coroutine's loop broke.
        """
        if self._is_lost:
            raise EventLoopLostError
        if self._is_given_back:
            raise Interrupted(TaskRevoked)
        assert self._task is not None  # noqa: S101 - it has begun, and ended
        if self._task.cancelled():
            raise Interrupted(self.kind or asyncio.CancelledError)
        return self._task.result()


class JobLoop:
    """An event loop and the jobs that run on it."""

    thread_id = 0
    """The id (`threading.get_ident`) of the thread that runs the loop; 0 before it has started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: set[Job] = set()
        self._accepted: list[tuple[Job, Context]] = []
        """Jobs that will begin at the next turn of the loop, each with its context."""
        self._idle_slots: list[IdleSlot] = []
        """Slots that will take work at the next turns of the loop."""
        self.lock = threading.Lock()
        """A lock that is held while the loop decides whether a job begins."""
        self._is_lost = False
        self._gives_back = False
        self._monitor = LoopMonitor(loop, self)

    @property
    def is_used(self) -> bool:
        """Return whether a job runs on this loop or will begin. Can be called from any thread."""
        return bool(self._jobs or self._idle_slots)

    def coroutines(self) -> list[Job]:
        """Return the jobs that have begun. Can be called from any thread."""
        return [job for job in self._jobs.copy() if job.has_begun]

    def accept(self, job: Job) -> bool:
        """Start the job at the next turn of the loop, or give it back. Return False if the loop broke. Can be called
        from any thread.
        """
        with self.lock:
            if self._is_lost:
                return False
            if self._gives_back or self._monitor.is_blocked:
                job.give_back()
                return True
            self._jobs.add(job)
            job.loop = self
            self._accepted.append((job, copy_context()))
            if len(self._accepted) == 1:  # wake the loop only for the first of the jobs that begin at its next turn
                self.call_soon(self._start_accepted)
        return True

    def serve(self, slots: Sequence[IdleSlot]) -> None:
        """Let these idle slots take work on the loop. If the loop can't begin any work, their threads take the work.
        Can be called from any thread.
        """
        with self.lock:
            self._idle_slots += slots
            if self._is_lost or self._gives_back or self._monitor.is_blocked:
                self._wake_slots()
            elif len(self._idle_slots) == len(slots):
                self.call_soon(self._serve_slots)

    def _serve_slots(self) -> None:
        with self.lock:
            slots, self._idle_slots = self._idle_slots[:SLOTS_PER_TURN], self._idle_slots[SLOTS_PER_TURN:]
            if self._idle_slots:
                self.call_soon(self._serve_slots)
        for slot in slots:
            slot.go_on()

    def _wake_slots(self) -> None:
        """Wake the threads of the idle slots, because the loop can't take work for them. The caller holds the lock."""
        slots, self._idle_slots = self._idle_slots, []
        for slot in slots:
            slot.wake()

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop, unless the loop is closed. Can be called from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def check(self, on_changed: Callable[[BlockedLoop | None], object]) -> None:
        """Report when a coroutine blocks the loop, and report None when the loop continues. Called at least twice a
        second, by one thread.
        """
        if self._monitor.check(monotonic()):
            on_changed(self._monitor.blocked)

    def give_back_waiting(self) -> None:
        """Give back the jobs that have not begun, and let the threads of idle slots take work. Can be called from any
        thread.
        """
        with self.lock:
            self._wake_slots()
            for job in [job for job in self._jobs.copy() if not job.has_begun]:
                self._jobs.discard(job)
                job.give_back()

    def extend_limits(self, seconds: float, culprit: Job | None) -> None:
        """Extend the time limits of the jobs that a blocking task has delayed. Runs on the loop, before other
        callbacks.
        """
        for job in self.coroutines():
            if job is not culprit:
                job.extend(seconds)

    def _start_accepted(self) -> None:
        with self.lock:
            accepted, self._accepted = self._accepted, []
        for job, context in accepted:  # outside of the lock, because the slots' threads wait for the lock
            context.run(job.start)

    def forget(self, job: Job) -> None:
        """Forget a job whose coroutine has ended. Runs on the loop."""
        self._jobs.discard(job)


class RunningLoop(JobLoop):
    """The event loop that runs in the calling thread and belongs to the program."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.thread_id = threading.get_ident()
        self._last_seen_running = monotonic()

    def submit(self, job: Job) -> None:
        self.accept(job)

    submit_alone = submit
    """A program's loop is never replaced, so no job needs a separate loop."""

    def cancel(self, *, again: bool = False) -> None:
        """Give back the jobs that have not begun, cancel the other jobs, and begin no more. Call this on the loop, or
        after the loop has stopped.

        ``again`` also cancels jobs that were canceled before, and so interrupts a coroutine that is cleaning up. A
        repetition is necessary because redis-py sends with `asyncio.wait_for`, which loses a cancellation if the
        awaited future is done at the same moment (https://github.com/python/cpython/issues/86296; fixed in Python
        3.12).
        """
        self.end()
        self.give_back_waiting()
        for job in self.coroutines():
            job.stop(TaskRevoked, again=again)

    def end(self) -> None:
        """Begin no more jobs."""
        self._gives_back = True

    def has_stopped(self) -> bool:
        """Return whether the program has stopped the loop, and give back all jobs if so. Call this often, from one thread."""
        now = monotonic()
        if self._loop.is_running():
            self._last_seen_running = now
        if now - self._last_seen_running < LOOP_STOPPED_SECONDS and not self._loop.is_closed():
            return False
        self.end()
        with self.lock:
            jobs, self._jobs = self._jobs, set()
            self._wake_slots()
        for job in jobs:
            job.give_back()
        return True


class LoopThread(JobLoop, threading.Thread):
    """The thread of one event loop. The thread ends when `end` is called or the loop breaks; with ``single``, after its
    only job.
    """

    def __init__(self, *, close_connections: bool, single: bool = False) -> None:
        threading.Thread.__init__(self, name="fairque-loop", daemon=True)
        JobLoop.__init__(self, asyncio.new_event_loop())
        self._loop.set_exception_handler(_report_loop_error)
        with contextlib.suppress(AttributeError):  # a loop with its own clock raises this
            self._loop.time = monotonic  # type: ignore[method-assign] # also after a task has patched the module's function
        self._loop.set_default_executor(isolation.LoopExecutor(close_connections=close_connections))
        self._single = single
        self._is_ending = False

    def end(self) -> None:
        self._is_ending = True
        self.call_soon(type(self._loop).stop, self._loop)

    def forget(self, job: Job) -> None:
        super().forget(job)
        if self._single:
            self.end()

    def run(self) -> None:
        loop = self._loop
        self.thread_id = threading.get_ident()
        asyncio.set_event_loop(loop)
        for name in PROTECTED_LOOP_METHODS:  # no coroutine may end the loop, so these methods are replaced
            setattr(loop, name, partial(_refuse, name))
        try:
            while not self._is_ending:
                self._run_on()
        except BaseException:  # noqa: BLE001 - whatever broke it, others take its place
            logger.exception(
                "the event loop of this process broke and is replaced; its coroutines start again, each on a separate loop"
            )
        for name in PROTECTED_LOOP_METHODS:
            delattr(loop, name)
        with self.lock:
            self._is_lost = True
            jobs, self._jobs = self._jobs, set()
            self._wake_slots()
        for job in jobs:
            job.lose()
        try:
            # closes the queue clients of tasks that enqueued other tasks on this loop
            loop.run_until_complete(aclose_queues())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
        except BaseException:  # noqa: BLE001 - nothing runs there any more
            logger.debug("an event loop could not be closed", exc_info=True)

    def _run_on(self) -> None:
        """Run the loop until it stops. If a coroutine raises `SystemExit`, the loop stops too; the other coroutines
        remain usable.
        """
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            context = find_context(frame for frame, _ in traceback.walk_tb(error.__traceback__))
            culprit = None if context is None else context.get(stopped)
            if not isinstance(culprit, Job) or culprit.is_first_report():
                logger.warning(
                    "%s raised %s in a coroutine or callback that it had started; the event loop goes on. To end a task, raise "
                    "another exception",
                    describe_leases(culprit.leases) if isinstance(culprit, Job) else "an unknown task",
                    type(error).__name__,
                    exc_info=error,
                )
        except Exception as error:
            # In debug mode, asyncio logs each slow callback without calling the loop's exception handler.
            if not any(
                frame.f_globals.get("__name__") == "logging" for frame, _ in traceback.walk_tb(error.__traceback__)
            ):
                raise
            report_lost_line("asyncio", "%s", ("a callback was slow",), error)


def _report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log the error of a callback in the same way as asyncio. An error in the project's logging does not stop the
    loop.
    """
    try:
        loop.default_exception_handler(context)
    except BaseException as error:  # noqa: BLE001 - it would end the loop, under the coroutines of all users
        report_lost_line("asyncio", "%s", (context.get("message"),), error)


def _refuse(name: str) -> None:
    raise RuntimeError(
        f"loop.{name}() can't be called in a task: other tasks run on the same event loop. To end a task, return or raise an "
        "exception"
    )


class EventLoop:
    """An event loop in a separate thread. The thread starts with the first coroutine. A new loop replaces a loop that
    broke.

    Args:
        close_connections: close the database connections of the loop's threads (`asyncio.to_thread`) after each call.
    """

    def __init__(self, *, close_connections: bool) -> None:
        self._close_connections = close_connections
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None
        self.cannot_start = False
        """Whether the process could not start the loop's thread, for example because a task has limited the memory."""

    def submit(self, job: Job) -> None:
        while not (thread := self._thread or self._start()).accept(job):
            with self._starting:
                if self._thread is thread:
                    self._thread = None

    def submit_alone(self, job: Job) -> None:
        """Run the job on a separate loop, which ends after the job."""
        thread = LoopThread(close_connections=self._close_connections, single=True)
        thread.start()
        thread.accept(job)

    def serve(self, slots: Sequence[IdleSlot]) -> None:
        (self._thread or self._start()).serve(slots)

    def check(self, on_changed: Callable[[BlockedLoop | None], object]) -> None:
        if (thread := self._thread) is not None:
            thread.check(on_changed)

    def _start(self) -> LoopThread:
        with self._starting:
            if self._thread is None:
                thread = LoopThread(close_connections=self._close_connections)
                try:
                    thread.start()
                except RuntimeError:
                    self.cannot_start = True
                    raise
                self._thread = thread
            return self._thread

    def end(self) -> None:
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()
