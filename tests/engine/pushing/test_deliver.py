"""Deliveries from a database push each task of an outbox once, and add up the counts of events."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import BacklogFullError, DependencyCycleError, TaskNotFoundError
from django_fairque.engine.model.records import EventCount, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.pushing.push import DELIVERY_RECORD_SECONDS, REMOVED_ROW_RECORD_SECONDS
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, sweep_all, task


def deliver(queue: FairQueue, *tasks: Task, **options: Any) -> list[str]:
    results = queue.deliver(tasks, from_outbox=True, now=NOW, **options)
    return [result.status for result in results]


def end(queue: FairQueue, count: int = 1) -> None:
    leases = queue.pop_batch(count, "w", now=NOW)
    assert len(leases) == count
    for lease in leases:
        queue.finish(lease, now=NOW)


class TestOutbox:
    def test_tasks_are_pushed_in_their_order(self, queue: FairQueue) -> None:
        sent = [task(payload=n) for n in range(5)]
        assert deliver(queue, *sent) == ["accepted"] * 5
        assert [lease.payload for lease in queue.pop_batch(9, "w", now=NOW)] == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("options", [{}, {"task_id": "mine"}, {"unique_key": "k", "unique_for": 5}])
    def test_an_outbox_row_delivered_twice_adds_one_task(self, queue: FairQueue, options: dict[str, Any]) -> None:
        made = task(**options)
        assert deliver(queue, made) == ["accepted"]
        assert deliver(queue, made) == ["accepted"]
        end(queue)
        assert deliver(queue, made) == ["accepted"]
        assert queue.pop("w", now=NOW) is None

    def test_a_row_delivered_again_after_retention_adds_no_task(self, make_queue: MakeQueue) -> None:
        queue = make_queue(result_ttl=60)
        made = task(task_id="mine")
        deliver(queue, made)
        end(queue)
        later = NOW + 100
        sweep_all(queue, later)
        with pytest.raises(TaskNotFoundError):
            queue.get_task("mine")
        queue.deliver([made], from_outbox=True, now=later)
        with pytest.raises(TaskNotFoundError):
            queue.get_task("mine")

    def test_a_delivery_record_is_removed_soon_after_its_row(self, queue: FairQueue, redis: Redis) -> None:
        made = task()
        deliver(queue, made)
        key = queue._shards.home.keys(f"delivered:{made.task_id}")
        assert DELIVERY_RECORD_SECONDS - 60 < redis.ttl(key) <= DELIVERY_RECORD_SECONDS
        assert queue.forget_delivered([made.task_id, "unknown"]) == 1
        assert REMOVED_ROW_RECORD_SECONDS - 60 < redis.ttl(key) <= REMOVED_ROW_RECORD_SECONDS
        redis.expire(key, 5)
        queue.forget_delivered([made.task_id])
        assert redis.ttl(key) <= 5, "saying it again prolongs nothing"

    def test_a_chosen_id_may_be_used_again_by_another_push(self, queue: FairQueue) -> None:
        made = task(task_id="mine")
        deliver(queue, made)
        end(queue)
        assert queue.push(made, now=NOW).accepted

    def test_a_row_refused_by_a_full_backlog_can_be_delivered_later(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_backlog=1)
        first, second = task(), task()
        assert deliver(queue, first, second) == ["accepted", "backlog_full"]
        end(queue)
        assert deliver(queue, first, second) == ["accepted", "accepted"]
        assert queue.get_task(second.task_id).state is TaskState.QUEUED

    def test_a_delivery_without_an_outbox_is_not_recorded(self, queue: FairQueue, redis: Redis) -> None:
        queue.deliver([task()], now=NOW)
        assert not redis.keys("*delivered*")


class TestGraph:
    def test_a_graph_that_is_delivered_twice_is_pushed_once(self, queue: FairQueue) -> None:
        first = task(task_id="a", run_id="r")
        second = task(task_id="b", run_id="r", depends_on=["a"])
        for _ in range(2):
            assert deliver(queue, second, first, run_id="r", is_graph=True) == ["accepted", "accepted"]
        end(queue)
        queue.sweep(now=NOW)
        end(queue)
        deliver(queue, second, first, run_id="r", is_graph=True)
        assert queue.get_task("b").state is TaskState.FINISHED

    def test_a_refused_graph_of_the_outbox_is_not_recorded(self, make_queue: MakeQueue, redis: Redis) -> None:
        queue = make_queue(max_backlog=1)
        graph = [task(task_id="a"), task(task_id="b", depends_on=["a"])]
        with pytest.raises(BacklogFullError):
            deliver(queue, *graph, is_graph=True, counts={"e": EventCount(1)})
        assert not redis.keys("*delivered*")
        assert queue.event_counts() == {}

    def test_a_cycle_is_found_before_anything_is_sent(self, queue: FairQueue, redis: Redis) -> None:
        graph = [task(task_id="a", depends_on=["b"]), task(task_id="b", depends_on=["a"])]
        with pytest.raises(DependencyCycleError):
            deliver(queue, *graph, is_graph=True)
        assert redis.dbsize() == 0


class TestCounts:
    def test_counts_of_events_add_up(self, queue: FairQueue) -> None:
        queue.deliver([task()], {"a": EventCount(3, 2), "b:c": EventCount(1)}, now=NOW)
        queue.deliver([], {"a": EventCount(1), "b:c": EventCount(failed=7, error="down")}, now=NOW + 1)
        assert queue.event_counts() == {
            "a": EventCount(4, 2, last=NOW + 1),
            "b:c": EventCount(1, 0, 7, "down", last=NOW),
        }

    def test_a_repeated_delivery_counts_events_once(self, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_fairque.engine.pushing.push.new_nonce", lambda: "same")
        made = task()
        for _ in range(3):
            assert [delivery.status for delivery in queue.deliver([made], {"a": EventCount(1)}, now=NOW)] == [
                "accepted"
            ]
        assert queue.event_counts()["a"].fired == 1

    @pytest.mark.parametrize("event", ["a:b", "ü {x}", "fired:"])
    def test_an_event_may_have_any_name(self, queue: FairQueue, event: str) -> None:
        queue.deliver([], {event: EventCount(1)}, now=NOW)
        assert list(queue.event_counts()) == [event]

    def test_an_error_is_kept_at_a_length_that_can_be_shown(self, queue: FairQueue) -> None:
        queue.deliver([], {"a": EventCount(failed=1, error="x" * 10_000)}, now=NOW)
        assert queue.event_counts()["a"].error == "x" * 500


def test_a_delivery_with_too_many_tasks_is_refused(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(ValueError, match="at most 1000"):
        queue.deliver([task() for _ in range(1001)], now=NOW)
    assert redis.dbsize() == 0


def test_a_delivery_takes_few_server_commands(queue: FairQueue, redis: Redis) -> None:
    counts = {"e": EventCount(100, 99)}
    made = [task() for _ in range(100)]
    deliver(queue, task(), counts=counts)
    assert commands(redis, lambda: deliver(queue, *made)) <= 2.2 * 100 + 20
    assert commands(redis, lambda: queue.forget_delivered([task.task_id for task in made])) <= 102
    assert commands(redis, lambda: queue.deliver([task()], counts, now=NOW)) <= 14 + 7
