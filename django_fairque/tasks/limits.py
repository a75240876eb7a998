"""Limits by key: how a task declares them, and the keys that they have in one call."""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, Union

from django_fairque.engine.model.durations import is_integer
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.limits import (
    AT_LIMIT_VALUES,
    MAX_AT_ONCE,
    MAX_LIMITS,
    AtLimit,
    TaskLimit,
    gap_of,
    parse_rate,
)
from django_fairque.safely import Interruption, get_message, is_a, type_name

from .errors import TaskUsageError

USER_FIELD = "user"
"""The name in braces that stands for the task's user in a key."""
_FIELD = re.compile(r"{([^{}]*)}")


@dataclass(frozen=True)
class _KeyLimit:
    """The key of a limit, and whether all users share the limit."""

    key: str
    """The key. Names in braces in it are replaced by arguments of the task."""

    def _check(self, scope: object) -> None:
        where = f"{type(self).__name__}({short(self.key)})"
        try:
            check_id(self.key, "the key")
        except TaskValidationError as error:
            raise TaskUsageError(f"{where}: {error}") from None
        wrong = [name for name in self.fields if not name.isidentifier()]
        if wrong or set(_FIELD.sub("", self.key)) & {"{", "}"}:
            found = short(wrong[0]) if wrong else "a single brace"
            raise TaskUsageError(
                f"{where}: braces hold the name of an argument, such as {{mailbox_id}}, or {{user}}; got {found}. For another "
                "value, pass it to the task as an argument"
            )
        if scope not in (None, "user"):
            raise TaskUsageError(f'{where}: scope must be "user", or None for all users together, got {short(scope)}')

    @cached_property
    def fields(self) -> list[str]:
        """The names in the key's braces, in the order of the key."""
        return _FIELD.findall(self.key)

    @cached_property
    def is_of_user(self) -> bool:
        """Whether each user has a separate limit under this key."""
        return USER_FIELD in self.fields or getattr(self, "scope", None) == "user"

    @cached_property
    def is_computed(self) -> bool:
        """Whether the key or the limit's value is computed for each call."""
        return bool(self.fields) or any(callable(getattr(self, name, None)) for name in ("at_once", "rate"))

    @cached_property
    def pattern(self) -> tuple[str, bool]:
        """A text that is equal for two limits whose keys differ only in the names of arguments."""
        return _FIELD.sub(lambda found: found[0] if found[1] == USER_FIELD else "{}", self.key), self.is_of_user

    def fill_key(self, user: str, read: Callable[[str], Any]) -> str:
        """Return the limit's key in one call for ``user``. ``read`` returns the argument with a name. Raises
        `TaskUsageError` if an argument can't be written as text, or if the key is longer than 256 bytes.
        """
        if not self.fields:
            return self.key

        def fill(found: re.Match[str]) -> str:
            return user if found[1] == USER_FIELD else self._write(found[1], read(found[1]))

        try:
            return check_id(_FIELD.sub(fill, self.key), f"the key of limit {self.key!r}")
        except TaskValidationError as error:
            raise TaskUsageError(str(error)) from None

    def _write(self, name: str, value: object) -> str:
        # Members of an enum are replaced by their values, because the worker receives the values.
        if isinstance(value, str):
            return str.__str__(value)
        if value is None or isinstance(value, (bool, uuid.UUID)):
            return str(value)
        if isinstance(value, int) and value.bit_length() < 64:
            return int.__repr__(value)
        raise TaskUsageError(
            f"argument {name!r} is in the key of limit {self.key!r}, and must be text, an integer of at most 64 bits, a UUID, "
            f"a boolean or None; got {type(value).__name__} {short(value)}"
        )

    def _read_value(self, value: Any, user: str, check: Callable[[Any], Any]) -> Any:
        """Return the checked value of the limit for a user. Handle any exception of the project's function."""
        if not callable(value):
            return check(value)
        try:
            found = value(user)
        except Exception as error:
            if is_a(error, Interruption):
                raise
            raise TaskUsageError(
                f"the function of limit {self.key!r} raised {type_name(error)} for user {user!r}: {get_message(error)}; "
                "nothing was sent"
            ) from error
        try:
            return check(found)
        except TaskUsageError as error:
            raise TaskUsageError(f"the function of limit {self.key!r} for user {user!r}: {error}") from None


