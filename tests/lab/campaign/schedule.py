"""Draws the order of the faults from the seed before anything begins, so that a run can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass

SLICE = 3.4
"""Minutes in which `PER_SLICE` happens; the check has a run of two."""
PER_SLICE = {
    "child": 2000,
    "supervisor": 100,
    "zombie": 50,
    "server": 100,
    "network": 24,
    "scripts": 20,
    "clients": 20,
    "memory": 2,
    "disk": 2,
    "deploy": 5,
    "poison": 20,
    "clock": 2,
}
"""The wanted number of each fault in that time; the report lists faults that a slow machine did not reach."""

QUIET = ("poison", "deploy", "clock")
"""Happen first, each alone."""
ALWAYS = ("memory", "disk")
"""Rare and slow, so that a machine that does not get to the end of its steps would miss them."""
LANES = {
    "child": ("child",),
    "supervisor": ("supervisor",),
    "zombie 0": ("zombie",),
    "zombie 1": ("zombie",),
    "server": ("server", "network", "scripts", "clients", "memory", "disk"),
}
"""The others happen side by side: faults of one lane one after the other. Those of two lanes share their number."""


@dataclass(frozen=True)
class Schedule:
    """``counts`` are wishes; ``lanes`` say in which order, and with which seed for whatever a fault decides by chance."""

    seed: int
    minutes: float
    counts: dict[str, int]
    lanes: dict[str, list[tuple[str, int]]]

    @property
    def seconds(self) -> float:
        return self.minutes * 60


def draw(seed: int, minutes: float, faults: list[str]) -> Schedule:
    counts = {fault: max(1, round(PER_SLICE[fault] * minutes / SLICE)) for fault in faults}
    lanes = {}
    for lane, kinds in LANES.items():
        chance = random.Random(f"{seed}/{lane}")
        share = sum(kinds == others for others in LANES.values())
        steps = [kind for kind in kinds if kind in counts for _ in range(-(-counts[kind] // share))]
        chance.shuffle(steps)
        steps = _early(steps, chance)
        if steps:
            lanes[lane] = [(kind, chance.randrange(2**31)) for kind in steps]
    return Schedule(seed, minutes, counts, lanes)


def _early(steps: list[str], chance: random.Random) -> list[str]:
    """Move the faults that every run must reach into its first half."""
    others = [kind for kind in steps if kind not in ALWAYS]
    for kind in (kind for kind in steps if kind in ALWAYS):
        others.insert(chance.randint(0, len(others) // 2), kind)
    return others
