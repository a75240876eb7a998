"""Organizations over the shards: each shard that has members of an organization has its own record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import PartialList, ResultPage, check_limit
from django_fairque.engine.model.ids import check_ids
from django_fairque.engine.queue.read_operations import user_names
from django_fairque.engine.scripting.operations import read_each, read_sound
from django_fairque.engine.users import organizations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.users.organizations import OrganizationStats


def change(shards: Shards, organization: str, fields: Mapping[str, object], now: float | None) -> Operation[None]:
    """On the shards that can be reached, then `ShardsAwayError` for the others."""
    for shard in shards:
        yield from organizations.change(shard, organization, fields, now)
    shards.check_present(f"organization {organization!r} was changed without some")


def stats(shards: Shards, names: Sequence[str]) -> Operation[PartialList[OrganizationStats]]:
    """In order, in one round trip."""
    names = check_ids(names, "organizations")
    parts = [[("HGETALL", shard.keys.organization(name)) for shard in shards] for name in names]
    found = (yield from read_each(parts, only_sound=True)) if parts else []
    each = [
        organizations.combine_records(name, records, shards.missing) for name, records in zip(names, found, strict=True)
    ]
    return PartialList(each, shards.missing)


def members(shards: Shards, organization: str, cursor: str | None, limit: int) -> Operation[ResultPage[str]]:
    """Of a page of the queue's users those whose record names the organization, in one more round trip."""
    users = yield from user_names(shards, cursor, limit, busy_first=True)
    keys = shards.across().keys
    reads = [("HGET", keys.user(name), "group") for name in users.items]
    found = (yield from read_sound(reads)) if reads else []
    wanted = organization.encode()
    items = [name for name, named in zip(users.items, found, strict=True) if named == wanted]
    return ResultPage(items, users.cursor, users.missing_shards)


def page(shards: Shards, cursor: str | None, limit: int) -> Operation[ResultPage[str]]:
    """In the order of their names' bytes, each once."""
    check_limit(limit)
    after = organizations.check_cursor(cursor)
    found = yield from read_each(
        [[("ZRANGE", shard.keys("groups"), after, "+", "BYLEX", "LIMIT", 0, limit)] for shard in shards]
    )
    names = sorted({name for (members,) in found for name in members})[:limit]
    is_last = len(names) < limit
    items = [name.decode() for name in names]
    return ResultPage(items, None if is_last else items[-1], shards.missing)
