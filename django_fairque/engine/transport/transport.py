"""Sending requests: what is repeated, what is raised, and that the server can be trusted with tasks.

Both clients share the decisions (`Patience`, `check_server`); they differ in how they send and how they sleep.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as redis_errors

from django_fairque.engine.scripting.operations import Block, Call, Read, Request, Scan, Stream
from django_fairque.engine.scripting.scripts import Script, adelete_unused, delete_unused, functions, load
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport import function_calls as replication
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.connection import Line, Wire
from django_fairque.engine.transport.function_calls import Calls
from django_fairque.engine.transport.retry_policy import FAILURES, Patience
from django_fairque.engine.transport.server_checks import check_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

RAW = {"NEVER_DECODE": True}
"""Replies stay bytes whatever the client was told: payloads are not text until they have been checked."""


class SyncClient(Protocol):
    """What is used of ``redis.Redis`` and ``redis.cluster.RedisCluster``."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def function_load(self, code: str, replace: bool | None = ...) -> Any: ...


class AsyncClient(Protocol):
    """What is used of ``redis.asyncio.Redis`` and its cluster client."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...


INFO = ("INFO", "server", "memory")


class Transport:
    """Drives requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, patience: float) -> None:
        self.client = client
        self.patience = patience
        self.is_futile: Callable[[], bool] = lambda: False
        """Asked after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._calls = Calls()
        self._absence = nodes.absence(client)
        self._wire = Wire(client)

    def send(self, request: Request, seconds: float | None = None, *, in_doubt: bool = False) -> Any:
        """``in_doubt``: it was sent before, and what became of it is unknown."""
        if isinstance(request, Stream):
            return self._stream(request)
        patience = Patience(request, self.patience if seconds is None else min(seconds, self.patience), self.is_futile)
        patience.is_in_doubt = in_doubt
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
                pool = clusters.outlived(self.client, error)
                if pool is not None:
                    pool.disconnect(inuse_connections=False)
                pause = patience.after(error)
            time.sleep(pause)

    def open(self, block: Block) -> Line | None:
        """Send a blocking command behind which a call can be sent. None where that can't be: `send` it then."""
        if not (self._checked and self._wire.can_stream):
            return None
        try:
            return self._wire.open(block.command)
        except Exception:  # noqa: BLE001 - whatever it is, `send` meets it too
            return None

    def command(self, call: Call) -> tuple[Any, ...]:
        """What is sent for a call at first."""
        return self._calls.command(call, call.keys, load(call.script), Patience(call, self.patience))

    def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        calls, keys = self._calls, clusters.declared(self.client, request)
        if patience.loads_function and calls.use_functions(patience):
            try:
                home = clusters.home(self.client, request)
                home.execute_command("FUNCTION LOAD", "REPLACE", functions())
                delete_unused(home.execute_command)
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

    def _stream(self, request: Stream) -> None:
        """The first alone: it says whether the server can be used, and loads what it lacks. Whatever fails later is
        repeated as it was, one call after the other."""
        first = next(request.calls, None)
        if first is None:
            return
        request.heard(self.send(first))
        unanswered = deque[Call]()
        if self._wire.can_stream and self._calls.as_functions and not first.replicas:
            with suppress(*FAILURES):
                for reply in self._wire.stream(self._each_noted(request.calls, unanswered)):
                    unanswered.popleft()
                    request.heard(reply)
        for call in (*unanswered, *request.calls):
            request.heard(self.send(call))

    def _each_noted(self, calls: Iterator[Call], unanswered: deque[Call]) -> Iterator[tuple[Any, ...]]:
        for call in calls:
            unanswered.append(call)
            yield self.command(call)

    def _execute(self, request: Call, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            if clusters.is_cluster(self.client):
                return clusters.home(self.client, request).execute_command(*command, **RAW)
            return self._wire.call(command, **RAW)
        with clusters.home(self.client, request).pipeline(transaction=False) as pipe:
            for each in replication.with_confirmation(request, command):
                pipe.execute_command(*each, **RAW)
            return replication.check_confirmed(request, pipe.execute(raise_on_error=False))

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
        self.is_futile: Callable[[], bool] = lambda: False
        """Asked after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._calls = Calls()
        self._absence = nodes.absence(client)

    async def send(self, request: Request, seconds: float | None = None) -> Any:
        if isinstance(request, Stream):
            return await self._stream(request)
        patience = Patience(request, self.patience if seconds is None else min(seconds, self.patience), self.is_futile)
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
                pool = clusters.outlived(self.client, error)
                if pool is not None:
                    await pool.disconnect(inuse_connections=False)
                pause = patience.after(error)
            await asyncio.sleep(pause)

    async def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        calls, keys = self._calls, clusters.declared(self.client, request)
        if patience.loads_function and calls.use_functions(patience):
            try:
                home = clusters.home(self.client, request)
                await home.execute_command("FUNCTION LOAD", "REPLACE", functions())
                await adelete_unused(home.execute_command)
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

    async def _stream(self, request: Stream) -> None:
        for call in request.calls:
            request.heard(await self.send(call))

    async def _execute(self, request: Call, command: tuple[Any, ...]) -> Any:
        if not request.replicas:
            return await clusters.home(self.client, request).execute_command(*command, **RAW)
        sent = list(replication.with_confirmation(request, command))
        if clusters.is_cluster(self.client):
            return replication.check_confirmed(
                request, await clusters.in_one_go(clusters.home(self.client, request), sent)
            )
        async with self.client.pipeline(transaction=False) as pipe:
            for each in sent:
                pipe.execute_command(*each, **RAW)
            return replication.check_confirmed(request, await pipe.execute(raise_on_error=False))

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
