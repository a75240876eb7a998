"""The rule for newcomers in plain Python: users of one shard, without organizations and lists, and any number of slots.

Two groups wait. Newcomers come first, in the order of their arrival; then the others, by their tags. The first of the others goes
before newcomers while it is overdue: while virtual time + lead is more than one task of the mean cost beyond its tag. Nobody is
overdue while the lead is less than such a task, also not a user who is behind the virtual time because it moved while the user
waited as a newcomer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SECOND = 1_000_000
"""Costs and times are in microseconds. Charged by tasks, each task costs a second."""
FIRST_COST = 100_000
"""Expected of a task before any has ended."""
ROUNDING = 1.00001


class Tag(NamedTuple):
    """A user's place in the order. Of users that begin at the same value, each stands a step behind the one before."""

    value: float
    order: int

    def plus(self, amount: float) -> Tag:
        return Tag(self.value + amount, self.order)


NEVER_SERVED = Tag(-math.inf, 0)


@dataclass
class User:
    weight: float
    tag: Tag = NEVER_SERVED
    left: int = 0
    running: int = 0
    charged: float = 0.0
    """The cost that its tag holds for running tasks."""
    expected: float = 0.0
    started_sum: float = 0.0
    """The sum of the start times of its running tasks."""
    mean: float = 0.0


@dataclass
class Run:
    """A running task."""

    user: str
    cost: float
    lead: float
    started: float


class TwoGroups:
    """An empty queue on which users of these ``weights`` (1 if absent) will be served."""

    def __init__(self, fair_by: str, weights: Mapping[str, float]) -> None:
        self._by_tasks = fair_by == "tasks"
        self._weights = weights
        self._virtual_time = self._arrival = Tag(0.0, 0)
        self._lead = self._mean = 0.0
        self._has_started = False
        self._newcomers: list[str] = []
        self._others: set[str] = set()
        self._users: dict[str, User] = {}

    def push(self, name: str, number: int) -> None:
        user = self._users.setdefault(name, User(self._weights.get(name, 1.0)))
        if not user.left:
            is_behind = user.tag < self._virtual_time
            if is_behind:
                last = max(self._arrival, self._virtual_time)
                user.tag = self._arrival = Tag(last.value, last.order + 1)
            if is_behind and self._has_started:
                self._newcomers.append(name)
            else:
                self._others.add(name)
        user.left += number

    def start(self, now: float) -> Run | None:
        """Start the next task, if any waits."""
        first = min(self._others, key=lambda name: (self._users[name].tag, name), default=None)
        spare = self._lead - ROUNDING * self._mean_cost
        is_overdue = first and spare > 0 and self._users[first].tag.value < self._virtual_time.value + spare
        lead = 0.0
        if self._newcomers and not is_overdue:
            user = self._users[name := self._newcomers.pop(0)]
            cost = self._expected_cost(user)
            if self._others:
                lead = cost / sum(other.weight for other in self._users.values() if other.left or other.running)
                self._lead += lead
        elif first is not None:
            user = self._users[name := first]
            self._others.remove(name)
            cost = self._expected_cost(user)
            unused = max(0.0, user.charged - self._elapsed(user, now))
            self._move_up(user.tag.plus(-unused / user.weight))
        else:
            return None
        self._has_started = True
        user.left -= 1
        if user.left:
            self._others.add(name)
        self._account(user, now, 1, cost, now)
        return Run(name, cost, lead, now)

    def end(self, run: Run, now: float) -> None:
        """Replace the expected cost by the real one."""
        user = self._users[run.user]
        before = user.tag
        used = run.cost if self._by_tasks else now - run.started
        user.mean = user.mean * 0.8 + used * 0.2 if user.mean else used
        self._mean = self._mean * 0.95 + used * 0.05 if self._mean else used
        self._lead = max(0.0, self._lead + run.lead * (used - run.cost) / run.cost)
        self._account(user, now, -1, -run.cost, -run.started, used)
        if run.user in self._others and user.tag < self._virtual_time <= before:
            self._virtual_time = self._arrival = user.tag

    @property
    def _mean_cost(self) -> float:
        return SECOND if self._by_tasks else self._mean or FIRST_COST

    def _expected_cost(self, user: User) -> float:
        return SECOND if self._by_tasks else math.floor(user.mean or self._mean or FIRST_COST)

    def _elapsed(self, user: User, now: float) -> float:
        """Return how much of their charges the running tasks have used."""
        return user.expected if self._by_tasks else user.running * now - user.started_sum

    def _move_up(self, tag: Tag) -> None:
        if tag > self._virtual_time:
            self._lead = max(0.0, self._lead - (tag.value - self._virtual_time.value))
            self._virtual_time = tag

    def _account(self, user: User, now: float, tasks: int, cost: float, started: float, used: float = 0.0) -> None:
        """Running tasks become more or fewer. If they have run for longer than expected, that is charged already."""
        before = user.charged
        user.running += tasks
        user.expected += cost
        user.started_sum += started
        user.charged = max(user.expected, self._elapsed(user, now))
        user.tag = user.tag.plus((used + user.charged - before) / user.weight)
