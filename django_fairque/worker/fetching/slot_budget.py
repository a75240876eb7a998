"""What the queues of one worker share: its slots, and how many tasks it may run before it is replaced."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shard_scheduler import Window
    from django_fairque.worker.fetching.fetch_planner import FetchPlanner

MAX_FETCH_LEASES = 300
"""Leases per call. The server serves nobody else while it works on one."""

TURN_CHECK_SECONDS = 0.1
"""Seconds between looks at a shard while others of its queue come first: a newcomer there waits no longer for that."""


class SlotBudget:
    """Divides ``slots`` between the lanes that join.

    Lanes ask from threads of their own and see each other's figures unlocked: two that ask in the same moment may
    both be given a slot. What is one too many waits in a buffer for a moment.
    """

    def __init__(self, slots: int, *, max_tasks: int = 0, burst: bool = False) -> None:
        self.slots = slots
        self.burst = burst
        self.planners: list[FetchPlanner] = []
        self.finished = 0
        """Tasks that were run and are reported, or being so."""
        self.events = 0
        """Grows whenever tasks come or end."""
        self._max_tasks = max_tasks

    def add(self, planner: FetchPlanner) -> None:
        self.planners.append(planner)

    def fetch_size(self, planner: FetchPlanner, prefetch: int, for_batches: int) -> int:
        """How many leases the lane may fetch: for free slots, ``ahead`` for its buffer, ``missing`` for batches."""
        free = self.slots - sum(other.occupied_slots for other in self.planners)
        if len(self.planners) > 1:
            if not self.has_turn(planner):
                return 0
            free -= self._reserved_for_others(planner)
        room = min(max(0, free + prefetch) + for_batches, MAX_FETCH_LEASES)
        if self._max_tasks:
            held = sum(other.held for other in self.planners)
            room = min(room, max(0, self._max_tasks - self.finished - held))
        return room

    def _reserved_for_others(self, planner: FetchPlanner) -> int:
        """Slots that hungry queues lack to an equal share, if this one has its own."""
        mine = sum(other.occupied_slots for other in self.planners if other.turn.scheduler is planner.turn.scheduler)
        rivals: dict[int, int] = {}
        for other in self.planners:
            if other.turn.scheduler is not planner.turn.scheduler and other.wants_tasks:
                rivals.setdefault(id(other.turn.scheduler), 0)
        for other in self.planners:
            if id(other.turn.scheduler) in rivals:
                rivals[id(other.turn.scheduler)] += other.occupied_slots
        share = max(1, self.slots // (len(rivals) + 1))
        if mine < share:
            return 0
        return sum(max(0, share - in_hand) for in_hand in rivals.values())

    def has_turn(self, planner: FetchPlanner) -> bool:
        """Whether no other shard of its queue, which wants more too, comes first."""
        turn = planner.turn.position
        return all(turn <= other.turn.position for other in self._rivals(planner))

    @property
    def turn_check_seconds(self) -> float:
        """Seconds after which a lane that waits for its turn looks at its shard, a hundred lanes a second at most."""
        return max(TURN_CHECK_SECONDS, len(self.planners) / 100)

    def window(self, planner: FetchPlanner) -> Window:
        """Where the lane's shard stands among those of its queue that want more too."""
        return planner.turn.window(other.turn for other in self._rivals(planner))

    def _rivals(self, planner: FetchPlanner) -> list[FetchPlanner]:
        if len(self.planners) == 1:
            return []
        among, now = planner.turn.scheduler, monotonic()
        return [
            other
            for other in self.planners
            if other is not planner and other.turn.scheduler is among and other.comes_first(now)
        ]

    @property
    def may_fetch_ahead(self) -> bool:
        """Whether a lane may ask for tasks before there are any: the only lane, of a worker that has nothing to do.

        Of several each would be handed some. And what a worker runs may hold it up (a task that keeps the interpreter), while
        another could begin what it was handed.
        """
        return len(self.planners) == 1 and self.is_idle and not self.burst

    @property
    def has_had_tasks(self) -> bool:
        """Whether there was a task yet."""
        return self.events > 0

    @property
    def has_reached_max_tasks(self) -> bool:
        """Whether the worker has run as many tasks as it may."""
        return bool(self._max_tasks) and self.finished >= self._max_tasks

    @property
    def is_idle(self) -> bool:
        return not any(planner.held or planner.separate for planner in self.planners)

    @property
    def is_everything_empty(self) -> bool:
        """Whether every queue was found empty after the last task of any had ended."""
        return self.is_idle and all(planner.is_empty for planner in self.planners)
