"""The order in which tasks start, in plain Python, charged by tasks, with lanes, plans, organizations and guaranteed shares.

``FairOrder`` computes one shard with the same numbers as the engine, so that both start the same tasks, one by one.
``ShardedOrder`` has several shards, each with a separate ring, and ``ShardTurns`` the turns of a worker between them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tests.engine.tokens import Rate, Tokens

if TYPE_CHECKING:
    from collections.abc import Callable

Lane = Literal["urgent", "normal", "bulk"]
Turn = Lane | Literal["guaranteed", "limited"]
LANES: tuple[Lane, ...] = ("urgent", "normal", "bulk")
LEAST: dict[Lane, float] = {"normal": 0.5, "bulk": 0.05}
"""The least share of the worker time for a lane that waits."""
COST = 1e6
"""The charge of a task."""
AHEAD = 10 * COST
"""By how much the urgent tasks of a user may be ahead of the virtual time, and the most that a lane is owed."""
MOST_SKIPPED = 8
"""The most users of a shared limit that a call skips."""
MOST_RETURNING = 8
"""The most limits to which a user, or the members of an organization, return in a call."""
ROUNDING = 1e-5
NEVER_SERVED = -math.inf


def step_at(place: float) -> float:
    """The distance between two places in the order of arrival."""
    return math.ldexp(1, math.frexp(max(place, 2.0**38))[1] - 50)


@dataclass(eq=False)
class Ring:
    """Users and organizations that are served in turns: those of the shard, or the members of an organization."""

    entries: list[Entry] = field(default_factory=list)
    virtual_time: float = 0.0
    arrival: float = 0.0
    lead: float = 0.0
    started: int = 0
    is_spread: bool = False
    """Whether this is the ring of one of several shards."""
    others_elsewhere: bool = False
    """Whether users that are no newcomers wait on other shards."""

    def arrive(self) -> float:
        """The next place in the order of arrival: a step after the last one, or after the virtual time."""
        place = max(self.arrival, self.virtual_time)
        self.arrival = place + step_at(place)
        return self.arrival

    def move_up(self, place: float) -> None:
        step = place - self.virtual_time
        if step > 0:
            self.virtual_time, self.lead = place, max(0.0, self.lead - step)

    def others(self) -> list[Entry]:
        """All who wait in lane normal and are no newcomers, by position."""
        others = (entry for entry in self.entries if entry.waits("normal") and not entry.came)
        return sorted(others, key=lambda entry: entry.place("normal"))

    def next_normal(self) -> Entry | None:
        newcomers = sorted(
            (entry for entry in self.entries if entry.waits("normal") and entry.came), key=lambda entry: entry.came
        )
        first = next(iter(self.others()), None)
        turn = self.virtual_time + self.lead - (1 + ROUNDING) * COST
        if not newcomers or (turn > self.virtual_time and first and first.place("normal")[0] < turn):
            return first
        return newcomers[0]

    def next_in(self, lane: Lane) -> Entry | None:
        if lane == "normal":
            return self.next_normal()
        waiting = [entry for entry in self.entries if entry.waits(lane)]
        return min(waiting, key=lambda entry: entry.place(lane), default=None)

    def choose(self) -> Lane:
        """The lane of the next turn inside an organization that has an urgent turn."""
        first = self.next_in("urgent")
        may_lead = first is not None and first.urgent_tag <= self.virtual_time + AHEAD
        lanes: tuple[Lane, ...] = ("normal", "bulk")
        return "urgent" if may_lead else next((lane for lane in lanes if self.next_in(lane)), "urgent")


@dataclass(eq=False)
class Entry:
    """A user, or an organization."""

    name: str
    ring: Ring
    weight: float = 1.0
    cap: int | None = None
    is_paused: bool = False
    tag: float = NEVER_SERVED
    urgent_tag: float = NEVER_SERVED
    came: int = 0
    margin: float = 0.0
    """By how much the entry is placed before its tag, because it returned with it to one of several shards."""
    running: int = 0
    members: Ring | None = None
    tokens: Tokens = field(default_factory=Tokens)
    plan: tuple[float, int | None, Rate | None] = (1.0, None, None)
    is_held: bool = False
    """Whether the user waits for a token of its rate, which the engine notices when it hands out or settles tasks."""
    share: float | None = None
    """The guaranteed share of an organization."""
    owed: float = 0.0
    owed_from: float | None = None
    """The value of the guarantee clock from which the organization is owed more; None while it does not wait."""
    queued: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    waited: dict[Lane, bool] = field(default_factory=lambda: dict.fromkeys(LANES, False))
    """By lane: whether the entry stood there after the call before."""

    def place(self, lane: Lane) -> tuple[float, bool, str]:
        """Where it stands in a lane. Ties are broken by the name, users before organizations."""
        margin = self.margin if lane == "normal" else 0
        return self.urgent_tag if lane == "urgent" else self.tag - margin, self.members is not None, self.name

    def has_place(self, lane: Lane) -> bool:
        """Whether only a lack of tasks can keep it from a start in this lane."""
        room = math.inf if self.cap is None else self.cap + (lane == "urgent" and self.members is None) - self.running
        return not self.is_paused and not self.is_held and room > 0

    def waits(self, lane: Lane) -> bool:
        """Whether a task of this lane may start now."""
        if not self.has_place(lane):
            return False
        if self.members:
            return any(member.waits(lane) for member in self.members.entries)
        return self.queued[lane] > 0

    def is_ahead(self, lane: Lane) -> bool:
        """Whether a task with a limit has to wait, because the tag is too far beyond the virtual time."""
        return (self.urgent_tag if lane == "urgent" else self.tag) > self.ring.virtual_time + AHEAD

    def waits_in_any(self) -> bool:
        return any(self.waits(lane) for lane in LANES)

    def has_work(self) -> bool:
        return self.running > 0 or self.waits_in_any()


@dataclass(eq=False)
class Key:
    """A shared limit with a number of tasks at once: a small fair queue of users with separate tags."""

    name: str
    at_once: int
    running: int = 0
    virtual_time: float = 0.0
    tags: dict[str, float] = field(default_factory=dict)
    """By user: the tag after its last turn, if that is beyond the virtual time."""
    places: dict[Lane, dict[str, float]] = field(default_factory=lambda: {lane: {} for lane in LANES})
    """By lane: the users that stand at the limit, with their tags."""
    tasks: dict[Lane, dict[str, list[Limited]]] = field(default_factory=lambda: {lane: {} for lane in LANES})
    """By lane and user: the tasks that wait at this limit, in the order of their arrival."""

    def free(self) -> int:
        return self.at_once - self.running

    def stand(self, lane: Lane, user: str) -> None:
        self.places[lane].setdefault(user, max(self.virtual_time, self.tags.get(user, 0.0)))

    def charge(self, user: Entry, lane: Lane, *, moves_time: bool, stays: bool) -> None:
        """Charge a turn in this lane to the user's tags in all lanes."""
        place = self.places[lane][user.name]
        if moves_time:
            self.virtual_time = max(self.virtual_time, place)
        for users in self.places.values():
            if user.name in users:
                users[user.name] += COST / user.weight
        self.tags[user.name] = self.places[lane][user.name]
        self.tags = {name: tag for name, tag in self.tags.items() if tag > self.virtual_time}
        if not stays:
            del self.places[lane][user.name]

    def charge_elsewhere(self, user: Entry, *, moves_time: bool) -> None:
        """Charge a turn at another limit of the task."""
        tag = max(self.virtual_time, self.tags.get(user.name, 0.0))
        if moves_time:
            self.virtual_time = tag
        for users in self.places.values():
            if user.name in users:
                users[user.name] += COST / user.weight
        self.tags[user.name] = tag + COST / user.weight
        self.tags = {name: tag for name, tag in self.tags.items() if tag > self.virtual_time}

    def is_used(self) -> bool:
        return self.running > 0 or any(tasks for users in self.tasks.values() for tasks in users.values())


