"""Sending requests: what is repeated, what is raised, and that the server can be trusted with tasks.

Both clients share the decisions (`Patience`, `Doctor`); they differ in how they send and how they sleep.

A reply that was lost says nothing about its call, so the call is repeated as it was: it carries a nonce or a
lease token, or changes nothing. The client library's own retries stay out of it (they would repeat anything).
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any, Protocol

from redis import exceptions as redis_errors

from .errors import (
    FairQueueError,
    LuaScriptError,
    RedisConnectionError,
    ServerRefusedError,
    UnsupportedServerError,
)
from .scripts import Script, load
from .steps import Block, Call, Read, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

RAW = {"NEVER_DECODE": True}
"""Replies stay bytes whatever the client was told: payloads are not text until they have been checked."""

MINIMUM = (7, 2)
PASSING = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "UNBLOCKED")
"""Answers that mean "not now": nothing was executed, and it may be different soon."""

FAILURES = (redis_errors.RedisError, redis_errors.RedisClusterException)
"""What the client raises; its cluster's error is no `RedisError`."""

REFUSALS = {
    "OOM": "the server is out of memory; new tasks are refused until the backlog has drained",
    "MISCONF": "the server can't write to its disk and refuses changes; free space or mend its persistence",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write asks for",
    "READONLY": "the server is a read-only replica; connect to the primary",
    "NOPERM": "this user may not run what the queue needs; see its ACL rules",
    "NOAUTH": "the server asks for a password; set REDIS's USERNAME and PASSWORD",
    "WRONGPASS": "the server refused the user name or password",
}


class SyncClient(Protocol):
    """What is used of ``redis.Redis`` and ``redis.cluster.RedisCluster``."""

    def execute_command(self, *args: Any, **options: Any) -> Any: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def script_load(self, script: str) -> Any: ...


class AsyncClient(Protocol):
    """What is used of ``redis.asyncio.Redis`` and its cluster client."""

    def execute_command(self, *args: Any, **options: Any) -> Awaitable[Any]: ...
    def pipeline(self, transaction: bool = ...) -> Any: ...
    def script_load(self, script: str) -> Awaitable[Any]: ...


class Patience:
    """Decides what follows a failed attempt of one request, until ``seconds`` have passed."""

    def __init__(self, request: Request | str, seconds: float) -> None:
        self.what = request.script if isinstance(request, Call) else "a command"
        self.deadline = time.monotonic() + seconds
        self.attempts = 0
        self.loads = 0

    def after(self, error: Exception) -> float:
        """Seconds to wait before the next attempt; raises this error in the queue's own words when there is none."""
        self.attempts += 1
        text = str(error)
        code = text.split(" ", 1)[0].rstrip(":")
        if isinstance(error, redis_errors.NoScriptError):
            self.loads += 1
            if self.loads <= 3:
                return 0.0
            raise LuaScriptError(self.what, "the server forgets scripts as fast as they are loaded") from error
        lost = isinstance(error, (redis_errors.ConnectionError, redis_errors.TimeoutError))
        passing = (
            lost
            or code in PASSING
            or isinstance(
                error, (redis_errors.ReadOnlyError, redis_errors.ClusterError, redis_errors.RedisClusterException)
            )
        )
        if isinstance(error, (redis_errors.AuthenticationError, redis_errors.NoPermissionError)):
            passing = False
        pause: float = min(0.5, 0.01 * 2.0 ** min(self.attempts, 10)) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, hides nothing
        if passing and time.monotonic() + pause < self.deadline:
            return pause
        raise self._final(error, code, text) from error

    def _final(self, error: Exception, code: str, text: str) -> FairQueueError:
        kinds = {
            redis_errors.OutOfMemoryError: "OOM",
            redis_errors.ReadOnlyError: "READONLY",
            redis_errors.NoPermissionError: "NOPERM",
            redis_errors.AuthenticationError: "WRONGPASS",
        }
        code = next((known for kind, known in kinds.items() if isinstance(error, kind)), code)
        if code in REFUSALS:
            return ServerRefusedError(f"{REFUSALS[code]} (the server said: {text})")
        if isinstance(error, (redis_errors.ConnectionError, redis_errors.TimeoutError)):
            return RedisConnectionError(
                f"the server can't be reached: {text or type(error).__name__} ({self.attempts} attempts); "
                f"is it running where REDIS points to?"
            )
        if code in PASSING:
            return ServerRefusedError(f"the server refuses work for now: {text}")
        return LuaScriptError(self.what, text)


