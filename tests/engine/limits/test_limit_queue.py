"""Closing and opening a limit by key, and its figures."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_fairque.engine.limits.limits import LimitStats, parse_limit_id
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.limits import TaskLimit, limit_id_of, parse_rate, write_rate
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, task
from tests.engine.sharding.sharded import users_of
from tests.fixture_types import Redis, Server

K = TaskLimit("k", 2, 60_000_000, 3)


def push(queue: FairQueue, user: str, *limits: TaskLimit, number: int = 1) -> None:
    queue.push_batch([task(user, limits=limits) for _ in range(number)], now=NOW)


def fetch(queue: FairQueue, now: float = NOW) -> int:
    return len(queue.pop_batch(10, "w", now=now))


def figures(queue: FairQueue, key: str = "k", user: str | None = None, now: float = NOW) -> dict[str, Any]:
    """Return the figures that are not empty."""
    stats = queue.limit(key, user).stats(now=now)
    return {name: value for name, value in vars(stats).items() if value}


class TestFigures:
    def test_a_limit_has_its_values_and_its_running_and_waiting_tasks(self, queue: FairQueue) -> None:
        push(queue, "a", K, number=5)
        assert fetch(queue) == 2
        expected = {"key": "k", "at_once": 2, "rate": "1/m", "burst": 3, "running": 2, "waiting": 3}
        assert figures(queue) == expected
        assert queue.limit("k").stats(now=NOW).is_full

    def test_a_rate_without_tokens_names_the_moment_of_the_next_start(self, queue: FairQueue) -> None:
        push(queue, "a", TaskLimit("k", gap=60_000_000, burst=2), number=3)
        assert fetch(queue) == 2
        assert figures(queue)["opens_at"] == NOW + 60
        assert fetch(queue, NOW + 59) == 0
        assert fetch(queue, NOW + 60) == 1

    def test_a_limit_of_a_user_is_found_by_its_user(self, queue: FairQueue) -> None:
        push(queue, "a:b", TaskLimit("c", 1, is_of_user=True), number=3)
        assert figures(queue, "c", "a:b") == {"key": "c", "user": "a:b", "at_once": 1, "waiting": 2}
        assert figures(queue, "c") == {"key": "c"}

    def test_an_unknown_limit_has_no_values(self, queue: FairQueue) -> None:
        assert queue.limit("other").stats() == LimitStats("other", None, None, None, None, 0, 0)

    def test_limits_with_most_waiting_tasks_are_listed_first(self, queue: FairQueue) -> None:
        for key, number in (("one", 2), ("three", 4), ("none", 1)):
            push(queue, "a", TaskLimit(key, 1, is_of_user=True), number=number)
        queue.limit("closed").close(now=NOW)
        assert [(limit.key, limit.waiting) for limit in queue.limits()] == [("three", 3), ("one", 1), ("closed", 0)]
        assert [limit.key for limit in queue.limits(limit=1)] == ["three"]


class TestClosing:
    @pytest.mark.parametrize(
        "until", [20, 20.0, timedelta(seconds=20), datetime.fromtimestamp(NOW + 20, timezone.utc)], ids=repr
    )
    def test_a_closed_limit_opens_by_itself_when_the_closing_time_ends(self, queue: FairQueue, until: Any) -> None:
        queue.limit("k").close(until, now=NOW)
        push(queue, "a", TaskLimit("k", 1))
        push(queue, "a")
        assert fetch(queue) == 1  # the one without a limit
        assert figures(queue)["closed_until"] == figures(queue)["opens_at"] == NOW + 20
        assert fetch(queue, NOW + 19.9) == 0
        assert fetch(queue, NOW + 20) == 1
        assert figures(queue, now=NOW + 20) == {"key": "k", "at_once": 1, "running": 1}

    def test_a_limit_closed_without_an_end_stays_closed_until_it_is_opened(self, queue: FairQueue) -> None:
        push(queue, "a", TaskLimit("k", 1))
        queue.limit("k").close(now=NOW)
        assert fetch(queue, NOW + 10**7) == 0
        assert figures(queue) == {"key": "k", "at_once": 1, "waiting": 1, "is_closed": True}
        queue.limit("k").open(now=NOW + 10**7)
        assert fetch(queue, NOW + 10**7) == 1

    def test_running_tasks_of_a_closed_limit_go_on(self, queue: FairQueue) -> None:
        push(queue, "a", TaskLimit("k", 1))
        (lease,) = queue.pop_batch(1, "w", now=NOW)
        queue.limit("k").close(now=NOW)
        queue.finish(lease, now=NOW)
        queue.limit("k").open(now=NOW)
        assert queue.limits() == []

    def test_a_limit_of_one_user_is_closed_for_this_user_only(self, queue: FairQueue) -> None:
        for user in "ab":
            push(queue, user, TaskLimit("k", 1, is_of_user=True))
        queue.limit("k", "a").close(now=NOW)
        assert [lease.user_id for lease in queue.pop_batch(2, "w", now=NOW)] == ["b"]
        queue.limit("k", "a").open(now=NOW)
        assert fetch(queue) == 1

    @pytest.mark.parametrize("until", [datetime(2000, 1, 1, tzinfo=timezone.utc), 0])
    def test_an_end_that_has_passed_closes_nothing(self, queue: FairQueue, until: Any) -> None:
        push(queue, "a", TaskLimit("k", 1))
        queue.limit("k").close(until, now=NOW)
        assert fetch(queue, NOW + 0.001) == 1

    @pytest.mark.parametrize(
        ("until", "message"),
        [
            ("30", r"got the text '30'; convert a header such as Retry-After with float\(\)"),
            (datetime(2040, 1, 1), "aware datetime"),  # noqa: DTZ001 - it is naive on purpose
            (-1, "number of seconds from 0"),
            (2e9, "number of seconds from 0"),
            (True, "number of seconds from 0"),
        ],
    )
    def test_an_invalid_end_of_a_closed_limit_is_refused(self, queue: FairQueue, until: Any, message: str) -> None:
        with pytest.raises(TaskValidationError, match=message):
            queue.limit("k").close(until)
        assert queue.limits() == []

    @pytest.mark.parametrize(("key", "user"), [("", None), ("k", ""), (7, None), ("k" * 257, None)])
    def test_a_wrong_key_or_user_is_refused(self, queue: FairQueue, key: Any, user: Any) -> None:
        with pytest.raises(TaskValidationError):
            queue.limit(key, user)


async def test_coroutines_read_and_close_limits(server: Server, redis: Redis) -> None:
    async with server.async_client() as client:
        queue = AsyncFairQueue(client)
        await queue.limit("k").close()
        assert (await queue.limit("k").stats()).is_closed
        assert [limit.key for limit in await queue.limits()] == ["k"]
        await queue.limit("k").open()
        assert await queue.limits() == []


class TestShards:
    def test_the_parts_of_a_limit_on_shards_are_added_up(self, make_queue: MakeQueue) -> None:
        queue = make_queue(shards=2)
        users = [users_of(shard, 1, 2)[0] for shard in (0, 1)]
        for user in users:
            push(queue, user, TaskLimit("k", 5, 10_000, 4), number=9)
        assert len(queue.pop_batch(10, "w", now=NOW)) == 4  # the burst
        expected = {"key": "k", "at_once": 5, "rate": "100/s", "burst": 4, "running": 4, "waiting": 14}
        assert {name: figures(queue)[name] for name in expected} == expected
        assert [(limit.key, limit.waiting) for limit in queue.limits()] == [("k", 14)]

    def test_a_limit_is_closed_and_opened_on_every_shard(self, make_queue: MakeQueue) -> None:
        queue = make_queue(shards=2)
        for shard in (0, 1):
            push(queue, users_of(shard, 1, 2)[0], TaskLimit("k", 5))
        queue.limit("k").close(now=NOW)
        assert fetch(queue) == 0
        queue.limit("k").open(now=NOW)
        assert fetch(queue) == 2


@pytest.mark.parametrize(("key", "user"), [("k", None), ("s:k", None), ("k:1", "a:b"), ("日本", "é:1")])
def test_an_id_of_a_limit_has_its_key_and_user(key: str, user: str | None) -> None:
    assert parse_limit_id(limit_id_of(key, user).encode()) == (key, user)


@pytest.mark.parametrize(
    ("rate", "text"), [("100/s", "100/s"), ("7/h", "7/h"), ("30/60s", "30/m"), ("1/7s", "1/7s"), ("300/s", "300/s")]
)
def test_a_rate_is_written_in_the_largest_unit_that_fits(rate: str, text: str) -> None:
    tasks, seconds = parse_rate(rate) or (0, 0)
    assert write_rate(-(-seconds * 1_000_000 // tasks)) == text
