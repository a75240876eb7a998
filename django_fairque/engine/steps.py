"""Operations without I/O: each is a generator that yields what to send and is given the reply.

`FairQueue` and `AsyncFairQueue` drive the same generators, one with a plain client, one awaiting; that is all
they differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, Union

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One script call. It may be repeated after a lost reply: it carries a nonce, or repeating changes nothing."""

    script: str
    keys: Sequence[str]
    args: Sequence[Any]
    replicas: int = 0
    """How many must confirm what it wrote before it counts as done, within ``replication_timeout`` seconds."""
    replication_timeout: float = 0.0


@dataclass(frozen=True)
class Read:
    """Plain commands that change nothing, sent in one round trip; the reply is the list of their replies."""

    commands: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Scan:
    """One step of SCAN where ``prefix`` lies; the reply is the next cursor and the keys found."""

    prefix: str
    pattern: str
    cursor: int


@dataclass(frozen=True)
class Block:
    """A blocking command; ``seconds`` is how long it may take, None is its reply when nothing came."""

    command: tuple[Any, ...]
    seconds: float


@dataclass(frozen=True)
class Stream:
    """Calls that are made while earlier ones are being answered."""

    calls: Iterator[Call]
    heard: Callable[[Any], None]
    """Is given each reply, in their order, while later calls are being worked on."""


Request = Union[Call, Read, Scan, Stream, Block]  # noqa: UP007 - evaluated on 3.10 too
Steps = Generator[Request, Any, T]


class Run(Protocol):
    """Drives steps to their result."""

    def __call__(self, steps: Steps[T], /) -> T: ...


class AsyncRun(Protocol):
    """Drives steps to their result, awaiting each reply."""

    def __call__(self, steps: Steps[T], /) -> Coroutine[Any, Any, T]: ...


def read_each(parts: Sequence[Sequence[tuple[Any, ...]]]) -> Steps[list[list[Any]]]:
    """Several lists of commands in one round trip; their replies, list by list."""
    replies = yield Read([command for part in parts for command in part])
    found, at = [], 0
    for part in parts:
        found.append(replies[at : at + len(part)])
        at += len(part)
    return found


def scored(reply: list[Any]) -> list[tuple[bytes, float]]:
    """Members with their scores, in the reply of either protocol."""
    nested = bool(reply) and isinstance(reply[0], (list, tuple))
    flat = [value for pair in reply for value in pair] if nested else reply
    return [(name, float(score)) for name, score in zip(flat[::2], flat[1::2], strict=True)]
