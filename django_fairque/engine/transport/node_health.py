"""The nodes of a cluster: reads of several nodes at a time, and the nodes that have not answered lately.

Reads of several nodes go to all of them at the same time, each over its own connection, so they take as long as the
slowest node. (The client's own pipeline tries unreachable nodes again for every single command.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions as redis_errors

from django_fairque.engine.scripting.operations import Read, SingleRequest
from django_fairque.engine.transport import cluster as clusters

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")

LEFT_OUT_SECONDS = 5.0
"""Seconds after which a node that did not answer is tried again. A shorter time would delay more pages while it is away."""
UNREACHABLE_ERRORS = (*clusters.CONNECTION_LOST_ERRORS, redis_errors.ClusterDownError)
"""Errors of a node that can't be reached. A node that has just come back reports for a while that the cluster is down."""
REACHABLE_ERRORS = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
"""Errors that are answers of a server, although the client counts them among a connection's errors."""


class UnreachableNodes:
    """The nodes of one client's cluster that did not answer the last request. Thread-safe.

    Requests to all shards leave such a node out for `LEFT_OUT_SECONDS`. The next request after that includes the node
    again.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def record_result(self, node: Any, error: BaseException | None) -> None:
        """Record the result of a request to a node."""
        if error is None:
            self._until.pop(node.name, None)
        elif (
            isinstance(error, UNREACHABLE_ERRORS)
            and not isinstance(error, REACHABLE_ERRORS)
            and clusters.UNTRUSTED_CERTIFICATE_TEXT not in str(error)
        ):
            self._until[node.name] = monotonic() + LEFT_OUT_SECONDS

    def __bool__(self) -> bool:
        return bool(self._until)

    def has(self, node: Any) -> bool:
        return self._until.get(node.name, 0.0) > monotonic()

    def missing_shards(self, client: Any, shards: Shards) -> tuple[int, ...]:
        """Return the numbers of the shards that are on these nodes."""
        if not self._until:
            return ()
        owners = [(shard.keys.shard, _owner(client, str(shard.keys))) for shard in shards.all]
        return tuple(number for number, node in owners if node is None or self.has(node))

    def take_expired(self) -> bool:
        """Forget the nodes that were left out for long enough. Return whether there were any: another node may have their
        slots now.
        """
        expired = [name for name, until in list(self._until.items()) if until <= monotonic()]
        for name in expired:
            self._until.pop(name, None)
        return bool(expired)


_unreachable_nodes: WeakKeyDictionary[Any, UnreachableNodes] = WeakKeyDictionary()


def unreachable_nodes(client: Any) -> UnreachableNodes:
    """Return the unreachable nodes of a client; all its queues share them."""
    return _unreachable_nodes.setdefault(client, UnreachableNodes())


def record_result(client: Any, request: SingleRequest, error: Exception | None) -> None:
    """Record the result of a request to one node. A read goes to several nodes, and records their results itself."""
    if not clusters.is_cluster(client) or isinstance(request, Read) or not clusters.knows_nodes(client):
        return
    if (key := clusters.get_key(request)) and (node := _owner(client, key)):
        unreachable_nodes(client).record_result(node, error)


def _owner(client: Any, key: str) -> Any:
    try:
        return client.get_node_from_key(key)
    except redis_errors.RedisClusterException:  # no node has the slot
        return None


def read(client: Any, request: Read) -> list[Any]:
    """Return the replies to a read's commands, in order; raise the error of the first node that could not be reached."""
    parts = _parts(client, request)
    jobs = [partial(_read_from_node, client, node, _commands(request, indexes)) for node, indexes in parts]
    return _merge_replies(client, parts, run_in_threads(jobs))


async def read_async(client: Any, request: Read) -> list[Any]:
    """Read from several nodes as `read` does, for an asyncio client."""
    parts = _parts(client, request)
    reads = [
        clusters.read_from_node(clusters.get_client(client, node), _commands(request, indexes))
        for node, indexes in parts
    ]
    return _merge_replies(client, parts, await asyncio.gather(*reads, return_exceptions=True))


def _any_reachable_node(client: Any) -> Any:
    """Choose a node for commands that any node can answer."""
    known, first = unreachable_nodes(client), client.get_default_node()
    return next((node for node in (first, *client.get_primaries()) if not known.has(node)), first)


def _read_from_node(client: Any, node: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    with client.get_redis_connection(node).pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command, **clusters.NEVER_DECODE)
        replies: list[Any] = pipe.execute()
        return replies


def _commands(request: Read, indexes: Sequence[int]) -> list[tuple[Any, ...]]:
    return [request.commands[index] for index in indexes]


def _parts(client: Any, request: Read) -> list[tuple[Any, list[int]]]:
    """Group a read's commands by node. Commands without a key go to the first node."""
    found: dict[str, tuple[Any, list[int]]] = {}
    without: list[int] = []
    for index, command in enumerate(request.commands):
        if command[0] in clusters.KEYLESS_COMMANDS:
            without.append(index)
            continue
        node = client.get_node_from_key(str(command[1]))
        found.setdefault(node.name, (node, []))[1].append(index)
    if without:
        node, indexes = next(iter(found.values()), (_any_reachable_node(client), []))
        found[node.name] = (node, [*without, *indexes])
    return list(found.values())


def _merge_replies(
    client: Any, parts: Sequence[tuple[Any, list[int]]], answers: Sequence[list[Any] | BaseException]
) -> list[Any]:
    replies: dict[int, Any] = {}
    known, failure = unreachable_nodes(client), None
    for (node, indexes), answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException):
            known.record_result(node, answer)
            failure = failure or answer
        else:
            known.record_result(node, None)
            replies.update(zip(indexes, answer, strict=True))
    if failure is not None:
        raise failure
    return [replies[index] for index in range(len(replies))]


def run_in_threads(jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all jobs and return their results or errors. The first job runs in this thread, the others in separate
    threads.
    """
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
