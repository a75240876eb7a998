"""Every user on one shard, which its tasks' ids say; the number of shards stays what it is."""

from __future__ import annotations

from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.model.errors import BacklogFullError, ConfigurationError, TaskNotFoundError
from django_fairque.engine.model.ids import compute_bucket, parse_bucket
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.sharded import CONFIG, ONE, SHARDS, THREE, TWO, finish_all, keys_of


class TestPlaces:
    def test_a_generated_id_contains_the_shard_of_its_user(self) -> None:
        for user in ("a", "b", "{x}", "ü\n", "x" * 256):
            made = Task.create(user, 3, None)
            assert parse_bucket(made.task_id) == compute_bucket(user)
        assert parse_bucket("invoice-7") is None
        assert compute_bucket("acme") == 2622  # for all times: users would be lost if this changed

    def test_each_user_is_stored_on_one_shard(self, queue: FairQueue, redis: Redis) -> None:
        for number in range(40):
            queue.push(task(f"user-{number}"), now=NOW)
        shards = {key.split("}")[0] for key in keys_of(redis, "fq:*:user:*")}
        assert len(shards) == SHARDS
        for number in range(40):
            (key,) = keys_of(redis, f"fq:*:user:user-{number}")
            assert f"fq:{{default:{compute_bucket(f'user-{number}') % SHARDS}}}:" in key

    def test_every_task_on_several_shards_is_served_once(self, queue: FairQueue) -> None:
        pushed = queue.push_batch([task(f"user-{n % 23}") for n in range(200)], now=NOW)
        assert len({result.task_id for result in pushed}) == 200
        stats = queue.get_stats()
        assert (stats.states["queued"], stats.users_ready, stats.totals["pushed"]) == (200, 23, 200)
        assert Counter(finish_all(queue)) == Counter(f"user-{n % 23}" for n in range(200))
        assert queue.get_stats().states["finished"] == 200

    def test_a_task_with_a_chosen_id_is_found_on_any_shard(self, queue: FairQueue) -> None:
        for user in (ONE, TWO, THREE):
            queue.push(task(user, task_id=f"of {user}"), now=NOW)
        assert [queue.get_task(f"of {user}").user_id for user in (ONE, TWO, THREE)] == [ONE, TWO, THREE]
        assert queue.position(f"of {TWO}") == 0
        assert queue.cancel(f"of {THREE}", now=NOW)
        assert queue.cancel_many([f"of {ONE}", f"of {TWO}", "unknown"], now=NOW) == 2
        with pytest.raises(TaskNotFoundError, match="unknown"):
            queue.get_task("unknown")

    def test_settings_of_a_user_apply_on_its_shard(self, queue: FairQueue) -> None:
        for user in (ONE, TWO):
            queue.push(task(user), now=NOW)
        queue.user(TWO).pause(now=NOW)
        assert [lease.user_id for lease in queue.pop_batch(5, "w", now=NOW)] == [ONE]
        assert [user.paused for user in queue.user_stats([ONE, TWO])] == [False, True]
        assert queue.user(TWO).purge(now=NOW) == 1

    def test_a_full_backlog_of_one_user_does_not_refuse_other_shards(self, redis: Redis) -> None:
        queue = FairQueue(redis, config=CONFIG.model_copy(update={"max_backlog": 1}))
        with pytest.raises(BacklogFullError) as caught:
            queue.push_batch([task(ONE), task(TWO), task(TWO), task(THREE)], now=NOW)
        assert [getattr(result, "status", None) for result in caught.value.results] == [
            "accepted",
            "accepted",
            "backlog_full",
            "accepted",
        ]


class TestNumber:
    def test_the_number_of_shards_does_not_change_by_itself(self, queue: FairQueue, redis: Redis) -> None:
        queue.push(task("a"), now=NOW)
        for number in (1, 2, 8):
            other = FairQueue(redis, config=QueueConfig(shards=number))
            with pytest.raises(ConfigurationError, match=rf"lies on 4 shards and is configured to lie on {number}"):
                other.push(task("a"), now=NOW)
        assert queue.get_stats().totals["pushed"] == 1

    def test_a_queue_of_one_shard_keeps_one_shard(self, redis: Redis) -> None:
        FairQueue(redis).push(task("a"), now=NOW)
        with pytest.raises(ConfigurationError, match="lies on 1 shard and is configured to lie on 4"):
            FairQueue(redis, config=CONFIG).get_stats()
        assert FairQueue(redis).get_stats().totals["pushed"] == 1
