"""The rule for newcomers in plain Python: one slot, tasks that cost 1, users who wait, and newcomers with one task each.

Users with work are served in the order of their places. A user who has been served stands where its service ends: ``1 / weight``
behind its last place. A newcomer stands one task before the virtual time. With start-time fair queueing alone
(``counts_newcomers=False``) the virtual time is the last place at which a turn began, and newcomers never move it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CREDIT = 1
"""How far before the virtual time a newcomer stands: one task."""


@dataclass
class Entry:
    name: str
    place: Fraction
    order: int
    weight: Fraction
    is_new: bool


@dataclass
class Simulation:
    """Serves ``waiting``, users by weight who have work for ever, and newcomers who come at ``load`` times the capacity."""

    waiting: Mapping[str, Fraction]
    load: Fraction
    counts_newcomers: bool = True
    starts: list[str] = field(default_factory=list)
    """The users in the order in which their tasks started."""

    def __post_init__(self) -> None:
        self._order, self._names = count(), count(1)
        self._virtual_time = self._lead = self._due = Fraction(0)
        self._entries = [self._entry(name, Fraction(0), weight) for name, weight in self.waiting.items()]

    def _entry(self, name: str, place: Fraction, weight: Fraction, *, is_new: bool = False) -> Entry:
        return Entry(name, place, next(self._order), weight, is_new)

    @property
    def newcomers_waiting(self) -> int:
        return sum(entry.is_new for entry in self._entries)

    def run(self, starts: int) -> None:
        for _ in range(starts):
            self._due += self.load
            while self._due >= 1:
                self._due -= 1
                self._come()
            self._serve()

    def _come(self) -> None:
        place = self._virtual_time + self._lead - CREDIT if self.starts else self._virtual_time
        self._entries.append(self._entry(f"new{next(self._names)}", place, Fraction(1), is_new=bool(self.starts)))
        if self.counts_newcomers and self.starts:
            self._lead += Fraction(1) / sum(entry.weight for entry in self._entries)

    def _serve(self) -> None:
        entry = min(self._entries, key=lambda each: (each.place, each.order))
        self._entries.remove(entry)
        step = max(Fraction(0), entry.place - self._virtual_time)
        self._virtual_time += step
        self._lead = max(Fraction(0), self._lead - step)
        self.starts.append(entry.name)
        if entry.name in self.waiting:
            self._entries.append(self._entry(entry.name, entry.place + 1 / entry.weight, entry.weight))