@dataclass(frozen=True)
class Concurrency(_KeyLimit):
    """A limit on how many tasks with the same ``key`` run at the same time: ``Concurrency("mailbox:{mailbox_id}", 1)``.

    All tasks that name the same key share the limit. Names in braces are arguments of the task. ``{user}`` is the
    task's user, so each user has a separate limit. ``at_once`` is the number of tasks, from 1 to 1,000,000, or a
    function that gets the user's id and returns the number. The function is called when a task is sent.

    Raises `TaskUsageError` if a value can't be used.
    """

    at_once: int | Callable[[str], int]
    """The number of tasks, or a function of the user's id."""
    _: KW_ONLY
    at_limit: AtLimit = "wait"
    """The reaction when the limit is full: ``"wait"`` (the default); ``"skip"`` refuses the task where it is sent;
    ``"newest"`` cancels the older tasks that wait for the key, of all users."""
    scope: Literal["user"] | None = None
    """``"user"`` for a separate limit for each user; None (the default) for one limit for all users together."""

    def __post_init__(self) -> None:
        self._check(self.scope)
        if not callable(self.at_once):
            _check_number(self.at_once, f"Concurrency({short(self.key)}): at_once")
        if self.at_limit not in AT_LIMIT_VALUES:
            expected = ", ".join(map(repr, AT_LIMIT_VALUES))
            raise TaskUsageError(
                f"Concurrency({short(self.key)}): at_limit must be one of {expected}, got {short(self.at_limit)}"
            )

    def build(self, key: str, user: str) -> TaskLimit:
        """Return the limit of one call for ``user``; ``key`` is the key with its names filled in. For the package."""
        number = self._read_value(self.at_once, user, lambda value: _check_number(value, "at_once"))
        return TaskLimit(key, number, is_of_user=self.is_of_user, at_limit=self.at_limit)


@dataclass(frozen=True)
class Rate(_KeyLimit):
    """A limit on how many tasks with the same ``key`` start in a period: ``Rate("stripe", "100/s", burst=20)``.

    Keys and braces have the same meaning as in `Concurrency`. ``rate`` is a number of tasks per s, m, h or d
    (``"100/m"``, ``"5/10s"``), or a function that gets the user's id and returns that text. In any period at most the
    rate and ``burst`` tasks start.

    Raises `TaskUsageError` if a value can't be used.
    """

    rate: str | Callable[[str], str]
    """Tasks per unit of time, or a function of the user's id."""
    _: KW_ONLY
    burst: int = 1
    """The number of tasks that may start at once after a period without tasks, from 1 (the default) to 1,000,000."""
    scope: Literal["user"] | None = None
    """``"user"`` for a separate limit for each user; None (the default) for one limit for all users together."""

    def __post_init__(self) -> None:
        self._check(self.scope)
        if not callable(self.rate):
            _check_rate(self.rate, f"Rate({short(self.key)}): ")
        _check_number(self.burst, f"Rate({short(self.key)}): burst")

    def build(self, key: str, user: str) -> TaskLimit:
        """Return the limit of one call for ``user``; ``key`` is the key with its names filled in. For the package."""
        gap = gap_of(*self._read_value(self.rate, user, _check_rate))
        return TaskLimit(key, gap=gap, burst=self.burst, is_of_user=self.is_of_user)


Limit = Union[Concurrency, Rate]  # noqa: UP007 - evaluated on 3.10 too


def _check_number(value: object, name: str) -> int:
    if not is_integer(value, 1, MAX_AT_ONCE):
        raise TaskUsageError(f"{name} must be an integer from 1 to {MAX_AT_ONCE:,}, got {short(value)}")
    return value


def _check_rate(value: object, where: str = "") -> tuple[int, int]:
    try:
        found = parse_rate(value if isinstance(value, str) else "")
    except TaskValidationError:
        found = None
    if found is None:
        raise TaskUsageError(
            f"{where}a rate is written 'tasks/unit' with unit s, m, h or d, such as '100/m'; got {short(value)}"
        )
    return found


