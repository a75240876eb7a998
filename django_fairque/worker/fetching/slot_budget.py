"""What the queues of one worker share: its slots, and how many tasks it may run before it is replaced."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shard_head import Window
    from django_fairque.worker.fetching.fetch_planner import Lane

LARGEST_FETCH = 300
"""Leases per call. The server serves nobody else while it works on one."""

GLANCE = 0.1
"""Seconds between looks at a shard while others of its queue come first: a newcomer there waits no longer for that."""


class Budget:
    """Divides ``slots`` between the lanes that join.

    Lanes ask from threads of their own and see each other's figures unlocked: two that ask in the same moment may
    both be given a slot. What is one too many waits in a buffer for a moment.
    """

    def __init__(self, slots: int, *, max_tasks: int = 0, burst: bool = False) -> None:
        self.slots = slots
        self.burst = burst
        self.lanes: list[Lane] = []
        self.finished = 0
        """Tasks that were run and are reported, or being so."""
        self.events = 0
        """Grows whenever tasks come or end."""
        self._max_tasks = max_tasks

    def join(self, lane: Lane) -> None:
        self.lanes.append(lane)

    def room(self, lane: Lane, ahead: int, missing: int) -> int:
        """How many leases the lane may fetch: for free slots, ``ahead`` for its buffer, ``missing`` for batches."""
        free = self.slots - sum(other.in_hand for other in self.lanes)
        if len(self.lanes) > 1:
            if not self.has_its_turn(lane):
                return 0
            free -= self._owed_to_others(lane)
        room = min(max(0, free + ahead) + missing, LARGEST_FETCH)
        if self._max_tasks:
            held = sum(other.held for other in self.lanes)
            room = min(room, max(0, self._max_tasks - self.finished - held))
        return room

    def _owed_to_others(self, lane: Lane) -> int:
        """Slots that hungry queues lack to an equal share, if this one has its own."""
        mine = sum(other.in_hand for other in self.lanes if other.place.shared is lane.place.shared)
        rivals: dict[int, int] = {}
        for other in self.lanes:
            if other.place.shared is not lane.place.shared and other.is_hungry:
                rivals.setdefault(id(other.place.shared), 0)
        for other in self.lanes:
            if id(other.place.shared) in rivals:
                rivals[id(other.place.shared)] += other.in_hand
        share = max(1, self.slots // (len(rivals) + 1))
        if mine < share:
            return 0
        return sum(max(0, share - in_hand) for in_hand in rivals.values())

    def has_its_turn(self, lane: Lane) -> bool:
        """Whether no other shard of its queue, which wants more too, comes first."""
        turn = lane.place.now
        return all(turn <= other.place.now for other in self._rivals(lane))

    @property
    def glance(self) -> float:
        """Seconds after which a lane that waits for its turn looks at its shard, a hundred lanes a second at most."""
        return max(GLANCE, len(self.lanes) / 100)

    def window(self, lane: Lane) -> Window:
        """Where the lane's shard stands among those of its queue that want more too."""
        return lane.place.among(other.place for other in self._rivals(lane))

    def _rivals(self, lane: Lane) -> list[Lane]:
        if len(self.lanes) == 1:
            return []
        among, now = lane.place.shared, monotonic()
        return [
            other
            for other in self.lanes
            if other is not lane and other.place.shared is among and other.comes_first(now)
        ]

    @property
    def may_ask_ahead(self) -> bool:
        """Whether a lane may ask for tasks before there are any: the only lane, of a worker that has nothing to do.

        Of several each would be handed some. And what a worker runs may hold it up (a task that keeps the interpreter), while
        another could begin what it was handed.
        """
        return len(self.lanes) == 1 and self.is_idle and not self.burst

    @property
    def has_begun(self) -> bool:
        """Whether there was a task yet."""
        return self.events > 0

    @property
    def is_spent(self) -> bool:
        """Whether the worker has run as many tasks as it may."""
        return bool(self._max_tasks) and self.finished >= self._max_tasks

    @property
    def is_idle(self) -> bool:
        return not any(lane.held or lane.separate for lane in self.lanes)

    @property
    def is_drained(self) -> bool:
        """Whether every queue was found empty after the last task of any had ended."""
        return self.is_idle and all(lane.is_drained for lane in self.lanes)
