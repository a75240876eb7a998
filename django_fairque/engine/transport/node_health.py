"""A cluster's nodes: reads of several at a time, and which of them have not answered lately.

What is read of several nodes is asked of each over its own connection, of all at the same time, so that it takes as long as the
slowest of them. (The client's own pipeline asks those that are away again for every single command.)
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions as redis_errors

from django_fairque.engine.scripting.operations import Read
from django_fairque.engine.transport import cluster as clusters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from django_fairque.engine.scripting.operations import Request
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")

AGAIN = 1.0
"""Seconds after which nodes that did not answer are asked again."""
BRIEFLY = 0.25
"""Seconds for which that is waited for: who is back answers in less."""
FAILURES = (redis_errors.RedisError, redis_errors.RedisClusterException)
RAW = {"NEVER_DECODE": True}
ABSENCE = (*clusters.LOST, redis_errors.ClusterDownError)
"""A node that has just come back says for a while that the cluster is down."""
NO_ABSENCE = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
"""Answers, though the client counts them among a connection's errors."""


class Absence:
    """The nodes of one client's cluster that did not answer when they were last asked. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Any, str]] = {}
        self._asked = 0.0
        self._jobs: list[threading.Thread] = []

    def note(self, node: Any, error: BaseException | None, key: str = "") -> None:
        """What came of asking a node that has this key."""
        if error is None:
            self._nodes.pop(node.name, None)
        elif isinstance(error, ABSENCE) and not isinstance(error, NO_ABSENCE) and clusters.UNTRUSTED not in str(error):
            self._nodes[node.name] = node, key
            self._asked = monotonic()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def has(self, node: Any) -> bool:
        return node.name in self._nodes

    def missing(self, client: Any, shards: Shards) -> tuple[int, ...]:
        """The numbers of the shards that lie on these nodes."""
        if not self._nodes:
            return ()
        return tuple(shard.keys.shard for shard in shards.all if self._is_away(client, str(shard.keys)))

    def _is_away(self, client: Any, key: str) -> bool:
        node = _owner(client, key)
        return node is None or self.has(node)

    def due(self) -> list[tuple[Any, str]]:
        """The nodes to ask again now, each with a key that it had. Whoever is told them does it."""
        if not self._nodes or monotonic() - self._asked < AGAIN or any(job.is_alive() for job in self._jobs):
            return []
        self._asked = monotonic()
        return list(self._nodes.values())

    def asked_by(self, jobs: list[threading.Thread]) -> None:
        """No others are started while these wait for an answer."""
        self._jobs = jobs

    def keep(self, known: Iterable[Any]) -> None:
        """Forget those that are none of the cluster's nodes any more."""
        names = {node.name for node in known}
        for name in set(self._nodes) - names:
            self._nodes.pop(name, None)


_absences: WeakKeyDictionary[Any, Absence] = WeakKeyDictionary()


def are_several(client: Any) -> bool:
    """Whether a part of a queue may be away while the rest is not."""
    return clusters.is_cluster(client)


def absence(client: Any) -> Absence:
    """What all queues of one client know."""
    return _absences.setdefault(client, Absence())


def noted(client: Any, request: Request, error: Exception | None) -> None:
    """A request to one node has failed, or was answered."""
    if not clusters.is_cluster(client) or isinstance(request, Read):  # which says so of each node itself
        return
    if not clusters.knows_nodes(client):  # none of them has answered yet
        return
    if (key := clusters.key_of(request)) and (node := _owner(client, key)):
        absence(client).note(node, error, key)


def _owner(client: Any, key: str) -> Any:
    try:
        return client.get_node_from_key(key)
    except redis_errors.RedisClusterException:  # nobody has its slot
        return None


def read(client: Any, request: Read) -> list[Any]:
    """The replies to a read's commands, in their order; raises an error of the first node that could not be asked."""
    parts = _parts(client, request)
    jobs = [_job(client, node, [request.commands[index] for index in indexes]) for node, indexes in parts]
    return _together(client, request, parts, side_by_side(jobs))


async def read_async(client: Any, request: Read) -> list[Any]:
    """As `read`, for coroutines."""
    parts = _parts(client, request)
    asked: list[Awaitable[list[Any]]] = [
        clusters.read_in_one_go(node, [request.commands[index] for index in indexes]) for node, indexes in parts
    ]
    return _together(client, request, parts, await asyncio.gather(*asked, return_exceptions=True))


