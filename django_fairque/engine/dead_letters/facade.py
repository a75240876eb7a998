"""``queue.dlq``: the dead letters of a queue."""

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
    from django_fairque.engine.scripting.operations import Driver, Operation
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards


class DeadLetterQueue:
    """The dead letters of one queue, returned by ``queue.dlq``.

    Most methods take ``now``, as those of the queue do. `list`, `letters`, `groups`, `matching`, `requeue_all` and
    `discard_all` take ``filters``, by name (`Filters`): ``failure_type`` (failed, expired, poisoned), ``user_id``, the
    task's ``name``, ``fingerprint``, ``older_than`` and ``newer_than`` (ages in seconds), ``moved_until`` (a Unix
    time). Without filters they concern all letters.
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
        """Return a page of entries, the oldest first.

        ``limit`` is the number of letters that are read, from 1 to 1000; 100 by default. ``cursor`` is that of the
        page before; None begins. ``filters`` leave out entries that do not match.
        """
        return self._read_all_shards(lambda shards: page(shards, limit, cursor, Filter.create(filters), now))

    def get(self, entry_id: str) -> DLQEntry:
        """Return an entry.

        ``entry_id`` is its id (``"task id~1"``). Raises `TaskNotFoundError` if it was requeued, discarded or
        forgotten.
        """
        return self._run(get(self._shards, entry_id))

    def of_task(self, task_id: str) -> DLQEntry | None:
        """Return the entry of a task; None if it is no dead letter.

        ``task_id`` is its id.
        """
        return self._run(of_task(self._shards, task_id))

    def count(self) -> int:
        """Return the number of dead letters. Raises `ShardsAwayError` if a shard can't be reached."""
        return self._read_all_shards(count)

    def counts(self) -> DLQCounts:
        """Return the number of dead letters, by failure type."""
        return self._read_all_shards(counts)

    def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """Return the dead letters grouped by fingerprint, that is, by error.

        ``look_at`` is the number of letters that are read, the oldest first, from 1 to 10,000; 1000 by default.
        ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(lambda shards: groups(shards, look_at, Filter.create(filters), now))

    def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """Return a page of letters without payloads and histories, which can be large, the oldest first.

        ``limit`` is the largest number, from 1 to 1000; 100 by default. At most 1000 letters are read. ``cursor`` is
        that of the page before; None begins. ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(lambda shards: letters_page(shards, limit, cursor, Filter.create(filters), now))

    def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """Return how many letters match ``filters``, before all of them are requeued or discarded.

        It reads at most the 4,000 oldest letters. Pass ``until`` of the result as ``moved_until`` to the next call, so
        that it leaves out letters that came later.
        """
        return self._read_all_shards(lambda shards: matching(shards, Filter.create(filters), now))

    def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        """Queue the task of an entry again, with a fresh retry budget.

        ``entry_id`` is the entry's id. ``payload`` replaces the task's payload: any JSON value, or JSON as text in
        bytes (``b"null"`` for a null); by default the payload stays.

        Returns the task's id. Raises `TaskNotFoundError` if the entry was requeued, discarded or forgotten.
        """
        return self._run(requeue(self._shards, entry_id, payload, now))

    def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        """Requeue those of these entries that are still there, in bounded slices.

        ``entry_ids`` are their ids. ``payload`` is that of `requeue`. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries of the others are requeued.
        """
        return self._write_all_shards(lambda shards: requeue_some(shards, entry_ids, payload, now))

    def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Requeue the entries that match, in bounded slices.

        ``payload`` is that of `requeue`. ``limit`` is the largest number of entries; all by default. ``filters``
        choose the entries. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries of the others are requeued, and the
        message contains their number.
        """
        return self._write_all_shards(lambda shards: requeue_all(shards, Filter.create(filters), payload, limit, now))

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Discard an entry: its task becomes CANCELED, and so do the tasks that depend on it, unless they run anyhow.

        ``entry_id`` is the entry's id. Raises `TaskNotFoundError` if it was requeued, discarded or forgotten.
        """
        self._run(discard(self._shards, entry_id, now))

    def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Discard those of these entries that are still there, in bounded slices.

        ``entry_ids`` are their ids. Returns how many were discarded. Raises `ShardsAwayError` as `requeue_many` does.
        """
        return self._write_all_shards(lambda shards: discard_some(shards, entry_ids, now))

    def discard_all(self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]) -> int:
        """Discard the entries that match, in bounded slices.

        ``limit`` is the largest number of entries; all by default. ``filters`` choose the entries. Returns how many
        were discarded. Raises `ShardsAwayError` as `requeue_all` does.
        """
        return self._write_all_shards(lambda shards: discard_all(shards, Filter.create(filters), limit, now))

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget old entries and their tasks.

        ``older_than`` is the age in seconds. Returns how many were forgotten. Raises `ShardsAwayError` as
        `requeue_all` does.
        """
        return self._write_all_shards(lambda shards: cleanup(shards, older_than, now))


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
