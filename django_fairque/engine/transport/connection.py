"""Connections: sending requests to the server, repeating them, and checking that the server is safe for tasks.

`Transport` and `AsyncTransport` differ only in how they send a command and wait for a reply (`SharedTransport`).

`Connection` and `AsyncConnection` send script calls over the connections of a plain client. Half of the work of
redis-py's ``execute_command`` is of no use to a call: checking the type of every argument, its own retries, durations
for metrics. A call of eighty arguments costs 50 µs of the client's processor that way, and 30 µs through a connection
of the same pool. The package does this only for a plain ``redis.Redis`` or ``redis.asyncio.Redis``: for any other
client, a subclass, or an instrumented ``execute_command``, that method is called.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import redis
import redis.asyncio
from redis import exceptions as redis_errors

from django_fairque.engine.model.errors import NotReplicatedError
from django_fairque.engine.scripting.operations import (
    BlockingCommand,
    Evaluate,
    Read,
    Scan,
    ScriptCall,
    Stream,
    drive_async,
)
from django_fairque.engine.scripting.scripts import delete_unused, functions, load
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, RetryPolicy
from django_fairque.engine.transport.server_checks import check_server
from django_fairque.engine.transport.server_list import separate_servers

if TYPE_CHECKING:
    from django_fairque.engine.scripting.operations import Request, SingleRequest, Steps


class SyncClient(Protocol):
    """The methods of ``redis.Redis`` and ``redis.cluster.RedisCluster`` that are used."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def function_load(self, code: str, replace: bool | None = ...) -> Any: ...


class AsyncClient(Protocol):
    """The methods of ``redis.asyncio.Redis`` and its cluster client that are used."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...


def _is_original(kind: Any) -> bool:
    """Return whether the client calls its own ``execute_command``: a tracer or an error reporter may have replaced it."""
    function, module = kind.execute_command, sys.modules[kind.__module__]
    return type(function) is FunctionType and function.__code__.co_filename == module.__file__


_ORIGINAL_EXECUTE: dict[Any, Any] = {
    kind: kind.execute_command for kind in (redis.Redis, redis.asyncio.Redis) if _is_original(kind)
}
"""The clients whose connections may be used directly, each with its original method."""


class FastConnectionPool(redis.BlockingConnectionPool):
    """A pool that hands out the most recently released connection without redis-py's queue and metrics, which take
    three quarters of the time.

    The pool keeps one connection in this way, and only while other connections are free: a thread that waits for a
    connection gets one through the queue.
    """

    def reset(self) -> None:
        """Forget all connections. redis-py calls this in a forked child, where the connections are the parent's."""
        self._last: list[Any] = []
        super().reset()  # type: ignore[no-untyped-call]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection that is ready to send. ``args`` and ``options`` are those of redis-py."""
        if self._last and self.pid == os.getpid():
            try:
                connection = self._last.pop()
            except IndexError:  # another thread took this connection from the pool
                return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
            is_ready = False
            try:
                is_ready = not connection.can_read()  # nothing to read: the server has not closed the connection
            except (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError):
                pass
            finally:  # also after the error of a time limit, because the pool would lose the connection
                if not is_ready:
                    connection.disconnect()
                    super().release(connection)  # type: ignore[no-untyped-call]
            if is_ready:
                return connection
        return super().get_connection(*args, **options)  # type: ignore[no-untyped-call]

    def release(self, connection: Any) -> None:
        """Take a ``connection`` back."""
        is_connected = getattr(connection, "_sock", None) is not None
        if is_connected and not self._last and self.pool.queue and connection.pid == os.getpid():
            self._last.append(connection)
        else:
            super().release(connection)  # type: ignore[no-untyped-call]

    def disconnect(self, *args: Any, **options: Any) -> None:
        """Disconnect all connections, or the free ones. ``args`` and ``options`` are those of redis-py."""
        while self._last:
            with suppress(IndexError):  # another thread took the connection
                super().release(self._last.pop())  # type: ignore[no-untyped-call]
        super().disconnect(*args, **options)


