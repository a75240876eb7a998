"""What operators wish of a worker, as its heartbeats bring it: each wish is heard once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.leasing.lease_ops import Wish

DRAIN_COMMAND, STOP_COMMAND = "quiet", "stop"
"""Of `WISHES`; the third is to work again."""


class OperatorCommands:
    """Tells new wishes from those that were heard before. What the first heartbeat brings was meant for a worker that
    had this id before: nobody can have wished anything of one that was not known yet."""

    def __init__(self) -> None:
        self._last_times: dict[str, float] = {}
        """Per queue, when what was heard last had been told."""

    def new_command(self, queue: str, command: Wish | None) -> str:
        """What is wished now, if that is new; empty otherwise."""
        at = command.at if command else 0.0
        before = self._last_times.get(queue)
        self._last_times[queue] = at
        return command.kind if command and before is not None and at > before else ""
