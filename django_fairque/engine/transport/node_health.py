"""The nodes of a cluster: reads of several nodes at a time, and the nodes that have not answered lately.

Reads of several nodes go to all of them at the same time, each over its own connection, so they take as long as the
slowest node. (The client's own pipeline tries unreachable nodes again for every single command.)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from redis import exceptions as redis_errors

from django_fairque.engine.scripting.operations import Read, SingleRequest, Steps, drive, drive_async
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import Shards

T = TypeVar("T")

RECHECK_SECONDS = 1.0
"""Seconds after which nodes that did not answer are tried again."""
RECHECK_TIMEOUT_SECONDS = 0.25
"""Seconds to wait for the answers of these nodes: a node that is back answers sooner."""
UNREACHABLE_ERRORS = (*clusters.CONNECTION_LOST_ERRORS, redis_errors.ClusterDownError)
"""Errors of a node that can't be reached. A node that has just come back reports for a while that the cluster is down."""
REACHABLE_ERRORS = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
"""Errors that are answers of a server, although the client counts them among a connection's errors."""


class UnreachableNodes:
    """The nodes of one client's cluster that did not answer the last request. Thread-safe."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Any, str]] = {}
        self._checked_at = 0.0
        self.checks: list[threading.Thread] = []
        """The checks that were started last. No others are started while these wait for an answer."""

    def record_result(self, node: Any, error: BaseException | None, key: str = "") -> None:
        """Record the result of a request to a node that has this key."""
        if error is None:
            self._nodes.pop(node.name, None)
        elif (
            isinstance(error, UNREACHABLE_ERRORS)
            and not isinstance(error, REACHABLE_ERRORS)
            and clusters.UNTRUSTED_CERTIFICATE_TEXT not in str(error)
        ):
            self._nodes[node.name] = node, key
            self._checked_at = monotonic()

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def has(self, node: Any) -> bool:
        return node.name in self._nodes

    def missing_shards(self, client: Any, shards: Shards) -> tuple[int, ...]:
        """The numbers of the shards that lie on these nodes."""
        if not self._nodes:
            return ()
        owners = [(shard.keys.shard, _owner(client, str(shard.keys))) for shard in shards.all]
        return tuple(number for number, node in owners if node is None or self.has(node))

    def take_due(self) -> list[tuple[Any, str]]:
        """Return the nodes to try again now, each with one of its keys. The caller tries them."""
        is_early = monotonic() - self._checked_at < RECHECK_SECONDS
        if not self._nodes or is_early or any(check.is_alive() for check in self.checks):
            return []
        self._checked_at = monotonic()
        return list(self._nodes.values())

    def forget_others(self, known: Iterable[Any]) -> None:
        """Forget the nodes that no longer belong to the cluster."""
        names = {node.name for node in known}
        for name in set(self._nodes) - names:
            self._nodes.pop(name, None)


_unreachable_nodes: WeakKeyDictionary[Any, UnreachableNodes] = WeakKeyDictionary()


def unreachable_nodes(client: Any) -> UnreachableNodes:
    """Return the unreachable nodes of a client; all its queues share them."""
    return _unreachable_nodes.setdefault(client, UnreachableNodes())


def record_result(client: Any, request: SingleRequest, error: Exception | None) -> None:
    """Record the result of a request to one node. A read records the result of each of its nodes itself."""
    if not clusters.is_cluster(client) or isinstance(request, Read) or not clusters.knows_nodes(client):
        return
    if (key := clusters.get_key(request)) and (node := _owner(client, key)):
        unreachable_nodes(client).record_result(node, error, key)


def _owner(client: Any, key: str) -> Any:
    try:
        return client.get_node_from_key(key)
    except redis_errors.RedisClusterException:  # no node has the slot
        return None


def read(client: Any, request: Read) -> list[Any]:
    """Return the replies to a read's commands, in order; raise the error of the first node that could not be reached."""
    parts = _parts(client, request)
    jobs = [partial(_read_from_node, client, node, _commands(request, indexes)) for node, indexes in parts]
    return _merge_replies(client, request, parts, run_in_threads(jobs))


async def read_async(client: Any, request: Read) -> list[Any]:
    """Read from several nodes as `read` does, for an asyncio client."""
    parts = _parts(client, request)
    reads = [
        clusters.read_from_node(clusters.get_client(client, node), _commands(request, indexes))
        for node, indexes in parts
    ]
    return _merge_replies(client, request, parts, await asyncio.gather(*reads, return_exceptions=True))


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
    client: Any, request: Read, parts: Sequence[tuple[Any, list[int]]], answers: Sequence[list[Any] | BaseException]
) -> list[Any]:
    replies: dict[int, Any] = {}
    known, failure = unreachable_nodes(client), None
    for (node, indexes), answer in zip(parts, answers, strict=True):
        if isinstance(answer, BaseException):
            known.record_result(node, answer, clusters.get_key(Read(_commands(request, indexes))) or "")
            failure = failure or answer
        else:
            known.record_result(node, None)
            replies.update(zip(indexes, answer, strict=True))
    if failure is not None:
        raise failure
    return [replies[index] for index in range(len(replies))]


def run_in_threads(jobs: Sequence[Callable[[], T]]) -> list[T | Exception]:
    """Run all jobs and return their results or errors; all but the first run in threads of their own."""
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


def recheck_nodes(client: Any) -> None:
    """Try unreachable nodes again, if that was not done a moment ago. A node that does not answer at once stays
    unreachable.
    """

    def ask(node: Any, command: tuple[str, ...]) -> Any:
        return client.get_redis_connection(node).execute_command(*command)

    def run(check: Steps) -> None:
        with suppress(*CLIENT_ERRORS):
            drive(check)

    known = unreachable_nodes(client)
    threads = [threading.Thread(target=run, args=(check,), daemon=True) for check in _checks(client, known, ask)]
    for thread in threads:
        thread.start()
    known.checks = threads or known.checks
    deadline = monotonic() + RECHECK_TIMEOUT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


async def recheck_nodes_async(client: Any) -> None:
    """Try unreachable nodes again as `recheck_nodes` does, for an asyncio client."""

    def ask(node: Any, command: tuple[str, ...]) -> Any:
        return clusters.read_from_node(clusters.get_client(client, node), [command])

    async def run(check: Steps) -> None:
        with suppress(*CLIENT_ERRORS, asyncio.TimeoutError):
            await asyncio.wait_for(drive_async(check), RECHECK_TIMEOUT_SECONDS)

    await asyncio.gather(*map(run, _checks(client, unreachable_nodes(client), ask)))


def _checks(client: Any, known: UnreachableNodes, ask: Callable[[Any, tuple[str, ...]], Any]) -> list[Steps]:
    """List the checks that are due: a request to each unreachable node, and loading the slot map again."""

    def check(node: Any, key: str) -> Steps:
        with suppress(redis_errors.MovedError):  # it answers, though another has the key now
            yield ask(node, ("EXISTS", key) if key else ("TIME",))
        known.record_result(node, None)

    def load_nodes() -> Steps:
        yield client.nodes_manager.initialize()
        known.forget_others(client.get_nodes())

    checks = [check(node, key) for node, key in known.take_due()]
    return [*checks, load_nodes()] if checks else []
