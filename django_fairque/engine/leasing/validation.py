"""Calls that take several things at once: what is none of them, or too many, is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.lease import Lease, check_lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.shortening import short
from django_fairque.engine.scripting.commands import MAX_BATCH

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def check_batch(size: int) -> int:
    """How many tasks are asked for; `TaskValidationError` for more than one call hands out, and for no number."""
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_BATCH:
        raise TaskValidationError(f"a batch has 1 to {MAX_BATCH} tasks, got {short(size)}")
    return size


def check_leases(leases: Iterable[Lease]) -> list[Lease]:
    """Any number of leases; `TaskValidationError` for a single one, and for anything else."""
    return _checked(leases, Lease, "leases", check_lease)


def check_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """As many outcomes as one call settles; `TaskValidationError` for more, for a single one, and for anything else."""
    found = _checked(outcomes, Outcome, "outcomes", _check_outcome)
    if len(found) > MAX_BATCH:
        raise TaskValidationError(f"at most {MAX_BATCH} outcomes are settled in one call, got {len(found)}")
    return found


def _check_outcome(outcome: Outcome) -> Outcome:
    if not isinstance(outcome, Outcome):
        raise TaskValidationError(f"expected an Outcome, as Outcome.finish(lease) makes one, got {short(outcome)}")
    return outcome


def _checked(some: Any, kind: type[T], what: str, check: Callable[[T], T]) -> list[T]:
    if isinstance(some, kind):
        raise TaskValidationError(f"expected a list of {what}, got a single one: put it into a list, [{what[:-1]}]")
    if isinstance(some, (str, bytes)) or not isinstance(some, Iterable):
        raise TaskValidationError(f"expected a list of {what}, got {short(some)}")
    return [check(each) for each in some]
