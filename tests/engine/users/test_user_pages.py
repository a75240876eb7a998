"""Pages of users, and the figures of many at once."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, MakeQueue, pop, read_pages, task


def pages(queue: FairQueue, limit: int, **options: Any) -> list[str]:
    return read_pages(lambda cursor: queue.users(cursor, limit, **options), limit)


@pytest.fixture
def mixed(queue: FairQueue) -> FairQueue:
    """Three users with work or settings; of three idle ones "z" was busy last."""
    for moment, user in enumerate(["y", "x", "z"]):
        queue.push(task(user), now=NOW + moment)
        queue.finish(pop(queue, NOW + moment), now=NOW + moment)
    queue.push(task("b"), now=NOW + 9)
    queue.push(task("c"), now=NOW + 9)
    queue.user("a").set_weight(2, now=NOW + 9)
    return queue


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 100])
def test_users_with_work_or_settings_come_first_and_recently_busy_users_next(mixed: FairQueue, limit: int) -> None:
    assert pages(mixed, limit, busy_first=True) == ["a", "b", "c", "z", "x", "y"]


def test_a_page_of_users_of_an_empty_queue_is_empty(queue: FairQueue) -> None:
    assert queue.users(busy_first=True).items == []
    assert queue.users(busy_first=True).cursor is None
    assert queue.users("0:5", busy_first=True).cursor is None


def test_a_page_costs_the_same_for_any_queue_size(queue: FairQueue, redis: Redis) -> None:
    queue.push_batch([task(f"u{n}") for n in range(500)], now=NOW)
    assert commands(redis, lambda: queue.users(limit=100, busy_first=True)) == 3


def test_the_sizes_of_many_users_equal_the_sizes_of_each_user(mixed: FairQueue, redis: Redis) -> None:
    blocker = task("c", 6)
    mixed.push_graph([blocker, task("c", depends_on=[blocker.task_id])], now=NOW + 9)
    mixed.push_batch([task("c", 6), task("c", 1), task("c", execute_after=NOW + 60)], now=NOW + 9)
    assert mixed.pop("w", ["c"], now=NOW + 9) is not None
    users = ["c", "nobody", "b", "c"]
    sizes = mixed.get_queue_sizes_batch(users)
    assert sizes == {user: mixed.get_queue_sizes(user) for user in users}
    of_c = sizes["c"]
    assert (of_c.critical, of_c.normal, of_c.scheduled, of_c.deferred, of_c.running) == (1, 2, 1, 1, 1)
    assert {name: size for name, size in of_c.by_priority.items() if size} == {
        "CRITICAL": 1,
        "NORMAL": 1,
        "VERY_LOW": 1,
    }
    assert [sizes[user].total for user in ("c", "b", "nobody")] == [6, 1, 0]
    assert commands(redis, lambda: mixed.get_queue_sizes_batch(["c", "b"])) == 2
    assert mixed.get_queue_sizes_batch([]) == {}
    with pytest.raises(TaskValidationError, match="each of the user ids must be a non-empty string"):
        mixed.get_queue_sizes_batch(["c", ""])


def test_the_figures_of_many_users_equal_the_figures_of_each_user(mixed: FairQueue) -> None:
    assert mixed.user_stats(["c", "nobody", "a"]) == [mixed.user(user).stats() for user in ("c", "nobody", "a")]
    assert mixed.user_stats([]) == []


def test_users_are_found_by_the_start_of_an_id(queue: FairQueue, redis: Redis) -> None:
    names = [f"u{n:03}" for n in range(200)]
    queue.push_batch([task(name) for name in [*names, "a", "u", "v", "é", "日本"]], now=NOW)
    for name in ("u05 idle", "idle", "u05 idler"):
        queue.push(task(name), now=NOW)
        queue.finish(pop(queue, users=[name]), now=NOW)
    for prefix in ("u05", "u", "v", "zz", "日", "u199", "", "a"):
        found = pages(queue, 7, busy_first=True, prefix=prefix)
        everyone = [*sorted([*names, "a", "u", "v", "é", "日本"], key=str.encode), "u05 idler", "idle", "u05 idle"]
        expected = [name for name in everyone if name.startswith(prefix)]
        assert found[: len(expected) - 2] == expected[: len(expected) - 2]
        assert sorted(found) == sorted(expected)
    assert commands(redis, lambda: queue.users(limit=10, prefix="u1")) < 150


def test_users_of_all_shards_are_found_by_the_start_of_an_id(make_queue: MakeQueue) -> None:
    queue = make_queue(shards=4)
    queue.push_batch([task(f"{letter}{n}") for letter in "ab" for n in range(30)], now=NOW)
    assert sorted(pages(queue, 7, prefix="b")) == sorted(f"b{n}" for n in range(30))
