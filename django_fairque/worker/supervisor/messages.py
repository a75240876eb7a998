"""Messages between the supervisor and its worker processes, sent through the pipe of each process.

A process sends `SeparateTask` for a task that it has fetched and that must run in a separate process. The supervisor sends it to
the process that is to run it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import LeaseKey
    from django_fairque.worker.execution.event_loop import BlockedLoop
    from django_fairque.worker.reporting.signal_thread import Announcement

# --- from a process ---


@dataclass(frozen=True)
class Ready:
    """The process can take tasks."""


@dataclass(frozen=True)
class Retiring:
    """The process ends when its tasks have ended, because it has reached a limit."""

    reason: str


@dataclass(frozen=True)
class Unfit:
    """The process can run no task, and ends."""


@dataclass(frozen=True)
class Done:
    """The process has settled all tasks and only has to exit."""


@dataclass(frozen=True)
class LoopChanged:
    """The event loop of the process is blocked. If ``blocked`` is None, the loop goes on."""

    blocked: BlockedLoop | None


@dataclass(frozen=True)
class UnknownNames:
    """The process was given tasks with names for which no function is registered."""

    names: list[str]


# --- from the supervisor ---


@dataclass(frozen=True)
class StopProcess:
    """End the tasks that have begun, then exit."""


@dataclass(frozen=True)
class Drain:
    """Fetch nothing more; or fetch again."""

    is_draining: bool


@dataclass(frozen=True)
class Reconcile:
    """Compare the leases of a shard with the server's record of them."""

    shard_index: int


@dataclass(frozen=True)
class Revoked:
    """Stop the tasks of these leases."""

    shard_index: int
    leases: Sequence[LeaseKey]


@dataclass(frozen=True)
class Announce:
    """Log and send these alerts and endings of tasks: the supervisor runs no code of the project."""

    announcements: Sequence[Announcement]


@dataclass(frozen=True)
class SeparateEnded:
    """Separate tasks that the process had passed on have ended, or were given back."""

    shard_index: int
    tokens: Sequence[int]
