"""Operations without I/O: each is a generator that yields requests and receives the replies.

`FairQueue` and `AsyncFairQueue` drive the same generators: one with a synchronous client, the other with an asyncio
client. There is no other difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, Union, cast

from django_fairque.engine.model.errors import LuaScriptError
from django_fairque.engine.scripting.user_record import read_user_record

T = TypeVar("T")


class ScriptCall(NamedTuple):
    """One script call. Repeating it after a lost reply is safe: the call carries a nonce, or a repetition changes nothing."""

    script: str
    keys: Sequence[str]
    args: Sequence[Any]
    replicas: int = 0
    """The number of replicas that must confirm the write within ``replication_timeout`` seconds before the call counts
    as done.
    """
    replication_timeout: float = 0.0


@dataclass(frozen=True)
class Read:
    """Plain commands that change nothing, sent in one round trip; the reply is the list of their replies."""

    commands: Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Scan:
    """One step of SCAN on the node that has the keys with this ``prefix``; the reply is the next cursor and the found
    keys.
    """

    prefix: str
    pattern: str
    cursor: int


@dataclass(frozen=True)
class BlockingCommand:
    """A blocking command. ``seconds`` is the longest time that it may take; its reply is None if nothing came in that
    time.
    """

    command: tuple[Any, ...]
    seconds: float


@dataclass(frozen=True)
class Stream:
    """Calls that are built and sent while the server still answers earlier calls."""

    calls: Iterator[ScriptCall]
    on_reply: Callable[[Any], None]
    """Called with each reply, in order, while the server works on later calls."""


@dataclass(frozen=True)
class Evaluate:
    """A function of the project, which may wait for its database; the reply is its result."""

    function: Callable[[], Any]
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None
    """Runs the function for a coroutine; None to call it on the event loop."""


SingleRequest = Union[ScriptCall, Read, Scan, BlockingCommand]  # noqa: UP007 - evaluated on 3.10 too
Request = Union[SingleRequest, Stream, Evaluate]  # noqa: UP007 - evaluated on 3.10 too
Operation = Generator[Request, Any, T]
Steps = Generator[Any, Any, Any]
"""Steps of a request, written once for both kinds of clients: each yields what a method of the client returned, which is the
reply itself or an awaitable of an asyncio client, and is given the reply."""


def drive(steps: Steps) -> Any:
    """Run steps over a client that is not awaited, and return their result."""
    reply = None
    try:
        while True:
            reply = steps.send(reply)
    except StopIteration as stop:
        return stop.value


async def drive_async(steps: Steps) -> Any:
    """Run steps over an asyncio client, and return their result."""
    try:
        pending = steps.send(None)
        while True:
            try:
                reply = await pending
            except Exception as error:  # noqa: BLE001, PERF203 - the steps decide what it means, of each reply
                pending = steps.throw(error)
            else:
                pending = steps.send(reply)
    except StopIteration as stop:
        return stop.value


class Driver(Protocol):
    """Runs the steps of an operation and returns their result."""

    def __call__(self, steps: Operation[T], /) -> T: ...


class AsyncDriver(Protocol):
    """Runs the steps of an operation and returns their result, awaiting each reply."""

    def __call__(self, steps: Operation[T], /) -> Coroutine[Any, Any, T]: ...


def slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Return slices of at most ``size`` items, each for one call."""
    return (items[first : first + size] for first in range(0, len(items), size))


def scan_pattern(prefix: str) -> str:
    """Return the pattern of all keys that begin with ``prefix``."""
    return "".join(f"[{char}]" if char in "*?[]" else char for char in prefix).replace("\\", "\\\\") + "*"


def scan_keys(prefix: str) -> Operation[list[bytes]]:
    """Return every key that begins with ``prefix``, sorted."""
    pattern = scan_pattern(prefix)
    keys: set[bytes] = set()
    cursor = 0
    while True:
        cursor, found = yield Scan(prefix, pattern, cursor)
        keys.update(found)
        if cursor == 0:
            return sorted(keys)


def read_each(parts: Sequence[Sequence[tuple[Any, ...]]], *, only_sound: bool = False) -> Operation[list[list[Any]]]:
    """Send several lists of commands in one round trip; return the replies list by list. With ``only_sound``, damaged
    keys count as absent (`read_sound`).
    """
    commands = [command for part in parts for command in part]
    replies = iter((yield from read_sound(commands)) if only_sound else (yield Read(commands)))
    return [list(islice(replies, len(part))) for part in parts]


