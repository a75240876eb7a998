"""Calls of a queue work over all its shards: leases, schedules, pauses, sweeps."""

from __future__ import annotations

import pytest

from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.engine.sharding.sharded import ONE, THREE, TWO


class TestLeases:
    def test_outcomes_are_sent_to_the_shards_of_their_leases(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        leases = queue.pop_batch(3, "w", now=NOW)
        assert queue.renew(leases, now=NOW) == [True] * 3
        queue.set_progress(leases[0], 1, 2, now=NOW)
        assert queue.get_progress(leases[0].task_id).current == 1  # type: ignore[union-attr]
        outcomes = [Outcome.finish(leases[0]), Outcome.fail(leases[1], "x", delay=None), Outcome.release(leases[2])]
        assert queue.settle(outcomes, now=NOW).statuses == ["finished", "dead", "released"]
        assert [letter.user_id for letter in queue.dlq.letters().items] == [leases[1].user_id]

    def test_an_outcome_without_a_delay_waits_on_each_shard(self, queue: FairQueue) -> None:
        queue.push_batch(
            [task(user, max_retries=retries) for user, retries in ((ONE, 0), (TWO, 1), (THREE, 1))], now=NOW
        )
        leases = queue.pop_batch(3, "w", now=NOW)
        statuses = queue.settle([Outcome.fail(lease, "x") for lease in leases], now=NOW).statuses
        assert dict(zip([lease.user_id for lease in leases], statuses, strict=True)) == {
            ONE: "dead",
            TWO: "retried",
            THREE: "retried",
        }

    def test_a_settle_fetches_for_the_worker_that_had_the_leases(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, THREE)], now=NOW)
        leases = queue.pop_batch(2, "w", now=NOW)
        settled = queue.settle([Outcome.finish(lease) for lease in leases], fetch=3, now=NOW)
        assert [lease.worker for lease in settled.leases] == ["w"]

    def test_a_worker_is_known_on_all_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO)], now=NOW)
        leases = queue.pop_batch(2, "w", now=NOW)
        assert queue.heartbeat("w", {"host": "h"}, now=NOW).renewed == 2
        (record,) = queue.workers()
        assert (record.worker, record.leases) == ("w", 2)
        queue.cancel(leases[0].task_id, now=NOW)
        assert queue.set_worker_command("w", "drain", now=NOW)
        beat = queue.heartbeat("w", {}, now=NOW)
        assert (beat.revoked, beat.command and beat.command.kind) == ([leases[0].key], "drain")
        assert queue.release_worker("w", now=NOW) == 1

    def test_tokens_of_running_tasks_are_sent_only_to_their_own_shard(self, queue: FairQueue) -> None:
        """The first leases of two shards have one number: one would have counted as crashed for the other."""
        queue.push_batch([task(user) for user in (ONE, TWO)], now=NOW)
        leases = queue.pop_batch(2, "w", now=NOW)
        assert {lease.token for lease in leases} == {1}
        with pytest.raises(ValueError, match=r"tokens are of one shard, and queue .* has 4.*queue\.shards"):
            queue.release_worker("w", [1], now=NOW)
        first, second, *_ = queue.shards
        assert (first.release_worker("w", [1], now=NOW), second.release_worker("w", now=NOW)) == (1, 1)
        kinds = {lease.user_id: queue.history(lease.task_id)[-1].kind for lease in leases}
        assert kinds == {ONE: "crashed", TWO: "released"}

    def test_sizes_of_users_are_read_from_all_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO, TWO, THREE)], now=NOW)
        sizes = queue.get_queue_sizes_batch([THREE, TWO, "nobody", ONE])
        assert {user: size.total for user, size in sizes.items()} == {THREE: 1, TWO: 2, "nobody": 0, ONE: 1}

    def test_pausing_a_queue_stops_all_its_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user) for user in (ONE, TWO)], now=NOW)
        queue.pause(now=NOW)
        assert queue.is_paused()
        assert queue.get_stats().paused
        assert queue.pop_batch(2, "w", now=NOW) == []
        queue.resume(now=NOW)
        assert len(queue.pop_batch(2, "w", now=NOW)) == 2

    def test_a_sweep_and_a_purge_reach_all_shards(self, queue: FairQueue) -> None:
        queue.push_batch([task(user, execute_after=NOW + 5) for user in (ONE, TWO, THREE)], now=NOW)
        assert queue.sweep(now=NOW + 6).due == 3
        assert queue.purge(2, now=NOW + 6) == 2
        assert queue.purge(now=NOW + 6) == 1

    def test_a_push_to_any_shard_wakes_a_waiting_worker(self, queue: FairQueue) -> None:
        queue.push(task(THREE))
        assert queue.wait_for_work(5)


class TestSchedules:
    def test_a_schedule_is_stored_on_the_shard_of_its_user(self, queue: FairQueue) -> None:
        for user in (ONE, TWO):
            queue.schedules.add(f"of {user}", task=task(user), every=60, now=NOW)
        assert [schedule.name for schedule in queue.schedules.list()] == sorted([f"of {ONE}", f"of {TWO}"])
        assert len(queue.schedules.fire_due(now=NOW + 61)) == 2
        assert {lease.user_id for lease in queue.pop_batch(5, "w", now=NOW + 61)} == {ONE, TWO}
        queue.schedules.add(f"of {ONE}", task=task(THREE), every=60, now=NOW + 61)
        assert [schedule.task["user_id"] for schedule in queue.schedules.list() if schedule.name == f"of {ONE}"] == [
            THREE
        ]
        queue.schedules.pause(f"of {TWO}", now=NOW + 61)
        assert queue.schedules.run_now(f"of {TWO}", now=NOW + 61)
        assert queue.schedules.remove(f"of {TWO}", now=NOW + 61)
        assert not queue.schedules.remove(f"of {TWO}", now=NOW + 61)
        with pytest.raises(TaskNotFoundError, match="no schedule"):
            queue.schedules.get(f"of {TWO}")