class AsyncFastConnectionPool(redis.asyncio.BlockingConnectionPool):
    """A pool like `FastConnectionPool`, for an event loop. The connection that it keeps counts as in use."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._last: list[Any] = []

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection that is ready to send. ``args`` and ``options`` are those of redis-py."""
        if not self._last:
            return await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        connection = self._last.pop()
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await super().release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        """Take a ``connection`` back."""
        if connection.is_connected and not self._last and self.can_get_connection():
            self._last.append(connection)
        else:
            await super().release(connection)

    async def disconnect(self, *args: Any, **options: Any) -> None:
        """Disconnect all connections, or the free ones. ``args`` and ``options`` are those of redis-py."""
        while self._last:
            await super().release(self._last.pop())
        await super().disconnect(*args, **options)


MAX_UNANSWERED_CALLS = 2
"""The number of calls that wait for replies while the next one is built: with two, the server never waits for the client."""


class SharedConnection:
    """The common part of `Connection` and `AsyncConnection`."""

    def __init__(self, client: SyncClient | AsyncClient) -> None:
        self._client: Any = client
        self._is_plain = (
            type(client) in _ORIGINAL_EXECUTE
            and client.connection is None  # type: ignore[union-attr] # not the client of one connection, which threads take turns at
            and not getattr(client, "single_connection_client", False)
            and getattr(client.connection_pool, "cache", None) is None  # type: ignore[union-attr]
        )
        self._names = ("FCALL",) if self._is_plain and _needs_command_name(client) else ()

    @property
    def is_usable(self) -> bool:
        """Whether commands may be sent over the client's connections, also before earlier commands are answered."""
        if not self._is_plain:
            return False
        kind = type(self._client)
        return kind.execute_command is _ORIGINAL_EXECUTE[kind] and "execute_command" not in vars(self._client)


