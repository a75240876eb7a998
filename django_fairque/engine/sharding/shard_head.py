"""Which shard of a queue is to be served next: start-time fair queueing once more, over the shards.

A shard stands where the one stands whose turn it is next on it. Serving the shard that stands first keeps all users of all
shards together, whatever their number on each. The virtual time of a shard moves only when the shard is served; so each
call for tasks says the `Window`: where the queue's virtual time is, at which begins who has come since its last turn, and
where the next of the other shards stands, beyond which nobody is served.

Shards count from different beginnings; who serves knows how far they are apart, since it first had something of each.
Each who serves keeps turns of its own; what others serve shows in the shards' places.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Window(NamedTuple):
    """Two places, in the shard's counting: the virtual time of the queue, and where the next of the other shards stands.

    Of a list of users there is only the second: how much each of them may get before. ``steals``: also users of the second list.
    """

    begin: float | None = None
    until: float | None = None
    steals: bool = True

    def to_lua_args(self) -> list[str]:
        """The two arguments of ``pop.lua`` and ``settle.lua``."""
        return ["" if place is None else repr(place) for place in (self.begin, self.until)]


class Standing(NamedTuple):
    """What a shard's reply says of all, or of a list of users.

    ``place`` is where the one stands whose turn it is next, of a list any number; None if nobody is there. ``given`` is how many
    tasks were handed out, of a list what those came to for each of its users (microseconds of worker time, as expected).
    """

    place: float | None
    given: float


NO_WINDOW = Window()


class Turns:
    """The order of ``size`` shards. Not thread-safe, and needs not be: at worst a shard is served once out of turn."""

    def __init__(self, size: int) -> None:
        self._places: list[float | None] = [None] * size
        """Where the next one stands; None: nobody was there at the last look."""
        self._offsets: list[float | None] = [None] * size
        """How far its counting is behind the common one; None until it was served."""
        self._virtual_time = 0.0
        """Of the queue: the furthest at which anyone was served."""

    def turn(self, index: int) -> float:
        """The least is next. A shard that had nothing at its last look is not before the others for that."""
        offset, place = self._offsets[index], self._places[index]
        if offset is None:
            return -math.inf
        return self._first_of_others(index) if place is None else place + offset

    def has(self, index: int) -> bool:
        """Whether somebody was there at the last look."""
        return self._places[index] is not None

    def window(self, index: int, others: Iterable[int]) -> Window:
        """What to say in a call to this shard: ``others`` are those that have tasks to give as well."""
        offset = self._offsets[index]
        if offset is None:
            return NO_WINDOW
        first = min((self.turn(other) for other in others if self._offsets[other] is not None), default=None)
        return Window(self._virtual_time - offset, None if first is None else first - offset)

    def seen(self, index: int, place: float | None) -> None:
        """Somebody was seen to stand there, or nobody."""
        self._places[index] = place

    def looked(self, index: int, place: float | None, *, is_first: bool) -> None:  # noqa: ARG002 - a look is as good as any
        """Who is first in its ring was looked up."""
        self.seen(index, place)

    def served(self, index: int, virtual_time: float, place: float | None, given: float) -> None:
        """It gave ``given`` tasks, and stands at ``place`` now."""
        offset, is_back = self._offsets[index], self._places[index] is None
        self._places[index] = place
        if given and (offset is None or is_back):  # what it did not use meanwhile is gone
            ahead = self._virtual_time - virtual_time
            self._offsets[index] = offset = ahead if offset is None else max(offset, ahead)
        if offset is not None:
            self._virtual_time = max(self._virtual_time, virtual_time + offset)

    def _first_of_others(self, index: int) -> float:
        places = zip(self._places, self._offsets, strict=True)
        turns = (
            place + offset
            for other, (place, offset) in enumerate(places)
            if other != index and place is not None and offset is not None
        )
        return min(turns, default=self._virtual_time)
