"""The rate of a user in plain Python, with the same numbers as the engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Rate(NamedTuple):
    """The microseconds between two starts on average, and the number of tasks that may start at once."""

    gap: int
    burst: int


@dataclass
class Tokens:
    """The tokens of a rate, if there is one. Moments are in seconds."""

    rate: Rate | None = None
    arrival: float = 0.0
    """The theoretical arrival time of the next task, in microseconds; 0 for all tokens."""
    last_gap: int = 0
    rated: float = 0.0
    """When the rate was set first: tasks that had started before have used no token."""

    @property
    def free_at(self) -> float:
        """The moment from which there is a token, in microseconds."""
        return self.arrival - self.rate.gap * (self.rate.burst - 1) if self.rate else 0.0

    def set_rate(self, rate: Rate | None, now: float) -> None:
        """Change the rate. As many tokens as before are in use."""
        if rate == self.rate:
            return
        before = self.rate.gap if self.rate else self.last_gap or (rate.gap if rate else 0)
        used = max(0.0, self.arrival - now * 1e6) / before if before else 0.0
        if rate and not self.rate:
            used, self.rated = min(used, rate.burst), now
        self.rate, self.last_gap = rate, 0 if rate else before
        self.arrival = now * 1e6 + math.ceil(used * (rate.gap if rate else before)) if used else 0.0

    def take(self, now: float) -> None:
        if self.rate:
            self.arrival = max(self.arrival, now * 1e6) + self.rate.gap

    def give_back(self, started: float) -> None:
        if self.rate and self.arrival and started >= self.rated:
            self.arrival -= self.rate.gap
