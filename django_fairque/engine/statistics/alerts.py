"""What people should hear of: promises at risk or broken, tasks moved up, deaths, lost data. Each is told once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.payload import unpack
from django_fairque.engine.model.priority import Priority

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation

AlertKind = Literal["at_risk", "violated", "promoted", "died", "given_back", "emptied", "went_back"]
ALERT_KINDS: tuple[str, ...] = get_args(AlertKind)
MAX_ALERTS = 10_000
"""No more are kept (lua/lib/base.lua)."""


@dataclass(frozen=True)
class Alert:
    """Something about one task. ``at`` and ``deadline`` in seconds since the epoch.

    ``kind``: ``at_risk`` (its promise to start ends at ``deadline`` and it has not started), ``violated`` (it started
    after ``deadline``), ``promoted`` (it waited so long that it moved up from ``promoted_from`` to ``priority``), ``died`` (it is
    a dead letter, for ``reason``, and no worker has reported that: it expired, or its workers died too often), ``given_back``
    (it has been given back ``times`` times after it had begun: its processes died, were killed or stopped; at each tenth time).
    And about none (``task_id`` is empty), from a worker: ``emptied`` (the server has lost everything), ``went_back`` (the last
    changes, of which this many are ``leases``).
    """

    kind: AlertKind
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
    times: int = 0

    def __str__(self) -> str:
        if self.kind == "emptied":
            return "the server has lost the queue's data: it came back empty; what was waiting or running is gone"
        if self.kind == "went_back":
            return (
                f"the server has lost its last changes, among them {self.leases} leases: tasks that were pushed lately may be "
                f"missing, and others run again"
            )
        task = f"task {self.task_id} ({self.name or 'no name'}, {self.priority.name}) of user {self.user_id!r}"
        return f"{task} {self._happened}"

    @property
    def _happened(self) -> str:
        """What happened to the task."""
        if self.kind == "promoted" and self.promoted_from is not None:
            return f"waited so long that it was moved up from {self.promoted_from.name}"
        if self.kind == "died":
            return f"is a dead letter: {self.reason}"
        if self.kind == "given_back":
            return f"has been given back {self.times} times after it had begun, and starts again each time"
        seconds = abs((self.deadline or self.at) - self.at)
        if self.kind == "at_risk":
            return f"has {seconds:.0f} s left to start as promised"
        return f"started {seconds:.1f} s later than promised"


def take_alerts(commands: Commands, limit: int, now: float | None) -> Operation[list[Alert]]:
    reply = yield commands.call("alerts", [limit], now, reply=new_nonce())
    return [_alert(commands.name, packed) for packed in reply]


def _alert(queue: str, packed: bytes) -> Alert:
    at, kind, task_id, user, name, priority, detail = (part.decode("utf-8", "replace") for part in unpack(packed))
    promoted, died, given_back = kind == "promoted", kind == "died", kind == "given_back"
    return Alert(
        cast("AlertKind", kind),  # the scripts write no other
        int(at) / 1_000_000,
        *(queue, task_id, user, name, Priority(int(priority))),
        deadline=None if promoted or died or given_back else float(detail) / 1_000_000,
        promoted_from=Priority(int(detail)) if promoted else None,
        reason=detail if died else "",
        times=int(detail) if given_back else 0,
    )
