"""Driving steps over a client: whole queues, and what is left of them while a node of their cluster is away."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol, TypeVar

from django_fairque.engine.dependencies import messages
from django_fairque.engine.model.errors import (
    FairQueueError,
    NotPermittedError,
    RedisConnectionError,
    UnsupportedServerError,
    UntrustedServerError,
)
from django_fairque.engine.queue.base import QueueOfShards
from django_fairque.engine.scripting.commands import MAX_BATCH
from django_fairque.engine.sharding import shard_count as spreading
from django_fairque.engine.sharding.shards import Shards
from django_fairque.engine.transport import node_health as nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.transport.transport import AsyncClient, AsyncTransport, SyncClient, Transport

R = TypeVar("R")

SURVEY = 1.0
"""Seconds for which what is asked of all shards is repeated, before it is asked of those alone that answer."""
CHECK_AGAIN = 5.0
"""Seconds until the number of shards is looked up again, when nobody who could be reached knew it."""
FINAL = (NotPermittedError, UnsupportedServerError, UntrustedServerError)
"""Answers that are no node's absence."""


class Survey(Protocol):
    """Drives what is asked of all shards, or of those that answer."""

    def __call__(self, read: Callable[[Shards], Steps[R]], /) -> R: ...


class _Rounds:
    """Which shards to ask, round by round: each round leaves out those whose nodes did not answer in the one before."""

    def __init__(self, client: object, shards: Shards) -> None:
        self._client, self._shards = client, shards
        self.rest = shards

    def __iter__(self) -> Iterator[Shards]:
        asked: set[int] | None = None
        for _ in self._shards.all:
            missing = nodes.absence(self._client).missing(self._client, self._shards)
            if len(missing) == len(self._shards) or (asked is not None and asked.issuperset(missing)):
                return
            asked, self.rest = set(missing), self._shards.but(missing)
            yield self.rest


def _living(client: object, shards: Shards) -> Shards:
    def missing() -> Sequence[int]:
        return nodes.absence(client).missing(client, shards)

    living = shards.but(missing())
    living.missing_now = missing
    return living


class Driving(QueueOfShards):
    """The part of a queue that sends: `FairQueue` says what."""

    client: SyncClient
    _transport: Transport

    def give_up_when(self, condition: Callable[[], bool]) -> None:
        """Let calls that have failed be repeated no more while this holds."""
        self._transport.is_futile = condition

    def _run(self, steps: Steps[R]) -> R:
        self._check()
        return self._drive(steps)

    def _survey(self, read: Callable[[Shards], Steps[R]]) -> R:
        """What all shards know or, when a node does not answer for `SURVEY` seconds, what the others do.

        ``read`` is called with the shards to ask, more than once if need be; it changes nothing, or nothing twice.
        """
        self._check()
        return self._among(self._shards, read)

    def _living(self) -> Shards:
        """All shards but those whose nodes are known to be away."""
        if len(self._shards) == 1 or not nodes.are_several(self.client):
            return self._shards
        nodes.revisit(self.client)
        return _living(self.client, self._shards)

    def _reach(self, change: Callable[[Shards], Steps[R]]) -> R:
        """Change all shards; ``change`` is told which are known to be away, and goes on without those."""
        return self._run(change(self._living()))

    def _carry(self) -> None:
        """Carry what was left for other shards. If that fails workers do it: it is written down."""
        if len(self._shards) > 1:
            with suppress(FairQueueError):
                self._survey(lambda shards: messages.carry(shards, MAX_BATCH, None))

    def _check(self) -> None:
        """The number of shards that is written down is the configured one."""
        if self._whole is not None:
            self._whole._check()  # noqa: SLF001 - of its own kind
        elif not self._is_checked and monotonic() >= self._check_at:
            self._is_checked = self._among(Shards(self.name, self.config), spreading.check)
            self._check_at = monotonic() + CHECK_AGAIN

    def _among(self, shards: Shards, read: Callable[[Shards], Steps[R]]) -> R:
        if len(shards) == 1 or not nodes.are_several(self.client):
            return self._drive(read(shards))
        nodes.revisit(self.client)
        rounds = _Rounds(self.client, shards)
        for living in rounds:
            try:
                return self._drive(read(living), SURVEY)
            except FINAL:  # noqa: PERF203 - there are a few rounds at most
                raise
            except RedisConnectionError:
                continue
        return self._drive(read(rounds.rest))

    def _drive(self, steps: Steps[R], seconds: float | None = None) -> R:
        """With ``seconds`` each request is repeated no longer than that. An error is raised in the steps, which may take it."""
        try:
            request = next(steps)
            while True:
                try:
                    reply = self._transport.send(request, seconds)
                except FairQueueError as error:  # noqa: PERF203 - each request may fail
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as stop:
            result: R = stop.value
            return result


class AsyncSurvey(Protocol):
    """As `Survey`, awaited."""

    async def __call__(self, read: Callable[[Shards], Steps[R]], /) -> R: ...


class AsyncDriving(QueueOfShards):
    """`Driving`, awaited."""

    client: AsyncClient
    _transport: AsyncTransport

    def give_up_when(self, condition: Callable[[], bool]) -> None:
        """As of `Driving`."""
        self._transport.is_futile = condition

    async def _run(self, steps: Steps[R]) -> R:
        await self._check()
        return await self._drive(steps)

    async def _survey(self, read: Callable[[Shards], Steps[R]]) -> R:
        await self._check()
        return await self._among(self._shards, read)

    async def _living(self) -> Shards:
        """All shards but those whose nodes are known to be away."""
        if len(self._shards) == 1 or not nodes.are_several(self.client):
            return self._shards
        await nodes.revisit_async(self.client)
        return _living(self.client, self._shards)

    async def _reach(self, change: Callable[[Shards], Steps[R]]) -> R:
        return await self._run(change(await self._living()))

    async def _carry(self) -> None:
        if len(self._shards) > 1:
            with suppress(FairQueueError):
                await self._survey(lambda shards: messages.carry(shards, MAX_BATCH, None))

    async def _check(self) -> None:
        if self._whole is not None:
            await self._whole._check()  # noqa: SLF001 - of its own kind
        elif not self._is_checked and monotonic() >= self._check_at:
            self._is_checked = await self._among(Shards(self.name, self.config), spreading.check)
            self._check_at = monotonic() + CHECK_AGAIN

    async def _among(self, shards: Shards, read: Callable[[Shards], Steps[R]]) -> R:
        if len(shards) == 1 or not nodes.are_several(self.client):
            return await self._drive(read(shards))
        await nodes.revisit_async(self.client)
        rounds = _Rounds(self.client, shards)
        for living in rounds:
            try:
                return await self._drive(read(living), SURVEY)
            except FINAL:  # noqa: PERF203 - there are a few rounds at most
                raise
            except RedisConnectionError:
                continue
        return await self._drive(read(rounds.rest))

    async def _drive(self, steps: Steps[R], seconds: float | None = None) -> R:
        try:
            request = next(steps)
            while True:
                try:
                    reply = await self._transport.send(request, seconds)
                except FairQueueError as error:  # noqa: PERF203 - each request may fail
                    request = steps.throw(error)
                else:
                    request = steps.send(reply)
        except StopIteration as stop:
            result: R = stop.value
            return result