@dataclass(eq=False)
class Limited:
    """A task with limits that are shared by all users."""

    task_id: str
    number: int
    user: Entry
    lane: Lane
    keys: tuple[Key, ...]

    def waits_at(self) -> Key:
        """The first limit without a free place, or else the first one."""
        return next((key for key in self.keys if key.free() < 1), self.keys[0])


Parked = tuple[Lane, Key, str, Entry]
"""A user that does not wait for its turn in a lane of a limit, and the user or organization that keeps it from starting tasks."""


@dataclass
class First:
    """The user or organization that is first in a lane, and the limit at which it is."""

    entry: Entry
    lane: Lane
    key: Key | None = None
    user: Entry | None = None


@dataclass
class Start:
    """A task that runs, and what was changed when it started."""

    user: Entry
    lane: Lane
    moment: float
    leads: dict[str, float]
    """By entry: its part of the lead."""
    task: Limited | None = None
    """The task, if it has a limit."""


class FairOrder:
    """A queue. Each method is one call of the engine."""

    def __init__(self) -> None:
        self.shard = Ring()
        self.users: dict[str, Entry] = {}
        self.organizations: dict[str, Entry] = {}
        self.organization_of: dict[str, Entry] = {}
        self.newest = 0
        self.owed: dict[Lane, float] = dict.fromkeys(LEAST, 0.0)
        self.running: list[Start] = []
        self.now = 0.0
        """The present time in seconds."""
        self.guarantee_clock = 0.0
        self.keys: list[Key] = []
        self.arrivals = 0
        self.changed_keys: list[Key] = []
        """The limits that this call has used, in this order."""
        self.newest_parked = 0
        self.parked: dict[Parked, int] = {}
        """The users that do not stand at a limit until they, or their organizations, may start tasks again, in this order."""
        self.begin: float | None = None
        """The virtual time of the queue at this call, with several shards."""
        self.order_of_limits: dict[Lane, list[str]] = {}
        """By lane: the order in which the next call looks at limits, which is not a part of the rule."""
        self.parked_until: dict[str, float] = {}
        """By member of an organization: the estimated virtual time of the shard from which the engine examines it again."""
        self.was_in_vain: Callable[[str, Lane, str, str], bool] = lambda *_: False
        """By limit, lane, user and next task: whether the engine has examined the user and not started a task."""

    def add_organization(
        self, name: str, weight: float = 1.0, cap: int | None = None, share: float | None = None
    ) -> None:
        self.organizations[name] = Entry(name, self.shard, weight, cap, members=Ring(), share=share)
        self.shard.entries.append(self.organizations[name])

    def add_user(self, name: str, organization: str | None = None, weight: float = 1.0, cap: int | None = None) -> None:
        ring = self.shard
        if organization:
            self.organization_of[name] = self.organizations[organization]
            ring = self.organizations[organization].members or ring
        self.users[name] = Entry(name, ring, weight, cap)
        ring.entries.append(self.users[name])

    def chain(self, user: Entry) -> list[Entry]:
        """The user, and its organization."""
        organization = self.organization_of.get(user.name)
        return [user, organization] if organization else [user]

    def push(self, user: str, lane: Lane, tasks: int) -> None:
        self.users[user].queued[lane] += tasks
        self.take_places(self.users[user])

    def push_limited(self, user: str, lane: Lane, tasks: dict[str, tuple[Key, ...]]) -> None:
        """Push tasks with limits: by id their limits."""
        for task_id, keys in tasks.items():
            self.arrivals += 1
            self.wait_at_key(Limited(task_id, self.arrivals, self.users[user], lane, keys))
        self.take_places(self.users[user])
        self.save_keys()

    def wait_at_key(self, task: Limited) -> None:
        self.changed_keys += task.keys
        key, name = task.waits_at(), task.user.name
        waiting = key.tasks[task.lane].setdefault(name, [])
        waiting.append(task)
        waiting.sort(key=lambda task: task.number)
        key.stand(task.lane, name)

    def save_keys(self) -> None:
        """Forget the tags of limits that have no task after a call."""
        for key in self.changed_keys:
            if not key.is_used():
                key.virtual_time, key.tags = 0.0, {}
        self.changed_keys = []

    def set_plan(self, name: str, weight: float, cap: int | None, rate: Rate | None) -> None:
        """Give the user the limits of a plan. A push follows. The engine does nothing if the user has this plan already."""
        user, plan = self.users[name], (weight, cap, rate)
        if user.plan == plan:
            return
        user.plan = plan
        if weight != user.weight:  # the cost that it is ahead stays the same
            time, factor = user.ring.virtual_time, user.weight / weight
            user.tag, user.urgent_tag = (
                time + (tag - time) * factor if tag > time else tag for tag in (user.tag, user.urgent_tag)
            )
        user.weight, user.cap = weight, cap
        user.tokens.set_rate(rate, self.now)
        self.hold(user)

    def hold(self, user: Entry) -> None:
        user.is_held = user.tokens.free_at > self.now * 1e6

    def pause(self, user: str, is_paused: bool) -> None:
        self.users[user].is_paused = is_paused
        self.take_places(self.users[user])

    def finish(self, start: Start) -> None:
        self.running.remove(start)
        for entry in self.chain(start.user):
            entry.running -= 1
        self.leave_keys(start)
        self.change_owed_shares(start.user, 0)
        self.take_places(start.user)
        self.save_keys()
        self.free_held()

    def leave_keys(self, start: Start) -> None:
        for key in start.task.keys if start.task else ():
            key.running -= 1
            self.changed_keys.append(key)

    def give_back(self, start: Start) -> None:
        """The task has not run: its cost and its part of the lead are taken back, and it waits again."""
        self.running.remove(start)
        self.leave_keys(start)
        if start.task:
            self.wait_at_key(start.task)
            self.take_back_from_keys(start.task)
        else:
            start.user.queued[start.lane] += 1
        for entry in self.chain(start.user):
            before, ring = entry.tag, entry.ring
            ring.lead = max(0.0, ring.lead - start.leads[entry.name])
            entry.running -= 1
            entry.tag -= COST / entry.weight
            if start.lane == "urgent":
                entry.urgent_tag -= COST / entry.weight
            if entry.tag < ring.virtual_time:
                entry.tag = min(before, ring.arrive())
            if entry.tag != before:
                entry.margin = 0.0
        start.user.tokens.give_back(start.moment)
        self.hold(start.user)
        self.change_owed(start.lane, -COST)
        self.change_owed_shares(start.user, -COST)
        self.take_places(start.user)
        self.save_keys()
        self.free_held()

    def take_back_from_keys(self, task: Limited) -> None:
        name, cost = task.user.name, COST / task.user.weight
        for key in task.keys:
            for tags in (key.tags, *key.places.values()):
                if name in tags:
                    tags[name] -= cost

    def start(self, preferred: str = "", *, begin: float | None = None) -> Start | None:
        """Start the next task. Of users with equal tags at a limit, the one with the task ``preferred`` starts. With several
        shards, ``begin`` is the virtual time of the queue.
        """
        self.begin = begin
        self.free_held()
        self.preferred = preferred
        self.too_far_ahead: list[Parked] = []
        found = self.start_next()
        for place in self.too_far_ahead:
            self.park(place)
        for place in self.left:
            del self.parked[place]
        self.save_keys()
        return found

    def start_next(self) -> Start | None:
        is_bounded = self.shard.next_in("normal") is not None
        self.return_to_keys(is_bounded=is_bounded)
        self.skipped: Counter[str] = Counter()
        while first := self.next_first(is_bounded=is_bounded):
            if isinstance(first, Start):
                return first
            if first.key is None:
                return self.start_in_ring(first.entry, first.lane)
            if start := self.start_at_key(first):
                return start
        return None

    def start_in_ring(self, entry: Entry, lane: Lane) -> Start:
        turn = lane
        chain: list[tuple[Entry, Turn]] = [(entry, lane)]
        late = entry if lane == "normal" and self.raise_late(entry) else None
        if lane != "normal" and self.begin is not None and not self.shard.others():
            self.shard.move_up(self.begin)
        if entry.members:
            if lane == "urgent":
                turn = entry.members.choose()
            member = entry.members.next_in(turn)
            assert member is not None
            chain.append((member, turn))
            entry = member
        entry.queued[turn] -= 1
        return self.start_task(entry, turn, chain, late)

    def raise_late(self, entry: Entry) -> bool:
        """A newcomer, or a user that returned with a tag below the queue's virtual time, begins there."""
        begin = self.begin
        if begin is None or not (entry.came or (entry.margin and entry.tag < begin)):
            return False
        self.shard.move_up(begin)
        entry.tag = self.shard.arrive()
        return True

    def start_at_key(self, first: First) -> Start | None:
        """Start the user's next task at a limit. A task with another limit that is full waits there."""
        key, user, lane = first.key, first.user, first.lane
        assert key
        assert user
        waiting = key.tasks[lane][user.name]
        while waiting:
            task = waiting.pop(0)
            if all(limit.free() > 0 for limit in task.keys):
                break
            self.wait_at_key(task)
        else:
            return None
        for entry in self.chain(user):
            if entry.tag < entry.ring.virtual_time and not entry.waits("normal"):
                entry.tag = entry.ring.arrive()
        for limit in task.keys:
            limit.running += 1
        are_free = {limit: not (limit.places["normal"] or limit in self.have_normal) for limit in task.keys}
        for limit in task.keys:
            if limit is key:
                key.charge(user, lane, moves_time=lane == "normal" or are_free[key], stays=bool(waiting))
            else:
                limit.charge_elsewhere(user, moves_time=are_free[limit])
        self.changed_keys += task.keys
        turn: Turn = "limited" if lane == "normal" else lane
        start = self.start_task(user, lane, [(entry, turn) for entry in reversed(self.chain(user))])
        start.task = task
        return start

    def return_to_keys(self, *, is_bounded: bool) -> None:
        """Let parked users that may start now return to their limits. These limits are first in this call."""
        self.returned: dict[Lane, list[Key]] = {lane: [] for lane in LANES}
        self.left: set[Parked] = set()
        self.have_normal: set[Key] = set()
        """Limits with users in lane normal that are too far ahead. They stand there until the end of the call."""
        returning: Counter[Entry] = Counter()
        for place in sorted(self.parked, key=self.place_of_parked):
            lane, key, name, entry = place
            may_return = entry.has_place(lane) and not (is_bounded and entry.is_ahead(lane))
            if entry.ring is not self.shard and is_bounded and name in self.parked_until:
                may_return = may_return and self.parked_until[name] <= self.shard.virtual_time
            if may_return and returning[entry] < MOST_RETURNING:
                returning[entry] += 1
                self.left.add(place)
                self.changed_keys.append(key)
                if name not in key.places[lane]:
                    key.stand(lane, name)
                    self.returned[lane].append(key)

    def place_of_parked(self, place: Parked) -> tuple[float, bool, str, bool, int]:
        lane, _, _, entry = place
        return (
            max(0.0, entry.tag - AHEAD - entry.ring.virtual_time),
            *entry.place("normal")[1:],
            lane != "urgent",
            self.parked[place],
        )

    def next_at_keys(self, lane: Lane, *, is_bounded: bool) -> First | None:
        order = self.order_of_limits.get(lane, [])
        listed = [key for name in order for key in self.keys if key.name == name]
        returned = sorted(self.returned[lane], key=lambda key: self.rank_of_limit(key, lane))
        for key in [*returned, *listed]:
            if key.free() > 0 and (user := self.next_user(key, lane, is_bounded=is_bounded)):
                return First(self.chain(user)[-1], lane, key, user)
        return None

    def rank_of_limit(self, key: Key, lane: Lane) -> int:
        """The order of limits to which users return is not a part of the rule either."""
        if any(self.is_preferred(key, lane, name) for name in key.tasks[lane]):
            return 1
        first = min(key.places[lane], key=lambda name: key.places[lane][name], default=None)
        return 0 if first and self.is_in_vain(key, lane, first) else 2

    def next_user(self, key: Key, lane: Lane, *, is_bounded: bool) -> Entry | None:
        """The first user at a limit that may start a task. Other users are parked."""
        places = key.places[lane]
        self.changed_keys.append(key)
        ranks = {name: self.rank(key, lane, name, is_bounded=is_bounded) for name in places}
        for name in sorted(places, key=lambda name: (places[name], ranks[name], name)):
            if self.skipped[key.name] == MOST_SKIPPED:
                return None
            user, obstacle = self.users[name], None
            if key.tasks[lane][name]:
                obstacle = self.find_obstacle(user, lane, is_bounded=is_bounded)
                if obstacle is None:
                    return user
                if lane == "normal" and obstacle.has_place(lane):
                    self.have_normal.add(key)
                place = (lane, key, name, obstacle)
                if obstacle.has_place(lane):
                    self.too_far_ahead.append(place)
                else:
                    self.park(place)
            self.skipped[key.name] += 1
            del places[name]
        return None

    def park(self, place: Parked) -> None:
        self.left.discard(place)
        if place not in self.parked:
            self.newest_parked += 1
            self.parked[place] = self.newest_parked

    def rank(self, key: Key, lane: Lane, name: str, *, is_bounded: bool) -> int:
        """Any order of users with equal tags is fair, so those come first that the engine has looked at in vain, then the user
        that it has chosen, and last those that it has not looked at and that can't start.
        """
        if list(key.places[lane].values()).count(key.places[lane][name]) == 1:
            return 0
        if self.is_preferred(key, lane, name):
            return 1
        if self.is_in_vain(key, lane, name):
            return 0
        return 3 if self.find_obstacle(self.users[name], lane, is_bounded=is_bounded) else 2

    def is_preferred(self, key: Key, lane: Lane, name: str) -> bool:
        """Whether the engine has started a task of this user, lane and limit."""
        return any(task.task_id == self.preferred for task in key.tasks[lane][name])

    def is_in_vain(self, key: Key, lane: Lane, name: str) -> bool:
        tasks = key.tasks[lane][name]
        return not tasks or self.was_in_vain(key.name, lane, name, tasks[0].task_id)

    def find_obstacle(self, user: Entry, lane: Lane, *, is_bounded: bool) -> Entry | None:
        """The user or its organization, if that may not start a task at a limit now."""
        for entry in self.chain(user):
            is_bounded_here = is_bounded and (entry.ring is self.shard or entry.ring.next_in("normal") is not None)
            if not entry.has_place(lane) or (is_bounded_here and entry.is_ahead(lane)):
                return entry
        return None

    def start_guaranteed(self, organization: Entry, lane: Lane) -> Start:
        """Start a task of an organization that is due because of its guaranteed share."""
        assert organization.members
        member, before = organization.members.next_in(lane), organization.tag
        assert member is not None
        turn: Turn = "guaranteed" if lane == "normal" else lane
        member.queued[lane] -= 1
        start = self.start_task(member, lane, [(organization, turn), (member, lane)])
        ahead = self.shard.virtual_time + max(AHEAD, organization.running * COST / organization.weight)
        organization.tag = min(organization.tag, max(before, ahead))
        return start

    def start_task(self, entry: Entry, turn: Lane, chain: list[tuple[Entry, Turn]], late: Entry | None = None) -> Start:
        moves = {
            one.name: lane_of_turn == "normal" or not (one.ring.others() or one.ring.others_elsewhere)
            for one, lane_of_turn in chain
        }
        if late:
            moves[late.name] = False
        start = Start(entry, turn, self.now, {})
        for one, lane_of_turn in reversed(chain):
            start.leads[one.name] = self.charge(one, lane_of_turn, moves_time=moves[one.name])
        self.change_owed(turn, COST)
        self.change_owed_shares(entry, COST)
        entry.tokens.take(self.now)
        self.hold(entry)
        self.running.append(start)
        self.take_places(entry)
        return start

    def free_held(self) -> None:
        """Look at the users whose rate allows another task now, in the order of these moments."""
        held = [user for user in self.users.values() if user.is_held and user.tokens.free_at <= self.now * 1e6]
        held.sort(key=lambda user: (user.tokens.free_at, user.name))
        for user in held:
            user.is_held = False
        self.take_places(*held)

    def next_guaranteed(self) -> tuple[Entry, Lane] | None:
        """Return the organization that is due because of its guaranteed share, and the lane of its turn."""
        waiting = [one for one in self.organizations.values() if one.share and one.owed_from is not None]
        due_at = {one.name: (one.owed_from or 0) + (COST - one.owed) / (one.share or 1) for one in waiting}
        for one in sorted(waiting, key=lambda one: (due_at[one.name], one.name)):
            has_places = one.running < (one.share or 0) * (len(self.running) + 1)
            if due_at[one.name] <= self.guarantee_clock and self.owed_share(one) >= COST and has_places:
                lane: Lane
                for lane in ("normal", "urgent", "bulk"):
                    if one.waits(lane):
                        return one, lane
        return None

    def owed_share(self, one: Entry) -> float:
        if one.owed_from is None:
            return one.owed
        return one.owed + (one.share or 0) * (self.guarantee_clock - one.owed_from)

    def change_owed_shares(self, user: Entry, cost: float) -> None:
        """Charge the cost of a task of this user to the guaranteed shares."""
        organization = self.organization_of.get(user.name)
        before = min(self.owed_share(organization), AHEAD) if organization else 0.0
        if any(one.owed_from is not None for one in self.organizations.values()):
            self.guarantee_clock += cost
        if organization and organization.share:
            organization.owed = min(AHEAD, max(before - (1 - organization.share) * cost, min(before, -AHEAD)))
            if organization.owed_from is not None:
                organization.owed_from = self.guarantee_clock

    def next_first(self, *, is_bounded: bool) -> First | Start | None:
        """Whose turn it is. A turn of a guaranteed share is started here."""
        urgent, normal, bulk = (self.first_in(lane, is_bounded=is_bounded) for lane in LANES)
        if bulk and (normal or urgent) and self.is_due("bulk"):
            return bulk
        may_lead = urgent and (urgent.entry.urgent_tag <= self.shard.virtual_time + AHEAD or not (normal or bulk))
        if may_lead and not (normal and self.is_due("normal")):
            return urgent
        guaranteed = self.next_guaranteed()
        return self.start_guaranteed(*guaranteed) if guaranteed else normal or bulk

    def first_in(self, lane: Lane, *, is_bounded: bool) -> First | None:
        if first := self.next_at_keys(lane, is_bounded=is_bounded):
            return first
        entry = self.shard.next_in(lane)
        return First(entry, lane) if entry else None

    def is_due(self, lane: Lane) -> bool:
        """Whether a lane that waits is owed a task, and runs less than its least share."""
        running = sum(start.lane == lane for start in self.running)
        return self.owed[lane] >= COST and running < LEAST[lane] * (len(self.running) + 1)

    def waits_for_turn(self, lane: Lane) -> bool:
        """Whether the lane has queued tasks, also those of paused users."""
        limited = (tasks for key in self.keys for tasks in key.tasks[lane].values())
        return any(user.queued[lane] for user in self.users.values()) or any(limited)

    def change_owed(self, lane: Lane, cost: float) -> None:
        if lane == "normal" and not (self.waits_for_turn("urgent") or self.waits_for_turn("bulk")):
            return
        for other, least in LEAST.items():
            if other == lane:
                self.owed[other] = max(-AHEAD, min(AHEAD, self.owed[other] - (1 - least) * cost))
            elif self.waits_for_turn(other):
                self.owed[other] = max(-AHEAD, min(AHEAD, self.owed[other] + least * cost))

    def charge(self, entry: Entry, lane: Turn, *, moves_time: bool) -> float:
        """Charge a start to the entry's tags, at a turn that moves the virtual time or not. Returns its part of the lead."""
        ring, part = entry.ring, 0.0
        if lane == "normal" and entry.came:
            entry.came = 0
            if ring.others_elsewhere or any(other is not entry for other in ring.others()):
                active = [one.weight for one in ring.entries if one.has_work() or one is entry]
                part = COST * 1e6 / sum(math.floor(weight * 1e6 + 0.5) for weight in active)
            ring.lead += part
        elif moves_time:
            ring.move_up(entry.tag - (entry.margin if lane == "normal" else 0))
        entry.margin = 0.0
        entry.tag += COST / entry.weight
        if lane == "urgent":
            entry.urgent_tag = max(entry.urgent_tag, ring.virtual_time) + COST / entry.weight
        entry.running += 1
        ring.started += 1
        return part

    def take_places(self, *users: Entry) -> None:
        """Place the users and then their organizations where they stand after a call."""
        organizations = {one.name: one for user in users for one in self.chain(user)[1:]}
        for entry in [*users, *organizations.values()]:
            ring = entry.ring
            waits = {lane: entry.waits(lane) for lane in LANES}
            if waits["normal"] and not entry.waited["normal"]:
                if entry.came or entry.tag < ring.virtual_time:
                    if not entry.came and ring.started:
                        self.newest += 1
                        entry.came = self.newest
                    entry.tag = max(entry.tag, ring.arrive())
                entry.margin = step_at(entry.tag) / 2 if ring.is_spread and not entry.came else 0.0
            elif any(waits.values()) and not any(entry.waited.values()) and entry.tag < ring.virtual_time:
                entry.tag = ring.arrive()
            if waits["urgent"] and not entry.waited["urgent"]:
                entry.urgent_tag = max(entry.urgent_tag, ring.virtual_time)
            entry.waited = waits
            if entry.share and any(waits.values()) and entry.owed_from is None:
                entry.owed_from = self.guarantee_clock
            elif entry.owed_from is not None and not any(waits.values()):
                entry.owed, entry.owed_from = min(self.owed_share(entry), AHEAD), None


