"""The rule for newcomers in plain Python: one slot, each task costs 1, and a task ends before the next one starts.

Two groups wait. Newcomers come first, in the order of their arrival; then the others, by their tags. The first of the others goes
before newcomers while it is overdue: while virtual time + lead is more than one task beyond its tag.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDING = Fraction(1, 100_000)


class Tag(NamedTuple):
    """Equal values go by who began there first: each who begins stands a step behind the one before."""

    value: Fraction
    order: int


class TwoGroups:
    """A queue on which one task was run, and on which users of these ``weights`` (1 if absent) are served."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self.left = Counter[str]()
        self.virtual_time = self.arrival = Tag(Fraction(0), 1)
        self.lead = Fraction(0)
        self.newcomers: list[str] = []
        self.others: set[str] = set()
        self.tags: dict[str, Tag] = {}

    def weight(self, user: str) -> Fraction:
        return Fraction(self.weights.get(user, 1))

    def push(self, user: str, number: int) -> None:
        if not self.left[user]:
            is_behind = self.tags.get(user, Tag(Fraction(-1), 0)) < self.virtual_time
            if is_behind:
                self.newcomers.append(user)
                last = max(self.arrival, self.virtual_time)
                self.tags[user] = self.arrival = Tag(last.value, last.order + 1)
            else:
                self.others.add(user)
        self.left[user] += number

    def serve(self) -> str | None:
        first = min(self.others, key=lambda user: (self.tags[user], user), default=None)
        overdue_from = self.virtual_time.value + self.lead - 1 - ROUNDING
        if self.newcomers and (first is None or self.tags[first].value >= overdue_from):
            user = self.newcomers.pop(0)
            if self.others:
                self.lead += 1 / sum((self.weight(each) for each, number in self.left.items() if number), Fraction(0))
        elif first is not None:
            user = first
            self.others.remove(user)
            if (tag := self.tags[user]) > self.virtual_time:
                self.lead = max(Fraction(0), self.lead - (tag.value - self.virtual_time.value))
                self.virtual_time = tag
        else:
            return None
        self.tags[user] = Tag(self.tags[user].value + 1 / self.weight(user), self.tags[user].order)
        self.left[user] -= 1
        if self.left[user]:
            self.others.add(user)
        return user
