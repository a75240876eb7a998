"""Script calls over the connections of a plain client, without the layers between.

Half of what redis-py's ``execute_command`` takes is of no use to a call: looking at every argument's type, its own
retries (`transport` repeats calls), durations for metrics. A call of eighty arguments costs 50 µs of the client's
processor that way and 30 through a connection of the same pool. Only a plain ``redis.Redis`` is treated so: any
other client, subclass or instrumented ``execute_command`` keeps being called as it wishes to be.
"""

from __future__ import annotations

import inspect
import sys
import threading
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import redis
from redis import client as redis_client
from redis import exceptions as redis_errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Iterator, Sequence


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
    """Before redis-py 5.3 a pool wants to know what for; since then it warns of being told."""
    parameter = inspect.signature(client.connection_pool.get_connection).parameters.get("command_name")
    return parameter is not None and parameter.default is inspect.Parameter.empty