class ShardTurns:
    """The shards that may serve a worker's next request. Each request names the shards with a startable task by lane."""

    def __init__(self) -> None:
        self.requests = 0
        self.before_bulk = 19
        """The requests that others get before the next turn of shards with bulk tasks alone."""
        self.turns_of_urgent = 0
        """The requests in a row that preferred shards with urgent tasks: 0 or 1."""

    def next_shards(self, waiting: dict[Lane, set[int]]) -> set[int]:
        """A twentieth of the requests is for shards with bulk tasks alone. Of the others, shards with urgent tasks and shards
        with normal tasks get every second one, while there are both.
        """
        self.requests += 1
        urgent, normal, bulk = (waiting[lane] for lane in LANES)
        if not (urgent and normal):
            self.turns_of_urgent = 0
        if self.before_bulk == 0 and bulk > bulk & (urgent | normal):
            self.before_bulk = 19
            return bulk - (urgent | normal)
        self.before_bulk = 19 if not (urgent or normal) else max(0, self.before_bulk - 1)
        if not (urgent and normal):
            return urgent or normal or bulk
        self.turns_of_urgent = 1 - self.turns_of_urgent
        return urgent if self.turns_of_urgent else normal


class ShardedOrder:
    """A queue of several shards. A user is always on the same shard, an organization on each."""

    def __init__(self, shards: int, shard_of: Callable[[str], int]) -> None:
        self.orders = [FairOrder() for _ in range(shards)]
        self.shard_of = shard_of
        self.turns = ShardTurns()
        self.virtual_time = 0.0
        """The furthest virtual time of any shard."""
        self.behind: list[float | None] = [None] * shards
        """By how much the virtual time of each shard counts less than that of the queue; None before its first task."""
        self.has_others = [False] * shards
        """Whether users that are no newcomers waited on each shard when it was last read."""
        for order in self.orders:
            order.shard.is_spread = True

    @property
    def users(self) -> dict[str, Entry]:
        return {name: user for order in self.orders for name, user in order.users.items()}

    def of(self, user: str) -> FairOrder:
        return self.orders[self.shard_of(user)]

    def lanes(self) -> dict[Lane, set[int]]:
        """The shards with a task of each lane that can start. In lane urgent, only those where it may go first."""
        found = {lane: {at for at, one in enumerate(self.orders) if one.shard.next_in(lane)} for lane in LANES}
        found["urgent"] = {at for at in found["urgent"] if self.may_lead(at)}
        return found

    def may_lead(self, shard: int) -> bool:
        first = self.orders[shard].shard.next_in("urgent")
        return first is not None and first.urgent_tag + (self.behind[shard] or 0.0) <= self.virtual_time + AHEAD

    def next_shards(self) -> set[int]:
        """The shards that may serve the next request; an empty set if nothing can start."""
        waiting = self.lanes()
        late = {at for at, one in enumerate(self.orders) if one.shard.next_in("urgent")}
        return self.turns.next_shards(waiting) or late if late or any(waiting.values()) else set()

    def start(self, shard: int) -> Start | None:
        """Start the next task of this shard."""
        rings = [order.shard for order in self.orders]
        for number, ring in enumerate(rings):
            waiting = [entry for entry in ring.entries if entry.waits("normal")]
            if not any(entry.came for entry in waiting):
                self.has_others[number] = bool(waiting)
        ring, behind, is_empty = rings[shard], self.behind[shard], not rings[shard].next_in("normal")
        ring.others_elsewhere = behind is not None and any(
            self.has_others[other] and self.behind[other] is not None and rings[other].next_in("normal")
            for other in range(len(rings))
            if other != shard
        )
        start = self.orders[shard].start(begin=None if behind is None else self.virtual_time - behind)
        self.has_others[shard] = bool(ring.others())
        if behind is None or is_empty:
            ahead = self.virtual_time - ring.virtual_time
            self.behind[shard] = behind = ahead if behind is None else max(behind, ahead)
        self.virtual_time = max(self.virtual_time, ring.virtual_time + behind)
        return start
