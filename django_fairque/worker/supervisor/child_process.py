"""`ChildProcess` represents one worker process in its supervisor. `ChildLimits` enforces the supervisor's limits on
time, memory, leases and signs of life.

`StalledProcesses` gives back the tasks that a process has fetched and can't start because it does not respond. A process stops
responding when C code keeps the interpreter lock (a catastrophic regular expression), when it gets SIGSTOP, or when the machine
has no time for it. The process may respond again at any moment, so its leases are fenced first (see `status_board`):

1. The supervisor raises the fence of a shard in the shared memory. From then on the process starts no task that it has
   received before, and fetches no tasks from that shard.
2. After `FENCE_SETTLE_SECONDS`, the supervisor sees everything that the process wrote before it could see the fence.
   The supervisor reads which tokens have started, and the lease renewal thread gives back all other leases in one call.
3. When the server has confirmed this call, the fence is lowered. The process drops the leases that are still in its
   buffer and fetches again.

These steps are repeated while the process does not respond, because a fetch that was in progress may have handed out
more leases.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.worker_activity import STOPS, EndReason, ProcessDeath
from django_fairque.engine.model.outcome import Outcome, queue_retry_delay
from django_fairque.tasks.errors import TaskMemoryError, TaskTimeoutError
from django_fairque.worker.common.limits import BYTES_PER_MB, resident_mb
from django_fairque.worker.common.log import logger, printable
from django_fairque.worker.common.status_board import OccupiedSlot, partial_lease
from django_fairque.worker.leases.heartbeat import worker_info, worker_status
from django_fairque.worker.leases.lease_renewal import LeaseReturn, Reconciliation, RenewedWorker
from django_fairque.worker.supervisor.board_watch import BoardWatch, is_stopped
from django_fairque.worker.supervisor.child_main import STALLED_STACKS_SIGNAL
from django_fairque.worker.supervisor.messages import Announce, Drain, Reconcile, Revoked, SeparateEnded, StopProcess
from django_fairque.worker.supervisor.process_factory import ForkedProcess, ProcessFactory

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import LeaseKey
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.common.options import WorkerOptions
    from django_fairque.worker.common.status_board import OccupiedSlot
    from django_fairque.worker.execution.event_loop import BlockedLoop
    from django_fairque.worker.leases.outage import Outages
    from django_fairque.worker.reporting.signal_thread import Announcement
    from django_fairque.worker.supervisor.separate_tasks import SeparateTask


class ChildProcess:
    """A worker process. The constructor starts the process. Create the object in the main thread, because the process
    dies with the thread that started it. ``worker_id`` is never used again for another process.
    """

    def __init__(
        self,
        process_factory: ProcessFactory,
        options: WorkerOptions,
        index: int,
        incarnation: int,
        task: SeparateTask | None = None,
    ) -> None:
        self.index = index
        self.task = task
        """The only task that the process runs; None if the process fetches tasks."""
        place = index if task is None else "task"
        self.worker_id = f"{options.worker_id}.{place}.{incarnation}"
        self.options = options.for_child(self.worker_id, one_task=task is not None)
        self.status_board, self.process, self.pipe = process_factory.start_child(self.options)
        self._unsent: deque[object] = deque()
        if task is not None:
            self.send(task)
        self.renewed = RenewedWorker(
            self.worker_id,
            self.info,
            self.revoke,
            self.status_board.list_running,
            lambda shard_index: self.send(Reconcile(shard_index)),
        )
        """The representation of this process that is passed to the lease renewal."""
        self.is_ready = False
        self.is_draining = False
        """Whether the process got the command to fetch no more tasks."""
        self.is_stopping = False
        """Whether the process got the command to stop, or stops by itself. If so, another process replaces it."""
        self.is_done = False
        """Whether the process has settled all its tasks and is about to exit."""
        self.deadline: float | None = None
        """The time (`time.monotonic()`) at which the process is killed if it has not ended; None for no limit."""
        self.watch = BoardWatch(self.status_board, monotonic())
        self.unresponsive_since: float | None = None
        """The Unix time since which the process has not responded. 0 if the process responds again, None if it has
        always responded."""
        self.kill_reason: EndReason | None = None
        self.counts_as_crash = False
        """Whether the process was killed for a reason that one of its tasks may have caused."""
        self.is_blameless = False
        """Whether the process died for a reason that its task did not cause."""
        self.overdue: list[OccupiedSlot] = []
        """The slots whose tasks ran beyond their hard limit, or used more memory than allowed."""
        self.memory_used = 0.0
        """The memory in bytes that the process used, if that is more than its task may use; else 0."""
        self.blocked: BlockedLoop | None = None
        """The blocked event loop of the process; None if the loop is not blocked."""
        self.blocked_by: str | None = None
        """The task that blocks the event loop of the process. Empty if no task blocks the loop any more, None if no
        task has ever blocked it."""
        self.unknown_tasks: list[str] | None = None
        """Names of tasks that this worker's processes received lately and have no function for; all processes have the
        same code. None if there were none so far."""
        self.deaths: Collection[ProcessDeath] = ()
        """The last deaths of processes of this worker, which this process's heartbeats report."""
        self.started = time.time()
        self.started_at = monotonic()

    # --- state of the process ---

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    @property
    def died_with_fork_server(self) -> bool:
        return isinstance(self.process, ForkedProcess) and self.process.died_with_server

    def find_overdue(self, now: float) -> list[OccupiedSlot]:
        """Return the slots whose tasks run beyond their hard limit, except coroutines that wait because another task
        blocks the event loop.
        """
        return [running for running in self._late(now) if not self._is_held_up(running)]

    def is_held_up_at(self, now: float) -> bool:
        """Return whether code that belongs to no task blocks the event loop, so that a coroutine runs beyond its hard
        limit.
        """
        if self.blocked is None or self.blocked.culprit is not None:
            return False
        return any(self._is_held_up(running) for running in self._late(now))

    def _late(self, now: float) -> list[OccupiedSlot]:
        return self.status_board.overdue(now - self.options.hard_timeout_grace)

    def _is_held_up(self, running: OccupiedSlot) -> bool:
        return self.blocked is not None and (running.shard_index, running.tokens[0]) in self.blocked.others

    def is_stalled(self, longest: float, unreachable: Sequence[int] = ()) -> bool:
        """Return whether a fetch loop of the process has made no progress for ``longest`` seconds. Shards in
        ``unreachable`` do not count.
        """
        return self.watch.longest_poll_seconds(unreachable) > longest

    @property
    def is_unresponsive(self) -> bool:
        return self.watch.silent_seconds > STALLED_SECONDS

    def info(self) -> dict[str, str]:
        return worker_info(
            self.options,
            done=self.status_board.done,
            running=self.status_board.count_running(),
            status=worker_status(is_draining=self.is_draining, is_stopping=self.is_stopping),
            pid=self.pid,
            started=self.started,
            unknown_tasks=self.unknown_tasks,
            blocked_by=self.blocked_by,
            unresponsive_since=self.unresponsive_since,
            activity=self.status_board.activity(),
            deaths=self.deaths,
        )

    def messages(self) -> Iterator[object]:
        """Read the messages that the process has sent."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    # --- commands to the process ---

    def send(self, message: object) -> None:
        """Queue a message, which `flush` sends. Can be called from any thread."""
        self._unsent.append(message)

    def flush(self) -> None:
        """Send the queued messages that fit into the pipe. Do not wait, because a process whose interpreter is blocked
        does not read.
        """
        # the process is dead, which the main loop notices by its sentinel
        with contextlib.suppress(OSError, ValueError):
            while self._unsent and select.select([], [self.pipe], [], 0)[1]:
                self.pipe.send(self._unsent.popleft())

    def revoke(self, shard_index: int, leases: Sequence[LeaseKey]) -> None:
        """Make the process stop the tasks of these leases. Each message is small enough for the pipe's buffer."""
        for first in range(0, len(leases), 100):
            self.send(Revoked(shard_index, list(leases[first : first + 100])))

    def report_separate_ends(self, shard_index: int, tokens: Sequence[int]) -> None:
        """Send the process the tokens of its tasks that ended in a separate process or were returned to the queue."""
        for first in range(0, len(tokens), 1000):
            self.send(SeparateEnded(shard_index, list(tokens[first : first + 1000])))

    def announce(self, announcements: Sequence[Announcement]) -> None:
        """Make the process send these signals. The supervisor does not send signals itself, because their receivers are
        code of the project.
        """
        for first in range(0, len(announcements), 10):
            self.send(Announce(list(announcements[first : first + 10])))

    def set_draining(self, *, is_draining: bool) -> None:
        """Make the process stop or resume fetching tasks."""
        self.is_draining = is_draining
        self.send(Drain(is_draining))

    def stop(self, deadline: float | None) -> None:
        """Make the process end its running tasks and exit before ``deadline`` (`time.monotonic()`); None for no
        limit.
        """
        if not self.is_stopping:
            self.is_stopping = True
            self.send(StopProcess())
        self.deadline = deadline
        self.flush()

    def dump_stacks(self) -> None:
        """Make the process write the stacks of its threads to its standard error, even if C code blocks its interpreter."""
        if not self.is_ready or self.exitcode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(
                self.pid, STALLED_STACKS_SIGNAL if self.is_unresponsive and STALLED_STACKS_SIGNAL else signal.SIGUSR1
            )

    def kill(self, reason: EndReason) -> None:
        """Kill the process and wait until it has ended."""
        self.kill_reason = self.kill_reason or reason
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self.process.join()
        self.pipe.close()
        self.process.close()


