"""Connections: sending requests to the server, repeating them, and checking that the server can be trusted with tasks.

`Transport` and `AsyncTransport` share the decisions (`RetryPolicy`, `check_server`); they differ in how they send and wait.

`Connection` sends script calls over the connections of a plain client. Half of the work of redis-py's ``execute_command`` is of
no use to a call: checking the type of every argument, its own retries, durations for metrics. A call of eighty arguments costs
50 µs of the client's processor that way and 30 through a connection of the same pool. Only a plain ``redis.Redis`` is treated
so: for any other client, subclass or instrumented ``execute_command`` that method is called.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import redis
from redis import client as redis_client
from redis import exceptions as redis_errors

from django_fairque.engine.model.errors import NotReplicatedError
from django_fairque.engine.scripting.operations import BlockingCommand, Read, Request, Scan, ScriptCall, Stream
from django_fairque.engine.scripting.scripts import Script, adelete_unused, delete_unused, functions, load
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, RetryPolicy
from django_fairque.engine.transport.server_checks import check_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence


class SyncClient(Protocol):
    """What is used of ``redis.Redis`` and ``redis.cluster.RedisCluster``."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def function_load(self, code: str, replace: bool | None = ...) -> Any: ...


class AsyncClient(Protocol):
    """What is used of ``redis.asyncio.Redis`` and its cluster client."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...


def _is_original(function: object) -> bool:
    """Whether nobody (a tracer, an error reporter) has put something of its own in its place."""
    return type(function) is FunctionType and function.__code__.co_filename == redis_client.__file__


_ORIGINAL_EXECUTE = redis.Redis.execute_command if _is_original(redis.Redis.execute_command) else None


MAX_UNANSWERED_CALLS = 2
"""Calls that wait for the server while another is made: it then never waits for the client."""


class Connection:
    """The way of one client's calls; thread-safe as the client is."""

    def __init__(self, client: SyncClient) -> None:
        self._client: Any = client
        self._is_plain = (
            type(client) is redis.Redis
            and client.connection is None  # not the client of one connection, which threads take turns at
            and getattr(client.connection_pool, "cache", None) is None
        )
        self._names = ("FCALL",) if self._is_plain and _needs_command_name(client) else ()

    def call(self, command: tuple[Any, ...], **options: Any) -> Any:
        """Send a command and wait for its reply, whose strings stay bytes; raises what the client would."""
        client = self._client
        if (
            not self._is_plain
            or redis.Redis.execute_command is not _ORIGINAL_EXECUTE
            or "execute_command" in vars(client)
        ):
            return client.execute_command(*command, **options)
        pool = client.connection_pool
        connection = pool.get_connection(*self._names)
        try:
            connection.send_packed_command([hiredis.pack_command(command)])
            return connection.read_response(disable_decoding=True)
        except redis_errors.ResponseError:
            raise
        except (
            BaseException
        ):  # a time limit's too, whenever it comes: a late reply must not be taken for the next call's
            connection.disconnect()
            raise
        finally:
            pool.release(connection)

    def open(self, command: tuple[Any, ...]) -> PendingCommand:
        """Send a blocking command over a connection of its own. Only where `can_stream`."""
        return PendingCommand(self._client.connection_pool, self._names, command)

    @property
    def can_stream(self) -> bool:
        """Whether calls may be sent before earlier ones are answered."""
        plain = self._is_plain and redis.Redis.execute_command is _ORIGINAL_EXECUTE
        return plain and "execute_command" not in vars(self._client)

    def stream(self, commands: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """The replies to commands that are sent while the server works on earlier ones: `MAX_UNANSWERED_CALLS` at most."""
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
                connection.disconnect()  # replies that nobody reads must not be taken for others'
            pool.release(connection)


class PendingCommand:
    """A blocking command on its way; while it waits, another thread than the one that reads can send one more behind it."""

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
        """Send a command behind the one that waits; False if there was one before, or the wait is over."""
        with self._lock:
            if not self._is_waiting or self._has_more:
                return False
            self._has_more = True
            with suppress(Exception):  # whatever it is, who reads meets it too
                # A health check would read the reply that somebody else waits for.
                self._connection.send_packed_command([hiredis.pack_command(command)], check_health=False)
            return True

    def replies(self) -> list[Any]:
        """Sleep until they are there: one, or two; errors of the server among them. Once."""
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
    """Before redis-py 5.3 a pool needs the command's name; since then it warns if it gets one."""
    parameter = inspect.signature(client.connection_pool.get_connection).parameters.get("command_name")
    return parameter is not None and parameter.default is inspect.Parameter.empty


class FunctionCaller:
    """How commands are called: as functions, or as scripts where this user or server has no functions."""

    def __init__(self) -> None:
        self.as_functions = True

    def use_functions(self, policy: RetryPolicy) -> bool:
        return self.as_functions and not policy.as_script

    def command(self, request: ScriptCall, keys: Sequence[str], script: Script, policy: RetryPolicy) -> tuple[Any, ...]:
        if self.use_functions(policy):
            how: tuple[Any, ...] = ("FCALL", script.function)
        else:
            how = ("EVAL", script.source) if policy.loads > 1 else ("EVALSHA", script.sha)
        return (*how, len(keys), *keys, *request.args)

    def handle_load_error(self, error: Exception, policy: RetryPolicy) -> None:
        """A function can't be loaded: this call goes as a script. A server that is full still drains so.

        Who may call functions and not load them will find them when a deployment has loaded them: they are tried again.
        """
        policy.as_script, policy.loads_function, policy.loads = True, False, 0
        if not isinstance(error, redis_errors.NoPermissionError):
            self.switch_to_scripts(error)

    def switch_to_scripts(self, error: Exception) -> bool:
        """Whether this error of calling or loading one means that there are none here; from then on scripts are used."""
        text = str(error).lower()
        if isinstance(error, redis_errors.NoPermissionError) or text.startswith(("noperm", "unknown command")):
            was, self.as_functions = self.as_functions, False
            return was
        return False


def with_confirmation(request: ScriptCall, command: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield command
    yield "HINCRBY", request.keys[0], "confirmations", 1
    yield "WAIT", request.replicas, max(1, round(request.replication_timeout * 1000))


def check_confirmed(request: ScriptCall, replies: Sequence[Any]) -> Any:
    """The reply to the call itself.

    Raises:
        NotReplicatedError: it was executed, and too few replicas have confirmed it.
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


class Transport:
    """Drives requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, retry_seconds: float) -> None:
        self.client = client
        self.retry_seconds = retry_seconds
        self.is_reply_unwanted: Callable[[], bool] = lambda: False
        """Called after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._caller = FunctionCaller()
        self._is_cluster = clusters.is_cluster(client)
        self._unreachable = nodes.unreachable_nodes(client)
        self._connection = Connection(client)

    def send(self, request: Request, seconds: float | None = None, *, in_doubt: bool = False) -> Any:
        """``in_doubt``: it was sent before, and what became of it is unknown."""
        if isinstance(request, Stream):
            return self._stream(request)
        policy = RetryPolicy(
            request, self.retry_seconds if seconds is None else min(seconds, self.retry_seconds), self.is_reply_unwanted
        )
        policy.is_in_doubt = in_doubt
        while True:
            try:
                return self._attempt(request, policy)
            except CLIENT_ERRORS as error:
                nodes.record_result(self.client, request, error)
                pool = clusters.stale_pool(self.client, error)
                if pool is not None:
                    pool.disconnect(inuse_connections=False)
                pause = policy.pause_after(error)
            time.sleep(pause)

    def _attempt(self, request: ScriptCall | Read | Scan | BlockingCommand, policy: RetryPolicy) -> Any:
        if policy.reloads_topology:
            clusters.load_topology(self.client)
        if not self._checked:
            check_server(self._info(request))
            self._checked = True
        if isinstance(request, ScriptCall):
            reply = self._call(request, load(request.script), policy)
            if self._is_cluster and self._unreachable:
                nodes.record_result(self.client, request, None)
            return reply
        if isinstance(request, Read):
            return self._read(request)
        if isinstance(request, Scan):
            near = clusters.nearest_node_option(self.client, request)
            return clusters.parse_scan(
                self.client.execute_command(*clusters.scan_command(request), **clusters.NEVER_DECODE, **near)
            )
        return self._block(request)

    def open_blocking(self, block: BlockingCommand) -> PendingCommand | None:
        """Send a blocking command behind which a call can be sent. None where that can't be: `send` it then."""
        if not (self._checked and self._connection.can_stream):
            return None
        try:
            return self._connection.open(block.command)
        except Exception:  # noqa: BLE001 - whatever it is, `send` meets it too
            return None

    def first_command(self, call: ScriptCall) -> tuple[Any, ...]:
        """What is sent for a call at first."""
        return self._caller.command(call, call.keys, load(call.script), RetryPolicy(call, self.retry_seconds))

    def _call(self, request: ScriptCall, script: Script, policy: RetryPolicy) -> Any:
        calls = self._caller
        keys = clusters.declared_keys(request) if self._is_cluster else request.keys
        if policy.loads_function and calls.use_functions(policy):
            try:
                home = clusters.node_of(self.client, request)
                home.execute_command("FUNCTION LOAD", "REPLACE", functions())
                delete_unused(home.execute_command)
            except redis_errors.ResponseError as error:
                calls.handle_load_error(error, policy)
        elif policy.loads and not calls.use_functions(policy):
            clusters.node_of(self.client, request).execute_command("SCRIPT LOAD", script.source)
        try:
            return self._execute(request, calls.command(request, keys, script, policy))
        except redis_errors.ResponseError as error:
            if policy.as_script or not calls.switch_to_scripts(error):
                raise
        return self._execute(request, calls.command(request, keys, script, policy))

    def _stream(self, request: Stream) -> None:
        """The first alone: it says whether the server can be used, and loads what it lacks. Whatever fails later is
        repeated as it was, one call after the other."""
        first = next(request.calls, None)
        if first is None:
            return
        request.on_reply(self.send(first))
        unanswered = deque[ScriptCall]()
        if self._connection.can_stream and self._caller.as_functions and not first.replicas:
            with suppress(*CLIENT_ERRORS):
                for reply in self._connection.stream(self._record_sent(request.calls, unanswered)):
                    unanswered.popleft()
                    request.on_reply(reply)
        for call in (*unanswered, *request.calls):
            request.on_reply(self.send(call))

    def _record_sent(self, calls: Iterator[ScriptCall], unanswered: deque[ScriptCall]) -> Iterator[tuple[Any, ...]]:
        for call in calls:
            unanswered.append(call)
            yield self.first_command(call)

    def _execute(self, request: ScriptCall, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            if self._is_cluster:
                return clusters.node_of(self.client, request).execute_command(*command, **clusters.NEVER_DECODE)
            return self._connection.call(command, **clusters.NEVER_DECODE)
        with clusters.node_of(self.client, request).pipeline(transaction=False) as pipe:
            for each in with_confirmation(request, command):
                pipe.execute_command(*each, **clusters.NEVER_DECODE)
            return check_confirmed(request, pipe.execute(raise_on_error=False))

    def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not self._is_cluster:
            return self.client.execute_command(*INFO_COMMAND)
        key = clusters.key_of(request)
        return nodes.read(self.client, Read([INFO_COMMAND, *([("EXISTS", key)] if key else [])]))[0]

    def _read(self, request: Read) -> list[Any]:
        if self._is_cluster:
            return nodes.read(self.client, request)
        if len(request.commands) == 1:
            return [self.client.execute_command(*request.commands[0], **clusters.NEVER_DECODE)]
        with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **clusters.NEVER_DECODE)
            replies: list[Any] = pipe.execute()
            return replies

    def _block(self, request: BlockingCommand) -> Any:
        return clusters.node_of(self.client, request).execute_command(*request.command, **clusters.NEVER_DECODE)


class AsyncTransport:
    """Drives requests over an asyncio client."""

    def __init__(self, client: AsyncClient, retry_seconds: float) -> None:
        self.client = client
        self.retry_seconds = retry_seconds
        self.is_reply_unwanted: Callable[[], bool] = lambda: False
        """Called after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._caller = FunctionCaller()
        self._is_cluster = clusters.is_cluster(client)
        self._unreachable = nodes.unreachable_nodes(client)

    async def send(self, request: Request, seconds: float | None = None) -> Any:
        if isinstance(request, Stream):
            return await self._stream(request)
        policy = RetryPolicy(
            request, self.retry_seconds if seconds is None else min(seconds, self.retry_seconds), self.is_reply_unwanted
        )
        while True:
            try:
                return await self._attempt(request, policy)
            except CLIENT_ERRORS as error:
                nodes.record_result(self.client, request, error)
                pool = clusters.stale_pool(self.client, error)
                if pool is not None:
                    await pool.disconnect(inuse_connections=False)
                pause = policy.pause_after(error)
            await asyncio.sleep(pause)

    async def _attempt(self, request: ScriptCall | Read | Scan | BlockingCommand, policy: RetryPolicy) -> Any:
        if self._is_cluster:
            await clusters.load_topology_async(self.client, again=policy.reloads_topology)
        if not self._checked:
            check_server(await self._info(request))
            self._checked = True
        if isinstance(request, ScriptCall):
            reply = await self._call(request, load(request.script), policy)
            if self._is_cluster and self._unreachable:
                nodes.record_result(self.client, request, None)
            return reply
        if isinstance(request, Read):
            return await self._read(request)
        if isinstance(request, Scan):
            near = clusters.nearest_node_option(self.client, request)
            return clusters.parse_scan(
                await self.client.execute_command(*clusters.scan_command(request), **clusters.NEVER_DECODE, **near)
            )
        return await self._block(request)

    async def _call(self, request: ScriptCall, script: Script, policy: RetryPolicy) -> Any:
        calls = self._caller
        keys = clusters.declared_keys(request) if self._is_cluster else request.keys
        if policy.loads_function and calls.use_functions(policy):
            try:
                home = clusters.node_of(self.client, request)
                await home.execute_command("FUNCTION LOAD", "REPLACE", functions())
                await adelete_unused(home.execute_command)
            except redis_errors.ResponseError as error:
                calls.handle_load_error(error, policy)
        elif policy.loads and not calls.use_functions(policy):
            await clusters.node_of(self.client, request).execute_command("SCRIPT LOAD", script.source)
        try:
            return await self._execute(request, calls.command(request, keys, script, policy))
        except redis_errors.ResponseError as error:
            if policy.as_script or not calls.switch_to_scripts(error):
                raise
        return await self._execute(request, calls.command(request, keys, script, policy))

    async def _stream(self, request: Stream) -> None:
        for call in request.calls:
            request.on_reply(await self.send(call))

    async def _execute(self, request: ScriptCall, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            return await clusters.node_of(self.client, request).execute_command(*command, **clusters.NEVER_DECODE)
        sent = list(with_confirmation(request, command))
        if self._is_cluster:
            return check_confirmed(request, await clusters.pipeline_on(clusters.node_of(self.client, request), sent))
        async with self.client.pipeline(transaction=False) as pipe:
            for each in sent:
                pipe.execute_command(*each, **clusters.NEVER_DECODE)
            return check_confirmed(request, await pipe.execute(raise_on_error=False))

    async def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not self._is_cluster:
            return await self.client.execute_command(*INFO_COMMAND)
        key = clusters.key_of(request)
        return (await nodes.read_async(self.client, Read([INFO_COMMAND, *([("EXISTS", key)] if key else [])])))[0]

    async def _read(self, request: Read) -> list[Any]:
        if self._is_cluster:
            return await nodes.read_async(self.client, request)
        if len(request.commands) == 1:
            return [await self.client.execute_command(*request.commands[0], **clusters.NEVER_DECODE)]
        async with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **clusters.NEVER_DECODE)
            replies: list[Any] = await pipe.execute()
            return replies

    async def _block(self, request: BlockingCommand) -> Any:
        return await clusters.node_of(self.client, request).execute_command(*request.command, **clusters.NEVER_DECODE)
