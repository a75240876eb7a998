"""The order in which tasks start, in plain Python, charged by tasks, with lanes, weights and organizations.

``FairOrder`` computes one shard with the same numbers as the engine, so that both start the same tasks, one by one.
``ShardTurns`` has the turns of a worker between several shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Lane = Literal["urgent", "normal", "bulk"]
LANES: tuple[Lane, ...] = ("urgent", "normal", "bulk")
LEAST: dict[Lane, float] = {"normal": 0.5, "bulk": 0.05}
"""The least share of the worker time for a lane that waits."""
COST = 1e6
"""The charge of a task."""
AHEAD = 10 * COST
"""By how much the urgent tasks of a user may be ahead of the virtual time, and the most that a lane is owed."""
ROUNDING = 1e-5
NEVER_SERVED = -math.inf


@dataclass(eq=False)
class Ring:
    """Users and organizations that are served in turns: those of the shard, or the members of an organization."""

    entries: list[Entry] = field(default_factory=list)
    virtual_time: float = 0.0
    arrival: float = 0.0
    lead: float = 0.0
    started: int = 0

    def arrive(self) -> float:
        """The next place in the order of arrival: a step after the last one, or after the virtual time."""
        place = max(self.arrival, self.virtual_time)
        self.arrival = place + math.ldexp(1, math.frexp(max(place, 2.0**38))[1] - 50)
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
        if not newcomers or (turn > self.virtual_time and first and first.tag < turn):
            return first
        return newcomers[0]

    def next_in(self, lane: Lane) -> Entry | None:
        if lane == "normal":
            return self.next_normal()
        waiting = [entry for entry in self.entries if entry.waits(lane)]
        return min(waiting, key=lambda entry: entry.place(lane), default=None)

    def may_lead(self) -> bool:
        """Whether an urgent task may go first."""
        first = self.next_in("urgent")
        if first is None:
            return False
        is_alone = self.next_in("normal") is None and self.next_in("bulk") is None
        return is_alone or first.urgent_tag <= self.virtual_time + AHEAD

    def choose(self) -> Lane | None:
        """The lane that is next if no lane is owed anything."""
        if self.may_lead():
            return "urgent"
        return next((lane for lane in ("normal", "bulk") if self.next_in(lane)), None)


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
    running: int = 0
    members: Ring | None = None
    queued: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(LANES, 0))
    waited: dict[Lane, bool] = field(default_factory=lambda: dict.fromkeys(LANES, False))
    """By lane: whether the entry stood there after the call before."""

    def place(self, lane: Lane) -> tuple[float, bool, str]:
        """Where it stands in a lane. Ties are broken by the name, users before organizations."""
        return self.urgent_tag if lane == "urgent" else self.tag, self.members is not None, self.name

    def waits(self, lane: Lane) -> bool:
        """Whether a task of this lane may start now."""
        room = math.inf if self.cap is None else self.cap + (lane == "urgent" and self.members is None) - self.running
        if self.is_paused or room <= 0:
            return False
        if self.members:
            return any(member.waits(lane) for member in self.members.entries)
        return self.queued[lane] > 0

    def waits_in_any(self) -> bool:
        return any(self.waits(lane) for lane in LANES)

    def has_work(self) -> bool:
        return self.running > 0 or self.waits_in_any()


@dataclass
class Start:
    """A task that runs, and what was changed when it started."""

    user: Entry
    lane: Lane
    leads: dict[str, float]
    """By entry: its part of the lead."""


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

    def add_organization(self, name: str, weight: float = 1.0, cap: int | None = None) -> None:
        self.organizations[name] = Entry(name, self.shard, weight, cap, members=Ring())
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

    def pause(self, user: str, is_paused: bool) -> None:
        self.users[user].is_paused = is_paused
        self.take_places(self.users[user])

    def finish(self, start: Start) -> None:
        self.running.remove(start)
        for entry in self.chain(start.user):
            entry.running -= 1
        self.take_places(start.user)

    def give_back(self, start: Start) -> None:
        """The task has not run: its cost and its part of the lead are taken back, and it waits again."""
        self.running.remove(start)
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
        self.change_owed(start.lane, -COST)
        self.take_places(start.user)

    def start(self) -> Start | None:
        """Start the next task."""
        lane = self.next_lane()
        if lane is None:
            return None
        entry, turn = self.shard.next_in(lane), lane
        assert entry is not None
        chain = [(entry, turn)]
        if entry.members:
            if lane == "urgent":
                turn = entry.members.choose() or lane
            member = entry.members.next_in(turn)
            assert member is not None
            chain.append((member, turn))
            entry = member
        moves = {one.name: lane_of_turn == "normal" or not one.ring.others() for one, lane_of_turn in chain}
        entry.queued[turn] -= 1
        start = Start(entry, turn, {})
        for one, lane_of_turn in reversed(chain):
            start.leads[one.name] = self.charge(one, lane_of_turn, moves_time=moves[one.name])
        self.change_owed(turn, COST)
        self.running.append(start)
        self.take_places(entry)
        return start

    def next_lane(self) -> Lane | None:
        lane = self.shard.choose()
        if lane in ("urgent", "normal") and self.is_due("bulk"):
            return "bulk"
        if lane == "urgent" and self.is_due("normal"):
            return "normal"
        return lane or ("urgent" if self.shard.next_in("urgent") else None)

    def is_due(self, lane: Lane) -> bool:
        """Whether a lane that waits is owed a task, and runs less than its least share."""
        running = sum(start.lane == lane for start in self.running)
        return (
            self.shard.next_in(lane) is not None
            and self.owed[lane] >= COST
            and running < LEAST[lane] * (len(self.running) + 1)
        )

    def waits_for_turn(self, lane: Lane) -> bool:
        """Whether the lane has queued tasks, also those of paused users."""
        return any(user.queued[lane] for user in self.users.values())

    def change_owed(self, lane: Lane, cost: float) -> None:
        if lane == "normal" and not (self.waits_for_turn("urgent") or self.waits_for_turn("bulk")):
            return
        for other, least in LEAST.items():
            if other == lane:
                self.owed[other] = max(-AHEAD, min(AHEAD, self.owed[other] - (1 - least) * cost))
            elif self.waits_for_turn(other):
                self.owed[other] = max(-AHEAD, min(AHEAD, self.owed[other] + least * cost))

    def charge(self, entry: Entry, lane: Lane, *, moves_time: bool) -> float:
        """Charge a start to the entry's tags, at a turn that moves the virtual time or not. Returns its part of the lead."""
        ring, part = entry.ring, 0.0
        if lane == "normal" and entry.came:
            entry.came = 0
            if any(other is not entry for other in ring.others()):
                active = [one.weight for one in ring.entries if one.has_work() or one is entry]
                part = COST * 1e6 / sum(math.floor(weight * 1e6 + 0.5) for weight in active)
            ring.lead += part
        elif moves_time:
            ring.move_up(entry.tag)
        entry.tag += COST / entry.weight
        if lane == "urgent":
            entry.urgent_tag = max(entry.urgent_tag, ring.virtual_time) + COST / entry.weight
        entry.running += 1
        ring.started += 1
        return part

    def take_places(self, user: Entry) -> None:
        """Place the user and its organization where they stand after a call."""
        for entry in self.chain(user):
            ring = entry.ring
            waits = {lane: entry.waits(lane) for lane in LANES}
            if waits["normal"] and not entry.waited["normal"]:
                if entry.came or entry.tag < ring.virtual_time:
                    if not entry.came and ring.started:
                        self.newest += 1
                        entry.came = self.newest
                    entry.tag = max(entry.tag, ring.arrive())
            elif any(waits.values()) and not any(entry.waited.values()) and entry.tag < ring.virtual_time:
                entry.tag = ring.arrive()
            if waits["urgent"] and not entry.waited["urgent"]:
                entry.urgent_tag = max(entry.urgent_tag, ring.virtual_time)
            entry.waited = waits


class ShardTurns:
    """The shards that may serve a worker's next request. Each request names the shards with a startable task by lane."""

    def __init__(self) -> None:
        self.requests = 0
        self.turns_of_urgent = 0
        """The requests in a row that preferred shards with urgent tasks: 0 or 1."""

    def next_shards(self, waiting: dict[Lane, set[int]]) -> set[int]:
        """Every twentieth request is for shards with bulk tasks alone. Of the others, shards with urgent tasks and shards with
        normal tasks get every second one, while there are both.
        """
        self.requests += 1
        urgent, normal, bulk = (waiting[lane] for lane in LANES)
        if self.requests % 20 == 0 and bulk > bulk & (urgent | normal):
            return bulk - (urgent | normal)
        if not (urgent and normal):
            self.turns_of_urgent = 0
            return urgent or normal or bulk
        self.turns_of_urgent = 1 - self.turns_of_urgent
        return urgent if self.turns_of_urgent else normal
