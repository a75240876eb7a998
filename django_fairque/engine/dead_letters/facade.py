"""``queue.dlq``: the dead letters of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters import operations as dlq
from django_fairque.engine.dead_letters.letters import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from django_fairque.engine.dead_letters.letters import DLQCounts, DLQEntry, DLQGroups, DLQMatching, Filters, Letter
    from django_fairque.engine.inspection.pages import ResultPage
    from django_fairque.engine.scripting.operations import Driver
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
        self._shards, self._run = shards, run
        self._read_all_shards, self._write_all_shards = read_all_shards, write_all_shards

    def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[DLQEntry]:
        """Return a page of entries, the oldest first.

        ``limit`` is the number of letters that are read, from 1 to 1000; 100 by default. ``cursor`` is that of the
        page before; None begins. ``filters`` leave out entries that do not match.
        """
        return self._read_all_shards(lambda shards: dlq.page(shards, limit, cursor, Filter.create(filters), now))

    def get(self, entry_id: str) -> DLQEntry:
        """Return an entry.

        ``entry_id`` is its id (``"task id~1"``). Raises `TaskNotFoundError` if it was requeued, discarded or
        forgotten.
        """
        return self._run(dlq.get(self._shards, entry_id))

    def of_task(self, task_id: str) -> DLQEntry | None:
        """Return the entry of a task; None if it is no dead letter.

        ``task_id`` is its id.
        """
        return self._run(dlq.of_task(self._shards, task_id))

    def count(self) -> int:
        """Return the number of dead letters. Raises `ShardsAwayError` if a shard can't be reached."""
        return self._read_all_shards(dlq.count)

    def counts(self) -> DLQCounts:
        """Return the number of dead letters, by failure type."""
        return self._read_all_shards(dlq.counts)

    def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """Return the dead letters grouped by fingerprint, that is, by error.

        ``look_at`` is the number of letters that are read, the oldest first, from 1 to 10,000; 1000 by default.
        ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(lambda shards: dlq.groups(shards, look_at, Filter.create(filters), now))

    def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """Return a page of letters without payloads and histories, which can be large, the oldest first.

        ``limit`` is the largest number, from 1 to 1000; 100 by default. At most 1000 letters are read. ``cursor`` is
        that of the page before; None begins. ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(
            lambda shards: dlq.letters_page(shards, limit, cursor, Filter.create(filters), now)
        )

    def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """Return how many letters match ``filters``, before all of them are requeued or discarded.

        It reads at most the 4,000 oldest letters. Pass ``until`` of the result as ``moved_until`` to the next call, so
        that it leaves out letters that came later.
        """
        return self._read_all_shards(lambda shards: dlq.matching(shards, Filter.create(filters), now))

    def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        """Queue the task of an entry again, with a fresh retry budget.

        ``entry_id`` is the entry's id. ``payload`` replaces the task's payload: any JSON value, or JSON as text in
        bytes (``b"null"`` for a null); by default the payload stays.

        Returns the task's id. Raises `TaskNotFoundError` if the entry was requeued, discarded or forgotten.
        """
        return self._run(dlq.requeue(self._shards, entry_id, payload, now))

    def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        """Requeue those of these entries that are still there, in bounded slices.

        ``entry_ids`` are their ids. ``payload`` is that of `requeue`. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries of the others are requeued.
        """
        return self._write_all_shards(lambda shards: dlq.requeue_some(shards, entry_ids, payload, now))

    def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Requeue the entries that match, in bounded slices.

        ``payload`` is that of `requeue`. ``limit`` is the largest number of entries; all by default. ``filters``
        choose the entries. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries of the others are requeued, and the
        message contains their number.
        """
        return self._write_all_shards(
            lambda shards: dlq.requeue_all(shards, Filter.create(filters), payload, limit, now)
        )

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Discard an entry: its task becomes CANCELED, and so do the tasks that depend on it, unless they run anyhow.

        ``entry_id`` is the entry's id. Raises `TaskNotFoundError` if it was requeued, discarded or forgotten.
        """
        self._run(dlq.discard(self._shards, entry_id, now))

    def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Discard those of these entries that are still there, in bounded slices.

        ``entry_ids`` are their ids. Returns how many were discarded. Raises `ShardsAwayError` as `requeue_many` does.
        """
        return self._write_all_shards(lambda shards: dlq.discard_some(shards, entry_ids, now))

    def discard_all(self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]) -> int:
        """Discard the entries that match, in bounded slices.

        ``limit`` is the largest number of entries; all by default. ``filters`` choose the entries. Returns how many
        were discarded. Raises `ShardsAwayError` as `requeue_all` does.
        """
        return self._write_all_shards(lambda shards: dlq.discard_all(shards, Filter.create(filters), limit, now))

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget old entries and their tasks.

        ``older_than`` is the age in seconds. Returns how many were forgotten. Raises `ShardsAwayError` as
        `requeue_all` does.
        """
        return self._write_all_shards(lambda shards: dlq.cleanup(shards, older_than, now))
