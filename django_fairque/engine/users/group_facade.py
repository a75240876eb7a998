"""``queue.group(name)``: what holds for a group of users, plain and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.ids import check_id
from django_fairque.engine.users import groups
from django_fairque.engine.users import groups_sharded as routed

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import Page
    from django_fairque.engine.queue.executor import AsyncSurvey, Survey
    from django_fairque.engine.users.groups import GroupStats


class GroupQueue:
    """One group of users of one queue (``queue.group(name)``): an organisation, however many of its people send tasks.

    It has a share as if it were one user, and its members share that. A user belongs to at most one:
    ``queue.user(user_id).set_group(name)``. What is set here is set on every shard; `ShardsAwayError` names those that
    could not be told.
    """

    def __init__(self, survey: Survey, group: str) -> None:
        self.group = check_id(group, "group")
        self._survey = survey

    def _change(self, fields: dict[str, object], now: float | None) -> None:
        self._survey(lambda shards: routed.change(shards, self.group, fields, now))

    def set_weight(self, weight: float, *, now: float | None = None) -> None:
        """A share ``weight`` times that of a user of weight 1 (0.001 to 1000), for all members together."""
        self._change(groups.weight_fields(weight), now)

    def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        """At most this many tasks of all members together at once, on each shard; None for no limit."""
        self._change(groups.limit_fields(number), now)

    def pause(self, *, now: float | None = None) -> None:
        """Start none of the members' tasks; pushes go on, running ones end."""
        self._change(groups.pause_fields(paused=True), now)

    def resume(self, *, now: float | None = None) -> None:
        """Start the members' tasks again."""
        self._change(groups.pause_fields(paused=False), now)

    def stats(self) -> GroupStats:
        """The group's figures, settings and limits now."""
        return self._survey(lambda shards: routed.stats(shards, [self.group]))[0]

    def members(self, cursor: str | None = None, limit: int = 100) -> Page[str]:
        """Its members' ids: those among the next ``limit`` users of the queue, so a page may be empty although more follow."""
        return self._survey(lambda shards: routed.members(shards, self.group, cursor, limit))


class AsyncGroupQueue:
    """`GroupQueue`, awaited."""

    def __init__(self, survey: AsyncSurvey, group: str) -> None:
        self.group = check_id(group, "group")
        self._survey = survey

    async def _change(self, fields: dict[str, object], now: float | None) -> None:
        await self._survey(lambda shards: routed.change(shards, self.group, fields, now))

    async def set_weight(self, weight: float, *, now: float | None = None) -> None:
        await self._change(groups.weight_fields(weight), now)

    async def set_max_running(self, number: int | None, *, now: float | None = None) -> None:
        await self._change(groups.limit_fields(number), now)

    async def pause(self, *, now: float | None = None) -> None:
        await self._change(groups.pause_fields(paused=True), now)

    async def resume(self, *, now: float | None = None) -> None:
        await self._change(groups.pause_fields(paused=False), now)

    async def stats(self) -> GroupStats:
        return (await self._survey(lambda shards: routed.stats(shards, [self.group])))[0]

    async def members(self, cursor: str | None = None, limit: int = 100) -> Page[str]:
        return await self._survey(lambda shards: routed.members(shards, self.group, cursor, limit))
