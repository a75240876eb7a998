"""Which dead letters are meant, and the little that has to be known of one to tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.fingerprint import fingerprint
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.model.shortening import short

if TYPE_CHECKING:
    from collections.abc import Callable


class Filters(TypedDict, total=False):
    """Which entries are meant; what is not given (or None) is not asked for. Ages in seconds.

    ``moved_until``, in seconds since the epoch, leaves out what died after that moment: what one has not seen.
    """

    failure_type: FailureType | str | None
    user_id: str | None
    name: str | None
    fingerprint: str | None
    older_than: float | None
    newer_than: float | None
    moved_until: float | None


@dataclass(frozen=True)
class Letter:
    """A dead letter without its payload and history: they can be large, and choosing needs neither."""

    task_id: str
    died: int
    user_id: str
    name: str
    failure_type: FailureType
    reason: str
    moved_at: float

    @property
    def entry_id(self) -> str:
        return f"{self.task_id}~{self.died}"

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self.failure_type.value, self.reason)


@dataclass(frozen=True)
class Filter:
    """Checked `Filters`."""

    failure_type: FailureType | None = None
    user_id: str | None = None
    name: str | None = None
    fingerprint: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    moved_until: float | None = None

    @classmethod
    def create(cls, filters: Filters) -> Filter:
        for key in filters:
            if key not in CHECKS:
                raise TypeError(f"there is no filter {key!r}; expected one of {', '.join(CHECKS)}")
        return cls(**{key: CHECKS[key](value, key) for key, value in filters.items() if value is not None})

    @property
    def asks_age(self) -> bool:
        return self.older_than is not None or self.newer_than is not None

    def matches(self, letter: Letter, now: float) -> bool:
        age = now - letter.moved_at
        return (
            self.failure_type in (None, letter.failure_type)
            and self.user_id in (None, letter.user_id)
            and self.name in (None, letter.name)
            and (self.older_than is None or age >= self.older_than)
            and (self.newer_than is None or age < self.newer_than)
            and (self.moved_until is None or letter.moved_at <= self.moved_until)
            and (self.fingerprint is None or self.fingerprint == letter.fingerprint)
        )


def _failure_type(value: Any, key: str) -> FailureType:
    try:
        return FailureType(value)
    except ValueError:
        expected = ", ".join(each.value for each in FailureType)
        raise TaskValidationError(f"{key} must be one of {expected}, got {short(value)}") from None


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TaskValidationError(f"{key} must be a string, got {short(value)}")
    return value


def _fingerprint(value: Any, key: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{12}", value):
        raise TaskValidationError(f"{key} must be 12 hexadecimal digits, as groups() shows them, got {short(value)}")
    return value.lower()


CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "failure_type": _failure_type,
    "user_id": check_id,
    "name": _text,
    "fingerprint": _fingerprint,
    "older_than": duration,
    "newer_than": duration,
    "moved_until": moment,
}
