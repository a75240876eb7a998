"""Which shard of a queue is to be served next: start-time fair queueing once more, over the shards' virtual times.

A shard's virtual time is what each of its users with constant work has been served so far, per weight. Serving the shard
whose time is behind keeps the times together, and so all users of all shards, whatever their number on each. A shard
that had nothing is not owed what it did not use: it comes back at the place of the one served now.

Each who serves keeps turns of its own; what others serve shows in the virtual times.
"""

from __future__ import annotations

import math


class Turns:
    """The order of ``size`` shards. Not thread-safe, and needs not be: at worst a shard is served once out of turn."""

    def __init__(self, size: int) -> None:
        self._times = [0.0] * size
        self._offsets = [0.0] * size
        self._is_known = [False] * size
        self._is_busy = [False] * size
        self._floor = 0.0
        """The turn of the shard that was served last."""

    def turn(self, index: int) -> float:
        """The least is next. A shard that had nothing at its last look is not before the others for that."""
        if not self._is_known[index]:
            return -math.inf
        own = self._times[index] + self._offsets[index]
        return own if self._is_busy[index] else max(own, self._lowest(index))

    def next(self, among: list[int]) -> int:
        """Whose turn it is among these; of equals first one that had nothing: what has come since is a newcomer's."""
        return min(among, key=lambda index: (self.turn(index), self._is_busy[index]))

    def served(self, index: int, virtual_time: float, count: int, asked: int) -> None:
        """It was ``asked`` for so many tasks (0: it was told something else) and had ``count``; its time counts from now on."""
        if count and not self._is_busy[index]:
            lowest = self._lowest(index)
            if self._is_known[index]:  # not before where it was: who comes and goes gains nothing by that
                self._offsets[index] = max(self._offsets[index], lowest - self._times[index])
            else:
                self._offsets[index] = lowest - virtual_time
        self._times[index], self._is_known[index] = virtual_time, True
        if asked:
            self._is_busy[index] = count >= asked
        if count:
            self._floor = max(self._floor, virtual_time + self._offsets[index])

    def has_nothing(self, index: int) -> None:
        """It was seen to have nobody to serve."""
        self._is_busy[index] = False

    def _lowest(self, index: int) -> float:
        busy = [self.turn(other) for other in range(len(self._times)) if other != index and self._is_busy[other]]
        return min(busy, default=self._floor)