def check_server(info: Mapping[str, Any]) -> None:
    """Raise `UnsupportedServerError` unless ``INFO`` describes a server that keeps tasks safe."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MINIMUM:
        raise UnsupportedServerError(f"{name} 7.2 or newer is needed, this server is {name} {version}; upgrade it")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys") and int(info.get("maxmemory", 0)) > 0:
        raise UnsupportedServerError(
            f"the server throws tasks away when memory is short (maxmemory-policy {policy}); "
            f"it must be noeviction, or the queue needs a server of its own"
        )


INFO = ("INFO", "server", "memory")


class Transport:
    """Drives requests over a synchronous client; thread-safe as the client is."""

    def __init__(self, client: SyncClient, patience: float) -> None:
        self.client = client
        self.patience = patience
        self._checked = False

    def send(self, request: Request) -> Any:
        patience = Patience(request, self.patience)
        while True:
            try:
                if not self._checked:
                    check_server(self.client.execute_command(*INFO))
                    self._checked = True
                if isinstance(request, Call):
                    return self._call(request, load(request.script), patience)
                if isinstance(request, Read):
                    return self._read(request)
                return self._block(request)
            except FAILURES as error:
                pause = patience.after(error)
            time.sleep(pause)

    def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        if patience.loads:
            self.client.script_load(script.source)
        command, code = ("EVAL", script.source) if patience.loads > 1 else ("EVALSHA", script.sha)
        return self.client.execute_command(command, code, len(request.keys), *request.keys, *request.args, **RAW)

    def _read(self, request: Read) -> list[Any]:
        if len(request.commands) == 1:
            return [self.client.execute_command(*request.commands[0], **RAW)]
        with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **RAW)
            replies: list[Any] = pipe.execute()
            return replies

    def _block(self, request: Block) -> Any:
        return self.client.execute_command(*request.command, **RAW)


class AsyncTransport:
    """Drives requests over an asyncio client."""

    def __init__(self, client: AsyncClient, patience: float) -> None:
        self.client = client
        self.patience = patience
        self._checked = False

    async def send(self, request: Request) -> Any:
        patience = Patience(request, self.patience)
        while True:
            try:
                if not self._checked:
                    check_server(await self.client.execute_command(*INFO))
                    self._checked = True
                if isinstance(request, Call):
                    return await self._call(request, load(request.script), patience)
                if isinstance(request, Read):
                    return await self._read(request)
                return await self._block(request)
            except FAILURES as error:
                pause = patience.after(error)
            await asyncio.sleep(pause)

    async def _call(self, request: Call, script: Script, patience: Patience) -> Any:
        if patience.loads:
            await self.client.script_load(script.source)
        command, code = ("EVAL", script.source) if patience.loads > 1 else ("EVALSHA", script.sha)
        return await self.client.execute_command(command, code, len(request.keys), *request.keys, *request.args, **RAW)

    async def _read(self, request: Read) -> list[Any]:
        if len(request.commands) == 1:
            return [await self.client.execute_command(*request.commands[0], **RAW)]
        async with self.client.pipeline(transaction=False) as pipe:
            for command in request.commands:
                pipe.execute_command(*command, **RAW)
            replies: list[Any] = await pipe.execute()
            return replies

    async def _block(self, request: Block) -> Any:
        return await self.client.execute_command(*request.command, **RAW)
