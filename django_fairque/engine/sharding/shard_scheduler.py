"""The choice of the next shard for a worker. On all shards, lists of users are served before fairness decides.

A worker may have a list of users, and other users from which it steals while the list has no tasks (`Fetch`). Shards
with tasks of the list come first. Users of a list are served fairly among each other. Tasks taken for a list change no
position in the rings (lua/lib/list_credit.lua), so each process counts here how much a list has received on each shard,
by the expected run time of the tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django_fairque.engine.model.lanes import LANES

if TYPE_CHECKING:
    from django_fairque.engine.model.ids import Users
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.outcome import NewcomerHead, Settled


class Window(NamedTuple):
    """The range in which a shard may serve its users: two positions in the shard's count of worker time. ``begin`` is
    the virtual time of the queue, ``until`` the position of the next user on the other shards.

    A list of users has only ``until``: the worker time that each user may receive before the next shard's turn.
    ``steals``: users of the second list are served too. ``only_newcomers``: only newcomers wait on the other shards.
    """

    begin: float | None = None
    until: float | None = None
    steals: bool = True
    only_newcomers: bool = False


NO_WINDOW = Window()


class FairShardOrder:
    """The order of ``size`` shards. Not thread-safe, which does no harm: at worst a shard is served once out of turn.

    The next user of a shard is a newcomer, or has a tag. The position of a newcomer is the position up to which the
    shard would serve an overdue user first. If both are newcomers, the earlier newcomer is next.
    """

    def __init__(self, size: int) -> None:
        self._places: list[float | None] = [None] * size
        """The position of each shard's next user; None if no user was waiting when the shard was last read."""
        self._came: list[float | None] = [None] * size
        """For each shard, the moment at which its next user came, if that user is a newcomer."""
        self._newcomer_places = [0.0] * size
        self._has_others = [False] * size
        """For each shard, whether users wait that are no newcomers."""
        self._offsets: list[float | None] = [None] * size
        """The distance by which each shard's count of worker time is behind the common count; None until the shard was served."""
        self._virtual_time = 0.0
        """The virtual time of the queue: the furthest position at which any user was served."""

    def turn(self, index: int) -> float:
        """Return the turn of a shard; the shard with the lowest turn is next. A shard that had no tasks when it was
        last read gets the lowest known turn, so it does not come first.
        """
        if self._offsets[index] is None:
            return -math.inf
        if self._places[index] is not None:
            return self._turn(index)
        return min((self._turn(other) for other in self._list_known_shards()), default=self._virtual_time)

    def came(self, index: int) -> float:
        """Return the moment at which the shard's next user came, if that user is a newcomer. A newcomer is served
        before other users with the same turn.
        """
        came = self._came[index]
        return math.inf if came is None else came

    def _list_known_shards(self) -> list[int]:
        """List the shards with a waiting user and a known offset."""
        pairs = enumerate(zip(self._places, self._offsets, strict=True))
        return [index for index, (place, offset) in pairs if place is not None and offset is not None]

    def _turn(self, index: int) -> float:
        """Return the next user's position in the common count. The position of a newcomer is not before the positions
        of newcomers that came earlier.
        """
        earlier = [shard for shard in self._list_known_shards() if self.came(shard) < self.came(index) < math.inf]
        return max((self._places[shard] or 0.0) + (self._offsets[shard] or 0.0) for shard in (index, *earlier))

    def may_lead(self, index: int, urgent_tag: float) -> bool:
        """Return whether urgent tasks of a user of this shard with this tag may be served first in the queue."""
        return urgent_tag + (self._offsets[index] or 0.0) <= self._virtual_time + AHEAD

    def has(self, index: int) -> bool:
        """Return whether a user was waiting when the shard was last read."""
        return self._places[index] is not None

    def window(self, index: int, others: Iterable[int]) -> Window:
        """Return the window for a call to this shard; ``others`` are the other shards that have tasks."""
        offset = self._offsets[index]
        if offset is None:
            return NO_WINDOW
        known = [other for other in others if self._offsets[other] is not None]
        first = min(map(self.turn, known), default=None)
        only_newcomers = bool(known) and not any(self._has_others[other] for other in known)
        return Window(
            self._virtual_time - offset,
            None if first is None else first - offset,
            only_newcomers=only_newcomers,
        )

    def seen(self, index: int, place: float | None, came: float | None = None) -> None:
        """Record the position of the shard's next user; None if no user waits."""
        self._places[index], self._came[index] = place, came
        self._has_others[index] = place is not None and (came is None or self._has_others[index])

    def record_first_score(self, index: int, score: float | None, *, is_first: bool) -> None:  # noqa: ARG002 - the same call for each order of shards
        """Record the ``score`` of the first user in the shard's ring; it is below 0 for a newcomer."""
        if score is None or score >= 0:
            self.seen(index, score)
        else:
            tag = self._places[index] if self._came[index] is None else None
            newcomer_place = self._newcomer_places[index]
            if tag is None or tag >= newcomer_place:  # otherwise a user that is no newcomer is overdue
                self.seen(index, newcomer_place, score)

    def record_served_tasks(
        self, index: int, virtual_time: float, place: float | None, given: float, head: NewcomerHead | None = None
    ) -> None:
        """Record a shard's reply: its ``virtual_time``, the number of tasks that it gave (``given``), the position of
        its next user in the ring (``place``, None if no user can be served), and the part of the reply about newcomers
        (``head``).
        """
        offset, is_back = self._offsets[index], self._places[index] is None
        if head is not None and head.lanes and "normal" not in head.lanes:
            place = None  # users can be served, but at limits and not in the ring
        self.seen(index, place, head and head.came)
        if head is not None:
            self._newcomer_places[index], self._has_others[index] = head.place, head.has_others
        if given and (offset is None or is_back):  # the shard gets no credit for the time without users
            ahead = self._virtual_time - virtual_time
            self._offsets[index] = offset = ahead if offset is None else max(offset, ahead)
        if offset is not None:
            self._virtual_time = max(self._virtual_time, virtual_time + offset)


