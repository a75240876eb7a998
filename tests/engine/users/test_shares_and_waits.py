"""Waiting users, the reasons for their waits, and their due shares are compared with their tasks and limits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.users.fairness import SAMPLED_TASKS, UserFairness
from tests.engine.conftest import NOW, MakeQueue, pop, task


def push(queue: FairQueue, user: str, count: int = 1, priority: int = 3, *, at: float = 0, due: float = 0) -> None:
    options = {"execute_after": NOW + due} if due else {}
    queue.push_batch([task(user, priority, **options) for _ in range(count)], now=NOW + at)


def run(queue: FairQueue, user: str, took: float, *, at: float = 0) -> None:
    """Push, start and end a task."""
    push(queue, user, at=at)
    queue.finish(pop(queue, NOW + at, users=[user]), took=took, now=NOW + at)


def by_user(queue: FairQueue) -> dict[str, UserFairness]:
    return {user.user_id: user for user in queue.fairness().examined}


def hold(queue: FairQueue) -> dict[str, str | None]:
    """A user with one ready task for each reason, and one without; by user the reason."""
    for user in ("free", "paused", "rated", "capped", "paused member", "full member"):
        push(queue, user, 2 if user in ("rated", "capped") else 1)
    queue.user("paused").pause(now=NOW)
    queue.user("rated").set_rate("1/d", now=NOW)
    queue.user("capped").set_max_running(1, now=NOW)
    for user in ("rated", "capped"):
        assert queue.pop("w", [user], now=NOW) is not None
    queue.user("paused member").set_organization("paused", now=NOW)
    queue.organization("paused").pause(now=NOW)
    queue.user("full member").set_organization("full", now=NOW)
    queue.user("other member").set_organization("full", now=NOW)
    queue.organization("full").set_max_running(1, now=NOW)
    push(queue, "other member")
    assert queue.pop("w", ["other member"], now=NOW) is not None
    return {
        "free": None,
        "paused": "user_paused",
        "rated": "throttled",
        "capped": "capped",
        "paused member": "organization_paused",
        "full member": "organization_capped",
    }


class TestWaiting:
    def test_only_ready_tasks_count_as_waiting(self, queue: FairQueue) -> None:
        push(queue, "later", due=3600)
        push(queue, "tomorrow", 40, due=86_400)
        push(queue, "retrying")
        queue.fail(pop(queue), "no", delay=600, now=NOW)
        blocker = task("blocker")
        queue.push_graph([blocker, task("deferred", depends_on=[blocker.task_id])], now=NOW)
        push(queue, "ready", 3)
        users = ["later", "tomorrow", "retrying", "deferred", "blocker", "ready"]
        assert [user.waiting for user in queue.user_stats(users)] == [0, 0, 0, 0, 1, 3]
        found = by_user(queue)
        assert {user: found[user].waiting for user in users} == dict(zip(users, [0, 0, 0, 0, 1, 3], strict=True))
        assert queue.fairness().noisy_users == ()

    def test_tasks_that_are_held_back_have_a_reason_and_do_not_wait(self, queue: FairQueue) -> None:
        expected = hold(queue)
        found = by_user(queue)
        assert {user: found[user].held_by for user in expected} == expected
        stats = {user.user_id: user for user in queue.user_stats(list(expected))}
        assert {user: user_stats.held_by for user, user_stats in stats.items()} == expected
        assert [user for user, user_stats in stats.items() if user_stats.waiting] == ["free"]
        assert [user for user in expected if found[user].waiting] == ["free"]
        started = {lease.task.user_id for lease in queue.pop_batch(100, "w", now=NOW)}
        assert started == {"free"}, "the engine starts exactly what waits"

    def test_no_task_counts_as_waiting_while_the_queue_is_paused(self, queue: FairQueue) -> None:
        push(queue, "a")
        queue.pause(now=NOW)
        assert (by_user(queue)["a"].held_by, by_user(queue)["a"].waiting) == ("queue_paused", 0)
        assert (queue.user("a").stats().held_by, queue.user("a").stats().waiting) == ("queue_paused", 0)
        queue.resume(now=NOW)
        assert queue.user("a").stats().waiting == 1

    def test_users_are_ranked_by_their_oldest_ready_task(self, queue: FairQueue) -> None:
        push(queue, "bulk", 60)
        push(queue, "patient", priority=1, at=-50)
        push(queue, "patient", 5, at=10)
        push(queue, "urgent", priority=6, at=15)
        push(queue, "new", at=20)
        push(queue, "tomorrow", due=86_400, at=20)
        fairness = queue.fairness()
        ranked = [(user.user_id, round(user.wait_seconds)) for user in fairness.examined]
        # The engine's time does not go back: what was pushed for an earlier moment was pushed at the latest one.
        assert ranked == [("bulk", 20), ("patient", 20), ("urgent", 5), ("new", 0), ("tomorrow", 0)]
        assert fairness.examined[-1].since is None


class TestShares:
    def test_a_user_s_share_is_computed_from_the_weights_of_all_active_users(self, queue: FairQueue) -> None:
        for n in range(70):
            push(queue, f"u{n:02}")
        queue.user("u00").set_weight(4, now=NOW)
        queue.user("u01").pause(now=NOW)
        push(queue, "later", due=3600)
        fairness = queue.fairness(1, user_ids=["u00", "u01", "u02", "later"])
        shares = {user.user_id: user.share_if_busy for user in fairness.examined}
        assert (fairness.active_users, fairness.weights, fairness.users) == (69, 72, 71)
        assert shares["u00"] == pytest.approx(4 / 72)
        assert shares["u02"] == pytest.approx(1 / 72)
        assert shares["u01"] == shares["later"] == pytest.approx(1 / 73), "their shares if they were active"

    def test_members_share_the_part_of_a_user_with_their_organization_s_weight(self, queue: FairQueue) -> None:
        for user, weight in (("bob", 1), ("carol", 3)):
            queue.user(user).set_organization("acme", now=NOW)
            queue.user(user).set_weight(weight, now=NOW)
        queue.organization("acme").set_weight(4, now=NOW)
        push(queue, "ann")
        push(queue, "bob")
        push(queue, "carol")
        fairness = queue.fairness()
        assert (fairness.active_users, fairness.weights) == (3, 5)
        shares = {user.user_id: user.share_if_busy for user in fairness.examined}
        assert shares == pytest.approx({"ann": 0.2, "bob": 0.2, "carol": 0.6})

    def test_members_share_the_guaranteed_part_of_their_organization(self, queue: FairQueue) -> None:
        for user in ("ann", "bob"):
            queue.user(user).set_organization("acme", now=NOW)
        queue.push_batch([task(user) for user in ("ann", "bob", *(f"u{number}" for number in range(9)))], now=NOW)
        for share, expected in ((None, 0.05), (0.4, 0.2), (0.01, 0.05)):
            queue.organization("acme").set_share(share, now=NOW)
            assert by_user(queue)["ann"].share_if_busy == pytest.approx(expected)

    def test_a_user_with_only_a_running_task_is_active_until_the_task_ends(self, queue: FairQueue) -> None:
        push(queue, "a")
        lease = pop(queue)
        assert (queue.fairness().active_users, queue.fairness().running) == (1, 1)
        queue.finish(lease, now=NOW)
        assert (queue.fairness().active_users, queue.fairness().running) == (0, 0)

    def test_the_received_share_is_a_part_of_the_worker_time_of_all_users(self, queue: FairQueue) -> None:
        run(queue, "a", 30)
        run(queue, "b", 10)
        push(queue, "a")
        fairness = queue.fairness()
        assert fairness.busy_seconds == pytest.approx(40, rel=0.01)
        assert fairness.share_received(by_user(queue)["a"].busy_seconds) == pytest.approx(0.75)
        run(queue, "b", 10, at=3 * 3600)
        assert queue.fairness().busy_seconds == pytest.approx(10), "it covers the last hour"

    def test_the_fairness_figures_of_a_new_queue_are_zero(self, queue: FairQueue) -> None:
        fairness = queue.fairness()
        assert (fairness.active_users, fairness.weights, fairness.users, fairness.examined) == (0, 0, 0, [])
        assert (fairness.share_received(0), fairness.oldest_quiet_wait_seconds, fairness.jain_index) == (0, 0, None)


class TestNoisyAndQuiet:
    def test_a_noisy_user_is_found_and_quiet_users_do_not_wait(self, queue: FairQueue) -> None:
        push(queue, "noisy", 300)
        push(queue, "quiet", 3, at=30)
        fairness = queue.fairness()
        assert fairness.noisy_users == ("noisy",)
        assert fairness.oldest_quiet_wait_seconds == 0
        assert fairness.late_users == []

    def test_a_quiet_user_is_late_when_its_share_was_not_served(self, queue: FairQueue) -> None:
        push(queue, "noisy", 300)
        leases = queue.pop_batch(4, "w", lease=3600, now=NOW)
        push(queue, "quiet", at=1)
        assert len(leases) == 4
        push(queue, "newer", at=1.1)
        assert queue.fairness().late_users == []
        queue.heartbeat("w", {}, now=NOW + 60)
        assert [user.user_id for user in queue.fairness().late_users] == ["quiet", "newer"]
        assert queue.fairness().oldest_quiet_wait_seconds == pytest.approx(59)

    def test_a_user_with_its_full_share_is_not_late(self, queue: FairQueue) -> None:
        run(queue, "steady", 300)
        push(queue, "steady", 2, at=1)
        push(queue, "other", 2, at=1)
        assert len(queue.pop_batch(2, "w", ["steady", "other"], lease=3600, now=NOW + 1)) == 2
        queue.heartbeat("w", {}, now=NOW + 501)
        assert [user.user_id for user in queue.fairness().late_users] == ["other"]

    def test_the_fairness_index_is_computed_from_worker_time_and_weights(self, queue: FairQueue) -> None:
        for user, weight, took in (("a", 1, 10), ("b", 3, 30)):
            queue.user(user).set_weight(weight, now=NOW)
            run(queue, user, took)
        assert queue.fairness().jain_index is None, "nobody waits"
        push(queue, "a")
        push(queue, "b")
        assert queue.fairness().jain_index == pytest.approx(1)
        queue.user("b").set_weight(1, now=NOW)
        assert queue.fairness().jain_index == pytest.approx(40**2 / (2 * (10**2 + 30**2)))

    def test_a_new_user_lowers_the_fairness_index_only_after_it_has_waited(self, queue: FairQueue) -> None:
        for user in ("a", "b"):
            run(queue, user, 10)
            push(queue, user)
        push(queue, "new")
        assert queue.fairness().jain_index == pytest.approx(1)
        queue.heartbeat("w", {}, now=NOW + 90)
        assert queue.fairness().jain_index == pytest.approx(2 / 3)


class TestBounds:
    def test_old_and_many_tasks_are_found_among_more_users_than_are_examined(self, queue: FairQueue) -> None:
        push(queue, "zulu old", at=0)
        for n in range(3 * SAMPLED_TASKS):
            push(queue, f"u{n:03}", at=7200)
        push(queue, "zz noisy", 400, at=7200)
        queue.sweep(now=NOW + 7201)
        fairness = queue.fairness(150)
        assert fairness.users == 302
        assert len(fairness.examined) == 150
        assert fairness.examined[0].user_id == "zulu old"
        assert fairness.noisy_users == ("zz noisy",)

    def test_figures_of_several_shards_are_added_up(self, make_queue: MakeQueue) -> None:
        queue = make_queue(shards=4)
        names = [f"u{n}" for n in range(20)]
        for name in names:
            push(queue, name)
        run(queue, "u3", 30)
        fairness = queue.fairness(2000, user_ids=names[:3])
        assert (fairness.active_users, fairness.weights, fairness.users) == (20, 20, 20)
        assert {user.user_id for user in fairness.examined} == set(names)
        assert all(user.share_if_busy == pytest.approx(0.05) for user in fairness.examined)
        assert fairness.busy_seconds == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize(("tasks", "shards", "error"), [(60, 1, 1e-6), (150, 2, 1e-6), (900, 1, 0.25)])
def test_the_time_of_running_tasks_counts_as_received(
    make_queue: MakeQueue, tasks: int, shards: int, error: float
) -> None:
    """The test sums the run times of running tasks by user; of more than 200 the time of all users is of a sample."""
    queue, rng, wanted = make_queue(shards=shards), random.Random(tasks), Counter[str]()
    run(queue, "ended", 100)
    for age in (3000, 600, 30, 1):
        for _ in range(tasks // 4):
            push(queue, f"u{rng.randrange(7)}", at=3600 - age)
        for _shard in range(2 * shards):
            for lease in queue.pop_batch(1000, "w", lease=4000, now=NOW + 3600 - age):
                wanted[lease.user_id] += age
    assert len(set(wanted.values())) > 1
    queue.heartbeat("w", {}, now=NOW + 3600)
    fairness = queue.fairness()
    found = {user.user_id: user.busy_seconds for user in fairness.examined if user.running}
    assert found == pytest.approx({user: float(seconds) for user, seconds in wanted.items()}, abs=0.01)
    assert fairness.busy_seconds == pytest.approx(sum(wanted.values()), rel=error, abs=110)


def test_a_task_that_has_run_for_days_counts_one_hour(queue: FairQueue) -> None:
    push(queue, "a")
    pop(queue, NOW, lease=9e5)
    for seconds, counted in ((10, 10), (3600, 3600), (500_000, 3600)):
        queue.heartbeat("w", {}, now=NOW + seconds)
        assert by_user(queue)["a"].busy_seconds == counted
        assert queue.fairness().busy_seconds == pytest.approx(counted)


def test_tasks_that_run_in_one_call_count_once(queue: FairQueue) -> None:
    queue.push_batch([task("a", name="index") for _ in range(5)], now=NOW)
    assert len(queue.settle([], 1, worker="w", batches={"index": 5}, lease=900, now=NOW).leases) == 5
    queue.heartbeat("w", {}, now=NOW + 100)
    assert by_user(queue)["a"].busy_seconds == 100
    assert queue.fairness().busy_seconds == pytest.approx(100)


def test_the_expected_wait_counts_tasks_if_shares_are_counted_in_tasks(make_queue: MakeQueue) -> None:
    """A user with a few long tasks and one with many short ones, of the same worker time."""
    queue = make_queue(fair_by="tasks")
    run(queue, "long", 60)
    for _ in range(20):
        run(queue, "short", 3)
    for user in ("long", "short"):
        push(queue, user)
    push(queue, "runs", at=60)
    pop(queue, NOW + 60, users=["runs"])
    expected = {user.user_id: user.expected_wait_seconds for user in queue.fairness().examined}
    mean, share = 120 / 21, 1 / 3
    assert expected["long"] == pytest.approx(2 * mean / share, rel=0.05)
    assert expected["short"] == pytest.approx(21 * mean / share, rel=0.05)


def test_a_wrong_number_of_active_users_is_found_and_repaired(queue: FairQueue, redis: Redis) -> None:
    push(queue, "a")
    redis.hincrby("fq:{default:0}:stats", "active_users", 3)
    redis.hdel("fq:{default:0}:stats", "revision")
    assert [violation.detail for violation in queue.check_invariants()] == ["active_users is 4, must be 1"]
    queue.repair(now=NOW)
    assert queue.fairness().active_users == 1
