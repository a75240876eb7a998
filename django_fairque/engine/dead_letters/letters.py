"""Filters of dead letters, and the fields of a dead letter that they need."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.records import Attempt, FailureType

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task

FINGERPRINTED_CHARACTERS = 2000
"""The number of characters of an error from which its fingerprint is made: as many as are stored
(`outcome.MAX_ERROR_CHARACTERS`).
"""

# An apostrophe within a word (can't, O'Brien) neither begins nor ends a quotation.
_QUOTED = r"(?<!\w)[bruf]{0,2}'(?:[^'\\\n]|\\.|'(?=\w))*'(?!\w)|(?:(?<!\w)[bruf]{1,2})?\"(?:[^\"\\\n]|\\.)*\""
_VARIABLE_PARTS = tuple(
    (re.compile(pattern, re.IGNORECASE), word)
    for pattern, word in (
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
        (_QUOTED, "<text>"),
        (r"\b0x[0-9a-f]+\b", "<address>"),
        (r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+", "<email>"),
        # IPv6: at least two colons, and a part that a time of day does not have.
        (r"(?<![\w:])(?=[0-9:]*(?:[a-f]|::))(?=:*[0-9a-f])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", "<address>"),
        # Random hexadecimal text has letters and digits; digits alone are a number, whatever their length.
        (r"\b(?:(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{6,}|[a-f]{12,})\b", "<hex>"),
        (r"\b(?=\d*[a-z])(?=[a-z]*\d)[0-9a-z]{16,}\b", "<id>"),
        (r"(?:(?<![\w)\]])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "<n>"),
    )
)
_CUT_OFF = re.compile(r"(?<!\w)[bruf]{0,2}(?:'[^']*|\"[^\"]*)\Z", re.IGNORECASE)


def normalize_error(error: str) -> str:
    """Return the first line of an error. Ids, numbers, addresses and quoted text are replaced by words such as ``<id>``."""
    text = error[:FINGERPRINTED_CHARACTERS].strip().partition("\n")[0]
    for pattern, word in _VARIABLE_PARTS:
        text = pattern.sub(word, text)
    return _CUT_OFF.sub("<text>", text) if len(error) >= FINGERPRINTED_CHARACTERS else text


def fingerprint(name: str, failure_type: str, error: str) -> str:
    """Return twelve hexadecimal digits, the same for errors that differ only in variable parts such as ids."""
    text = "\0".join((name, failure_type, normalize_error(error)))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


class Filters(TypedDict, total=False):
    """Filters that select dead letters. Filters that are not given, or are None, are not applied."""

    failure_type: FailureType | str | None
    """The reason why the task became a dead letter."""
    user_id: str | None
    """The task's user."""
    name: str | None
    """The task's name."""
    fingerprint: str | None
    """The error's fingerprint (`DLQEntry.fingerprint`)."""
    older_than: float | None
    """The least age of a dead letter, in seconds."""
    newer_than: float | None
    """The largest age of a dead letter, in seconds."""
    moved_until: float | None
    """The latest moment, as Unix time, at which a task became a dead letter. This filter leaves out later letters, which the
    caller has not seen."""


@dataclass(frozen=True)
class Letter:
    """A dead letter without its payload and history, which can be large and are not needed for filters.

    ``task_id``, ``user_id`` and ``name`` are those of its task. ``died`` is the number of times that the task became a
    dead letter. ``failure_type`` and ``reason`` (the last error) are the reason, and ``moved_at`` is the Unix time.
    """

    task_id: str
    died: int
    user_id: str
    name: str
    failure_type: FailureType
    reason: str
    moved_at: float

    @property
    def entry_id(self) -> str:
        """The id of the entry, for `DeadLetterQueue.get`."""
        return f"{self.task_id}~{self.died}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the error, which is the same for all letters with the same error (`fingerprint`)."""
        return fingerprint(self.name, self.failure_type.value, self.reason)