HISTORY_TEXTS = {
    EndReason.HARD_LIMIT: "another task ran beyond its hard time limit",
    EndReason.MEMORY: "its task exceeded its max_memory",
    EndReason.LEASES_ENDED: "its leases could not be renewed",
    EndReason.LOOP_BLOCKED: "its event loop was blocked",
    EndReason.STOPPED_BY_SIGNAL: "its process was stopped by a signal",
    EndReason.UNRESPONSIVE: "its process did not respond until the time limits of its tasks",
    EndReason.NO_OUTCOMES: "it did not report outcomes",
    EndReason.NO_PROGRESS: "its fetch loop made no progress",
}
"""Reasons for killing a process because of one task, as the histories of the process's other tasks show them. For a
reason without an entry, the histories show the value of the enum."""
BEYOND_LIMIT_SECONDS = 5.0
"""Seconds beyond a task's hard limit. If the limit is exceeded by this much by the supervisor's clock, the process's
clock is ignored."""
UNREPORTED_SECONDS = 5.0
"""Seconds for which outcomes wait and none is reported, after which a process is unhealthy."""
REPLACED_UNREPORTED_SECONDS = 15.0
"""Seconds for which outcomes wait and none is reported, after which a process without running tasks is replaced."""
MAX_DEATH_TASKS = 3
"""Maximum number of tasks that the report about a dead process names."""


