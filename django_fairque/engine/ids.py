"""Identifiers: of tasks (they carry their shard) and of calls (nonces).

A task id is ``{shard:x}-{process}{count:08x}``: 60 random bits drawn once per process and a counter, 22
characters. Two processes share a prefix with probability 2^-60 a pair, and the ids of one process sort in the
order they were made, so tasks that become due at the same instant keep their order.
"""

from __future__ import annotations

import itertools
import os
import secrets

from .errors import TaskValidationError

MAX_BYTES = 256
"""The longest user id or task id, in bytes of UTF-8."""

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"


class _Source:
    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        bits = secrets.randbits(60)
        self.prefix = "".join(_ALPHABET[bits >> shift & 31] for shift in range(55, -1, -5))
        self.next = itertools.count().__next__


_source = _Source()
os.register_at_fork(after_in_child=_source.renew)  # a forked child must not repeat its parent's ids


def new_task_id(shard: int = 0) -> str:
    return f"{shard:x}-{_source.prefix}{_source.next():08x}"


def new_nonce() -> str:
    return f"{_source.prefix}{_source.next():x}"


def check_id(value: object, what: str) -> str:
    """Return ``value`` if it can name a user or a task, else raise `TaskValidationError`."""
    if not isinstance(value, str):
        raise TaskValidationError(
            f"{what} must be a non-empty string of at most {MAX_BYTES} bytes, got {type(value).__name__} {value!r}"
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise TaskValidationError(f"{what} must be encodable as UTF-8, got {value!r}") from error
    if not 0 < size <= MAX_BYTES:
        raise TaskValidationError(f"{what} must be a non-empty string of at most {MAX_BYTES} bytes, got {size} bytes")
    return value
