"""Pages and figures over all shards."""

from __future__ import annotations

import pytest

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, read_pages, task
from tests.engine.sharding.sharded import ONE, THREE, TWO, finish_all


class TestPages:
    def test_pages_of_tasks_users_and_dead_letters_cover_all_shards(self, queue: FairQueue) -> None:
        users = [f"user-{number}" for number in range(30)]
        queue.push_batch([task(user) for user in users], now=NOW)
        assert sorted(read_pages(lambda cursor: queue.users(cursor, 7))) == sorted(users)
        assert sorted(read_pages(lambda cursor: queue.users(cursor, 7, busy_first=True))) == sorted(users)
        tasks = read_pages(lambda cursor: queue.tasks("queued", limit=7, cursor=cursor))
        assert sorted(task.user_id for task in tasks) == sorted(users)
        found, cursor = list[str](), None
        while found == [] or cursor is not None:
            part = queue.find(Search(TaskState.QUEUED), 7, cursor)
            found, cursor = found + [task.user_id for task in part.tasks], part.cursor
        assert sorted(found) == sorted(users)
        for lease in queue.pop_batch(30, "w", now=NOW):
            queue.fail(lease, "boom", retry=False, now=NOW)
        letters = read_pages(lambda cursor: queue.dlq.letters(7, cursor))
        assert sorted(letter.user_id for letter in letters) == sorted(users)
        assert sorted(e.original_task.user_id for e in read_pages(lambda c: queue.dlq.list(7, c))) == sorted(users)
        assert (queue.dlq.count(), queue.dlq.counts()["failed"], queue.dlq.matching().count) == (30, 30, 30)
        (group,) = queue.dlq.groups().groups
        assert group.count == 30
        assert queue.dlq.requeue_many([letter.entry_id for letter in letters[:5]], now=NOW) == 5
        assert queue.dlq.requeue_all(limit=10, now=NOW) == 10
        queue.dlq.discard(letters[-1].entry_id, now=NOW)
        assert queue.dlq.discard_all(now=NOW) == 14

    @pytest.mark.parametrize("cursor", ["9!0:0", "x", "-1!", "1", "99999!"])
    def test_an_invalid_page_cursor_is_refused(self, queue: FairQueue, cursor: str) -> None:
        with pytest.raises(ValueError, match="cursor must be one that an earlier page returned"):
            queue.tasks(cursor=cursor)

    def test_statistics_of_all_shards_are_added(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, ONE, TWO, THREE)])
        finish_all(queue, None)  # type: ignore[arg-type]
        stats = queue.get_stats()
        assert (stats.totals["finished"], sum(minute.finished for minute in stats.minutes)) == (4, 4)
        assert stats.wait.count == 4
        activity = queue.get_activity(2)
        assert sum(span.finished for span in activity.spans) == 4
        assert queue.health().reasons == FairQueue(queue.client, "another").health().reasons