class ChildLimits:
    """Checks the worker processes, and kills those that exceed a limit.

    Args:
        on_changed: called with the worker id of a process that has not responded for a long time, or that responds
            again.
    """

    def __init__(
        self, options: WorkerOptions, outages: Outages, on_changed: Callable[[str], object] = lambda _: None
    ) -> None:
        self._options = options
        self._outages = outages
        self._on_changed = on_changed
        self._limits: list[tuple[Callable[[ChildProcess, float], bool], EndReason]] = [
            (self._exceeds_task_memory, EndReason.MEMORY),
            (self._outlives_a_lease, EndReason.LEASES_ENDED),
            (self._exceeds_stop_time, EndReason.WORKER_STOPPED),
            (self._has_blocked_loop, EndReason.LOOP_BLOCKED),
            (self._is_stopped_for_long, EndReason.STOPPED_BY_SIGNAL),
            (self._reports_nothing, EndReason.NO_OUTCOMES),
            (self._is_stalled, EndReason.NO_PROGRESS),
        ]
        """Checks of a process, each with the reason for killing it. The first check that returns True decides, and has
        logged the reason."""

    def enforce(self, children: Iterable[ChildProcess]) -> None:
        now = monotonic()
        for child in children:
            if child.exitcode is None:
                child.watch.update(now)
                self._enforce(child, now)

    def _overdue(self, child: ChildProcess, now: float) -> list[OccupiedSlot]:
        """Return the slots whose tasks ran beyond their hard limit. If the process does not respond, such slots are
        returned only if no other task can be the cause.
        """
        found = [slot for slot in child.find_overdue(now) if child.watch.has_run(slot)] or child.watch.beyond_limit(
            self._options.hard_timeout_grace + BEYOND_LIMIT_SECONDS
        )
        if not child.is_unresponsive or not found:
            return found
        if is_stopped(child.pid):
            return []
        running, busy = child.status_board.list_running(), child.watch.busy_slots(child.pid)
        late = [slot.tokens for slot in found]
        if busy or len(running) == 1:
            return found if all(slot.tokens in late for slot in busy or running) else []
        if all(slot.tokens in late for slot in running):
            child.counts_as_crash = True
            logger.error(
                "worker process %s is ended: it did not respond until the time limits of its tasks", child.worker_id
            )
            child.kill(EndReason.UNRESPONSIVE)
        return []

    def _enforce(self, child: ChildProcess, now: float) -> None:
        overdue = self._overdue(child, now)
        if child.kill_reason is not None:
            return
        self._check_response(child)
        if overdue:
            self._end_overdue(child, overdue, now)
            return
        for is_exceeded, reason in self._limits:
            if is_exceeded(child, now):
                child.kill(reason)
                return

    @staticmethod
    def _end_overdue(child: ChildProcess, overdue: Sequence[OccupiedSlot], now: float) -> None:
        busy = [slot.tokens for slot in child.watch.busy_slots(child.pid)] if child.is_unresponsive else []
        child.overdue = [slot for slot in overdue if not busy or slot.tokens in busy]
        for running in child.overdue:
            for _, _, task_id in running.tasks:
                logger.error(
                    "task %s is ended with its process %s: it ran for %.1f s, its limit is %g s",
                    *(printable(task_id), child.worker_id, now - running.started, running.timeout),
                    extra={"task_id": task_id, "action": "ending"},
                )
        child.kill(EndReason.HARD_LIMIT)

    def _exceeds_task_memory(self, child: ChildProcess, _: float) -> bool:
        if child.task is None or not self._exceeds_memory(child, child.task.max_memory):
            return False
        used, limit = child.memory_used / BYTES_PER_MB, child.task.max_memory / BYTES_PER_MB
        logger.error(
            "task %s is ended with its process %s: this uses %.0f MB, its max_memory is %.0f MB",
            *(printable(child.task.task_id), child.worker_id, used, limit),
            extra={"task_id": child.task.task_id, "action": "ending"},
        )
        child.overdue = child.status_board.list_running()
        return True

    @staticmethod
    def _exceeds_stop_time(child: ChildProcess, now: float) -> bool:
        if child.deadline is None or now <= child.deadline:
            return False
        count = sum(len(running.tasks) for running in child.status_board.list_running())
        words = f"is ended; {count} running tasks are given back" if count else "is ended: it has not exited"
        logger.warning("worker process %s %s", child.worker_id, words)
        return True

    @staticmethod
    def _has_blocked_loop(child: ChildProcess, now: float) -> bool:
        if is_blocked := child.is_held_up_at(now):
            logger.error("restarting worker process %s: its event loop is blocked by an unknown task", child.worker_id)
        return is_blocked

    def _is_stopped_for_long(self, child: ChildProcess, _: float) -> bool:
        count = child.status_board.count_running()
        if child.watch.silent_seconds <= 2 * self._options.lease_seconds or not count or not is_stopped(child.pid):
            return False
        logger.error(
            "worker process %s is ended: a signal has stopped it for %.0f s, and it has %d running tasks",
            *(child.worker_id, child.watch.silent_seconds, count),
        )
        child.counts_as_crash = True
        return True

    def _outlives_a_lease(self, child: ChildProcess, now: float) -> bool:
        """Return whether the process runs a task whose lease could not be renewed in time. Only tasks of shards with
        late renewals count.
        """
        confirmed = enumerate(child.renewed.confirmed.values())
        late = {shard_index for shard_index, at in confirmed if now - at > self._options.fence_after}
        if not late or not any(running.shard_index in late for running in child.status_board.list_running()):
            return False
        logger.error("worker process %s is ended: its leases could not be renewed in time", child.worker_id)
        return True

    @staticmethod
    def _exceeds_memory(child: ChildProcess, limit: int) -> bool:
        """Return whether the process runs a task and uses more memory than ``limit``. Set ``memory_used``."""
        if not limit or not child.status_board.count_running():
            return False
        used = resident_mb(child.pid) * BYTES_PER_MB
        child.memory_used = used if used > limit else 0.0
        return used > limit

    def _check_response(self, child: ChildProcess) -> None:
        """Report once that a process has not responded for the length of a lease, and report again when it responds."""
        silent = child.watch.silent_seconds
        if child.is_unresponsive:
            child.watch.sample(child.pid)
        is_sampled = child.watch.sampled_seconds > STALLED_SECONDS
        if silent > self._options.lease_seconds and is_sampled and not child.unresponsive_since:
            child.unresponsive_since = time.time() - silent
            busy = child.watch.busy_slots(child.pid)
            tasks = [name for slot in busy or child.status_board.list_running() for _, _, name in slot.tasks]
            ids = ", ".join(map(printable, tasks[:MAX_DEATH_TASKS])) or "none"
            logger.error(
                "worker process %s has not responded for %.0f s. It %s. Tasks that may be the cause: %s. It goes on until their "
                "time limits, or for %g s if a signal has stopped it",
                *(
                    child.worker_id,
                    silent,
                    child.watch.describe_process(child.pid),
                    ids,
                    2 * self._options.lease_seconds,
                ),
            )
            self._on_changed(child.worker_id)
        elif child.unresponsive_since and not child.is_unresponsive:
            child.unresponsive_since = 0.0
            self._on_changed(child.worker_id)

    def _reports_nothing(self, child: ChildProcess, _: float) -> bool:
        """Return whether the process reports no outcomes although the server answers. If tasks are running, they get
        more time to end, because all outcomes are reported anyway when the process is dead.
        """
        longest = self._options.replaced_after if child.status_board.count_running() else REPLACED_UNREPORTED_SECONDS
        if child.watch.unreported_seconds(self._outages.unreachable_shards()) <= longest:
            return False
        logger.error("restarting worker process %s: it does not report outcomes", child.worker_id)
        return True

    def _is_stalled(self, child: ChildProcess, _: float) -> bool:
        is_stalled = child.is_stalled(self._options.replaced_after, self._outages.unreachable_shards())
        if not is_stalled or child.status_board.count_running():
            return False
        logger.error("restarting worker process %s: its fetch loop makes no progress", child.worker_id)
        return True

    def unhealthy_reasons(self, children: Sequence[ChildProcess]) -> list[str]:
        """Return the reasons why this worker is not healthy, as sentences."""
        longest, unreachable = self._options.unhealthy_after, self._outages.unreachable_shards()
        grace = self._options.hard_timeout_grace + BEYOND_LIMIT_SECONDS
        return (
            [
                f"process {child.worker_id} has not responded for {self._options.lease_seconds:g} s"
                for child in children
                if child.unresponsive_since
            ]
            + [
                f"a task of process {child.worker_id} has run for {grace:g} s beyond its time limit"
                for child in children
                if child.watch.beyond_limit(grace)
            ]
            + [
                f"process {child.worker_id} has reported no outcome for {UNREPORTED_SECONDS:g} s, although some wait"
                for child in children
                if child.watch.unreported_seconds(unreachable) > UNREPORTED_SECONDS
            ]
            + [
                f"the event loop of process {child.worker_id} is blocked by {child.blocked_by}"
                for child in children
                if child.blocked_by
            ]
            + [
                f"the fetch loop of process {child.worker_id} has made no progress for {longest:g} s"
                for child in children
                if child.is_ready and not child.is_stopping and child.is_stalled(longest, unreachable)
            ]
        )