_TYPES: Mapping[str, tuple[bytes, Callable[[int], Any]]] = {
    "HGETALL": (b"hash", lambda _: {}),
    "HMGET": (b"hash", lambda fields: [None] * fields),
    "GET": (b"string", lambda _: None),
    "GETRANGE": (b"string", lambda _: b""),
    "STRLEN": (b"string", lambda _: 0),
    "HGET": (b"hash", lambda _: None),
    "LRANGE": (b"list", lambda _: []),
    "ZRANGE": (b"zset", lambda _: []),
    "ZREVRANGE": (b"zset", lambda _: []),
    "ZRANGEBYSCORE": (b"zset", lambda _: []),
    "ZSCORE": (b"zset", lambda _: None),
}
"""The type of key that a command reads, and its reply for a key that is absent."""


def read_sound(commands: Sequence[tuple[Any, ...]]) -> Operation[list[Any]]:
    """Read as `Read` does, but count a key of another type than the command reads as absent: one damaged key then does
    not prevent the other replies.

    Without commands nothing is sent.
    """
    if not commands:
        return []
    try:
        whole: list[Any] = yield Read(commands)
    except LuaScriptError as error:
        if "WRONGTYPE" not in str(error):
            raise
    else:
        return whole
    typed = [command for command in commands if command[0] in _TYPES]
    types = yield Read([("TYPE", key) for _, key, *_ in typed])
    damaged = {
        id(command)
        for command, found in zip(typed, types, strict=True)
        if found not in (_TYPES[command[0]][0], b"none")
    }
    sound = [command for command in commands if id(command) not in damaged]
    replies = iter((yield Read(sound)) if sound else [])
    return [
        _TYPES[command[0]][1](len(command) - 2) if id(command) in damaged else next(replies) for command in commands
    ]


def read_users(keys: Iterable[str]) -> Operation[list[dict[bytes, bytes]]]:
    """Read the records of users at these keys. Absent and damaged records have no fields. Without keys nothing is sent."""
    return [users_record(text) for text in (yield from read_sound([("GET", key) for key in keys]))]


def users_record(text: bytes | None) -> dict[bytes, bytes]:
    """Return the fields of a user's record; none if it is absent or damaged."""
    try:
        return read_user_record(text)
    except ValueError:
        return {}


def read_together(parts: Sequence[Operation[T]]) -> Operation[list[T]]:
    """Run operations that only read, in lockstep: the next reads of all of them share one round trip. Return their
    results, in order.
    """
    results: dict[int, T] = {}
    pending: dict[int, Read] = {}

    def advance(index: int, step: Callable[[], Request]) -> None:
        pending.pop(index, None)
        try:
            request = step()
        except StopIteration as stop:
            results[index] = stop.value
        else:
            pending[index] = cast("Read", request)

    for index, part in enumerate(parts):
        advance(index, lambda part=part: next(part))  # type: ignore[misc]
    while pending:
        reads = dict(pending)
        try:
            replies = iter((yield Read([command for read in reads.values() for command in read.commands])))
        except LuaScriptError:
            for index, read in reads.items():  # run one by one, so that each operation gets its own error
                pending.pop(index)
                results[index] = yield from _resume(parts[index], read)
            continue
        for index, read in reads.items():
            some = list(islice(replies, len(read.commands)))
            advance(index, lambda index=index, some=some: parts[index].send(some))  # type: ignore[misc]
    return [results[index] for index in range(len(parts))]


def _resume(steps: Operation[T], request: Request) -> Operation[T]:
    """Run the rest of an operation, from this request on."""
    try:
        while True:
            try:
                reply = yield request
            except LuaScriptError as error:  # noqa: PERF203 - each request may fail
                request = steps.throw(error)
            else:
                request = steps.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result


def parse_pairs(reply: list[Any]) -> list[tuple[bytes, Any]]:
    """Return names with their values from a reply in either version of the protocol."""
    nested = bool(reply) and isinstance(reply[0], (list, tuple))
    flat = [value for pair in reply for value in pair] if nested else reply
    return list(zip(flat[::2], flat[1::2], strict=True))


def parse_scores(reply: list[Any]) -> list[tuple[bytes, float]]:
    """Return members with their scores from a reply in either version of the protocol."""
    return [(name, float(score)) for name, score in parse_pairs(reply)]
