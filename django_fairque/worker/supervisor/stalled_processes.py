"""Gives back the tasks that a worker process has fetched and cannot start because it does not respond.

A process stops responding when C code keeps the interpreter lock (a catastrophic regular expression), when it gets SIGSTOP, or
when the machine has no time for it. It may respond again at any moment, so what is given back is fenced first (see `board`):

1. The supervisor raises the fence of a lane in the shared memory. From then on the process starts nothing that it has received
   before, and its lane fetches nothing.
2. After `SETTLE_SECONDS` everything that the process wrote before it could see the fence is visible. The supervisor reads which
   tokens have begun, and the lease renewal thread gives back all others in one call.
3. When the server has confirmed that, the fence is lowered. The lane drops what it still holds in its buffer and fetches again.

While the process does not respond this is repeated: a fetch that was on its way may have handed out more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from django_fairque.worker.leases.lease_renewal import Reconciliation
from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from django_fairque.worker.supervisor.child_process import ChildProcess

STALLED_SECONDS = 1.0
"""Seconds without a sign of life (there are 2 to 20 a second) after which a process counts as stalled."""
SILENT_SECONDS = 5.0
"""Seconds after which a lane that has not come round may hold leases that it does not know of, although its process responds: its
calls fail, or their replies are lost."""
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
        labels: of the queues or shards, by lane.
        give_back: hands jobs to the thread that talks to the server.
        passed_on: tokens, by worker id and lane, of leases that the process has handed to its supervisor.
    """

    def __init__(
        self,
        labels: Sequence[str],
        give_back: Callable[[Sequence[Reconciliation]], object],
        passed_on: Callable[[str, int], set[int]] = lambda *_: set(),
    ) -> None:
        self._labels = labels
        self._give_back = give_back
        self._passed_on = passed_on
        self._rounds: dict[tuple[str, int], _RaisedFence] = {}
        self._stalled: set[str] = set()

    def update(self, children: Sequence[ChildProcess], now: float, unreachable: Collection[int] = ()) -> None:
        """Raise and lower fences as far as it is time to. ``away``: lanes whose server can't be reached."""
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
            reason = (
                STALLED_REASON
                if is_stalled
                else SILENT_REASON
                if self._is_silent(child, shard_index, now, unreachable)
                else ""
            )
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

    @staticmethod
    def _is_silent(child: ChildProcess, shard_index: int, now: float, unreachable: Collection[int]) -> bool:
        polled = child.status_board.last_poll_at(shard_index)
        return (
            bool(polled) and now - polled > SILENT_SECONDS and not child.is_stopping and shard_index not in unreachable
        )

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
