"""``queue.dlq``: the dead letters of a queue, plain and awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters import sharded as routed
from django_fairque.engine.dead_letters.filters import Filter, Filters, Letter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from django_fairque.engine.inspection.pages import Page
    from django_fairque.engine.model.records import DLQCounts, DLQEntry, DLQGroups, DLQMatching
    from django_fairque.engine.queue.executor import AsyncSurvey, Survey
    from django_fairque.engine.scripting.operations import AsyncRun, Run
    from django_fairque.engine.sharding.shards import Shards


class DeadLetters:
    """The dead letters of one queue (``queue.dlq``).

    The filters of `list`, `letters`, `groups`, `matching`, `requeue_all` and `discard_all` (see `Filters`):
    ``failure_type`` (failed, expired, poisoned), ``user_id``, task's ``name``, ``fingerprint``, ``older_than`` and
    ``newer_than`` (seconds), ``moved_until`` (a moment).
    """

    def __init__(self, shards: Shards, run: Run, survey: Survey, reach: Survey) -> None:
        self._shards, self._run, self._survey, self._reach = shards, run, survey, reach

    def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> Page[DLQEntry]:
        """A page of entries, the oldest first; the filters leave out what does not match."""
        return self._survey(lambda shards: routed.page(shards, limit, cursor, Filter.create(filters), now))

    def get(self, entry_id: str) -> DLQEntry:
        """The entry of that id; `TaskNotFoundError` when it was requeued, discarded or forgotten."""
        return self._run(routed.get(self._shards, entry_id))

    def of_task(self, task_id: str) -> DLQEntry | None:
        """The entry of a task; None when it is no dead letter."""
        return self._run(routed.of_task(self._shards, task_id))

    def count(self) -> int:
        """How many lie there; `ShardsAwayError` when that can't be told of all shards."""
        return self._survey(routed.count)

    def counts(self) -> DLQCounts:
        """How many lie there, by failure type."""
        return self._survey(routed.counts)

    def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """What they died of: letters of one fingerprint together, among the ``look_at`` oldest (at most 10,000)."""
        return self._survey(lambda shards: routed.groups(shards, look_at, Filter.create(filters), now))

    def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> Page[Letter]:
        """`list` without payloads and histories, which can be large; at most 1000 letters are looked at."""
        return self._survey(lambda shards: routed.letters_page(shards, limit, cursor, Filter.create(filters), now))

    def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """How many match, before something is done to all of them; looks at the 4,000 oldest."""
        return self._survey(lambda shards: routed.matching(shards, Filter.create(filters), now))

    def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        """Another chance, with a fresh retry budget and, if given, another payload; returns the task's id.

        Here and in the next two: ``payload`` is any JSON value, or JSON as text in bytes (``b"null"`` is how to send a null);
        None keeps the payload as it is.
        """
        return self._run(routed.requeue(self._shards, entry_id, payload, now))

    def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        """Requeue those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return self._reach(lambda shards: routed.requeue_some(shards, entry_ids, payload, now))

    def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        """Requeue every entry that matches (at most ``limit``), in bounded slices; returns how many.

        Here, in `discard_all` and in `cleanup`, `ShardsAwayError` says that some shards can't be reached; on the others it
        is done, and the text says to how many.
        """
        return self._reach(lambda shards: routed.requeue_all(shards, Filter.create(filters), payload, limit, now))

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Give an entry up: its task becomes CANCELED, and so does what waits for it."""
        self._run(routed.discard(self._shards, entry_id, now))

    def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Give up those of these that are still there; returns how many. `ShardsAwayError` as of `requeue_all`."""
        return self._reach(lambda shards: routed.discard_some(shards, entry_ids, now))

    def discard_all(self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]) -> int:
        """Give up every entry that matches (at most ``limit``), in bounded slices; returns how many."""
        return self._reach(lambda shards: routed.discard_all(shards, Filter.create(filters), limit, now))

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget entries that were moved more than ``older_than`` seconds ago; returns how many."""
        return self._reach(lambda shards: routed.cleanup(shards, older_than, now))


class AsyncDeadLetters:
    """`DeadLetters`, awaited."""

    def __init__(self, shards: Shards, run: AsyncRun, survey: AsyncSurvey, reach: AsyncSurvey) -> None:
        self._shards, self._run, self._survey, self._reach = shards, run, survey, reach

    async def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> Page[DLQEntry]:
        return await self._survey(lambda shards: routed.page(shards, limit, cursor, Filter.create(filters), now))

    async def get(self, entry_id: str) -> DLQEntry:
        return await self._run(routed.get(self._shards, entry_id))

    async def of_task(self, task_id: str) -> DLQEntry | None:
        return await self._run(routed.of_task(self._shards, task_id))

    async def count(self) -> int:
        return await self._survey(routed.count)

    async def counts(self) -> DLQCounts:
        return await self._survey(routed.counts)

    async def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        return await self._survey(lambda shards: routed.groups(shards, look_at, Filter.create(filters), now))

    async def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> Page[Letter]:
        return await self._survey(
            lambda shards: routed.letters_page(shards, limit, cursor, Filter.create(filters), now)
        )

    async def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        return await self._survey(lambda shards: routed.matching(shards, Filter.create(filters), now))

    async def requeue(self, entry_id: str, payload: Any = None, *, now: float | None = None) -> str:
        return await self._run(routed.requeue(self._shards, entry_id, payload, now))

    async def requeue_many(self, entry_ids: Sequence[str], payload: Any = None, *, now: float | None = None) -> int:
        return await self._reach(lambda shards: routed.requeue_some(shards, entry_ids, payload, now))

    async def requeue_all(
        self, payload: Any = None, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        return await self._reach(lambda shards: routed.requeue_all(shards, Filter.create(filters), payload, limit, now))

    async def discard(self, entry_id: str, *, now: float | None = None) -> None:
        await self._run(routed.discard(self._shards, entry_id, now))

    async def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        return await self._reach(lambda shards: routed.discard_some(shards, entry_ids, now))

    async def discard_all(
        self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]
    ) -> int:
        return await self._reach(lambda shards: routed.discard_all(shards, Filter.create(filters), limit, now))

    async def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        return await self._reach(lambda shards: routed.cleanup(shards, older_than, now))
