"""A drained queue moves to another number of shards."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.errors import ConfigurationError, QueueNotDrainedError
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task
from tests.engine.sharding.sharded import CONFIG, finish_all, keys_of, names_of


class TestResharding:
    def on(self, redis: Redis, number: int) -> FairQueue:
        return FairQueue(redis, config=CONFIG.model_copy(update={"shards": number}))

    @pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (4, 7), (7, 2)])
    def test_settings_and_schedules_move_to_the_new_shards(self, redis: Redis, before: int, after: int) -> None:
        queue = self.on(redis, before)
        users = [f"user-{number}" for number in range(25)]
        for number, user in enumerate(users, 2):
            queue.user(user).set_weight(number, now=NOW)
            queue.user(user).set_rate(f"{number}/m", now=NOW)
        queue.user("paused").pause(now=NOW)
        for user in users[:5]:
            queue.schedules.add(f"of {user}", task=task(user), every=60, now=NOW)
        queue.schedules.pause("of user-1", now=NOW)
        queue.push_batch([task(user) for user in users], now=NOW)
        finish_all(queue)
        due = {schedule.name: schedule.next_at for schedule in queue.schedules.list()}
        assert queue.reshard(after, now=NOW)[0] == before
        moved = self.on(redis, after)
        assert [user.weight for user in moved.user_stats(users)] == list(range(2, 27))
        assert moved.user("paused").stats().paused
        assert {schedule.name: schedule.next_at for schedule in moved.schedules.list()} == due
        assert moved.check_invariants() == []
        shards = {key.split("}")[0] for key in keys_of(redis, "fq:*")}
        assert len(shards) <= after
        moved.push_batch([task(user) for user in users], now=NOW + 9000)
        assert len(finish_all(moved, NOW + 9000)) == 25
        with pytest.raises(ConfigurationError, match="fairque_reshard"):
            self.on(redis, before).push(task("a"))

    @pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
    def test_organizations_and_members_move_to_the_new_shards(self, redis: Redis, before: int, after: int) -> None:
        queue = self.on(redis, before)
        users = [f"user-{number}" for number in range(9)]
        for user in users:
            queue.user(user).set_organization("g", now=NOW)
        queue.user("other").set_organization("plain", now=NOW)
        queue.organization("g").set_weight(3, now=NOW)
        queue.organization("g").set_max_running(2, now=NOW)
        queue.organization("empty").pause(now=NOW)
        queue.reshard(after, now=NOW)
        moved = self.on(redis, after)
        assert moved.organizations().items == ["empty", "g", "plain"]
        empty, g, plain = moved.organization_stats(["empty", "g", "plain"])
        assert (empty.paused, g.weight, g.max_running, g.members, plain.members) == (True, 3, 2, 9, 1)
        assert all(shard.organization("g").stats().weight == 3 for shard in moved.shards)
        assert moved.check_invariants() == []

    def test_only_a_drained_queue_can_move_to_other_shards(self, redis: Redis) -> None:
        queue = self.on(redis, 1)
        queue.push(task("a"), now=NOW)
        queue.push(task("b"), now=NOW)
        queue.fail(pop(queue), "x", retry=False, now=NOW)
        queue.heartbeat("w", {}, now=NOW)
        with pytest.raises(QueueNotDrainedError) as caught:
            queue.reshard(4, now=NOW)
        for words in ("1 task is queued", "1 dead letter is to be requeued", r"1 worker lives (w)"):
            assert words in str(caught.value)
        assert len(names_of(queue)) == 2

    def test_an_invalid_or_equal_number_of_shards_is_handled(self, redis: Redis) -> None:
        queue = self.on(redis, 1)
        for number in (0, 257, True):
            with pytest.raises(ValueError, match="shards must be a whole number from 1 to 256"):
                queue.reshard(number)
        assert queue.reshard(1) == (1, None)
