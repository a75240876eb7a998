"""``queue.dlq``: the dead letters of a queue, plain and awaited."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters import operations as dlq
from django_fairque.engine.dead_letters.letters import DLQCounts, DLQGroups, DLQMatching, Filter, Letter
from django_fairque.engine.inspection.pages import check_limit, read_page
from django_fairque.engine.sharding.shards import sum_over_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Unpack

    from django_fairque.engine.dead_letters.letters import (
        DLQEntry,
        DLQGroup,
        Filters,
        Letter,
    )
    from django_fairque.engine.inspection.pages import ResultPage
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import AsyncDriver, Driver, Operation
    from django_fairque.engine.sharding.shards import AllShardsReader, AsyncAllShardsReader, Shards


class DeadLetterQueue:
    """The dead letters of one queue (``queue.dlq``).

    The filters of `list`, `letters`, `groups`, `matching`, `requeue_all` and `discard_all` (see `Filters`):
    ``failure_type`` (failed, expired, poisoned), ``user_id``, task's ``name``, ``fingerprint``, ``older_than`` and
    ``newer_than`` (seconds), ``moved_until`` (a moment).
    """

    def __init__(
        self, shards: Shards, run: Driver, read_all_shards: AllShardsReader, write_all_shards: AllShardsReader
    ) -> None:
        self._shards, self._run, self._read_all_shards, self._write_all_shards = (
            shards,
            run,
            read_all_shards,
            write_all_shards,
        )

    def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[DLQEntry]:
        """A page of entries, the oldest first; the filters leave out what does not match."""
        return self._read_all_shards(lambda shards: page(shards, limit, cursor, Filter.create(filters), now))

    def get(self, entry_id: str) -> DLQEntry:
        """The entry of that id; `TaskNotFoundError` when it was requeued, discarded or forgotten."""
        return self._run(get(self._shards, entry_id))

    def of_task(self, task_id: str) -> DLQEntry | None:
        """The entry of a task; None when it is no dead letter."""
        return self._run(of_task(self._shards, task_id))

    def count(self) -> int:
        """Return the number of dead letters; raise `ShardsAwayError` if a shard can't be reached."""
        return self._read_all_shards(count)

    def counts(self) -> DLQCounts:
        """How many lie there, by failure type."""
        return self._read_all_shards(counts)

    def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """What they died of: letters of one fingerprint together, among the ``look_at`` oldest (at most 10,000)."""
        return self._read_all_shards(lambda shards: groups(shards, look_at, Filter.create(filters), now))

    def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """`list` without payloads and histories, which can be large; at most 1000 letters are looked at."""
        return self._read_all_shards(lambda shards: letters_page(shards, limit, cursor, Filter.create(filters), now))

    def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """How many match, before something is done to all of them; looks at the 4,000 oldest."""
        return self._read_all_shards(lambda shards: matching(shards, Filter.create(filters), now))

    def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        """Another chance, with a fresh retry budget and, if given, another payload; returns the task's id.

        Here and in the next two: ``payload`` is any JSON value, or JSON as text in bytes (``b"null"`` is how to send a null);
        None keeps the payload as it is.
        """
        return self._run(requeue(self._shards, entry_id, payload, now))

    def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        """Requeue those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return self._write_all_shards(lambda shards: requeue_some(shards, entry_ids, payload, now))

    def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Requeue every entry that matches (at most ``limit``), in bounded slices; returns how many.

        Here, in `discard_all` and in `cleanup`, `ShardsAwayError` says that some shards can't be reached; on the others it
        is done, and the text says to how many.
        """
        return self._write_all_shards(lambda shards: requeue_all(shards, Filter.create(filters), payload, limit, now))

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Give an entry up: its task becomes CANCELED, and so does what waits for it."""
        self._run(discard(self._shards, entry_id, now))

    def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Give up those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return self._write_all_shards(lambda shards: discard_some(shards, entry_ids, now))

    def discard_all(self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]) -> int:
        """Give up every entry that matches (at most ``limit``), in bounded slices; returns how many."""
        return self._write_all_shards(lambda shards: discard_all(shards, Filter.create(filters), limit, now))

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget entries that were moved more than ``older_than`` seconds ago; returns how many."""
        return self._write_all_shards(lambda shards: cleanup(shards, older_than, now))


