"""The oracle of fairness, in plain Python: what users got, and how far two who both had work all the time got apart."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Shares:
    """What each user of these has been served, divided by its weight: worker time (seconds), or tasks."""

    def __init__(self, weights: Mapping[str, float], by: str) -> None:
        self.weights, self.by = weights, by
        self.ready: dict[str, int] = defaultdict(int)
        """Tasks that wait."""
        self.apart: dict[tuple[str, str], float] = {}
        """For each two users the furthest apart that they got over any stretch in which both had work."""
        self._ended: dict[str, float] = defaultdict(float)
        self._running: dict[str, list[float]] = defaultdict(list)
        self._stretches: dict[tuple[str, str], tuple[float, float]] = {}

    def push(self, user: str, number: int) -> None:
        self.ready[user] += number

    def leave(self, user: str) -> None:
        """One of its tasks was started that is not to count."""
        self.ready[user] -= 1

    def start(self, user: str, now: float) -> None:
        self.ready[user] -= 1
        self._running[user].append(now)

    def finish(self, user: str, begun: float, now: float) -> None:
        self._running[user].remove(begun)
        self._ended[user] += now - begun if self.by == "time" else 1

    def release(self, user: str, begun: float) -> None:
        """It was given back and costs nothing; from here on everybody is looked at anew."""
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
            least, most = self._stretches.get(pair, (ahead, ahead))
            self._stretches[pair] = least, most = min(least, ahead), max(most, ahead)
            self.apart[pair] = max(self.apart.get(pair, 0.0), most - least)
