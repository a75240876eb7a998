"""Requests to a cluster: which node a request goes to, and loading the slot map again after a redirect.

After MOVED, the slot map is loaded again and the request is repeated. After ASK or TRYAGAIN, the request is repeated
after a pause, because a script must find all its keys on one node; ASKING is never sent. `RetryPolicy.get_pause`
decides this, and `Transport.send` and `AsyncTransport.send` do it.

Calls go straight to the node of their slot. By default the client would ask any node, before every call of a function,
which keys the function has: this takes two round trips, and fails whenever that node can't be reached. After each
failure it would also close the connections to all nodes, even connections on which other calls wait for replies.

While a slot is moved key by key, a script that begins on its node could miss keys in the middle of its work. So every
call declares one more key, which never exists: a node whose slot is being moved then answers ASK or TRYAGAIN before it
runs anything.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions as redis_errors
from redis.cluster import RedisCluster

from django_fairque.engine.scripting.operations import BlockingCommand, Scan, ScriptCall, SingleRequest
from django_fairque.engine.scripting.scripts import BASE_KEYS

UNTRUSTED_CERTIFICATE_TEXT = "CERTIFICATE_VERIFY_FAILED"
"""A part of the text of the encryption library's error for a certificate that can't be trusted."""
CLUSTER_DISABLED_TEXT = "cluster support disabled"
"""A part of the text of the error of a server that belongs to no cluster."""
REDIRECT_ERRORS = (redis_errors.AskError, redis_errors.TryAgainError)
"""ASK, TRYAGAIN, and MOVED (a subclass of `AskError`): the slot is being moved, or has moved. Nothing was executed."""
CONNECTION_LOST_ERRORS = (redis_errors.ConnectionError, redis_errors.TimeoutError)
"""Errors after which it is unknown whether the request was executed."""
STALE_TOPOLOGY_ERRORS = (
    *CONNECTION_LOST_ERRORS,
    *REDIRECT_ERRORS,
    redis_errors.ReadOnlyError,
    redis_errors.ClusterError,
    redis_errors.RedisClusterException,
)
"""Errors after which a slot may belong to another node than the client's slot map says."""
NEVER_DECODE = {"NEVER_DECODE": True}
"""Replies stay bytes, also if the client decodes responses: payloads are not text until they have been checked."""
KEYLESS_COMMANDS = ("TIME", "INFO")
"""Commands of reads that any node can answer."""


def is_cluster(client: Any) -> bool:
    return hasattr(client, "get_node_from_key")  # method of the class: the client may know no node yet


def knows_nodes(client: Any) -> bool:
    """Return whether a cluster's client has loaded its nodes. A `LazyRedisCluster` loads them at its first use."""
    return bool(getattr(client, "knows_nodes", True))


def underlying_error(error: Exception) -> Exception:
    """Return the error of a node, if it is the reason why a cluster's client found no node; otherwise the error itself."""
    cause = error.__cause__ if isinstance(error, redis_errors.RedisClusterException) else None
    for candidate in (cause, cause and cause.__context__):
        if isinstance(candidate, (redis_errors.ResponseError, redis_errors.AuthenticationError)):
            return candidate
    return error


def declared_keys(request: ScriptCall) -> tuple[str, ...]:
    """Return the keys that a call to a cluster declares."""
    slot, _, _ = request.keys[0].partition("}")
    prefix = request.keys[0].removesuffix(BASE_KEYS[0])
    derived = [prefix + name for name in BASE_KEYS[1:]] if prefix != request.keys[0] else []
    return (*request.keys, *derived, f"{slot}}}:absent")  # a key of the same slot that never exists


def get_node(client: Any, request: SingleRequest) -> Any:
    """Return the client of the node to which a request goes; without a cluster, the client itself."""
    if not is_cluster(client):
        return client
    return get_client(client, client.get_node_from_key(get_key(request)))


