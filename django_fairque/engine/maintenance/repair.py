"""Mending what the checker found: indexes and counters are made to agree with the tasks' own records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.invariants.checker import SQUATTED, check_invariants
from django_fairque.engine.maintenance.invariants.snapshot import bytes_of

if TYPE_CHECKING:
    from django_fairque.engine.maintenance.invariants.snapshot import Violation
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps

ROUNDS = 12
SLICE = 100
ORDER = (
    ("task", "index", "queue", "lease", "run", "key", "mirror", "watchers"),
    ("edge",),
    ("user", "stat"),
    ("place", "member"),
    ("group",),
    ("standing",),
    ("sum",),
)
"""What must be right before the next can be judged: tasks, then edges between them, then sums, then who is served, and of
organizations the same again."""
NOT_NEEDED, MENDED, UNMENDABLE = b"012"


@dataclass(frozen=True)
class Repair:
    """A violation and whether it was mended; what was not needs a person."""

    violation: Violation
    mended: bool

    def __str__(self) -> str:
        return f"{'mended' if self.mended else 'NOT MENDED'}: {self.violation}"


def repair(commands: Commands, now: float | None) -> Steps[list[Repair]]:
    """Check and mend until nothing is left that a program can mend, at most twelve rounds."""
    done: dict[Violation, Repair] = {}
    for _ in range(ROUNDS):
        found = yield from check_invariants(commands)
        if any(each.invariant == SQUATTED for each in found):  # the script could read neither it nor around it
            done.update((each, Repair(each, mended=False)) for each in found if each not in done)
            break
        waiting = [each for each in found if each.mend and not (each in done and not done[each].mended)]
        done.update((each, Repair(each, mended=False)) for each in found if not each.mend)
        kinds = next((kinds for kinds in ORDER if any(each.mend[0] in kinds for each in waiting)), None)
        if kinds is None:
            break
        some = [each for each in waiting if each.mend[0] in kinds]
        for first in range(0, len(some), SLICE):
            part = some[first : first + SLICE]
            args = [len(part), *(bytes_of(value) for each in part for value in each.mend)]
            codes = yield commands.call("repair", args, now)
            done.update((each, Repair(each, mended=code != UNMENDABLE)) for each, code in zip(part, codes, strict=True))
    return list(done.values())
