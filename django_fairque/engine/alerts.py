"""What people should hear of: promises at risk or broken, tasks moved up, deaths, lost data. Each is told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from .ids import new_nonce
from .packing import unpack
from .priority import Priority

if TYPE_CHECKING:
    from .commands import Commands
    from .steps import Steps

Kind = Literal["at_risk", "violated", "promoted", "died", "emptied", "went_back"]
KINDS: tuple[str, ...] = get_args(Kind)
MOST_ALERTS = 10_000
"""No more are kept (lua/lib/base.lua)."""


@dataclass(frozen=True)
class Alert:
    """Something about one task. ``at`` and ``deadline`` in seconds since the epoch.

    ``kind``: ``at_risk`` (its promise to start ends at ``deadline`` and it has not started), ``violated`` (it started
    after ``deadline``), ``promoted`` (it waited so long that it moved up from ``promoted_from`` to ``priority``), ``died`` (it is
    a dead letter, for ``reason``, and no worker has reported that: it expired, or its workers died too often). And about
    none (``task_id`` is empty), from a worker: ``emptied`` (the server has lost everything), ``went_back`` (the last changes,
    among them so many ``leases``).
    """

    kind: Kind
    at: float
    queue: str
    task_id: str
    user_id: str
    name: str
    priority: Priority
    deadline: float | None = None
    promoted_from: Priority | None = None
    leases: int = 0
    reason: str = ""

    def __str__(self) -> str:
        if self.kind == "emptied":
            return "the server has lost the queue's data: it came back empty; what was waiting or running is gone"
        if self.kind == "went_back":
            return (
                f"the server has lost its last changes, among them {self.leases} leases: tasks that were pushed lately may be "
                f"missing, and others run again"
            )
        task = f"task {self.task_id} ({self.name or 'no name'}, {self.priority.name}) of user {self.user_id!r}"
        if self.kind == "promoted" and self.promoted_from is not None:
            return f"{task} waited so long that it was moved up from {self.promoted_from.name}"
        if self.kind == "died":
            return f"{task} is a dead letter: {self.reason}"
        seconds = abs((self.deadline or self.at) - self.at)
        if self.kind == "at_risk":
            return f"{task} has {seconds:.0f} s left to start as promised"
        return f"{task} started {seconds:.1f} s later than promised"


def take_alerts(commands: Commands, limit: int, now: float | None) -> Steps[list[Alert]]:
    reply = yield commands.call("alerts", [limit], now, reply=new_nonce())
    return [_alert(commands.name, packed) for packed in reply]


def _alert(queue: str, packed: bytes) -> Alert:
    at, kind, task_id, user, name, priority, detail = (part.decode("utf-8", "replace") for part in unpack(packed))
    promoted, died = kind == "promoted", kind == "died"
    return Alert(
        cast("Kind", kind),  # the scripts write no other
        int(at) / 1_000_000,
        *(queue, task_id, user, name, Priority(int(priority))),
        deadline=None if promoted or died else float(detail) / 1_000_000,
        promoted_from=Priority(int(detail)) if promoted else None,
        reason=detail if died else "",
    )
