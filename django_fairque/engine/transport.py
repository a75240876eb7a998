"""Sending requests: what is repeated, what is raised, and that the server can be trusted with tasks.

Both clients share the decisions (`Patience`, `Doctor`); they differ in how they send and how they sleep.

A reply that was lost says nothing about its call, so the call is repeated as it was: it carries a nonce or a
lease token, or changes nothing. The client library's own retries stay out of it (they would repeat anything).
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as redis_errors

from . import clusters, nodes, replication
from .calling import Calls
from .errors import (
    FairQueueError,
    LuaScriptError,
    NotPermittedError,
    RedisConnectionError,
    ServerRefusedError,
    UntrustedServerError,
)
from .scripts import Script, load
from .servers import check_server
from .steps import Block, Call, Read, Request, Scan, Stream
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

RAW = {"NEVER_DECODE": True}
"""Replies stay bytes whatever the client was told: payloads are not text until they have been checked."""

PASSING = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "UNBLOCKED")
"""Answers that mean "not now": nothing was executed, and it may be different soon."""

FAILURES = (redis_errors.RedisError, redis_errors.RedisClusterException)
"""What the client raises; its cluster's error is no `RedisError`."""

NOT_BEGUN = (redis_errors.BusyLoadingError, redis_errors.AuthenticationError)
"""Errors of a connection that the call was not sent over."""

REFUSALS = {
    "OOM": "the server is out of memory; new tasks are refused until the backlog has drained",
    "MISCONF": "the server can't write to its disk and refuses changes; free space or mend its persistence",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write asks for",
    "READONLY": "the server is a read-only replica; connect to the primary",
    "NOAUTH": "the server asks for a password; set REDIS's USERNAME and PASSWORD",
    "WRONGPASS": "the server refused the user name or password",
}


class SyncClient(Protocol):
    """What is used of ``redis.Redis`` and ``redis.cluster.RedisCluster``."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def function_load(self, code: str, replace: bool | None = ...) -> Any: ...


class AsyncClient(Protocol):
    """What is used of ``redis.asyncio.Redis`` and its cluster client."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...