def has_died_by_itself(child: ChildProcess) -> bool:
    """Return whether an ended process died unexpectedly: the supervisor did not kill it, and did not command it to
    stop.
    """
    return child.kill_reason is None and not (child.is_stopping and child.exitcode == 0)


def _how_ended(child: ChildProcess) -> tuple[EndReason, int]:
    """Return the reason why the process has ended, with its exit code or the number of the signal."""
    code = child.exitcode or 0
    if child.kill_reason is not None:
        return child.kill_reason, 0
    return (EndReason.EXITED, code) if code >= 0 else (EndReason.SIGNAL, -code)


def describe_death(child: ChildProcess) -> ProcessDeath | None:
    """Return the report about a process that died; None if the process ended as intended."""
    if child.is_done or child.kill_reason in STOPS:
        return None
    if child.kill_reason is None and (not has_died_by_itself(child) or child.exitcode == 0):
        return None
    task_ids = [name for slot in child.status_board.list_running() for _, _, name in slot.tasks]
    return ProcessDeath(time.time(), child.worker_id, *_how_ended(child), tuple(task_ids[:MAX_DEATH_TASKS]))


def _history_text(child: ChildProcess) -> str:
    """Return the reason why the process did not finish its tasks. The tasks' histories show this reason."""
    if child.kill_reason is not None:
        return HISTORY_TEXTS.get(child.kill_reason, child.kill_reason.value)
    if not has_died_by_itself(child):
        return EndReason.WORKER_STOPPED.value
    reason, code = _how_ended(child)
    return f"worker process died ({'signal' if reason is EndReason.SIGNAL else 'exit code'} {code})"


