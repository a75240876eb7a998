"""Limits that a supervisor enforces on its child processes: time, memory, leases, and signs of life.

`StalledProcesses` gives back the tasks that a process has fetched and can't start because it does not respond. A process stops
responding when C code keeps the interpreter lock (a catastrophic regular expression), when it gets SIGSTOP, or when the machine
has no time for it. It may respond again at any moment, so its leases are fenced first (see `status_board`):

1. The supervisor raises the fence of a shard in the shared memory. From then on the process starts nothing that it has received
   before, and fetches nothing from that shard.
2. After `FENCE_SETTLE_SECONDS` everything that the process wrote before it could see the fence is visible. The supervisor reads
   which tokens have started, and the lease renewal thread gives back all others in one call.
3. When the server has confirmed that, the fence is lowered. The process drops the leases that are still in its buffer and fetches
   again.

While the process does not respond this is repeated: a fetch that was in progress may have handed out more leases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.model.outcome import Outcome, queue_retry_delay
from django_fairque.tasks.errors import TaskMemoryError, TaskTimeoutError
from django_fairque.worker.execution.limits import BYTES_PER_MB, resident_mb
from django_fairque.worker.execution.status_board import OccupiedSlot, partial_lease
from django_fairque.worker.leases.lease_renewal import LeaseReturn, Reconciliation
from django_fairque.worker.reporting.log import logger, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.leases.outage import Outages
    from django_fairque.worker.options import WorkerOptions
    from django_fairque.worker.supervisor.child_process import ChildProcess


class ChildLimits:
    """Looks at the children; kills those that must not go on."""

    def __init__(self, options: WorkerOptions, outages: Outages) -> None:
        self._options = options
        self._outages = outages

    def enforce(self, children: Iterable[ChildProcess]) -> None:
        now = monotonic()
        for child in children:
            if child.exitcode is None:
                self._enforce(child, now)

    def _enforce(self, child: ChildProcess, now: float) -> None:
        if overdue := child.overdue_at(now):
            child.overdue = overdue
            for running in overdue:
                for _, _, task_id in running.tasks:
                    logger.error(
                        "task %s is ended with its process %s: it ran for %.1f s, its limit is %g s",
                        *(printable(task_id), child.worker_id, now - running.started, running.timeout),
                    )
            child.kill("another task ran beyond its hard time limit")
        elif child.task is not None and self._exceeds_memory(child, child.task.max_memory):
            used, limit = child.memory_used / BYTES_PER_MB, child.task.max_memory / BYTES_PER_MB
            logger.error(
                "task %s is ended with its process %s: this uses %.0f MB, its max_memory is %.0f MB",
                *(printable(child.task.task_id), child.worker_id, used, limit),
            )
            child.overdue = child.status_board.running()
            child.kill("its task exceeded its max_memory")
        elif self._outlives_a_lease(child, now):
            logger.error("worker process %s is ended: its leases could not be renewed in time", child.worker_id)
            child.kill("its leases could not be renewed")
        elif child.deadline is not None and now > child.deadline:
            count = sum(len(running.tasks) for running in child.status_board.running())
            words = f"is ended; {count} running tasks are given back" if count else "is ended: it has not exited"
            logger.warning("worker process %s %s", child.worker_id, words)
            child.kill("worker stopped")
        elif child.is_held_up_at(now):
            logger.error("restarting worker process %s: its event loop is blocked by an unknown task", child.worker_id)
            child.kill("its event loop was blocked")
        elif self._is_stalled(child, now):
            logger.error("restarting worker process %s: its fetch loop makes no progress", child.worker_id)
            child.kill("its fetch loop made no progress")

    def _outlives_a_lease(self, child: ChildProcess, now: float) -> bool:
        """Whether it runs something whose lease could not be renewed; those of other shards may well have been."""
        confirmed = enumerate(child.renewed.confirmed.values())
        late = {shard_index for shard_index, at in confirmed if now - at > self._options.fence_after}
        return bool(late) and any(each.shard_index in late for each in child.status_board.running())

    @staticmethod
    def _exceeds_memory(child: ChildProcess, limit: int) -> bool:
        """Whether it runs a task with a memory limit and uses more; ``memory_used`` says how much."""
        if not limit or not child.status_board.running():
            return False
        used = resident_mb(child.pid) * BYTES_PER_MB
        child.memory_used = used if used > limit else 0.0
        return used > limit

    def _is_stalled(self, child: ChildProcess, now: float) -> bool:
        longest = self._options.replaced_after
        return child.is_stalled(now, longest, self._outages.unreachable_shards()) and not child.status_board.running()

    def unhealthy_reasons(self, children: Sequence[ChildProcess], now: float) -> list[str]:
        """Why this worker is not healthy, in sentences."""
        longest = self._options.unhealthy_after
        return [
            f"the event loop of process {child.worker_id} is blocked by {child.blocked_by}"
            for child in children
            if child.blocked_by
        ] + [
            f"the fetch loop of process {child.worker_id} has made no progress for {longest:g} s"
            for child in children
            if child.is_ready
            and not child.is_stopping
            and child.is_stalled(now, longest, self._outages.unreachable_shards())
        ]


def leases_to_return(child: ChildProcess, shards: Sequence[FairQueue]) -> list[LeaseReturn]:
    """What a child that has ended leaves behind, per shard.

    Only if it died by itself do the tasks that ran in it count as crashed. Those beyond their hard limit have failed.
    """
    running = child.status_board.running()
    died = not child.kill_reason and not (child.is_stopping and child.exitcode == 0)
    code = child.exitcode
    how = f"exit code {code}" if code is None or code >= 0 else f"signal {-code}"
    reason = child.kill_reason or (f"worker process died ({how})" if died else "worker stopped")
    returns = []
    for shard_index, shard in enumerate(shards):
        tokens = [token for each in running if each.shard_index == shard_index for token in each.tokens]
        crashed, started = (tokens, []) if died else ([], tokens)
        outcomes = [] if child.is_done else child.status_board.logged_outcomes(shard_index, child.worker_id)
        for each in child.overdue:
            if each.shard_index == shard_index:
                outcomes += _failures(child, each, shard)
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
"""Seconds without a sign of life (there are 2 to 20 a second) after which a process counts as stalled."""
SILENT_SECONDS = 5.0
"""Seconds without progress after which a shard's fetch loop may hold leases that it does not know of, although its process
responds: its calls fail, or their replies are lost."""
FENCE_SETTLE_SECONDS = 0.02
"""Between raising a fence and reading which tokens have begun. What a processor wrote before it could see the fence leaves its
store buffer within microseconds."""
STALL_REPEAT_SECONDS = 1.0

STALLED_REASON = "worker process did not respond"
SILENT_REASON = "worker process had no answer from the server"


@dataclass(eq=False)
class _RaisedFence:
    """One fence that was raised."""

    child: ChildProcess
    shard_index: int
    reason: str
    number: int
    raised_at: float
    is_sent: bool = False
    is_over: bool = False


class StalledProcesses:
    """Used by the supervisor's main thread.

    Args:
        labels: of the queues or shards, by shard index.
        give_back: hands jobs to the thread that talks to the server.
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
        """Raise and lower the fences that are due. ``unreachable``: indexes of shards whose server can't be reached."""
        for child in children:
            if child.exitcode is None and child.status_board.last_tick_at:
                self._update_child(child, now, unreachable)
        known = {child.worker_id for child in children}
        self._stalled &= known
        for key in [key for key in self._rounds if key[0] not in known]:
            del self._rounds[key]

    def _update_child(self, child: ChildProcess, now: float, unreachable: Collection[int]) -> None:
        is_stalled = now - child.status_board.last_tick_at > STALLED_SECONDS
        self._log(child, now, is_stalled=is_stalled)
        for shard_index in range(len(self._labels)):
            current = self._rounds.get((child.worker_id, shard_index))
            if current is not None and not current.is_over:
                if not current.is_sent and now - current.raised_at >= FENCE_SETTLE_SECONDS:
                    self._send(current)
                continue
            is_silent = 0.0 < child.status_board.last_poll_at(shard_index) < now - SILENT_SECONDS
            is_silent = is_silent and not child.is_stopping and shard_index not in unreachable
            reason = STALLED_REASON if is_stalled else SILENT_REASON if is_silent else ""
            pause = STALL_REPEAT_SECONDS if reason == STALLED_REASON else SILENT_SECONDS
            if reason and (current is None or now - current.raised_at >= pause):
                number = child.status_board.raise_fence(shard_index)
                self._rounds[child.worker_id, shard_index] = _RaisedFence(child, shard_index, reason, number, now)

    def _log(self, child: ChildProcess, now: float, *, is_stalled: bool) -> None:
        if is_stalled and child.worker_id not in self._stalled:
            self._stalled.add(child.worker_id)
            logger.warning(
                "worker process %s has not responded for %.1f s; its tasks that have not begun are given back",
                *(child.worker_id, now - child.status_board.last_tick_at),
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
        done = partial(self._done, current, label)
        self._give_back([Reconciliation(label, child.worker_id, current.reason, started, done)])

    @staticmethod
    def _done(current: _RaisedFence, label: str, count: int) -> None:
        """From the thread that talks to the server."""
        current.child.status_board.lower_fence(current.shard_index, current.number)
        current.is_over = True
        if count:
            logger.info(
                "queue %s: %d tasks of worker %s are ready again: %s",
                *(label, count, current.child.worker_id, current.reason),
            )
