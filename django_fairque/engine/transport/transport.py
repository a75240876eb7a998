"""Sending requests: what is repeated, what is raised, and that the server can be trusted with tasks.

Both clients share the decisions (`RetryPolicy`, `check_server`); they differ in how they send and how they sleep.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

from django_fairque.engine.scripting.operations import BlockingCommand, Read, Request, Scan, ScriptCall, Stream
from django_fairque.engine.scripting.scripts import Script, adelete_unused, delete_unused, functions, load
from django_fairque.engine.transport import cluster as clusters
from django_fairque.engine.transport import function_calls as replication
from django_fairque.engine.transport import node_health as nodes
from django_fairque.engine.transport.connection import AsyncClient, Connection, PendingCommand, SyncClient
from django_fairque.engine.transport.function_calls import FunctionCaller
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, RetryPolicy
from django_fairque.engine.transport.server_checks import check_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NEVER_DECODE = {"NEVER_DECODE": True}
"""Replies stay bytes whatever the client was told: payloads are not text until they have been checked."""


INFO_COMMAND = ("INFO", "server", "memory")


class Transport:
    """Drives requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, retry_seconds: float) -> None:
        self.client = client
        self.retry_seconds = retry_seconds
        self.is_reply_unwanted: Callable[[], bool] = lambda: False
        """Asked after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._caller = FunctionCaller()
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
                clusters.load_topology(self.client, again=policy.is_stale)
                if not self._checked:
                    check_server(self._info(request))
                    self._checked = True
                if isinstance(request, ScriptCall):
                    reply = self._call(request, load(request.script), policy)
                    if self._unreachable:
                        nodes.record_result(self.client, request, None)
                    return reply
                if isinstance(request, Read):
                    return self._read(request)
                if isinstance(request, Scan):
                    near = clusters.nearest_node_option(self.client, request)
                    return clusters.parse_scan(
                        self.client.execute_command(*clusters.scan_command(request), **NEVER_DECODE, **near)
                    )
                return self._block(request)
            except CLIENT_ERRORS as error:
                nodes.record_result(self.client, request, error)
                pool = clusters.stale_pool(self.client, error)
                if pool is not None:
                    pool.disconnect(inuse_connections=False)
                pause = policy.pause_after(error)
            time.sleep(pause)

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
        calls, keys = self._caller, clusters.declared_keys(self.client, request)
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
            if clusters.is_cluster(self.client):
                return clusters.node_of(self.client, request).execute_command(*command, **NEVER_DECODE)
            return self._connection.call(command, **NEVER_DECODE)
        with clusters.node_of(self.client, request).pipeline(transaction=False) as pipe:
            for each in replication.with_confirmation(request, command):
                pipe.execute_command(*each, **NEVER_DECODE)
            return replication.check_confirmed(request, pipe.execute(raise_on_error=False))

    def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not clusters.is_cluster(self.client):
            return self.client.execute_command(*INFO_COMMAND)
        key = clusters.key_of(request)
        return nodes.read(self.client, Read([INFO_COMMAND, *([("EXISTS", key)] if key else [])]))[0]

    def _read(self, request: Read) -> list[Any]:
        if clusters.is_cluster(self.client):
            return nodes.read(self.client, request)
        if len(request.commands) == 1:
            return [self.client.execute_command(*request.commands[0], **NEVER_DECODE)]
        with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **NEVER_DECODE)
            replies: list[Any] = pipe.execute()
            return replies

    def _block(self, request: BlockingCommand) -> Any:
        return clusters.node_of(self.client, request).execute_command(*request.command, **NEVER_DECODE)


class AsyncTransport:
    """Drives requests over an asyncio client."""

    def __init__(self, client: AsyncClient, retry_seconds: float) -> None:
        self.client = client
        self.retry_seconds = retry_seconds
        self.is_reply_unwanted: Callable[[], bool] = lambda: False
        """Asked after a failure: whether nobody is waiting for the reply any more, so that there is no other attempt."""
        self._checked = False
        self._caller = FunctionCaller()
        self._unreachable = nodes.unreachable_nodes(client)

    async def send(self, request: Request, seconds: float | None = None) -> Any:
        if isinstance(request, Stream):
            return await self._stream(request)
        policy = RetryPolicy(
            request, self.retry_seconds if seconds is None else min(seconds, self.retry_seconds), self.is_reply_unwanted
        )
        while True:
            try:
                await clusters.load_topology_async(self.client, again=policy.is_stale)
                if not self._checked:
                    check_server(await self._info(request))
                    self._checked = True
                if isinstance(request, ScriptCall):
                    reply = await self._call(request, load(request.script), policy)
                    if self._unreachable:
                        nodes.record_result(self.client, request, None)
                    return reply
                if isinstance(request, Read):
                    return await self._read(request)
                if isinstance(request, Scan):
                    near = clusters.nearest_node_option(self.client, request)
                    return clusters.parse_scan(
                        await self.client.execute_command(*clusters.scan_command(request), **NEVER_DECODE, **near)
                    )
                return await self._block(request)
            except CLIENT_ERRORS as error:
                nodes.record_result(self.client, request, error)
                pool = clusters.stale_pool(self.client, error)
                if pool is not None:
                    await pool.disconnect(inuse_connections=False)
                pause = policy.pause_after(error)
            await asyncio.sleep(pause)

    async def _call(self, request: ScriptCall, script: Script, policy: RetryPolicy) -> Any:
        calls, keys = self._caller, clusters.declared_keys(self.client, request)
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
            return await clusters.node_of(self.client, request).execute_command(*command, **NEVER_DECODE)
        sent = list(replication.with_confirmation(request, command))
        if clusters.is_cluster(self.client):
            return replication.check_confirmed(
                request, await clusters.pipeline_on(clusters.node_of(self.client, request), sent)
            )
        async with self.client.pipeline(transaction=False) as pipe:
            for each in sent:
                pipe.execute_command(*each, **NEVER_DECODE)
            return replication.check_confirmed(request, await pipe.execute(raise_on_error=False))

    async def _info(self, request: Request) -> Any:
        """Of the server that is to work on the request."""
        if not clusters.is_cluster(self.client):
            return await self.client.execute_command(*INFO_COMMAND)
        key = clusters.key_of(request)
        return (await nodes.read_async(self.client, Read([INFO_COMMAND, *([("EXISTS", key)] if key else [])])))[0]

    async def _read(self, request: Read) -> list[Any]:
        if clusters.is_cluster(self.client):
            return await nodes.read_async(self.client, request)
        if len(request.commands) == 1:
            return [await self.client.execute_command(*request.commands[0], **NEVER_DECODE)]
        async with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **NEVER_DECODE)
            replies: list[Any] = await pipe.execute()
            return replies

    async def _block(self, request: BlockingCommand) -> Any:
        return await clusters.node_of(self.client, request).execute_command(*request.command, **NEVER_DECODE)