def leases_to_return(child: ChildProcess, shards: Sequence[FairQueue]) -> list[LeaseReturn]:
    """Return the leases and outcomes of an ended process, for each shard.

    The process's running tasks count as crashed only if the process died by itself. Tasks beyond their hard limit count
    as failed.
    """
    running = child.status_board.list_running()
    died = (has_died_by_itself(child) or child.counts_as_crash) and not child.is_blameless
    reason = _history_text(child)
    returns = []
    for shard_index, shard in enumerate(shards):
        tokens = [token for slot in running if slot.shard_index == shard_index for token in slot.tokens]
        crashed, started = (tokens, []) if died else ([], tokens)
        outcomes = [] if child.is_done else child.status_board.logged_outcomes(shard_index, child.worker_id)
        for slot in child.overdue:
            if slot.shard_index == shard_index:
                outcomes += _failures(child, slot, shard)
        returns.append(LeaseReturn(shard.display_name, child.worker_id, reason, crashed, started, outcomes))
    return returns


def _failures(child: ChildProcess, running: OccupiedSlot, queue: FairQueue) -> list[Outcome]:
    took = monotonic() - running.started
    error: Exception
    if child.memory_used and child.task is not None:
        limit, used = child.task.max_memory / BYTES_PER_MB, child.memory_used / BYTES_PER_MB
        error = TaskMemoryError(f"its process used {used:.0f} MB, more than its max_memory of {limit:.0f} MB")
    else:
        error = TaskTimeoutError(f"it ran for {took:.1f} s and did not end at its time limit of {running.timeout:g} s")
    make = Outcome.fail if child.memory_used else Outcome.overdue
    leases = [partial_lease(token, task_id, child.worker_id, retries) for token, retries, task_id in running.tasks]
    took /= len(leases)
    return [make(lease, error, delay=queue_retry_delay(queue.config, lease), took=took) for lease in leases]


