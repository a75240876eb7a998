"""What a supervisor makes sure of, whatever its children do: limits are kept, no lease is outlived, no loop stands still."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import retry_delay
from django_fairque.engine.model.outcome import Outcome
from django_fairque.tasks.errors import TaskMemoryError, TaskTimeoutError
from django_fairque.worker.execution.memory import BYTES_PER_MB, resident_mb
from django_fairque.worker.leases.lease_renewal import LeaseReturn
from django_fairque.worker.reporting.log import logger, shown
from django_fairque.worker.supervisor.separate_tasks import partial_lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.worker.execution.status_board import OccupiedSlot
    from django_fairque.worker.leases.outage import Outages
    from django_fairque.worker.options import WorkerOptions
    from django_fairque.worker.supervisor.child_process import ChildProcess

UNHEALTHY_AFTER = 4.0
"""Seconds beyond its poll interval for which a loop may be silent; with 5 s polls a red light within 10 s."""
REPLACED_AFTER = 30.0
"""Seconds beyond that after which an idle child whose loop stands still is replaced."""


class ChildLimits:
    """Looks at the children; kills those that must not go on."""

    def __init__(self, options: WorkerOptions, outages: Outages) -> None:
        self._options = options
        self._outages = outages

    def enforce(self, children: Iterable[ChildProcess], confirmed: dict[str, list[float]]) -> None:
        """``confirmed``: per worker id, when its leases were last renewed, by lane."""
        now = monotonic()
        for child in children:
            if child.exitcode is None:
                self._enforce(child, now, confirmed.get(child.worker_id, []))

    def _enforce(self, child: ChildProcess, now: float, confirmed: Sequence[float]) -> None:
        if overdue := child.overdue_at(now):
            self._end_overdue(child, overdue, now)
        elif child.task is not None and self._exceeds_memory(child, child.task.max_memory):
            logger.error(
                "task %s is ended with its process %s: this uses %.0f MB, its max_memory is %.0f MB",
                *(
                    shown(child.task.task_id),
                    child.worker_id,
                    child.memory_used / BYTES_PER_MB,
                    child.task.max_memory / BYTES_PER_MB,
                ),
            )
            child.overdue = child.status_board.running()
            child.kill("its task exceeded its max_memory")
        elif self._outlives_a_lease(child, now, confirmed):
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
            logger.error("worker process %s is replaced: its loop stands still", child.worker_id)
            child.kill("its loop stood still")

    def _outlives_a_lease(self, child: ChildProcess, now: float, confirmed: Sequence[float]) -> bool:
        """Whether it runs something whose lease could not be renewed; those of other shards may well have been."""
        late = {shard_index for shard_index, at in enumerate(confirmed) if now - at > self._options.fence_after}
        return bool(late) and any(each.shard_index in late for each in child.status_board.running())

    @staticmethod
    def _exceeds_memory(child: ChildProcess, limit: int) -> bool:
        """Whether it runs a task with a memory limit and uses more; ``memory_used`` says how much."""
        if not limit or not child.status_board.running():
            return False
        used = resident_mb(child.pid) * BYTES_PER_MB
        child.memory_used = used if used > limit else 0.0
        return used > limit

    def _end_overdue(self, child: ChildProcess, overdue: list[OccupiedSlot], now: float) -> None:
        child.overdue = overdue
        for running in overdue:
            for _, _, task_id in running.tasks:
                logger.error(
                    "task %s is ended with its process %s: it ran for %.1f s, its limit is %g s",
                    *(shown(task_id), child.worker_id, now - running.started, running.timeout),
                )
        child.kill("another task ran beyond its hard time limit")

    def _is_stalled(self, child: ChildProcess, now: float) -> bool:
        longest = self._options.poll_interval + UNHEALTHY_AFTER + REPLACED_AFTER
        return child.is_stalled(now, longest, self._outages.unreachable_shards()) and not child.status_board.running()

    def unhealthy_reasons(self, children: Sequence[ChildProcess], now: float) -> list[str]:
        """Why this worker is not healthy, in sentences."""
        longest = self._options.poll_interval + UNHEALTHY_AFTER
        return [
            f"the event loop of process {child.worker_id} is blocked by {child.blocked_by}"
            for child in children
            if child.blocked_by
        ] + [
            f"the loop of process {child.worker_id} has not come round for {longest:g} s"
            for child in children
            if child.is_ready
            and not child.is_stopping
            and child.is_stalled(now, longest, self._outages.unreachable_shards())
        ]


def leases_to_return(child: ChildProcess, queues: Sequence[FairQueue]) -> list[LeaseReturn]:
    """What a child that has ended leaves behind, per queue.

    Only if it died by itself do the tasks that ran in it count as crashed. Those beyond their hard limit have failed.
    """
    running = child.status_board.running()
    died = not child.kill_reason and not (child.is_stopping and child.exitcode == 0)
    reason = child.kill_reason or (
        f"worker process died ({_exit_description(child.exitcode)})" if died else "worker stopped"
    )
    return [
        LeaseReturn(
            queue.label,
            child.worker_id,
            reason,
            crashed=[token for each in running if died and each.shard_index == shard_index for token in each.tokens],
            started=[
                token for each in running if not died and each.shard_index == shard_index for token in each.tokens
            ],
            outcomes=[
                *([] if child.is_done else child.status_board.logged_outcomes(shard_index, child.worker_id)),
                *(
                    failure
                    for each in child.overdue
                    if each.shard_index == shard_index
                    for failure in _failures(child, each, queue)
                ),
            ],
        )
        for shard_index, queue in enumerate(shard for queue in queues for shard in queue.shards)
    ]


def _failures(child: ChildProcess, running: OccupiedSlot, queue: FairQueue) -> list[Outcome]:
    config = queue.config
    took = monotonic() - running.started
    error: TaskTimeoutError | TaskMemoryError
    if child.memory_used and child.task is not None:
        limit, used = child.task.max_memory / BYTES_PER_MB, child.memory_used / BYTES_PER_MB
        error = TaskMemoryError(f"its process used {used:.0f} MB, more than its max_memory of {limit:.0f} MB")
    else:
        error = TaskTimeoutError(f"it ran for {took:.1f} s and did not end at its time limit of {running.timeout:g} s")
    make = Outcome.fail if child.memory_used else Outcome.overdue
    return [
        make(
            partial_lease(token, task_id, child.worker_id),
            error,
            delay=retry_delay(
                retries, base=config.retry_base_seconds, cap=config.retry_cap_seconds, jitter=config.retry_jitter
            ),
            took=took / len(running.tasks),
        )
        for token, retries, task_id in running.tasks
    ]


def _exit_description(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"exit code {exitcode}"
    return f"signal {-exitcode}"
