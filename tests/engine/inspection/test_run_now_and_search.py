"""Tasks that are made to wait no longer, and looking for tasks; invariants are checked after each test."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.inspection.search import MatchingTasks, Search
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Undecodable
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands, counted
from tests.engine.conftest import NOW, pop, push_many, task
from tests.stored_tasks import replace_payload


def test_a_scheduled_task_can_be_run_now(queue: FairQueue) -> None:
    queue.push(task("u", task_id="later", execute_after=NOW + 3600), now=NOW)
    assert queue.pop("w", now=NOW) is None
    assert queue.run_now("later", now=NOW + 1)
    assert pop(queue, NOW + 1).task_id == "later"
    assert queue.get_task("later").execute_after == NOW + 1


def test_running_a_task_now_changes_only_scheduled_tasks(queue: FairQueue) -> None:
    queue.push(task("u", task_id="a"), now=NOW)
    queue.push(task("u", task_id="b", depends_on=["a"]), now=NOW)
    assert not queue.run_now("a", now=NOW)
    assert not queue.run_now("b", now=NOW)
    assert not queue.run_now("nobody", now=NOW)


def test_many_scheduled_tasks_can_be_run_now_in_one_call(queue: FairQueue) -> None:
    ids = push_many(queue, "u", 450, execute_after=NOW + 3600)
    assert queue.run_now(*ids, ids[0], "nobody", now=NOW) == 450
    assert queue.run_now(*ids, now=NOW) == 0
    assert queue.get_queue_sizes("u").ready == 450


def test_a_deferred_task_can_be_run_before_its_dependencies_finish(queue: FairQueue) -> None:
    queue.push_graph([task(task_id="a"), task(task_id="b"), task(task_id="c", depends_on=["a", "b"])], now=NOW)
    assert not queue.ignore_dependencies("a", now=NOW)
    assert queue.ignore_dependencies("c", now=NOW)
    assert queue.get_task("c").state is TaskState.QUEUED
    assert queue.dependencies("a").waiting_count == 0
    assert queue.cancel("a", now=NOW)
    assert queue.get_task("c").state is TaskState.QUEUED, "it depends on nothing any more"
    assert queue.parent_results("c") == {}


def test_an_unknown_task_can_not_ignore_its_dependencies(queue: FairQueue) -> None:
    with pytest.raises(TaskNotFoundError, match="'c'"):
        queue.ignore_dependencies("c", now=NOW)


def test_a_deferred_task_still_waits_for_its_time(queue: FairQueue) -> None:
    queue.push(task(task_id="a"), now=NOW)
    queue.push(task(task_id="b", depends_on=["a"], execute_after=NOW + 60), now=NOW)
    assert queue.ignore_dependencies("b", now=NOW)
    assert queue.get_task("b").state is TaskState.SCHEDULED


def test_an_expired_scheduled_task_becomes_a_dead_letter_when_it_is_run_now(queue: FairQueue) -> None:
    queue.push(task(task_id="a", execute_after=NOW + 60, expires_at=NOW + 70), now=NOW)
    assert queue.run_now("a", now=NOW + 80)
    assert queue.get_task("a").state is TaskState.FAILED


def test_the_reason_of_a_wait_is_read_in_few_commands(queue: FairQueue, redis: Redis) -> None:
    push_many(queue, "a", 3000)
    (last,) = push_many(queue, "b", 1)
    queue.wait_reason(last)
    assert sum(stat["calls"] for stat in counted(redis, lambda: queue.wait_reason(last)).values()) <= 17
    standing = queue.wait_reason(last)
    assert (standing.users_before, standing.position, standing.lease_ends_at) == (1, 0, None)
    with pytest.raises(TaskNotFoundError, match="'nobody'"):
        queue.wait_reason("nobody")


class TestFind:
    def test_a_search_filters_tasks_by_user_and_name(self, queue: FairQueue) -> None:
        for user, name in (("a", "x"), ("b", "x"), ("a", "y")):
            queue.push(task(user, name=name, task_id=user + name), now=NOW)

        def ids(**filters: str) -> list[str]:
            search = Search(TaskState.QUEUED, filters.get("user_id"), filters.get("name"))
            return [task.task_id for task in queue.find(search).tasks]

        assert ids() == ["ax", "bx", "ay"]
        assert ids(user_id="a") == ["ax", "ay"]
        assert ids(name="x") == ["ax", "bx"]
        assert ids(user_id="a", name="x") == ["ax"]
        assert ids(user_id="c") == []
        assert queue.find(Search(TaskState.SCHEDULED)).tasks == ()

    def test_pages_list_each_task_once_as_some_leave(self, queue: FairQueue) -> None:
        ids = push_many(queue, "u", 30)
        first = queue.find(Search(TaskState.QUEUED), limit=10)
        assert [task.task_id for task in first.tasks] == ids[:10]
        queue.cancel_many(ids[:5], now=NOW)
        second = queue.find(Search(TaskState.QUEUED), limit=10, cursor=first.cursor)
        assert [task.task_id for task in second.tasks] == ids[10:20]
        queue.cancel(ids[19], now=NOW)
        third = queue.find(Search(TaskState.QUEUED), limit=20, cursor=second.cursor)
        assert [task.task_id for task in third.tasks] == ids[20:]
        assert third.cursor is None

    def test_a_search_returns_the_newest_tasks_first(self, queue: FairQueue) -> None:
        ids = push_many(queue, "u", 9)
        for number, task_id in enumerate(ids):
            queue.cancel(task_id, now=NOW + number)
        search = Search(TaskState.CANCELED, newest_first=True)
        first = queue.find(search, 4)
        second = queue.find(search, 4, first.cursor)
        late = queue.push(task("u"), now=NOW + 20).task_id
        queue.cancel(late, now=NOW + 20)  # comes before the pages that were read
        third = queue.find(search, 4, second.cursor)
        assert [task.task_id for part in (first, second, third) for task in part.tasks] == ids[::-1]
        assert third.cursor is None

    def test_tasks_of_all_states_are_found_newest_first(self, queue: FairQueue) -> None:
        done, running, waiting = push_many(queue, "u", 3)
        queue.finish(pop(queue), now=NOW + 2)
        pop(queue, now=NOW + 3)
        other = queue.push(task("v", execute_after=NOW + 1000), now=NOW + 4).task_id
        found = queue.find(Search(None))
        assert [task.task_id for task in found.tasks] == [other, running, done, waiting]
        assert (found.looked_at, found.cursor) == (4, None)
        assert [task.task_id for task in queue.find(Search(None, "v")).tasks] == [other]
        assert len(queue.find(Search(None), 2).tasks) == 2
        with pytest.raises(TaskValidationError, match="cursor must be one that an earlier page returned"):
            queue.find(Search(None), cursor="0:0")
        with pytest.raises(TaskValidationError, match="give Search a state"):
            queue.matching(Search(None))

    def test_a_search_returns_payloads_up_to_a_size(self, queue: FairQueue, redis: Redis) -> None:
        for task_id, payload in (("small", {"a": 1}), ("large", "x" * 100), ("broken", 1)):
            queue.push(task("u", payload=payload, task_id=task_id), now=NOW)
        for task_id in ("gone", "wrong"):  # tasks of this priority have records from the start
            queue.push(task("u", priority=6, payload=1, task_id=task_id), now=NOW)
        replace_payload(redis, "broken", b"{")
        redis.delete("fq:{default:0}:payload:gone", "fq:{default:0}:payload:wrong")
        redis.lpush("fq:{default:0}:payload:wrong", "x")
        found = {task.task_id: task.payload for task in queue.find(Search(TaskState.QUEUED, payload_bytes=50)).tasks}
        assert found["small"] == {"a": 1}
        assert found["large"].error.endswith(" bytes are not read here")
        assert all(isinstance(found[task_id], Undecodable) for task_id in ("broken", "gone", "wrong"))
        assert queue.find(Search(TaskState.QUEUED)).tasks[0].payload is None
        redis.delete("fq:{default:0}:payload:wrong")  # its own type again, for the check after the test
        for task_id in ("gone", "wrong"):
            redis.set(f"fq:{{default:0}}:payload:{task_id}", b"null")

    def test_a_search_reads_at_most_as_many_tasks_as_its_limit(self, queue: FairQueue) -> None:
        push_many(queue, "u", 500)
        queue.push(task("rare"), now=NOW)
        rare = Search(TaskState.QUEUED, "rare", look_at=300)
        found = queue.find(rare)
        assert (found.tasks, found.looked_at) == ((), 300)
        found = queue.find(rare, cursor=found.cursor)
        assert (len(found.tasks), found.looked_at, found.cursor) == (1, 201, None)

    def test_all_matching_tasks_are_returned_as_ids(self, queue: FairQueue, redis: Redis) -> None:
        others, mine = push_many(queue, "u", 700), push_many(queue, "me", 20)
        assert queue.matching(Search(TaskState.QUEUED)) == MatchingTasks([*others, *mine], is_whole=True)
        assert queue.matching(Search(TaskState.QUEUED, "me")) == MatchingTasks(mine, is_whole=True)
        assert queue.matching(Search(TaskState.QUEUED, "me", look_at=705)) == MatchingTasks(mine[:5], is_whole=False)
        assert queue.matching(Search(TaskState.QUEUED, look_at=720)) == MatchingTasks([*others, *mine], is_whole=False)
        assert queue.matching(Search(TaskState.QUEUED, "me", "other")).task_ids == []
        assert queue.matching(Search(TaskState.SCHEDULED, "me")) == MatchingTasks([], is_whole=True)
        assert commands(redis, lambda: queue.matching(Search(TaskState.QUEUED))) == 1
        assert commands(redis, lambda: queue.matching(Search(TaskState.QUEUED, "me"))) == 1 + 2 * 720

    def test_a_running_task_is_found_with_its_worker_and_start(self, queue: FairQueue) -> None:
        push_many(queue, "u", 1)
        queue.pop("w:1", now=NOW)
        (running,) = queue.find(Search(TaskState.STARTED)).tasks
        assert (running.worker, running.started_at, running.delivery) == ("w:1", NOW, 1)
