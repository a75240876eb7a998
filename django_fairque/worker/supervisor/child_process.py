"""`ChildProcess`: one worker process as its supervisor sees it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from django_fairque.worker.leases.heartbeat import worker_info, worker_status
from django_fairque.worker.leases.lease_renewal import RenewedWorker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.model.lease import LeaseKey
    from django_fairque.engine.statistics.health import Alert
    from django_fairque.worker.execution.event_loop import BlockedLoop
    from django_fairque.worker.execution.status_board import OccupiedSlot
    from django_fairque.worker.options import WorkerOptions
    from django_fairque.worker.reporting.signal_thread import TaskEnding
    from django_fairque.worker.supervisor.process_factory import ProcessFactory
    from django_fairque.worker.supervisor.separate_tasks import SeparateTask


class ChildProcess:
    """Starts at once, in the main thread: it dies with the thread that started it. ``worker_id`` is its own, never
    used before or after.
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
        """The one task that it is for; None if it fetches tasks."""
        place = index if task is None else "task"
        self.worker_id = f"{options.worker_id}.{place}.{incarnation}"
        self.options = options.for_child(self.worker_id, one_task=task is not None)
        self.status_board, self.process, self.pipe = process_factory.start_child(self.options)
        self._unsent: deque[tuple[object, ...]] = deque()
        if task is not None:
            self.send("run", *task)
        self.renewed = RenewedWorker(
            self.worker_id,
            self.info,
            self.revoke,
            self.status_board.running,
            partial(self.send, "reconcile"),
        )
        """Its leases are renewed for it. "reconcile" has it compare those of a shard with what the server has recorded."""
        self.is_ready = False
        self.is_draining = False
        """It got the command to fetch nothing."""
        self.is_stopping = False
        """It got the command to stop, or stops by itself; another process has replaced or will replace it."""
        self.is_done = False
        """It has settled everything; all that is left for it is to exit."""
        self.deadline: float | None = None
        """When it will be killed if it has not ended."""
        self.kill_reason = ""
        self.overdue: list[OccupiedSlot] = []
        """What ran beyond its hard limit, or used more memory than its task may."""
        self.memory_used = 0.0
        """Bytes, if that is more than its task may use."""
        self.blocked: BlockedLoop | None = None
        """Its event loop, as long as it is blocked."""
        self.blocked_by: str | None = None
        """The task that blocks it, empty when none does any more; None as long as none has."""
        self.unknown_tasks: list[str] | None = None
        """Names of tasks that its supervisor's processes were handed lately and do not know: they all have the same code. None as
        long as there were none."""
        self.started = time.time()
        self.started_at = monotonic()

    # --- how it is ---

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def exitcode(self) -> int | None:
        return self.process.exitcode

    def overdue_at(self, now: float) -> list[OccupiedSlot]:
        """What runs beyond its hard limit. Not coroutines that can't go on because another one blocks their event loop."""
        return [running for running in self._late(now) if not self._is_held_up(running)]

    def is_held_up_at(self, now: float) -> bool:
        """Whether its event loop is blocked by something that has no hard limit, for longer than the limit of a coroutine."""
        if self.blocked is None or self.blocked.culprit is not None:
            return False
        return any(self._is_held_up(running) for running in self._late(now))

    def _late(self, now: float) -> list[OccupiedSlot]:
        grace = self.options.hard_timeout_grace
        return [running for running in self.status_board.running() if now > running.started + running.timeout + grace]

    def _is_held_up(self, running: OccupiedSlot) -> bool:
        return self.blocked is not None and (running.shard_index, running.tokens[0]) in self.blocked.others

    def is_stalled(self, now: float, longest: float, unreachable: Sequence[int] = ()) -> bool:
        """Whether one of its loops has made no progress for ``longest`` seconds. Unreachable shards do not count."""
        last = max(self.status_board.oldest_poll_at(unreachable), self.started_at)
        return now - last > longest

    def info(self) -> dict[str, str]:
        return worker_info(
            self.options,
            done=self.status_board.done,
            running=len(self.status_board.running()),
            status=worker_status(is_draining=self.is_draining, is_stopping=self.is_stopping),
            pid=self.pid,
            started=self.started,
            unknown_tasks=self.unknown_tasks,
            blocked_by=self.blocked_by,
        )

    def messages(self) -> Iterator[tuple[Any, ...]]:
        """The messages that it has sent."""
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                yield self.pipe.recv()

    # --- what is done to it ---

    def send(self, *message: object) -> None:
        """Say something as soon as it can be taken in (`flush`). From any thread."""
        self._unsent.append(message)

    def flush(self) -> None:
        """Send the messages without ever waiting: a child that holds its interpreter does not read."""
        with contextlib.suppress(OSError, ValueError):  # it is dead: its sentinel says so too
            while self._unsent and select.select([], [self.pipe], [], 0)[1]:
                self.pipe.send(self._unsent.popleft())

    def revoke(self, shard_index: int, leases: Sequence[LeaseKey]) -> None:
        """Have it stop the tasks of these leases. In portions that fit into the line whole."""
        for first in range(0, len(leases), 100):
            self.send("revoked", shard_index, list(leases[first : first + 100]))

    def announce(self, announcements: Sequence[Alert | TaskEnding]) -> None:
        """Have it announce these: here no user code runs. In portions that fit into the line whole."""
        for first in range(0, len(announcements), 10):
            self.send("announce", list(announcements[first : first + 10]))

    def set_draining(self, *, is_draining: bool) -> None:
        """Have it fetch nothing, or again."""
        self.is_draining = is_draining
        self.send("drain", is_draining)

    def stop(self, deadline: float | None) -> None:
        """Have it end what it has begun, until ``deadline`` (`time.monotonic()`); None for as long as that takes."""
        if not self.is_stopping:
            self.is_stopping = True
            self.send("stop")
        self.deadline = deadline
        self.flush()

    def dump_stacks(self) -> None:
        """Have it write the stacks of its threads to its standard error, even if C code keeps its interpreter."""
        if self.is_ready and self.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)

    def kill(self, reason: str) -> None:
        """End it at once. Returns when it can do no more harm."""
        self.kill_reason = self.kill_reason or reason
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        self.process.join()
        self.pipe.close()
        self.process.close()