def get_client(client: Any, node: Any) -> Any:
    """Return the object that sends commands to a node: its client, or the node itself if the cluster's client is
    asynchronous.
    """
    return client.get_redis_connection(node) if hasattr(client, "get_redis_connection") else node


def get_key(request: SingleRequest) -> str | None:
    """Return the key of a request that decides where it goes; None if it has no key."""
    if isinstance(request, ScriptCall):
        return request.keys[0]
    if isinstance(request, Scan):
        return request.prefix
    commands = [request.command] if isinstance(request, BlockingCommand) else request.commands
    return next((str(command[1]) for command in commands if command[0] not in KEYLESS_COMMANDS), None)


def address(client: Any, key: str) -> str:
    """Return the address, as ``host:port``, of the node that has this key's slot; empty without a cluster."""
    return str(client.get_node_from_key(key).name) if is_cluster(client) else ""


async def run_pipeline(node: Any, commands: list[tuple[Any, ...]]) -> list[Any]:
    """Send commands over one connection to a node of an asyncio client. Return the replies, with errors among them.

    A node is a result of `get_client`, for a cluster's client or a plain client.
    """
    if not hasattr(node, "acquire_connection"):
        return await _plain_pipeline(node, commands, raise_on_error=False)
    async with _borrow_connection(node) as connection:
        await connection.send_packed_command(connection.pack_commands(commands))
        return [await _reply(connection) for _ in commands]


async def read_from_node(node: Any, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send commands as `run_pipeline` does. Return the replies as the client parses them, but not decoded; raise the
    first error among them.
    """
    if not hasattr(node, "acquire_connection"):
        return await _plain_pipeline(node, commands, raise_on_error=True)
    replies, errors = list[Any](), list[redis_errors.ResponseError]()
    async with _borrow_connection(node) as connection:
        await connection.send_packed_command(connection.pack_commands(commands))
        for command in commands:
            try:
                replies.append(await node.parse_response(connection, command[0], NEVER_DECODE=True))
            except redis_errors.ResponseError as error:  # noqa: PERF203 - the others are to be read all the same
                errors.append(error)
    if errors:
        raise errors[0]
    return replies


async def _plain_pipeline(client: Any, commands: Sequence[tuple[Any, ...]], *, raise_on_error: bool) -> list[Any]:
    async with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command, **NEVER_DECODE)
        replies: list[Any] = await pipe.execute(raise_on_error=raise_on_error)
        return replies


@asynccontextmanager
async def _borrow_connection(node: Any) -> AsyncIterator[Any]:
    connection = node.acquire_connection()
    try:
        yield connection
    except BaseException:  # also after a cancellation, because the next call must not get a late reply
        await connection.disconnect(nowait=True)
        raise
    finally:
        getattr(node, "release", node._free.append)(connection)  # noqa: SLF001 - older ones of redis-py have no name for it


async def _reply(connection: Any) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except redis_errors.ResponseError as error:
        return error


class LazyRedisCluster(RedisCluster):
    """A client that asks the cluster for its nodes at its first use, as the asynchronous client of redis-py does.

    redis-py's synchronous client asks when it is created, and raises an error if no node answers. Then a worker that
    starts before its servers could not even report that it waits for them, and a web process that creates its queue at
    import could not start.

    The arguments are the options of a `RedisCluster`. The client is thread-safe: a thread that uses it while another
    thread asks waits for that result. Until a node has answered, each use asks again and raises the error of the last
    attempt.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._connect_lock = threading.RLock()
        self._is_connecting = False

    @property
    def knows_nodes(self) -> bool:
        """Whether a node has answered."""
        return "nodes_manager" in self.__dict__

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for missing attributes: before the first use nearly all are missing, later none.
        mine = self.__dict__
        if name.startswith("__") or "_connect_lock" not in mine:
            raise AttributeError(name)
        with self._connect_lock:
            if not (self._is_connecting or self.knows_nodes):
                self._is_connecting = True
                try:
                    super().__init__(**self._options)
                finally:
                    self._is_connecting = False
            if name in mine:
                return mine[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self.knows_nodes:
            super().close()
