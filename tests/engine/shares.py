"""The oracle of fairness, in plain Python: what users got, and how far two who both had work all the time got apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations


@dataclass
class Stretch:
    """A time in which two users have work all along."""

    served: tuple[int, int]
    """The numbers of tasks of both users that had started when the stretch began."""
    since_served: Stretch | None = None
    """The part of it that began when both had been served."""
    least: float = math.inf
    most: float = -math.inf

    def add(self, ahead: float) -> float:
        """By how much the first is ``ahead`` now. Returns the furthest apart that they got."""
        self.least, self.most = min(self.least, ahead), max(self.most, ahead)
        return self.most - self.least


class Shares:
    """The service that each of these users got, divided by its weight: worker time (seconds), or tasks."""

    def __init__(self, weights: Mapping[str, float], by: str) -> None:
        self.weights, self.by = weights, by
        self.ready: dict[str, int] = defaultdict(int)
        """Tasks that wait."""
        self.apart: dict[tuple[str, str], float] = {}
        """For each two users the furthest apart that they got over any stretch in which both had work and had been served."""
        self.apart_at_first: dict[tuple[str, str], float] = {}
        """The same, with the time in which one had not been served yet: a newcomer waits for turns of others."""
        self._ended: dict[str, float] = defaultdict(float)
        self._running: dict[str, list[float]] = defaultdict(list)
        self._starts: dict[str, int] = defaultdict(int)
        self._stretches: dict[tuple[str, str], Stretch] = {}

    def push(self, user: str, number: int) -> None:
        self.ready[user] += number

    def leave(self, user: str) -> None:
        """One of its tasks was started that is not to count."""
        self.ready[user] -= 1

    def start(self, user: str, now: float) -> None:
        self.ready[user] -= 1
        self._starts[user] += 1
        self._running[user].append(now)

    def finish(self, user: str, begun: float, now: float) -> None:
        self._running[user].remove(begun)
        self._ended[user] += now - begun if self.by == "time" else 1

    def release(self, user: str, begun: float) -> None:
        """Record that a task was given back, which costs nothing. The comparison of all users starts anew."""
        self._running[user].remove(begun)
        self.ready[user] += 1
        self._stretches.clear()

    def got(self, user: str, now: float) -> float:
        running = self._running[user]
        return self._ended[user] + (sum(now - begun for begun in running) if self.by == "time" else len(running))

    def look(self, users: Iterable[str], now: float) -> None:
        """Compare these users as they are now."""
        for pair in combinations(users, 2):
            one, other = pair
            if not (self.ready[one] and self.ready[other]):
                self._stretches.pop(pair, None)
                continue
            ahead = self.got(one, now) / self.weights[one] - self.got(other, now) / self.weights[other]
            served = (self._starts[one], self._starts[other])
            stretch = self._stretches.setdefault(pair, Stretch(served))
            found = stretch.add(ahead)
            self.apart_at_first[pair] = max(self.apart_at_first.get(pair, 0.0), found)
            if stretch.since_served is None and all(
                now > then for now, then in zip(served, stretch.served, strict=True)
            ):
                stretch.since_served = Stretch(served)
            if stretch.since_served is not None:
                self.apart[pair] = max(self.apart.get(pair, 0.0), stretch.since_served.add(ahead))