@dataclass(frozen=True)
class Filter:
    """Filters whose values have been checked (`Filters`)."""

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
            if key not in FILTER_CHECKS:
                raise TypeError(f"there is no filter {key!r}; expected one of {', '.join(FILTER_CHECKS)}")
        return cls(**{key: FILTER_CHECKS[key](value, key) for key, value in filters.items() if value is not None})

    def __str__(self) -> str:
        """Name the filters, for a record; "all" if there are none."""
        found = {key: value for key, value in vars(self).items() if value is not None and key != "moved_until"}
        return ", ".join(f"{key} {getattr(value, 'value', value)}" for key, value in found.items()) or "all"

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
        expected = ", ".join(kind.value for kind in FailureType)
        raise TaskValidationError(f"{key} must be one of {expected}, got {short(value)}") from None


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise TaskValidationError(f"{key} must be a string, got {short(value)}")
    return value


def _fingerprint(value: Any, key: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9a-fA-F]{12}", value):
        raise TaskValidationError(f"{key} must be 12 hexadecimal digits, as groups() shows them, got {short(value)}")
    return value.lower()


FILTER_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "failure_type": _failure_type,
    "user_id": check_id,
    "name": _text,
    "fingerprint": _fingerprint,
    "older_than": duration,
    "newer_than": duration,
    "moved_until": moment,
}


@dataclass(frozen=True)
class DLQEntry:
    """A dead letter: a task that will not be tried again by itself, with the reason."""

    entry_id: str
    """The id for `DeadLetterQueue.get`: the task's id and how often the task became a dead letter."""
    original_task: Task
    """The task with its payload."""
    failure_type: FailureType
    """The reason why the task became a dead letter: it failed, expired or is poisoned."""
    reason: str
    """The last error, or the reason why the task expired."""
    moved_at: float
    """The Unix time at which the task became a dead letter."""
    retry_history: tuple[Attempt, ...] = field(default=())
    """The task's attempts, the oldest first, at most 25."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the error, which is the same for all entries with the same error (`fingerprint`)."""
        return fingerprint(self.original_task.name, self.failure_type.value, self.reason)

    def get_age_seconds(self, now: float | None = None) -> float:
        """Return the seconds since the task became a dead letter; ``now`` is a Unix time, by default this machine's
        clock.
        """
        return max(0.0, (time.time() if now is None else now) - self.moved_at)


@dataclass(frozen=True)
class DLQGroup:
    """Dead letters with the same error: their ``fingerprint``, the task ``name`` and the ``failure_type``, the
    ``error`` without its variable parts, and their ``count``. ``oldest`` and ``newest`` are Unix times.
    """

    fingerprint: str
    name: str
    failure_type: FailureType
    error: str
    count: int
    oldest: float
    newest: float
    example: str
    """The id of the newest entry in the group."""
    sample: str = ""
    """The unchanged error of the newest entry in the group, which may contain secrets."""


def make_group(key: str, members: Sequence[Letter]) -> DLQGroup:
    """Return the group of these letters, whose fingerprint is ``key``."""
    newest = max(members, key=lambda letter: letter.moved_at)
    return DLQGroup(
        *(key, newest.name, newest.failure_type, normalize_error(newest.reason), len(members)),
        oldest=min(letter.moved_at for letter in members),
        newest=newest.moved_at,
        example=newest.entry_id,
        sample=newest.reason,
    )


@dataclass(frozen=True)
class DLQGroups:
    """The newest dead letters, grouped by error. ``groups`` are the groups, the largest first; ``looked_at`` is the
    number of letters that were read, and ``is_whole`` is True if there are no more.
    """

    groups: tuple[DLQGroup, ...]
    looked_at: int
    is_whole: bool
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; their letters are left out."""


@dataclass(frozen=True)
class DLQMatching:
    """The number of letters that match: ``count`` of the ``looked_at`` newest letters; ``is_whole`` is True if there
    are no more.

    None of the counted letters became a dead letter after ``until``, a Unix time.
    """

    count: int
    until: float
    looked_at: int
    is_whole: bool
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now. Their letters are not counted."""


class DLQCounts(dict[str, int]):
    """The numbers of dead letters by failure type, returned by `DeadLetterQueue.counts`.

    Dead letters on ``missing_shards``, which can't be reached now, are not counted. ``counts`` are the numbers.
    """

    def __init__(self, counts: Mapping[str, int], missing_shards: tuple[int, ...] = ()) -> None:
        super().__init__(counts)
        self.missing_shards = missing_shards