class Connection(SharedConnection):
    """Sends calls over the connections of a synchronous client; thread-safe as the client is."""

    def call(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply, with strings as bytes. Raises the errors of the client. Call this only
        if `is_usable`.
        """
        pool = self._client.connection_pool
        connection = pool.get_connection(*self._names)
        try:
            connection.send_packed_command([hiredis.pack_command(command)])
            return connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError:
            raise
        except BaseException:
            # A time limit can raise here at any moment. The next call must not get a late reply.
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def read(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send ``commands`` together and return the replies as the client parses them; raise the server's first error."""
        pool = self._client.connection_pool
        connection = pool.get_connection(*self._names)
        try:
            connection.send_packed_command([b"".join(map(hiredis.pack_command, commands))])
            replies = [_reply(connection) for _ in commands]
        except BaseException:
            connection.disconnect()
            raise
        finally:
            pool.release(connection)
        callbacks = self._client.response_callbacks
        for number, (command, reply) in enumerate(zip(commands, replies, strict=True)):
            if isinstance(reply, redis_errors.ResponseError):
                raise reply
            if command[0] in callbacks:
                replies[number] = callbacks[command[0]](reply)
        return replies

    def open(self, command: tuple[Any, ...]) -> PendingCommand:
        """Send a blocking command over a separate connection. Call this only if `is_usable`."""
        return PendingCommand(self._client.connection_pool, self._names, command)

    def stream(self, commands: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the replies to commands. Later commands are sent before earlier ones are answered; at most
        `MAX_UNANSWERED_CALLS` are unanswered.
        """
        pool = self._client.connection_pool
        connection = pool.get_connection(*self._names)
        waiting = 0
        try:
            for command in commands:
                connection.send_packed_command([hiredis.pack_command(command)])
                waiting += 1
                if waiting > MAX_UNANSWERED_CALLS:
                    waiting -= 1
                    yield connection.read_response(disable_decoding=True)
            while waiting:
                waiting -= 1
                yield connection.read_response(disable_decoding=True)
        finally:
            if waiting or sys.exc_info()[0] is not None:
                connection.disconnect()  # close the connection, because other calls must not get the unread replies
            pool.release(connection)


MAX_UNAWAITED_BYTES = 65_536
"""The largest command in bytes that is handed to an event loop without waiting until it is sent. A transport buffers
this much by default."""


class AsyncConnection(SharedConnection):
    """Sends calls over the connections of an asyncio client."""

    async def call(self, command: tuple[Any, ...]) -> Any:
        """Send a command and return its reply, as `Connection.call` does."""
        packed = hiredis.pack_command(command)
        pool = self._client.connection_pool
        connection = await pool.get_connection(*self._names)
        try:
            if len(packed) > MAX_UNAWAITED_BYTES:
                await connection.send_packed_command([packed])
            else:
                # redis-py sends in a separate task, as sending may block. Before Python 3.12 that can lose a cancellation.
                await connection.check_health()
                connection._writer.write(packed)  # noqa: SLF001 - nothing public sends without waiting
            return await connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError:
            raise
        except BaseException:  # a canceled coroutine must also return its connection to the pool
            await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)


class PendingCommand:
    """A blocking command that was sent. While one thread waits for its reply, another thread can send one more command
    after it.
    """

    def __init__(self, pool: Any, names: Sequence[str], command: tuple[Any, ...]) -> None:
        self._pool = pool
        self._connection = pool.get_connection(*names)
        self._lock = threading.Lock()
        self._is_waiting = True
        self._has_more = False
        try:
            self._connection.send_packed_command([hiredis.pack_command(command)])
        except BaseException:
            self._give_up()
            raise

    def add(self, command: tuple[Any, ...]) -> bool:
        """Send a command after the blocking command. Return False if another command was sent before, or the wait has
        ended.
        """
        with self._lock:
            if not self._is_waiting or self._has_more:
                return False
            self._has_more = True
            # An error is ignored here: the thread that reads notices it as well. A health check would read the reply for which
            # that thread waits.
            with suppress(Exception):
                self._connection.send_packed_command([hiredis.pack_command(command)], check_health=False)
            return True

    def replies(self) -> list[Any]:
        """Wait for the one or two replies and return them, with errors of the server among them. Call this once."""
        try:
            found = [_reply(self._connection)]
            with self._lock:
                self._is_waiting = False
            if self._has_more:
                found.append(_reply(self._connection))
        except AttributeError as error:  # `add` could not send, and the client has taken the connection apart
            self._give_up()
            raise redis_errors.ConnectionError("the connection was lost while something was sent") from error
        except BaseException:
            self._give_up()
            raise
        self._pool.release(self._connection)
        return found

    def _give_up(self) -> None:
        with self._lock:
            self._is_waiting = False
        self._connection.disconnect()
        self._pool.release(self._connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response(disable_decoding=True)
    except redis_errors.ResponseError as error:
        return error


def _needs_command_name(client: Any) -> bool:
    """Return whether the pool needs the command's name. Before redis-py 5.3 a pool needs it; since then it warns if it
    gets one.
    """
    kind: Any = type(client.connection_pool)
    if kind in (FastConnectionPool, AsyncFastConnectionPool):  # both classes pass all arguments to their base class
        kind = kind.__base__
    parameter = inspect.signature(kind.get_connection).parameters.get("command_name")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def with_confirmation(request: ScriptCall, command: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield command
    yield "HINCRBY", request.keys[0], "confirmations", 1
    yield "WAIT", request.replicas, max(1, round(request.replication_timeout * 1000))


def check_confirmed(request: ScriptCall, replies: Sequence[Any]) -> Any:
    """Return the reply to the call itself.

    Raises:
        NotReplicatedError: the call was executed, and too few replicas have confirmed it.
    """
    failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failure is not None:
        raise failure
    reply, _, count = replies
    if int(count) < request.replicas:
        raise NotReplicatedError(
            f"{int(count)} of {request.replicas} replicas (replicas_to_confirm) confirmed within "
            f"{request.replication_timeout:g} s what the primary has taken: whether it outlives a failover is unknown",
            int(count),
            request.replicas,
        )
    return reply


INFO_COMMAND = ("INFO", "server", "memory")


class SharedTransport:
    """The common part of `Transport` and `AsyncTransport`: the steps of a request (`Steps`)."""

    def __init__(self, client: Any, retry_seconds: float) -> None:
        self.client = client
        self.retry_seconds = retry_seconds
        self.is_reply_unwanted: Callable[[], bool] = lambda: False
        """Called after a failure. Returns whether no caller needs the reply any more; then the request is not repeated.
        """
        self._checked = False
        self._is_cluster = clusters.is_cluster(client)
        self._declares_slot = self._is_cluster and not separate_servers(client)
        self.as_functions = True
        """Whether commands are called as functions. If not, they are called as scripts, because this server has no
        functions, or this user may not use them.
        """
        self._unreachable = nodes.unreachable_nodes(client)

    _sleep: Callable[[float], Any]
    _load_topology: Callable[[bool], Any]
    """Loads a cluster's slot map. With True as its argument, loads the map again, because it is wrong. Requests without
    a key then go to another node, because their node may be gone."""
    _execute: Callable[[ScriptCall, tuple[Any, ...]], Any]
    _read: Callable[[Read], Any]

    def _repeat(self, request: SingleRequest, seconds: float | None, *, in_doubt: bool) -> Steps:
        policy = RetryPolicy(
            request, self.retry_seconds if seconds is None else min(seconds, self.retry_seconds), self.is_reply_unwanted
        )
        policy.is_in_doubt = in_doubt
        while True:
            try:
                if not self._checked or self._is_cluster or policy.loads:
                    yield from self._prepare(request, policy)
                if not isinstance(request, ScriptCall):
                    return (yield from self._read_or_block(request))
                while True:  # the call is sent at most twice: as a function, and as a script
                    try:
                        reply = yield self._execute(request, self._command(request, policy))
                        break
                    except redis_errors.ResponseError as error:
                        if policy.as_script or not self._switch_to_scripts(error):
                            raise
                if self._is_cluster and self._unreachable:
                    nodes.record_result(self.client, request, None)
            except CLIENT_ERRORS as error:
                yield from self._wait_for_retry(request, policy, error)
            else:
                return reply

    def _wait_for_retry(self, request: SingleRequest, policy: RetryPolicy, error: Exception) -> Steps:
        """Wait for the next attempt. If there is none, raise the queue's own error for this error."""
        nodes.record_result(self.client, request, error)
        if isinstance(error, redis_errors.ReadOnlyError) and not self._is_cluster:
            # The node is no primary any more: only a new connection finds the primary that is now behind its address.
            yield self.client.connection_pool.disconnect(inuse_connections=False)
        yield self._sleep(policy.get_pause(error))

    def _prepare(self, request: SingleRequest, policy: RetryPolicy) -> Steps:
        """Load what the next attempt needs, and check the server before the first attempt."""
        if self._is_cluster:
            yield self._load_topology(self._unreachable.take_expired() or policy.reloads_topology)
        if not self._checked:
            key = clusters.get_key(request) if self._is_cluster else None  # the node that executes the request
            replies = yield self._read(Read([INFO_COMMAND, *([("EXISTS", key)] if key else [])]))
            check_server(replies[0])
            self._checked = True
        if policy.loads and isinstance(request, ScriptCall):
            yield from self._load_script(request, policy)

    def _read_or_block(self, request: Read | Scan | BlockingCommand) -> Steps:
        if isinstance(request, Read):
            return (yield self._read(request))
        if isinstance(request, Scan):
            command = ("SCAN", request.cursor, "MATCH", request.pattern, "COUNT", 1000)
            options: dict[str, Any] = dict(clusters.NEVER_DECODE)
            if self._is_cluster:
                options["target_nodes"] = self.client.get_node_from_key(request.prefix)
            cursor, keys = yield self.client.execute_command(*command, **options)
            # A cluster's client names the server with its cursor.
            return int(next(iter(cursor.values())) if isinstance(cursor, dict) else cursor), keys
        return (
            yield clusters.get_node(self.client, request).execute_command(*request.command, **clusters.NEVER_DECODE)
        )

    def _load_script(self, request: ScriptCall, policy: RetryPolicy) -> Steps:
        home = clusters.get_node(self.client, request)
        if policy.as_script or not self.as_functions:
            yield home.execute_command("SCRIPT LOAD", load(request.script).source)
        elif policy.loads_function:
            try:
                yield home.execute_command("FUNCTION LOAD", "REPLACE", functions())
                yield from delete_unused(home.execute_command)
            except redis_errors.ResponseError as error:
                # This call becomes a script: a server whose memory is full refuses to load functions, and runs scripts
                # that remove tasks. If this user may not load functions, the next call tries whether another process
                # has loaded them.
                policy.as_script, policy.loads_function, policy.loads = True, False, 0
                if not isinstance(error, redis_errors.NoPermissionError):
                    self._switch_to_scripts(error)

    def _command(self, request: ScriptCall, policy: RetryPolicy) -> tuple[Any, ...]:
        script = load(request.script)
        keys = clusters.declared_keys(request) if self._declares_slot else request.keys
        if self.as_functions and not policy.as_script:
            how: tuple[Any, ...] = ("FCALL", script.function)
        else:
            how = ("EVAL", script.source) if policy.loads > 1 else ("EVALSHA", script.sha)
        return (*how, len(keys), *keys, *request.args)

    def _switch_to_scripts(self, error: Exception) -> bool:
        """Use scripts from now on if this error means that functions can't be used here. Return whether functions were
        used until now.
        """
        text = str(error).lower()
        if isinstance(error, redis_errors.NoPermissionError) or text.startswith(("noperm", "unknown command")):
            was, self.as_functions = self.as_functions, False
            return was
        return False


class Transport(SharedTransport):
    """Sends requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, retry_seconds: float) -> None:
        super().__init__(client, retry_seconds)
        self._connection = Connection(client)
        self._connections = {server: Connection(server.client) for server in separate_servers(client)}

    def _choose_connection(self, request: SingleRequest) -> Connection:
        """Choose the connection for a request among the connections to several separate servers."""
        return self._connections[self.client.get_node_from_key(clusters.get_key(request))]

    def send(self, request: Request, seconds: float | None = None, *, in_doubt: bool = False) -> Any:
        """Send a request and return its reply. ``in_doubt``: it was sent before, and its outcome is unknown."""
        if isinstance(request, (Stream, Evaluate)):
            return self._stream(request) if isinstance(request, Stream) else request.function()
        steps, reply = self._repeat(request, seconds, in_doubt=in_doubt), None
        try:  # `drive` does the same, with one more function call
            while True:
                reply = steps.send(reply)
        except StopIteration as stop:
            return stop.value

    def open_blocking(self, block: BlockingCommand) -> PendingCommand | None:
        """Send a blocking command after which a call can be sent. Return None if this is not possible; then use `send`."""
        connection = self._choose_connection(block) if self._connections else self._connection
        if not (self._checked and connection.is_usable):
            return None
        try:
            return connection.open(block.command)
        except Exception:  # noqa: BLE001 - whatever it is, `send` meets it too
            return None

    def first_command(self, call: ScriptCall) -> tuple[Any, ...]:
        """Return the command of a call's first attempt."""
        return self._command(call, RetryPolicy(call, self.retry_seconds))

    def _stream(self, request: Stream) -> None:
        """Send the first call alone, because it may have to check the server and load missing functions. Repeat each
        later call that fails separately, unchanged.
        """
        first = next(request.calls, None)
        if first is None:
            return
        request.on_reply(self.send(first))
        unanswered = deque[ScriptCall]()

        def commands() -> Iterator[tuple[Any, ...]]:
            for call in request.calls:
                unanswered.append(call)
                yield self.first_command(call)

        # All calls of a stream are for one shard.
        connection = self._choose_connection(first) if self._connections else self._connection
        if connection.is_usable and self.as_functions and not first.replicas:
            with suppress(*CLIENT_ERRORS):
                for reply in connection.stream(commands()):
                    unanswered.popleft()
                    request.on_reply(reply)
        for call in (*unanswered, *request.calls):
            request.on_reply(self.send(call))

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _load_topology(self, again: bool) -> None:
        if again and clusters.knows_nodes(self.client):
            self.client.nodes_manager.initialize()
            self.client.replace_default_node()

    def _execute(self, request: ScriptCall, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            connection = self._choose_connection(request) if self._connections else self._connection
            if connection.is_usable:
                return connection.call(command)
            return clusters.get_node(self.client, request).execute_command(*command, **clusters.NEVER_DECODE)
        with clusters.get_node(self.client, request).pipeline(transaction=False) as pipe:
            for call in with_confirmation(request, command):
                pipe.execute_command(*call, **clusters.NEVER_DECODE)
            return check_confirmed(request, pipe.execute(raise_on_error=False))

    def _read(self, request: Read) -> Any:
        if self._is_cluster:
            return nodes.read(self.client, request)
        if len(request.commands) == 1:
            return [self.client.execute_command(*request.commands[0], **clusters.NEVER_DECODE)]
        if self._connection.is_usable:
            return self._connection.read(request.commands)
        with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **clusters.NEVER_DECODE)
            return pipe.execute()


class AsyncTransport(SharedTransport):
    """Sends requests over an asyncio client."""

    def __init__(self, client: AsyncClient, retry_seconds: float) -> None:
        super().__init__(client, retry_seconds)
        self._connection = AsyncConnection(client)
        self._connections = {server: AsyncConnection(server.client) for server in separate_servers(client)}

    async def send(self, request: Request, seconds: float | None = None) -> Any:
        if not isinstance(request, (Stream, Evaluate)):
            return await drive_async(self._repeat(request, seconds, in_doubt=False))
        if isinstance(request, Evaluate):
            return request.function() if request.in_thread is None else await request.in_thread(request.function)
        for call in request.calls:
            request.on_reply(await self.send(call))
        return None

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _load_topology(self, again: bool) -> None:
        await self.client.initialize()
        if again:
            await self.client.nodes_manager.initialize()
            self.client.replace_default_node()

    async def _execute(self, request: ScriptCall, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            connection = self._connection
            if self._connections:
                connection = self._connections[self.client.get_node_from_key(request.keys[0])]
            if connection.is_usable:
                return await connection.call(command)
            return await clusters.get_node(self.client, request).execute_command(*command, **clusters.NEVER_DECODE)
        sent = list(with_confirmation(request, command))
        if self._is_cluster:
            return check_confirmed(request, await clusters.run_pipeline(clusters.get_node(self.client, request), sent))
        async with self.client.pipeline(transaction=False) as pipe:
            for call in sent:
                pipe.execute_command(*call, **clusters.NEVER_DECODE)
            return check_confirmed(request, await pipe.execute(raise_on_error=False))

    async def _read(self, request: Read) -> Any:
        if self._is_cluster:
            return await nodes.read_async(self.client, request)
        if len(request.commands) == 1:
            return [await self.client.execute_command(*request.commands[0], **clusters.NEVER_DECODE)]
        async with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **clusters.NEVER_DECODE)
            return await pipe.execute()
