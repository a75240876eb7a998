"""What operators wish of a worker, as its heartbeats bring it: each wish is heard once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.leasing.lease_ops import Wish

BE_QUIET, STOP = "quiet", "stop"
"""Of `WISHES`; the third is to work again."""


class Wishes:
    """Tells new wishes from those that were heard before. What the first heartbeat brings was meant for a worker that
    had this id before: nobody can have wished anything of one that was not known yet."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        """Per queue, when what was heard last had been told."""

    def heard(self, queue: str, wish: Wish | None) -> str:
        """What is wished now, if that is new; empty otherwise."""
        at = wish.at if wish else 0.0
        before = self._heard.get(queue)
        self._heard[queue] = at
        return wish.kind if wish and before is not None and at > before else ""
