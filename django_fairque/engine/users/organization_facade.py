"""``queue.organization(name)``: what holds for an organization, plain and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.ids import check_id
from django_fairque.engine.users import organizations
from django_fairque.engine.users import organizations_sharded as routed

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import ResultPage
    from django_fairque.engine.queue.executor import AllShardsReader, AsyncAllShardsReader
    from django_fairque.engine.users.organizations import OrganizationStats


class OrganizationQueue:
    """One organization of one queue (``queue.organization(name)``): its members share what one user would get.

    It has a share as if it were one user, and its members share that. A user belongs to at most one:
    ``queue.user(user_id).set_organization(name)``. What is set here is set on every shard; `ShardsAwayError` names those that
    could not be told.
    """

    def __init__(self, read_all_shards: AllShardsReader, organization: str) -> None:
        self.organization = check_id(organization, "organization")
        self._read_all_shards = read_all_shards

    def _change(self, fields: dict[str, object], now: float | None) -> None:
        self._read_all_shards(lambda shards: routed.change(shards, self.organization, fields, now))

    def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """A share ``weight`` times that of a user of weight 1 (0.001 to 1000), for all members together."""
        self._change(organizations.weight_fields(weight), now)

    def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """At most this many tasks of all members together at once, on each shard; None for no limit."""
        self._change(organizations.limit_fields(number), now)

    def pause(self, *, now: float | None = None) -> None:
        """Start none of the members' tasks; pushes go on, running ones end."""
        self._change(organizations.pause_fields(paused=True), now)

    def resume(self, *, now: float | None = None) -> None:
        """Start the members' tasks again."""
        self._change(organizations.pause_fields(paused=False), now)

    def stats(self) -> OrganizationStats:
        """The organization's figures, settings and limits now."""
        return self._read_all_shards(lambda shards: routed.stats(shards, [self.organization]))[0]

    def members(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        """Its members' ids: those among the next ``limit`` users of the queue, so a page may be empty although more follow."""
        return self._read_all_shards(lambda shards: routed.members(shards, self.organization, cursor, limit))


class AsyncOrganizationQueue:
    """`OrganizationQueue`, awaited."""

    def __init__(self, read_all_shards: AsyncAllShardsReader, organization: str) -> None:
        self.organization = check_id(organization, "organization")
        self._read_all_shards = read_all_shards

    async def _change(self, fields: dict[str, object], now: float | None) -> None:
        await self._read_all_shards(lambda shards: routed.change(shards, self.organization, fields, now))

    async def set_weight(self, weight: float, *, now: float | None = None) -> None:
        await self._change(organizations.weight_fields(weight), now)

    async def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        await self._change(organizations.limit_fields(number), now)

    async def pause(self, *, now: float | None = None) -> None:
        await self._change(organizations.pause_fields(paused=True), now)

    async def resume(self, *, now: float | None = None) -> None:
        await self._change(organizations.pause_fields(paused=False), now)

    async def stats(self) -> OrganizationStats:
        return (await self._read_all_shards(lambda shards: routed.stats(shards, [self.organization])))[0]

    async def members(self, cursor: str | None = None, limit: int = 100) -> ResultPage[str]:
        return await self._read_all_shards(lambda shards: routed.members(shards, self.organization, cursor, limit))
