"""The dead letters of a queue, over its shards: the oldest of each shard, shard by shard."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters import operations as dlq
from django_fairque.engine.dead_letters import queries as dlq_looking
from django_fairque.engine.inspection.pages import check_limit
from django_fairque.engine.inspection.paging import walk
from django_fairque.engine.model.records import DLQCounts, DLQGroups, DLQMatching
from django_fairque.engine.sharding.fan_out import add_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.dead_letters.filters import Filter, Letter
    from django_fairque.engine.inspection.pages import Page
    from django_fairque.engine.model.records import DLQEntry, DLQGroup
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards


def page(shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None) -> Steps[Page[DLQEntry]]:
    def read(shard: Commands, size: int, at: str | None) -> Steps[tuple[list[DLQEntry], str | None, bool]]:
        found = yield from dlq.page(shard, size, at, only, now)
        return found.items, found.cursor, True

    check_limit(limit)
    return (yield from walk(shards, limit, cursor, read))


def letters_page(
    shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Steps[Page[Letter]]:
    def read(shard: Commands, size: int, at: str | None) -> Steps[tuple[list[Letter], str | None, bool]]:
        found = yield from dlq_looking.page(shard, size, at, only, now)
        return found.items, found.cursor, True

    check_limit(limit)
    return (yield from walk(shards, limit, cursor, read))


def get(shards: Shards, entry_id: str) -> Steps[DLQEntry]:
    return (yield from dlq.get((yield from _holder(shards, entry_id)), entry_id))


def of_task(shards: Shards, task_id: str) -> Steps[DLQEntry | None]:
    return (yield from dlq.of_task((yield from shards.of_task(task_id)), task_id))


def requeue(shards: Shards, entry_id: str, payload: Any, now: float | None) -> Steps[str]:
    return (yield from dlq.requeue((yield from _holder(shards, entry_id)), entry_id, payload, now))


def discard(shards: Shards, entry_id: str, now: float | None) -> Steps[None]:
    yield from dlq.discard((yield from _holder(shards, entry_id)), entry_id, now)


def _holder(shards: Shards, entry_id: str) -> Steps[Commands]:
    return (yield from shards.of_task(dlq.task_of(entry_id)))


def requeue_some(shards: Shards, entry_ids: Sequence[str], payload: Any, now: float | None) -> Steps[int]:
    def act(shard: Commands, some: Sequence[str]) -> Steps[int]:
        return (yield from dlq.requeue_some(shard, some, payload, now))

    return (yield from _on_each(shards, entry_ids, act, "dead letters were requeued"))


def discard_some(shards: Shards, entry_ids: Sequence[str], now: float | None) -> Steps[int]:
    def act(shard: Commands, some: Sequence[str]) -> Steps[int]:
        return (yield from dlq.discard_some(shard, some, now))

    return (yield from _on_each(shards, entry_ids, act, "dead letters were given up"))


def _on_each(
    shards: Shards, entry_ids: Sequence[str], act: Callable[[Commands, Sequence[str]], Steps[int]], done: str
) -> Steps[int]:
    if len(shards) == 1 or isinstance(entry_ids, str):
        return (yield from act(shards.home, entry_ids))
    places = yield from shards.locate(dict.fromkeys(dlq.task_of(entry_id) for entry_id in entry_ids))
    some: dict[Commands, list[str]] = {}
    for entry_id in entry_ids:
        some.setdefault(places[dlq.task_of(entry_id)], []).append(entry_id)
    return (yield from add_up(shards, lambda shard, _: act(shard, some[shard]), done, wanted=some))


def requeue_all(shards: Shards, only: Filter, payload: Any, limit: int | None, now: float | None) -> Steps[int]:
    def act(shard: Commands, most: int | None) -> Steps[int]:
        return (yield from dlq.requeue_all(shard, only, payload, most, now))

    return (yield from add_up(shards, act, "dead letters were requeued", limit))


def discard_all(shards: Shards, only: Filter, limit: int | None, now: float | None) -> Steps[int]:
    def act(shard: Commands, most: int | None) -> Steps[int]:
        return (yield from dlq.discard_all(shard, only, most, now))

    return (yield from add_up(shards, act, "dead letters were given up", limit))


def cleanup(shards: Shards, older_than: float, now: float | None) -> Steps[int]:
    return (
        yield from add_up(shards, lambda shard, _: dlq.cleanup(shard, older_than, now), "dead letters were forgotten")
    )


def count(shards: Shards) -> Steps[int]:
    total = 0
    shards.check_present("how many dead letters there are can't be told")
    for shard in shards:
        total += yield from dlq.count(shard)
    return total


def counts(shards: Shards) -> Steps[DLQCounts]:
    total: Counter[str] = Counter()
    for shard in shards:
        total.update((yield from dlq.counts(shard)))
    return DLQCounts(total, shards.missing)


def groups(shards: Shards, look_at: int, only: Filter, now: float | None) -> Steps[DLQGroups]:
    """Each shard's ``look_at`` / n oldest."""
    found: dict[str, DLQGroup] = {}
    looked_at, is_whole = 0, True
    for shard in shards:
        share = look_at if len(shards) == 1 or look_at < 1 else max(1, look_at // len(shards))
        part = yield from dlq.groups(shard, share, only, now)
        looked_at, is_whole = looked_at + part.looked_at, is_whole and part.is_whole
        for group in part.groups:
            found[group.fingerprint] = _joined(found.get(group.fingerprint), group)
    ordered = sorted(found.values(), key=lambda group: (-group.count, -group.newest, group.fingerprint))
    return DLQGroups(tuple(ordered), looked_at, is_whole and not shards.missing, shards.missing)


def _joined(left: DLQGroup | None, right: DLQGroup) -> DLQGroup:
    if left is None:
        return right
    newest = max(left, right, key=lambda group: group.newest)
    return replace(newest, count=left.count + right.count, oldest=min(left.oldest, right.oldest))


def matching(shards: Shards, only: Filter, now: float | None) -> Steps[DLQMatching]:
    parts = []
    for shard in shards:
        parts.append((yield from dlq_looking.matching(shard, only, now)))
    return DLQMatching(
        sum(part.count for part in parts),
        min(part.until for part in parts),
        sum(part.looked_at for part in parts),
        all(part.is_whole for part in parts) and not shards.missing,
        shards.missing,
    )