AHEAD = 10e6
"""Urgent tasks are served first while the urgent tag of their user is at most this far beyond the virtual time of the
queue (``ring.AHEAD`` in lua/lib/ring.lua)."""
BULK_TURN = 20
"""While some shards have other tasks, one of this many tasks (5 %) comes from shards that have only bulk tasks."""
MAX_SCHEDULERS = 16
"""The number of schedulers that a queue keeps. Most calls contain the same lists as earlier calls."""


class ListShardOrder:
    """The order of ``size`` shards, like `FairShardOrder`, for a list whose users live on the shards ``homes``.

    A shard's position is None if no user of the list waits there.
    """

    def __init__(self, size: int, homes: Collection[int]) -> None:
        self._reached = [0.0] * size
        """The worker time that each user of the list has received on each shard."""
        self._homes = homes
        self._has = [index in homes for index in range(size)]
        """Whether users of the list may wait on each shard. At first every home may have some."""
        self._virtual_time = 0.0
        """The most worker time per user that any shard had given when its turn came."""

    def has(self, index: int) -> bool:
        return self._has[index]

    def turn(self, index: int) -> float:
        return self._reached[index] if self._has[index] else self._virtual_time

    def came(self, index: int) -> float:  # noqa: ARG002 - a shard's own list puts newcomers first
        return math.inf

    def window(self, index: int, others: Iterable[int]) -> Window:
        """Return a window with the worker time that each user on this shard may receive until the next shard's turn
        comes.
        """
        first = min((self._reached[other] for other in others if self._has[other]), default=None)
        return NO_WINDOW if first is None else Window(until=max(0.0, first - self._reached[index]))

    def seen(self, index: int, place: float | None) -> None:
        is_there = place is not None
        if is_there and not self._has[index]:  # the shard gets no credit for the time without users
            self._reached[index] = max(self._reached[index], self._virtual_time)
        self._has[index] = is_there

    def record_first_score(self, index: int, score: float | None, *, is_first: bool) -> None:
        """Record whether the shard's ring has a user, of the list or not. Later replies contain more about the list, so
        a later read counts only if the ring is empty.
        """
        if is_first or score is None:
            self.seen(index, score if index in self._homes else None)

    def record_served_tasks(
        self,
        index: int,
        virtual_time: float,  # noqa: ARG002 - a list has none
        place: float | None,
        given: float,
        head: NewcomerHead | None = None,  # noqa: ARG002
    ) -> None:
        """Record that the shard gave each waiting user of the list ``given`` microseconds of worker time, as expected."""
        if given:
            self.seen(index, 0.0)
            self._virtual_time = max(self._virtual_time, self._reached[index])
            self._reached[index] += given
        self.seen(index, place)


