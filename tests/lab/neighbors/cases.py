"""The declaration of a case, and its report."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tests.lab.neighbors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .world import World

MODULE_PREFIX = "case_"
"""Modules of this package with this prefix declare cases."""

UNNOTICED_WAIT_SECONDS = 1.0
"""The longest wait of others in a case whose bound names none."""


@dataclass(frozen=True)
class Felt:
    """The effects that the other users noticed.

    Args:
        extra_starts: most additional starts of one task that is not the neighbor's.
        p99_wait: 99th percentile of the seconds from push to first start of the others' tasks; None if it does not apply.
        wrong_ends: number of the others' tasks that did not end as they should have.
        within_bound: whether all this is within the bound of the case.
        details: figures that the table's columns have no place for, for example ``"0 leaks in 2000 tasks"``.
    """

    extra_starts: int = 0
    p99_wait: float | None = None
    wrong_ends: int = 0
    within_bound: bool = True
    details: str = ""


@dataclass(frozen=True)
class Case:
    """A neighbor, and the bound of its effect on others."""

    item: str
    """The item of the list of guarantees, for example ``"B2"``."""
    neighbor: str
    """The neighbor's behavior in words, for the table."""
    bound: str
    """The largest effect that others may notice, in words; ``"unaffected"`` if none."""
    run: Callable[[World], Felt]

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def names_wait(self) -> bool:
        """Whether the bound says how long others may wait; the case itself keeps that."""
        return re.search(r"\d s\b", self.bound) is not None


_cases: list[Case] = []


def case(item: str, *, neighbor: str, bound: str) -> Callable[[Callable[[World], Felt]], Callable[[World], Felt]]:
    """Declare a function as a case. It gets a `World` with a new server and returns a `Felt`."""

    def declare(function: Callable[[World], Felt]) -> Callable[[World], Felt]:
        _cases.append(Case(item, neighbor, bound, function))
        return function

    return declare


def all_cases() -> Sequence[Case]:
    """All declared cases, ordered by item."""
    for module in pkgutil.iter_modules(tests.lab.neighbors.__path__):
        if module.name.startswith(MODULE_PREFIX):
            importlib.import_module(f"{tests.lab.neighbors.__name__}.{module.name}")
    return sorted(_cases, key=lambda case: (case.item[0], int("".join(filter(str.isdigit, case.item)) or 0)))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below or at which this share of the values lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
