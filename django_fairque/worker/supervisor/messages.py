"""Messages between the supervisor and its worker processes, sent through the pipe of each process.

A process sends `SeparateTask` to the supervisor for a task that must run in a separate process. The supervisor sends
this message on to the process that will run the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import LeaseKey
    from django_fairque.worker.execution.event_loop import BlockedLoop
    from django_fairque.worker.reporting.signal_thread import Announcement

# --- sent by a worker process ---


@dataclass(frozen=True)
class Ready:
    """The process is ready to run tasks."""


@dataclass(frozen=True)
class Retiring:
    """The process has reached a limit, and ends when its running tasks have ended."""

    reason: str


@dataclass(frozen=True)
class Unfit:
    """The process can't run any task, and ends."""


@dataclass(frozen=True)
class Done:
    """The process has settled all its tasks and is about to exit."""


@dataclass(frozen=True)
class LoopChanged:
    """The state of the process's event loop. ``blocked`` describes the blocked loop; None means that the loop is no
    longer blocked.
    """

    blocked: BlockedLoop | None


@dataclass(frozen=True)
class UnknownNames:
    """The process received tasks with names for which no function is registered."""

    names: list[str]


# --- sent by the supervisor ---


@dataclass(frozen=True)
class StopProcess:
    """End the running tasks, then exit."""


@dataclass(frozen=True)
class Drain:
    """Stop or resume fetching tasks."""

    is_draining: bool


@dataclass(frozen=True)
class Reconcile:
    """Compare the leases that the process holds on a shard with the server's record, and give back the others."""

    shard_index: int


@dataclass(frozen=True)
class Revoked:
    """Stop the tasks of these leases."""

    shard_index: int
    leases: Sequence[LeaseKey]


@dataclass(frozen=True)
class Announce:
    """Log these alerts and endings of tasks, and send their signals. The supervisor does not do this itself, because it
    runs no code of the project.
    """

    announcements: Sequence[Announcement]


@dataclass(frozen=True)
class SeparateEnded:
    """Tasks that this process passed on to separate processes have ended there, or were given back."""

    shard_index: int
    tokens: Sequence[int]