class ShardScheduler:
    """The order in which a worker serves a queue's shards. ``orders`` contains one order for each list of users (the
    lists are served one after the other), or a single order for all users.
    """

    def __init__(self, orders: Sequence[FairShardOrder | ListShardOrder]) -> None:
        self._orders = orders
        self._last = len(orders) - 1
        self._lanes: dict[int, frozenset[Lane]] = {}
        """By shard: the lanes with users who could be served when the shard was last read."""
        self._urgent_tags: dict[int, float] = {}
        self._owed_normal = 0
        """The number of tasks that requests in turns of urgent tasks got more than other requests, while both waited."""
        self._before_bulk = BULK_TURN - 1
        """The number of tasks that other shards give before the next turn of shards that have only bulk tasks."""
        self._choices = 0
        """The number of requests that got tasks."""
        self._last_choices: dict[int, int] = {}
        """By shard: the number of the last request for which it was chosen."""

    def turn(self, index: int) -> tuple[int, float]:
        """Return the first of the orders in which a user of shard ``index`` can be served, and the turn in it."""
        rank = self._rank(index)
        return rank, self._orders[rank].turn(index)

    def position(self, index: int) -> tuple[int, float, float]:
        """Return the sort key of shard ``index``: order, turn, and arrival of a newcomer. The shard with the lowest key
        is next.
        """
        rank = self._rank(index)
        return rank, self._orders[rank].turn(index), self._orders[rank].came(index)

    def _rank(self, index: int) -> int:
        return next((rank for rank in range(self._last) if self._orders[rank].has(index)), self._last)

    def next(self, among: Iterable[int]) -> int:
        """Return the number of the shard whose turn is next, ``among`` these. Among shards with equal turns, a shard
        that had no users goes first, because a newcomer may be there, and then the shard that was chosen longest ago.
        Shards without users in the ring have equal turns.
        """
        found = min(among, key=lambda index: (self.position(index), self.has(index), self._last_choices.get(index, 0)))
        self._last_choices[found] = self._choices
        return found

    def record_lanes(self, index: int, lanes: frozenset[Lane], urgent_tag: float) -> None:
        """Record the lanes with users who can be served on shard ``index``, and the lowest tag in lane urgent."""
        self._urgent_tags[index] = urgent_tag  # before the lanes, because another thread may read both
        self._lanes[index] = lanes

    def choose_lanes(self, among: Iterable[int]) -> list[int]:
        """Return the shards that may be next ``among`` these; an empty list if none has users who can be served."""
        among = [index for index in among if self._lanes.get(index)]
        return sorted(self._turn_of_lane(*map(self._with_lane, (among,) * 3, LANES))[1] or among)

    def _with_lane(self, among: Iterable[int], lane: Lane) -> set[int]:
        """Return the shards with users in this lane; in lane urgent, with a user whose urgent tasks may go first."""
        found = {index for index in among if lane in self._lanes.get(index, ())}
        last = self._orders[self._last]
        if lane != "urgent" or isinstance(last, ListShardOrder):
            return found
        return {index for index in found if last.may_lead(index, self._urgent_tags[index])}

    def _turn_of_lane(self, urgent: set[int], normal: set[int], bulk: set[int]) -> tuple[Lane, set[int]]:
        """Return the lane whose turn is next, and the shards that may be next, given the shards with each lane.

        Shards with urgent tasks come first, but they leave shards with normal tasks half of the tasks. Shards that have
        only bulk tasks wait for all other shards, except for a twentieth of the tasks.
        """
        bulk_alone = bulk - normal - urgent
        if bulk_alone and not self._before_bulk:
            return "bulk", bulk_alone
        if urgent and not (normal and self._owed_normal > 0):
            return "urgent", urgent
        return ("normal", normal) if normal else ("bulk", bulk)

    def has_turn(self, index: int, others: Iterable[int]) -> bool:
        """Return whether a worker may request tasks of shard ``index`` before tasks of the ``others``, which have tasks
        too. A shard whose lanes are not known may have normal tasks.
        """
        among = [index, *others]
        if self._last:
            return all(self.position(index) <= self.position(other) for other in among)
        urgent, normal, bulk = map(self._with_lane, (among,) * 3, LANES)
        normal.update(other for other in among if not self._lanes.get(other))
        lane, preferred = self._turn_of_lane(urgent, normal, bulk)
        key: Callable[[int], Any] = (
            self.position if lane == "normal" else lambda other: self._last_choices.get(other, 0)
        )
        preferred = preferred or set(among)
        return index in preferred and all(key(index) <= key(other) for other in preferred)

    def _end_turn(self, index: int, tasks: int) -> None:
        """Count a request that got ``tasks`` of shard ``index``."""
        urgent, normal, bulk = map(self._with_lane, (tuple(self._lanes),) * 3, LANES)
        lane, _ = self._turn_of_lane(urgent, normal, bulk)
        if lane == "bulk":
            self._before_bulk = (BULK_TURN - 1) * tasks
        else:
            self._before_bulk = max(0, self._before_bulk - tasks)
            self._owed_normal += tasks if lane == "urgent" else -tasks
        if not (urgent and normal):
            self._owed_normal = 0
        self._choices += 1
        self._last_choices[index] = self._choices

    def same_order_shards(self, index: int, among: Iterable[int]) -> list[int]:
        """Return the other shards ``among`` these that serve the same list as shard ``index``."""
        rank = self.turn(index)[0]
        return [other for other in among if other != index and self.turn(other)[0] == rank]

    def has(self, index: int) -> bool:
        """Return whether shard ``index`` may have something to serve."""
        return any(order.has(index) for order in self._orders)

    def window(self, index: int, others: Iterable[int]) -> Window:
        """Return the window for a call to shard ``index``; ``others`` are the shards that have tasks to give as well."""
        others, last = list(others), self._orders[self._last]
        others = [other for other in others if "normal" in self._lanes.get(other, ()) or not self._lanes.get(other)]
        rank, rivals = self.turn(index)[0], self.same_order_shards(index, others)
        # Steal nothing while another shard may have tasks of the list, or while another shard's turn comes first.
        if rank < self._last and (rivals or any(last.turn(other) < last.turn(index) for other in others)):
            return self._orders[rank].window(index, rivals)._replace(steals=False)
        return last.window(index, others)

    def seen(self, index: int, place: float | None) -> None:
        """Record that the next user on shard ``index`` is at this ``place`` (position), or that the shard has no user
        (None).
        """
        for order in self._orders:
            order.seen(index, place)

    def record_first_score(self, index: int, score: float | None, *, is_first: bool) -> None:
        """Record the ``score`` of the first user in the ring of shard ``index``, read for the first time for a request
        (``is_first``) or again.
        """
        for order in self._orders:
            order.record_first_score(index, score, is_first=is_first)

    def record_reply(self, index: int, reply: Settled) -> None:
        """Record the figures in the ``reply`` of shard ``index``."""
        if reply.leases:
            self._end_turn(index, len(reply.leases))
        first = reply.newcomers
        self.record_lanes(index, first.lanes if first else frozenset(), first.urgent_tag if first else 0.0)
        for order, head in zip(self._orders, reply.shard_heads, strict=False):  # the reply has one head for each list
            order.record_served_tasks(index, reply.virtual_time, head.place, head.given, reply.newcomers)


class ShardSchedulers:
    """The schedulers of one queue of ``size`` shards: one for each choice of lists. Threads may share them: no method raises."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._all = FairShardOrder(size)
        self._kept: dict[object, ShardScheduler] = {}

    def get_scheduler(self, users: Users, steal: Users, home: Callable[[str], int]) -> ShardScheduler:
        """Return the scheduler for ``users``, and ``steal`` as the second list. ``home`` returns the number of a user's
        shard.
        """
        lists = ["*"] if users == "*" else [selection for selection in (users, steal) if selection] or [()]
        key = tuple(selection if selection == "*" else tuple(selection) for selection in lists)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= MAX_SCHEDULERS:
                self._kept = {}  # a new dict, because another thread may be reading the old one
            orders = [
                self._all if selection == "*" else ListShardOrder(self._size, set(map(home, selection)))
                for selection in lists
            ]
            self._kept[key] = found = ShardScheduler(orders)
        return found