def _anyone(client: Any) -> Any:
    """A node for what any of them can answer."""
    known, first = absence(client), client.get_default_node()
    return next((node for node in (first, *client.get_primaries()) if not known.has(node)), first)


def _job(client: Any, node: Any, commands: Sequence[tuple[Any, ...]]) -> Callable[[], list[Any]]:
    def ask() -> list[Any]:
        with client.get_redis_connection(node).pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command, **RAW)
            replies: list[Any] = pipe.execute()
            return replies

    return ask


def _parts(client: Any, request: Read) -> list[tuple[Any, list[int]]]:
    """Each node, and which of the commands are for it. What has no key goes to the first."""
    found: dict[str, tuple[Any, list[int]]] = {}
    without: list[int] = []
    for index, command in enumerate(request.commands):
        if command[0] in clusters.WITHOUT_KEY:
            without.append(index)
            continue
        node = client.get_node_from_key(str(command[1]))
        found.setdefault(node.name, (node, []))[1].append(index)
    if without:
        node, indexes = next(iter(found.values()), (_anyone(client), []))
        found[node.name] = (node, [*without, *indexes])
    return list(found.values())


def _together(
    client: Any, request: Read, parts: Sequence[tuple[Any, list[int]]], answers: Sequence[list[Any] | BaseException]
) -> list[Any]:
    replies: dict[int, Any] = {}
    known, failure = absence(client), None
    for (node, indexes), answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException):
            known.note(node, answer, _key(request, indexes))
            failure = failure or answer
        else:
            known.note(node, None)
            replies.update(zip(indexes, answer, strict=True))
    if failure is not None:
        raise failure
    return [replies[index] for index in range(len(replies))]


def _key(request: Read, indexes: Sequence[int]) -> str:
    some = (request.commands[index] for index in indexes)
    return next((str(command[1]) for command in some if command[0] not in clusters.WITHOUT_KEY), "")


def side_by_side(jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """What each of them returns or raises; all but the first in threads of their own."""
    answers: list[T | Exception] = [TimeoutError()] * len(jobs)

    def work(index: int) -> None:
        try:
            answers[index] = jobs[index]()
        except Exception as error:  # noqa: BLE001 - it is raised where the answers are looked at
            answers[index] = error

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(1, len(jobs))]
    for thread in threads:
        thread.start()
    for index in range(min(1, len(jobs))):
        work(index)
    for thread in threads:
        thread.join()
    return answers


def revisit(client: Any) -> None:
    """Ask nodes that were away whether they are back, if that was not done a moment ago; who does not answer at once isn't."""
    known = absence(client)
    if not (away := known.due()):
        return
    jobs = [threading.Thread(target=_ask_again, args=(client, known, *each), daemon=True) for each in away]
    jobs.append(threading.Thread(target=_look_again, args=(client, known), daemon=True))
    for job in jobs:
        job.start()
    known.asked_by(jobs)
    deadline = monotonic() + BRIEFLY
    for job in jobs:
        job.join(max(0.0, deadline - monotonic()))


def _ask_again(client: Any, known: Absence, node: Any, key: str) -> None:
    with suppress(*FAILURES):
        with suppress(redis_errors.MovedError):  # it answers, though another has the key now
            client.get_redis_connection(node).execute_command(*_question(key))
        known.note(node, None)


def _question(key: str) -> tuple[str, ...]:
    return ("EXISTS", key) if key else ("TIME",)


def _look_again(client: Any, known: Absence) -> None:
    with suppress(*FAILURES):
        client.nodes_manager.initialize()
        known.keep(client.get_nodes())


async def revisit_async(client: Any) -> None:
    """As `revisit`, for coroutines."""
    known = absence(client)
    if away := known.due():
        asked = [_ask_again_async(known, *each) for each in away]
        await asyncio.gather(*(_at_once(each) for each in (*asked, _look_again_async(client, known))))


async def _at_once(asked: Awaitable[None]) -> None:
    with suppress(*FAILURES, asyncio.TimeoutError):
        await asyncio.wait_for(asked, BRIEFLY)


async def _ask_again_async(known: Absence, node: Any, key: str) -> None:
    with suppress(redis_errors.MovedError):
        await clusters.read_in_one_go(node, [_question(key)])
    known.note(node, None)


async def _look_again_async(client: Any, known: Absence) -> None:
    await client.nodes_manager.initialize()
    known.keep(client.get_nodes())
