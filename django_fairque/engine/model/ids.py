"""Identifiers of tasks, calls (nonces) and processes. A task id contains the bucket of its user.

A task id is ``{process}{count:08x}-{bucket:03x}``: 60 random bits drawn once per process, a counter, and the bucket of
its user, 24 characters. Two processes share a prefix with a probability of 2^-60. The ids of one process sort in the order
of their creation, so tasks that become due at the same moment keep their order. A user's bucket decides its shard, whatever
the number of shards is: the code that makes an id does not need to know the number of shards.

A forked process must not repeat the ids of its parent, and must not share its clients, locks and threads (`PerProcess`). The
next use in the forked process notices the new process id. Hooks of `os.register_at_fork` alone would miss forks that are not
made by Python: uWSGI loads an application and then forks in C. In such a process no hook was called, and `threading` still
lists the threads of the parent as alive.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from os import getpid
from typing import Any, Generic, TypeVar, Union
from weakref import WeakSet
from zlib import crc32

from django_fairque.engine.model.errors import TaskValidationError, short

MAX_ID_BYTES = 256
"""The longest user id or task id, in bytes of UTF-8."""

MAX_LISTED_USERS = 3000
"""The largest number of user ids in a worker's list. Each call of the worker sends the whole list."""

Users = Union[str, Sequence[str]]  # noqa: UP007 - evaluated on 3.10 too
"""The users that a worker serves: ``"*"`` for all users, or a sequence of user ids."""

USER_BUCKETS = 4096
"""The number of buckets. Each user has a bucket, and each bucket has a shard."""

_GENERATED = re.compile(r"[0-9a-v]{12}[0-9a-f]{8,}-([0-9a-f]{3})")
_ALPHABET = "0123456789abcdefghijklmnopqrstuv"


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text, which spaces separate: ``split_names("weight cap rate")`` is ``("weight", "cap", "rate")``."""
    return tuple(text.split())


def natural_order(text: str) -> tuple[list[Any], str]:
    """Return a sort key that compares numbers by value: ``worker-2`` comes before ``worker-10``."""
    parts: list[Any] = re.split("([0-9]+)", text)
    for index in range(1, len(parts), 2):
        digits = parts[index].lstrip("0")
        parts[index] = len(digits), digits
    return parts, text


T = TypeVar("T")

_all: WeakSet[PerProcess[Any]] = WeakSet()


class PerProcess(Generic[T]):
    """A value that every process makes when it first needs it; thread-safe.

    Args:
        make: makes the value. If two threads need the value at once, both may call this, and both get the same value.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}
        _all.add(self)

    def get(self) -> T:
        """Return the value of this process."""
        try:
            return self._values[getpid()]
        except KeyError:
            return self._make_value()

    def take(self) -> T | None:
        """Forget the value of this process, so that the next `get` makes another one. Returns the old value; None if
        there was none.
        """
        return self._values.pop(getpid(), None)

    def forget(self) -> None:
        """Forget the values of all processes."""
        self._values = {}

    def _make_value(self) -> T:
        process = getpid()
        value = self._values.setdefault(process, self._make())
        for other in [known for known in list(self._values) if known != process]:  # the process of which this is a fork
            self._values.pop(other, None)
        return value


this_process: PerProcess[object] = PerProcess(object)
"""An object that identifies this process. A forked process has another one."""


def _forget_parent() -> None:
    """Forget all values, because process ids repeat: process 1 can have a child that is process 1 of another namespace."""
    for value in _all:
        value.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


class _Source:
    def __init__(self) -> None:
        bits = secrets.randbits(60)
        self.prefix = "".join(_ALPHABET[bits >> shift & 31] for shift in range(55, -1, -5))
        self.next = itertools.count().__next__


_sources = PerProcess(_Source)
"""The source of ids of each process. Two processes with the same source would make the same ids, and the push of the second
process would count as a repetition of the first.
"""


@lru_cache(maxsize=4096)
def compute_bucket(name: str) -> int:
    """Return the bucket of a user, a run or a namespace. The bucket never changes, in any process or version."""
    return crc32(name.encode()) % USER_BUCKETS


def new_task_id(user_id: str | None = None) -> str:
    """Return a new id for a task of this user. A task whose id contains no user's bucket is searched on every shard."""
    source = _sources.get()
    return f"{source.prefix}{source.next():08x}{'' if user_id is None else _build_suffix(user_id)}"


def derive_task_id(user_id: str, *parts: str) -> str:
    """Return the id for a task of this user that follows from ``parts``: the same parts give the same id, in any process."""
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest() + _build_suffix(user_id)


@lru_cache(maxsize=4096)
def _build_suffix(user_id: str) -> str:
    return f"-{compute_bucket(user_id):03x}"


def parse_bucket(task_id: str) -> int | None:
    """Return the bucket in an id that `new_task_id` made; None for an id that the caller chose."""
    found = _GENERATED.fullmatch(task_id)
    return None if found is None else int(found[1], 16)


def new_nonce() -> str:
    source = _sources.get()
    return f"{source.prefix}{source.next():x}"


def check_list(values: object, what: str) -> Iterable[Any]:
    """Return the values; raise `TaskValidationError` if ``values`` is not a list."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        kind = "the string " if isinstance(values, str) else ""
        raise TaskValidationError(f"expected a list of {what}, got {kind}{short(values)}")
    return values


def check_ids(values: object, what: str) -> list[str]:
    """Return the ids without duplicates; raise `TaskValidationError` if ``values`` is not a list of ids."""
    return list(dict.fromkeys(check_id(value, f"each of the {what}") for value in check_list(values, what)))


def check_text(value: object, what: str) -> str:
    """Return a text that the server can keep; raise `TaskValidationError` for anything else."""
    if not isinstance(value, str):
        raise TaskValidationError(f"{what} must be a string, got {short(value)}")
    check_encodable(value, what)
    return value


def check_encodable(value: str, what: str) -> int:
    """Return the size of a text in bytes. Raises `TaskValidationError` if UTF-8 can't encode it (half of a surrogate pair)."""
    try:
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise TaskValidationError(f"{what} must be encodable as UTF-8, got {short(value)}") from error


def check_id(value: object, what: str) -> str:
    """Return ``value`` if it can name a user or a task, else raise `TaskValidationError`."""
    if not isinstance(value, str):
        raise TaskValidationError(
            f"{what} must be a non-empty string of at most {MAX_ID_BYTES} bytes, got {type(value).__name__} {short(value)}; "
            "pass an integer or a UUID as text: str(…)"
        )
    size = len(value) if value.isascii() else check_encodable(value, what)
    if not 0 < size <= MAX_ID_BYTES:
        raise TaskValidationError(
            f"{what} must be a non-empty string of at most {MAX_ID_BYTES} bytes, got {size} bytes"
        )
    return value
