"""Bounds for each user on the values of ``xcom()``."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, task

LARGE = "x" * 997
"""A value that counts as 1,100 bytes under a key of one character."""


def push_run(queue: FairQueue, run_id: str, *users: str) -> None:
    queue.push_graph(
        [task(user, task_id=f"{run_id}-{number}") for number, user in enumerate(users)], run_id=run_id, now=NOW
    )


def end_tasks(queue: FairQueue) -> None:
    while (lease := queue.pop("w", now=NOW)) is not None:
        queue.finish(lease, now=NOW)


def kept(queue: FairQueue, *runs: str) -> list[bool]:
    return [queue.xcom(run).keys() == ["k"] for run in runs]


def test_the_limit_of_values_removes_those_of_the_oldest_runs(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=3900)
    for run in ("r1", "r2", "r3", "r4"):
        push_run(queue, run, "a")
    end_tasks(queue)
    queue.xcom("other", user="b").push("k", LARGE, now=NOW)
    queue.xcom("nobody").push("k", LARGE, now=NOW)
    for second, run in enumerate(("r1", "r2", "r3", "r4")):
        queue.xcom(run, user="a").push("k", LARGE, now=NOW + second)
    assert kept(queue, "r1", "r2", "r3", "r4", "other", "nobody") == [False, True, True, True, True, True]
    assert queue.get_stats().totals["xcom_removed"] == 1


def test_values_of_a_run_that_has_not_ended_stay_and_new_ones_are_refused(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=2500)
    for run in ("waiting", "ended", "new"):
        push_run(queue, run, "a")
        if run == "ended":
            lease = queue.pop_batch(2, "w", now=NOW)[1]
            assert lease.task.run_id == "ended"
            queue.finish(lease, now=NOW)
    queue.xcom("waiting", user="a").push("k", LARGE, now=NOW)
    queue.xcom("ended", user="a").push("k", LARGE, now=NOW + 1)
    queue.xcom("new", user="a").push("k", LARGE, now=NOW + 2)
    assert kept(queue, "waiting", "ended", "new") == [True, False, True]
    with pytest.raises(
        TaskValidationError, match=r"user 'a' has 2,200 bytes .* exceed max_xcom_bytes \(2,500\) by 800; nothing"
    ):
        queue.xcom("new", user="a").push("m", LARGE, now=NOW + 3)
    assert kept(queue, "waiting", "new") == [True, True]


def test_a_run_with_tasks_of_other_users_keeps_its_values(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=1500)
    push_run(queue, "shared", "a", "b")
    end_tasks(queue)
    queue.xcom("shared", user="a").push("k", LARGE, now=NOW)
    with pytest.raises(TaskValidationError, match="max_xcom_bytes"):
        queue.xcom("new", user="a").push("k", LARGE, now=NOW)
    assert kept(queue, "shared") == [True]


def test_values_of_a_task_without_a_run_are_kept_until_the_task_ends(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=1500)
    first = queue.push(task("a"), now=NOW).task_id
    queue.xcom(first, user="a").push("k", LARGE, now=NOW)
    with pytest.raises(TaskValidationError, match="max_xcom_bytes"):
        queue.xcom("new", user="a").push("k", LARGE, now=NOW)
    end_tasks(queue)
    queue.xcom("new", user="a").push("k", LARGE, now=NOW)
    assert kept(queue, first, "new") == [False, True]


def test_replaced_values_count_once_and_ended_values_do_not_count(make_queue: MakeQueue, redis: Redis) -> None:
    queue = make_queue(max_xcom_bytes=2500)
    queue.push(task("a", task_id="t"), now=NOW)
    queue.push(task("a", task_id="u"), now=NOW)
    for _ in range(5):
        queue.xcom("t", user="a").push("k", LARGE, ttl=100, now=NOW)
    queue.xcom("u", user="a").push("k", LARGE, ttl=1000, now=NOW)
    redis.delete("fq:{default:0}:xcom:t")  # the server does it when the values end
    queue.xcom("u", user="a").push("m", LARGE, ttl=1000, now=NOW + 101)
    assert redis.hgetall("fq:{default:0}:xcom_bytes:a") == {b"": b"2200", b"u": b"2200"}
    assert redis.zrange("fq:{default:0}:xcoms:a", 0, -1) == [b"u"]
    assert 0 < redis.pttl("fq:{default:0}:xcom_bytes:a") <= 1_000_000
    redis.delete("fq:{default:0}:xcom:u")
    queue.xcom("u", user="a").push("k", LARGE, ttl=1000, now=NOW + 102)
    assert redis.hget("fq:{default:0}:xcom_bytes:a", "") == b"1100", "a namespace that ended and begins again"


def test_the_limit_of_values_considers_runs_on_other_shards(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=1500, shards=3)
    runs = [f"r{number}" for number in range(4)]
    for run in runs:
        push_run(queue, run, "a")
    for run in runs:
        with_room = queue.xcom(run, user="a")
        try:
            with_room.push("k", LARGE, now=NOW)
        except TaskValidationError:
            assert run != runs[0]
            end_tasks(queue)
            with_room.push("k", LARGE, now=NOW)
    assert kept(queue, runs[-1]) == [True]


def test_a_limit_of_0_bytes_of_values_means_no_limit(make_queue: MakeQueue) -> None:
    queue = make_queue(max_xcom_bytes=0)
    queue.push(task("a", task_id="t"), now=NOW)
    queue.xcom("t", user="a").push_many({str(number): "x" * 200_000 for number in range(60)}, now=NOW)
    assert len(queue.xcom("t").keys()) == 60


def test_tasks_without_values_cost_no_command_more(make_queue: MakeQueue, redis: Redis) -> None:
    def cost(most: int) -> int:
        queue = make_queue(max_xcom_bytes=most)
        queue.push_batch([task("a") for _ in range(4)], now=NOW)
        leases = queue.pop_batch(4, "w", now=NOW)
        queue.finish(leases.pop(), now=NOW)
        return min(commands(redis, lambda: queue.finish(leases.pop(), now=NOW)) for _ in range(3))

    assert cost(0) == cost(10_000_000)