STALLED_SECONDS = 1.0
"""Seconds without a sign of life after which a process counts as stalled. A responding process gives 2 to 20 signs a
second."""
SILENT_SECONDS = 5.0
"""Seconds without progress of a shard's fetch loop in a process that responds. After this time the server may have
recorded leases that the process does not know, because its calls fail or their replies are lost."""
FENCE_SETTLE_SECONDS = 0.02
"""Seconds between raising a fence and reading which tasks have started. If the process recorded a start before it could
see the fence, the record becomes visible within microseconds (the processor's store buffer)."""
STALL_REPEAT_SECONDS = 1.0

STALLED_REASON = "worker process did not respond"
SILENT_REASON = "worker process had no answer from the server"


@dataclass(eq=False)
class _RaisedFence:
    child: ChildProcess
    shard_index: int
    reason: str
    number: int
    raised_at: float
    is_sent: bool = False
    is_over: bool = False


class StalledProcesses:
    """Gives back the tasks that a process has fetched and not started, if the process does not respond. Only the
    supervisor's main thread uses this object.

    Args:
        labels: the names of the queues or shards, by shard index.
        give_back: passes jobs to the thread that talks to the server.
        passed_on: tokens, by worker id and shard index, of leases that the process has handed to its supervisor.
    """

    def __init__(
        self,
        labels: Sequence[str],
        give_back: Callable[[Sequence[Reconciliation]], object],
        passed_on: Callable[[str, int], set[int]],
    ) -> None:
        self._labels = labels
        self._give_back = give_back
        self._passed_on = passed_on
        self._rounds: dict[tuple[str, int], _RaisedFence] = {}
        self._stalled: set[str] = set()

    def update(self, children: Sequence[ChildProcess], now: float, unreachable: Collection[int] = ()) -> None:
        """Raise and lower the fences that are due. ``unreachable`` contains the indexes of shards whose server can't be
        reached.
        """
        for child in children:
            if child.exitcode is None:
                child.watch.update(now)
                self._update_child(child, now, unreachable)
        known = {child.worker_id for child in children}
        self._stalled &= known
        for key in [key for key in self._rounds if key[0] not in known]:
            del self._rounds[key]

    def _update_child(self, child: ChildProcess, now: float, unreachable: Collection[int]) -> None:
        is_stalled = child.is_unresponsive
        self._log(child, is_stalled=is_stalled)
        for shard_index in range(len(self._labels)):
            current = self._rounds.get((child.worker_id, shard_index))
            if current is not None and not current.is_over:
                if not current.is_sent and now - current.raised_at >= FENCE_SETTLE_SECONDS:
                    self._send(current)
                continue
            watch = child.watch
            is_silent = watch.has_polled(shard_index) and watch.poll_seconds(shard_index) > SILENT_SECONDS
            is_silent = is_silent and not child.is_stopping and shard_index not in unreachable
            reason = STALLED_REASON if is_stalled else SILENT_REASON if is_silent else ""
            pause = STALL_REPEAT_SECONDS if reason == STALLED_REASON else SILENT_SECONDS
            if reason and (current is None or now - current.raised_at >= pause):
                number = child.status_board.raise_fence(shard_index)
                self._rounds[child.worker_id, shard_index] = _RaisedFence(child, shard_index, reason, number, now)

    def _log(self, child: ChildProcess, *, is_stalled: bool) -> None:
        if is_stalled and child.worker_id not in self._stalled:
            self._stalled.add(child.worker_id)
            logger.warning(
                "worker process %s has not responded for %.1f s; its tasks that have not begun are given back",
                *(child.worker_id, child.watch.silent_seconds),
            )
        elif not is_stalled and child.worker_id in self._stalled:
            self._stalled.discard(child.worker_id)
            logger.info("worker process %s responds again", child.worker_id)

    def _send(self, current: _RaisedFence) -> None:
        current.is_sent = True
        child, label = current.child, self._labels[current.shard_index]
        started = child.status_board.started_tokens(current.shard_index) | self._passed_on(
            child.worker_id, current.shard_index
        )
        done = partial(self._lower_fence, current, label)
        self._give_back([Reconciliation(label, child.worker_id, current.reason, started, done)])

    @staticmethod
    def _lower_fence(current: _RaisedFence, label: str, count: int) -> None:
        """Lower the fence, so that the process may fetch tasks of this shard again.

        The lease renewal thread calls this method when the server has confirmed that all tasks which the process had
        not begun are given back; ``count`` is the number of these tasks.
        """
        current.child.status_board.lower_fence(current.shard_index, current.number)
        current.is_over = True
        if count:
            logger.info(
                "queue %s: %d tasks of worker %s are ready again: %s",
                *(label, count, current.child.worker_id, current.reason),
            )