class AsyncDeadLetterQueue:
    # Generated from `DeadLetterQueue` by python -m tests.async_classes.
    """The dead letters of one queue (``queue.dlq``).

    The filters of `list`, `letters`, `groups`, `matching`, `requeue_all` and `discard_all` (see `Filters`):
    ``failure_type`` (failed, expired, poisoned), ``user_id``, task's ``name``, ``fingerprint``, ``older_than`` and
    ``newer_than`` (seconds), ``moved_until`` (a moment).
    """

    def __init__(
        self,
        shards: Shards,
        run: AsyncDriver,
        read_all_shards: AsyncAllShardsReader,
        write_all_shards: AsyncAllShardsReader,
    ) -> None:
        self._shards, self._run, self._read_all_shards, self._write_all_shards = (
            shards,
            run,
            read_all_shards,
            write_all_shards,
        )

    async def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[DLQEntry]:
        """A page of entries, the oldest first; the filters leave out what does not match."""
        return await self._read_all_shards(lambda shards: page(shards, limit, cursor, Filter.create(filters), now))

    async def get(self, entry_id: str) -> DLQEntry:
        """The entry of that id; `TaskNotFoundError` when it was requeued, discarded or forgotten."""
        return await self._run(get(self._shards, entry_id))

    async def of_task(self, task_id: str) -> DLQEntry | None:
        """The entry of a task; None when it is no dead letter."""
        return await self._run(of_task(self._shards, task_id))

    async def count(self) -> int:
        """Return the number of dead letters; raise `ShardsAwayError` if a shard can't be reached."""
        return await self._read_all_shards(count)

    async def counts(self) -> DLQCounts:
        """How many lie there, by failure type."""
        return await self._read_all_shards(counts)

    async def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """What they died of: letters of one fingerprint together, among the ``look_at`` oldest (at most 10,000)."""
        return await self._read_all_shards(lambda shards: groups(shards, look_at, Filter.create(filters), now))

    async def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """`list` without payloads and histories, which can be large; at most 1000 letters are looked at."""
        return await self._read_all_shards(
            lambda shards: letters_page(shards, limit, cursor, Filter.create(filters), now)
        )

    async def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """How many match, before something is done to all of them; looks at the 4,000 oldest."""
        return await self._read_all_shards(lambda shards: matching(shards, Filter.create(filters), now))

    async def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        """Another chance, with a fresh retry budget and, if given, another payload; returns the task's id.

        Here and in the next two: ``payload`` is any JSON value, or JSON as text in bytes (``b"null"`` is how to send a null);
        None keeps the payload as it is.
        """
        return await self._run(requeue(self._shards, entry_id, payload, now))

    async def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        """Requeue those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return await self._write_all_shards(lambda shards: requeue_some(shards, entry_ids, payload, now))

    async def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Requeue every entry that matches (at most ``limit``), in bounded slices; returns how many.

        Here, in `discard_all` and in `cleanup`, `ShardsAwayError` says that some shards can't be reached; on the others it
        is done, and the text says to how many.
        """
        return await self._write_all_shards(
            lambda shards: requeue_all(shards, Filter.create(filters), payload, limit, now)
        )

    async def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Give an entry up: its task becomes CANCELED, and so does what waits for it."""
        await self._run(discard(self._shards, entry_id, now))

    async def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Give up those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return await self._write_all_shards(lambda shards: discard_some(shards, entry_ids, now))

    async def discard_all(
        self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Give up every entry that matches (at most ``limit``), in bounded slices; returns how many."""
        return await self._write_all_shards(lambda shards: discard_all(shards, Filter.create(filters), limit, now))

    async def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget entries that were moved more than ``older_than`` seconds ago; returns how many."""
        return await self._write_all_shards(lambda shards: cleanup(shards, older_than, now))


def page(
    shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[DLQEntry]]:
    def read(shard: Commands, size: int, at: str | None) -> Operation[tuple[list[DLQEntry], str | None, bool]]:
        found = yield from dlq.page(shard, size, at, only, now)
        return found.items, found.cursor, True

    check_limit(limit)
    return (yield from read_page(shards, limit, cursor, read))


def letters_page(
    shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[Letter]]:
    def read(shard: Commands, size: int, at: str | None) -> Operation[tuple[list[Letter], str | None, bool]]:
        found = yield from dlq.letters_page(shard, size, at, only, now)
        return found.items, found.cursor, True

    check_limit(limit)
    return (yield from read_page(shards, limit, cursor, read))


def get(shards: Shards, entry_id: str) -> Operation[DLQEntry]:
    return (yield from dlq.get((yield from _holder(shards, entry_id)), entry_id))


def of_task(shards: Shards, task_id: str) -> Operation[DLQEntry | None]:
    return (yield from dlq.of_task((yield from shards.of_task(task_id)), task_id))


def requeue(shards: Shards, entry_id: str, payload: Any, now: float | None) -> Operation[str]:
    return (yield from dlq.requeue((yield from _holder(shards, entry_id)), entry_id, payload, now))


def discard(shards: Shards, entry_id: str, now: float | None) -> Operation[None]:
    yield from dlq.discard((yield from _holder(shards, entry_id)), entry_id, now)


def _holder(shards: Shards, entry_id: str) -> Operation[Commands]:
    return (yield from shards.of_task(dlq.task_of(entry_id)))


def requeue_some(shards: Shards, entry_ids: Sequence[str], payload: Any, now: float | None) -> Operation[int]:
    def act(shard: Commands, some: Sequence[str]) -> Operation[int]:
        return (yield from dlq.requeue_some(shard, some, payload, now))

    return (yield from _on_each(shards, entry_ids, act, "dead letters were requeued"))


def discard_some(shards: Shards, entry_ids: Sequence[str], now: float | None) -> Operation[int]:
    def act(shard: Commands, some: Sequence[str]) -> Operation[int]:
        return (yield from dlq.discard_some(shard, some, now))

    return (yield from _on_each(shards, entry_ids, act, "dead letters were given up"))


def _on_each(
    shards: Shards, entry_ids: Sequence[str], act: Callable[[Commands, Sequence[str]], Operation[int]], done: str
) -> Operation[int]:
    if len(shards) == 1 or isinstance(entry_ids, str):
        return (yield from act(shards.home, entry_ids))
    places = yield from shards.locate(dict.fromkeys(dlq.task_of(entry_id) for entry_id in entry_ids))
    some: dict[Commands, list[str]] = {}
    for entry_id in entry_ids:
        some.setdefault(places[dlq.task_of(entry_id)], []).append(entry_id)
    return (yield from sum_over_shards(shards, lambda shard, _: act(shard, some[shard]), done, wanted=some))


def requeue_all(shards: Shards, only: Filter, payload: Any, limit: int | None, now: float | None) -> Operation[int]:
    def act(shard: Commands, most: int | None) -> Operation[int]:
        return (yield from dlq.requeue_all(shard, only, payload, most, now))

    return (yield from sum_over_shards(shards, act, "dead letters were requeued", limit))


def discard_all(shards: Shards, only: Filter, limit: int | None, now: float | None) -> Operation[int]:
    def act(shard: Commands, most: int | None) -> Operation[int]:
        return (yield from dlq.discard_all(shard, only, most, now))

    return (yield from sum_over_shards(shards, act, "dead letters were given up", limit))


def cleanup(shards: Shards, older_than: float, now: float | None) -> Operation[int]:
    return (
        yield from sum_over_shards(
            shards, lambda shard, _: dlq.cleanup(shard, older_than, now), "dead letters were forgotten"
        )
    )


def count(shards: Shards) -> Operation[int]:
    total = 0
    shards.check_present("the dead letters can't be counted")
    for shard in shards:
        total += yield from dlq.count(shard)
    return total


def counts(shards: Shards) -> Operation[DLQCounts]:
    total: Counter[str] = Counter()
    for shard in shards:
        total.update((yield from dlq.counts(shard)))
    return DLQCounts(total, shards.missing)


def groups(shards: Shards, look_at: int, only: Filter, now: float | None) -> Operation[DLQGroups]:
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


def matching(shards: Shards, only: Filter, now: float | None) -> Operation[DLQMatching]:
    parts = []
    for shard in shards:
        parts.append((yield from dlq.matching(shard, only, now)))
    return DLQMatching(
        sum(part.count for part in parts),
        min(part.until for part in parts),
        sum(part.looked_at for part in parts),
        all(part.is_whole for part in parts) and not shards.missing,
        shards.missing,
    )