def check_limits(value: Any, name: str) -> tuple[Limit, ...]:
    """Return the limits of a declaration. Raises `ValueError` for values of other types, and for limits that contradict
    each other.
    """
    several = [value] if isinstance(value, (Concurrency, Rate)) else value
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        several = [value]
    limits = tuple(several)
    for limit in limits:
        if not isinstance(limit, (Concurrency, Rate)):
            raise ValueError(  # noqa: TRY004
                f'{name} must be a list of Concurrency and Rate, such as [Concurrency("warehouse", 4)], got {short(limit)}'
            )
    kinds = [(type(limit), limit.key, limit.is_of_user) for limit in limits]
    for kind, limit in zip(kinds, limits, strict=True):
        if kinds.count(kind) > 1:
            raise ValueError(f"{name} has two {kind[0].__name__} of the key {limit.key!r}: leave one out")
    if len({kind[1:] for kind in kinds}) > MAX_LIMITS:
        raise ValueError(f"{name} may have at most {MAX_LIMITS} keys, got {len(limits)} limits")
    return limits


def find_problem(limits: Iterable[Limit], signature: inspect.Signature, *, is_batch: bool) -> str:
    """Return an error sentence if names in the keys are not arguments of the function; otherwise an empty text."""
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    known = (
        [] if is_batch else [name for name, parameter in signature.parameters.items() if parameter.kind not in kinds]
    )
    for limit in limits:
        for name in limit.fields:
            if name not in known and name != USER_FIELD:
                what = "the items of a batch task have no argument names; expected" if is_batch else "expected one of"
                return (
                    f"the key {limit.key!r} of a limit names {name!r}, which is no argument: {what} "
                    f"{', '.join([*known, USER_FIELD])}"
                )
    return ""


def build_limits(
    limits: Sequence[Limit], user: str, read: Callable[[str], Any], shards: int = 1
) -> tuple[TaskLimit, ...]:
    """Return the limits of one call, one limit for each key. ``read`` returns the argument with a name.

    Raises:
        TaskUsageError: a key or a value can't be used.
    """
    found: dict[tuple[str, bool], TaskLimit] = {}
    for limit in limits:
        made = limit.build(limit.fill_key(user, read), user)
        if problem := find_shard_problem(made, shards):
            raise TaskUsageError(problem)
        known = found.get((made.key, made.is_of_user))
        found[made.key, made.is_of_user] = made if known is None else _merge(known, made)
    return tuple(found.values())


def _merge(first: TaskLimit, second: TaskLimit) -> TaskLimit:
    """Merge two limits into one. Two keys that are declared differently may be equal in one call."""
    merged = TaskLimit(
        first.key,
        second.at_once if first.at_once is None else first.at_once,
        *((second.gap, second.burst) if first.gap is None else (first.gap, first.burst)),
        first.is_of_user,
        second.at_limit if first.at_once is None else first.at_limit,
    )
    is_same = second.at_once in (None, merged.at_once) and (
        second.at_once is None or second.at_limit == merged.at_limit
    )
    if not is_same or (second.gap is not None and (second.gap, second.burst) != (merged.gap, merged.burst)):
        raise TaskUsageError(f"two limits of the task have the key {first.key!r} and different values: give one value")
    return merged


def find_shard_problem(limit: Limit | TaskLimit, shards: int) -> str:
    """Return an error sentence if a shared limit allows fewer tasks than the queue has shards; otherwise an empty
    text.
    """
    at_once = getattr(limit, "at_once", None)
    if limit.is_of_user or not isinstance(at_once, int) or at_once >= shards:
        return ""
    return (
        f"limit {limit.key!r} lets {at_once} tasks run at once, and its queue has {shards} shards, each with a part of the "
        f'limit: raise it to at least {shards}, use a queue with fewer shards, or make it a limit of each user (scope="user")'
    )


def find_conflicts(declared: Mapping[str, Sequence[Limit]]) -> Iterator[tuple[str, str, str]]:
    """Yield ``(key, task, other task)`` for each key for which two tasks declare different values. ``limits`` contains
    the limits by task name.
    """
    known: dict[tuple[type, str, bool], tuple[str, Limit]] = {}
    for name, limits in declared.items():
        for limit in limits:
            first, other = known.setdefault((type(limit), *limit.pattern), (name, limit))
            if _values(other) != _values(limit):
                yield limit.key, first, name


def _values(limit: Limit) -> tuple[object, ...]:
    if isinstance(limit, Concurrency):
        return (limit.at_once,)
    return limit.rate if callable(limit.rate) else gap_of(*_check_rate(limit.rate)), limit.burst