class Patience:
    """Decides what follows a failed attempt of one request, until ``seconds`` have passed."""

    def __init__(self, request: Request | str, seconds: float) -> None:
        self.what = request.script if isinstance(request, Call) else "a command"
        self.deadline = time.monotonic() + seconds
        self.attempts = 0
        self.loads = 0
        self.loads_function = False
        """The function was not there: it is to be loaded before the next attempt."""
        self.as_script = False
        """It could not be loaded."""
        self.is_in_doubt = False
        """A reply was lost: whatever the server says later, it may have executed the request before."""
        self.is_stale = False
        """A slot may have gone to another node: that is to be looked up before the next attempt."""

    def after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt; raises this error in the queue's own words when there is none."""
        self.attempts += 1
        self.is_stale = isinstance(error, clusters.STALE)
        text = str(error)
        code = _code(text)
        if isinstance(error, redis_errors.NoScriptError):
            self.loads += 1
            if self.loads <= 3:
                return 0.0
            raise LuaScriptError(self.what, "the server forgets scripts as fast as they are loaded") from error
        if isinstance(error, redis_errors.ResponseError) and text.startswith("Function not found"):
            self.loads += 1
            self.loads_function = True
            if self.loads <= 3:
                return 0.0
            raise LuaScriptError(self.what, "the server forgets functions as fast as they are loaded") from error
        lost = isinstance(error, clusters.LOST)
        self.is_in_doubt = self.is_in_doubt or (
            lost and not isinstance(error, NOT_BEGUN) and clusters.UNTRUSTED not in text
        )
        passing = self.is_stale or code in PASSING
        if (
            isinstance(error, (redis_errors.AuthenticationError, redis_errors.NoPermissionError))
            or clusters.UNTRUSTED in text
        ):
            passing = False
        pause: float = min(0.5, 0.01 * 2.0 ** min(self.attempts, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, hides nothing
        if passing and time.monotonic() + pause < self.deadline:
            return pause
        if isinstance(error, redis_errors.MovedError) and self.attempts == 1:
            return 0.0  # however short the time: it is known where to go
        raise self._explained(error) from error

    def _explained(self, error: Exception) -> FairQueueError:
        found = explained(error, self.what, self.attempts)
        if self.is_in_doubt and isinstance(found, ServerRefusedError):
            return RedisConnectionError(f"{self.what} may have been carried out: its reply was lost, and then {found}")
        return found


def explained(error: Exception, what: str = "a command", attempts: int = 1) -> FairQueueError:
    """A client's error in the queue's own words."""
    kinds = {
        redis_errors.OutOfMemoryError: "OOM",
        redis_errors.ReadOnlyError: "READONLY",
        redis_errors.NoPermissionError: "NOPERM",
        redis_errors.AuthenticationError: "WRONGPASS",
    }
    text = str(error)
    code = next((known for kind, known in kinds.items() if isinstance(error, kind)), _code(text))
    if code == "NOPERM" or text.startswith("ACL failure in script"):
        return not_permitted(text)
    if code in REFUSALS:
        return ServerRefusedError(f"{REFUSALS[code]} (the server said: {text})")
    if clusters.UNTRUSTED in text:
        return UntrustedServerError(
            f"the server's certificate is not trusted: {text}; REDIS's SSL_CA_CERTS names the authority, and the host must be "
            "named as in the certificate"
        )
    if code in PASSING or isinstance(error, clusters.STALE):
        return _not_now(error, text, attempts)
    return LuaScriptError(what, text)


def _not_now(error: Exception, text: str, attempts: int) -> RedisConnectionError:
    if isinstance(error, (*clusters.LOST, redis_errors.RedisClusterException)):
        return RedisConnectionError(
            f"the server can't be reached: {text or type(error).__name__} ({attempts} attempts); "
            f"is it running where REDIS points to?"
        )
    said = "the cluster is moving these keys to another server" if isinstance(error, clusters.MOVING) else text
    return ServerRefusedError(f"the server refuses work for now: {said}")


_COMMAND = re.compile(r"'([\w|]+)' command")


def not_permitted(text: str) -> NotPermittedError:
    """What the server says of a user's rights: of a command outside of scripts or inside them, or of a key."""
    found = _COMMAND.search(text)
    command = found[1].replace("|", " ").upper() if found else ""
    what = f"run {command}" if command else "use these keys"
    hint = "manage.py fairque_acl prints the rules that a producer, a worker and a viewer need"
    if command in ("EVAL", "EVALSHA", "SCRIPT LOAD", "FUNCTION LOAD"):
        hint += "; without scripts, manage.py fairque_functions must have loaded this version's functions"
    return NotPermittedError(f"the server does not permit this user to {what} (it said: {text}); {hint}", command)


def _code(text: str) -> str:
    """The word with which an answer begins: LOADING, ERR."""
    return text.split(" ", 1)[0].rstrip(":")


INFO = ("INFO", "server", "memory")


class Transport:
    """Drives requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, patience: float) -> None:
        self.client = client
        self.patience = patience
        self._checked = False
        self._calls = Calls()
        self._absence = nodes.absence(client)
        self._wire = Wire(client)

    def send(self, request: Request, seconds: float | None = None) -> Any:
        if isinstance(request, Stream):
            return self._stream(request)
        patience = Patience(request, self.patience if seconds is None else min(seconds, self.patience))
        while True:
            try:
                clusters.look(self.client, again=patience.is_stale)
                if not self._checked:
                    check_server(self._info(request))
                    self._checked = True
                if isinstance(request, Call):
                    reply = self._call(request, load(request.script), patience)
                    if self._absence:
                        nodes.noted(self.client, request, None)
                    return reply
                if isinstance(request, Read):
                    return self._read(request)
                if isinstance(request, Scan):
                    near = clusters.near(self.client, request)
                    return clusters.scanned(self.client.execute_command(*clusters.scan(request), **RAW, **near))
                return self._block(request)
            except FAILURES as error:
                nodes.noted(self.client, request, error)
                pause = patience.after(error)
            time.sleep(pause)

    def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        calls, keys = self._calls, clusters.declared(self.client, request)
        if patience.loads_function and calls.use_functions(patience):
            try:
                clusters.home(self.client, request).execute_command("FUNCTION LOAD", "REPLACE", script.library)
            except redis_errors.ResponseError as error:
                calls.not_loaded(error, patience)
        elif patience.loads and not calls.use_functions(patience):
            clusters.home(self.client, request).execute_command("SCRIPT LOAD", script.source)
        try:
            return self._execute(request, calls.command(request, keys, script, patience))
        except redis_errors.ResponseError as error:
            if patience.as_script or not calls.is_without_functions(error):
                raise
        return self._execute(request, calls.command(request, keys, script, patience))

    def _stream(self, request: Stream) -> list[Any]:
        """The first alone: it says whether the server can be used, and loads what it lacks. Whatever fails later is
        repeated as it was, one call after the other."""
        first = next(request.calls, None)
        if first is None:
            return []
        replies, sent = [self.send(first)], list[Call]()
        if self._wire.can_stream and self._calls.as_functions and not first.replicas:
            with suppress(*FAILURES):
                for reply in self._wire.stream(self._each_noted(request.calls, sent)):
                    replies.append(reply)  # noqa: PERF402 - those before a failure count
        done = len(replies) - 1
        return replies + [self.send(call) for call in (*sent[done:], *request.calls)]

    def _each_noted(self, calls: Iterator[Call], sent: list[Call]) -> Iterator[tuple[Any, ...]]:
        for call in calls:
            sent.append(call)
            yield self._calls.command(call, call.keys, load(call.script), Patience(call, self.patience))

    def _execute(self, request: Call, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            if clusters.is_cluster(self.client):
                return clusters.home(self.client, request).execute_command(*command, **RAW)
            return self._wire.call(command, **RAW)
        with clusters.home(self.client, request).pipeline(transaction=False) as pipe:
            for each in replication.commands(request, command):
                pipe.execute_command(*each, **RAW)
            return replication.confirmed(request, pipe.execute(raise_on_error=False))

    def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not clusters.is_cluster(self.client):
            return self.client.execute_command(*INFO)
        key = clusters.key_of(request)
        return nodes.read(self.client, Read([INFO, *([("EXISTS", key)] if key else [])]))[0]

    def _read(self, request: Read) -> list[Any]:
        if clusters.is_cluster(self.client):
            return nodes.read(self.client, request)
        if len(request.commands) == 1:
            return [self.client.execute_command(*request.commands[0], **RAW)]
        with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **RAW)
            replies: list[Any] = pipe.execute()
            return replies

    def _block(self, request: Block) -> Any:
        return clusters.home(self.client, request).execute_command(*request.command, **RAW)


class AsyncTransport:
    """Drives requests over an asyncio client."""

    def __init__(self, client: AsyncClient, patience: float) -> None:
        self.client = client
        self.patience = patience
        self._checked = False
        self._calls = Calls()
        self._absence = nodes.absence(client)

    async def send(self, request: Request, seconds: float | None = None) -> Any:
        if isinstance(request, Stream):
            return [await self.send(call) for call in request.calls]
        patience = Patience(request, self.patience if seconds is None else min(seconds, self.patience))
        while True:
            try:
                await clusters.look_async(self.client, again=patience.is_stale)
                if not self._checked:
                    check_server(await self._info(request))
                    self._checked = True
                if isinstance(request, Call):
                    reply = await self._call(request, load(request.script), patience)
                    if self._absence:
                        nodes.noted(self.client, request, None)
                    return reply
                if isinstance(request, Read):
                    return await self._read(request)
                if isinstance(request, Scan):
                    near = clusters.near(self.client, request)
                    return clusters.scanned(await self.client.execute_command(*clusters.scan(request), **RAW, **near))
                return await self._block(request)
            except FAILURES as error:
                nodes.noted(self.client, request, error)
                pause = patience.after(error)
            await asyncio.sleep(pause)

    async def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        calls, keys = self._calls, clusters.declared(self.client, request)
        if patience.loads_function and calls.use_functions(patience):
            try:
                await clusters.home(self.client, request).execute_command("FUNCTION LOAD", "REPLACE", script.library)
            except redis_errors.ResponseError as error:
                calls.not_loaded(error, patience)
        elif patience.loads and not calls.use_functions(patience):
            await clusters.home(self.client, request).execute_command("SCRIPT LOAD", script.source)
        try:
            return await self._execute(request, calls.command(request, keys, script, patience))
        except redis_errors.ResponseError as error:
            if patience.as_script or not calls.is_without_functions(error):
                raise
        return await self._execute(request, calls.command(request, keys, script, patience))

    async def _execute(self, request: Call, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            return await clusters.home(self.client, request).execute_command(*command, **RAW)
        sent = list(replication.commands(request, command))
        if clusters.is_cluster(self.client):
            return replication.confirmed(request, await clusters.in_one_go(clusters.home(self.client, request), sent))
        async with self.client.pipeline(transaction=False) as pipe:
            for each in sent:
                pipe.execute_command(*each, **RAW)
            return replication.confirmed(request, await pipe.execute(raise_on_error=False))

    async def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not clusters.is_cluster(self.client):
            return await self.client.execute_command(*INFO)
        key = clusters.key_of(request)
        return (await nodes.read_async(self.client, Read([INFO, *([("EXISTS", key)] if key else [])])))[0]

    async def _read(self, request: Read) -> list[Any]:
        if clusters.is_cluster(self.client):
            return await nodes.read_async(self.client, request)
        if len(request.commands) == 1:
            return [await self.client.execute_command(*request.commands[0], **RAW)]
        async with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **RAW)
            replies: list[Any] = await pipe.execute()
            return replies

    async def _block(self, request: Block) -> Any:
        return await clusters.home(self.client, request).execute_command(*request.command, **RAW)
