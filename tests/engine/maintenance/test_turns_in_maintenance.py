"""One user's bulk of expired tasks, due tasks or dependents: another user's task waits for at most two slices of it."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, sweep_all, task

SLICE = 20
"""Tasks of each kind that one call expires, promotes or resolves."""
BULK = 30 * SLICE


@pytest.fixture
def queue(make_queue: MakeQueue) -> FairQueue:
    return make_queue(fair_by="tasks", retry_jitter=0, sweep_batch_size=SLICE)


def pops_until(queue: FairQueue, user: str, now: float, most: int = 100) -> int:
    """Pops until a task of this user starts, that one included."""
    for number in range(1, most + 1):
        lease = queue.pop(f"w{number}", now=now)
        if lease is not None and lease.user_id == user:
            return number
    return most + 1


class TestExpired:
    """Expired tasks at the head of queues."""

    def test_expired_tasks_of_one_user_do_not_delay_another(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, expires_at=NOW + 1)
        queue.push(task("b"), now=NOW + 2)
        assert pops_until(queue, "b", NOW + 2) == 1

    def test_expired_tasks_of_many_users_delay_no_other(self, queue: FairQueue) -> None:
        for i in range(10):
            push_many(queue, f"a{i}", BULK // 2, expires_at=NOW + 1)
        queue.push(task("b"), now=NOW + 2)
        assert pops_until(queue, "b", NOW + 2) == 1

    def test_expired_critical_tasks_delay_no_other_user(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, expires_at=NOW + 1, priority=6)
        queue.push(task("b"), now=NOW + 2)
        assert pops_until(queue, "b", NOW + 2) == 1

    def test_expired_tasks_of_members_delay_no_other_member(self, queue: FairQueue) -> None:
        for user in ("a", "b", "c"):
            queue.user(user).set_organization("g", now=NOW)
        for user in ("a", "c"):
            push_many(queue, user, BULK, expires_at=NOW + 1)
        queue.push(task("b"), now=NOW + 2)
        assert pops_until(queue, "b", NOW + 2) == 1
        assert queue.check_invariants() == []
        assert queue.pop("w", now=NOW + 2) is None

    def test_expired_tasks_of_a_listed_user_delay_no_other_of_the_list(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, expires_at=NOW + 1)
        queue.push(task("b"), now=NOW + 2)
        assert pop(queue, NOW + 2, users=["a", "b"]).user_id == "b"

    def test_a_live_task_starts_after_its_user_s_expired_tasks_are_removed(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, expires_at=NOW + 1)
        queue.push(task("a"), now=NOW + 2)
        assert pops_until(queue, "a", NOW + 2) <= BULK / SLICE
        assert queue.get_stats().states["failed"] == BULK

    def test_a_call_removes_at_most_two_slices_of_expired_tasks(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, expires_at=NOW + 1)
        for _ in range(5):
            before = queue.get_stats().states["failed"]
            queue.pop_batch(50, "w", now=NOW + 2)
            assert queue.get_stats().states["failed"] - before <= 2 * SLICE


class TestDependents:
    """Dependents of tasks that have ended."""

    def bulk(self, queue: FairQueue, parents: int, per_parent: int) -> list[str]:
        names = [f"p{i}" for i in range(parents)]
        queue.push_batch([task("a", task_id=name) for name in names], now=NOW)
        for name in names:
            queue.push_batch([task("a", 1, depends_on=[name]) for _ in range(per_parent)], now=NOW)
        queue.push(task("b", task_id="parent of b"), now=NOW)
        queue.push(task("b", 6, task_id="b", depends_on=["parent of b"]), now=NOW)
        return names

    @pytest.mark.parametrize(("parents", "per_parent"), [(1, BULK), (BULK, 1), (SLICE, SLICE)])
    def test_dependents_of_one_user_delay_no_dependents_of_other_users(
        self, queue: FairQueue, parents: int, per_parent: int
    ) -> None:
        self.bulk(queue, parents, per_parent)
        leases = queue.pop_batch(parents + 1, "w", now=NOW)
        assert len(leases) == parents + 1
        last = next(lease for lease in leases if lease.user_id == "b")
        queue.settle([Outcome.finish(lease) for lease in leases if lease is not last], worker="w", now=NOW)
        assert queue.get_stats().dependencies.resolving > 0
        queue.settle([Outcome.finish(last)], worker="w", now=NOW)
        assert self.sweeps_until_queued(queue, "b") <= 2

    def test_a_parent_with_few_dependents_does_not_wait_for_one_with_many(self, queue: FairQueue) -> None:
        queue.push_batch([task("a", task_id="large"), task("a", task_id="small")], now=NOW)
        queue.push_batch([task("a", depends_on=["large"]) for _ in range(BULK)], now=NOW)
        queue.push(task("a", task_id="b", depends_on=["small"]), now=NOW)
        leases = queue.pop_batch(2, "w", now=NOW)
        queue.settle([Outcome.finish(lease) for lease in leases if lease.task_id == "large"], worker="w", now=NOW)
        queue.settle([Outcome.finish(lease) for lease in leases if lease.task_id == "small"], worker="w", now=NOW)
        assert self.sweeps_until_queued(queue, "b") <= 2

    @pytest.mark.parametrize("before", [0, SLICE // 2, BULK // 2, BULK])
    def test_thousands_of_dependents_of_a_task_do_not_delay_another_user(self, queue: FairQueue, before: int) -> None:
        """The one task of b comes after many tasks of a."""
        queue.push(task("a", task_id="parent"), now=NOW)
        bulk = [task("a", depends_on=["parent"]) for _ in range(BULK)]
        queue.push_batch(bulk[:before], now=NOW)
        queue.push(task("b", task_id="b", depends_on=["parent"]), now=NOW)
        queue.push_batch(bulk[before:], now=NOW)
        assert queue.check_invariants() == []
        self.finish_parent(queue)
        assert self.sweeps_until_queued(queue, "b") <= 2
        assert queue.check_invariants() == []
        sweep_all(queue)
        assert queue.get_queue_sizes("a").ready == BULK

    def test_dependents_of_many_users_are_resolved_in_two_sweeps(self, queue: FairQueue) -> None:
        """In one call, as a graph pushes them; b has few tasks, as half of the users have."""
        queue.push(task("a", task_id="parent"), now=NOW)
        owners = ["a"] * BULK + [f"few{number}" for number in range(SLICE // 2)] + ["b"]
        queue.push_batch(
            [task(user, task_id=f"{user}.{at}", depends_on=["parent"]) for at, user in enumerate(owners)], now=NOW
        )
        self.finish_parent(queue)
        assert self.sweeps_until_queued(queue, f"b.{len(owners) - 1}") <= 2

    @pytest.mark.parametrize("policy", ["run", "cancel"])
    def test_dependents_of_a_failed_task_do_not_delay_another_user(self, queue: FairQueue, policy: str) -> None:
        """More of b's tasks wait out the failure: they stay where they are and delay nothing."""
        queue.push(task("a", task_id="parent"), now=NOW)
        bulk = [task("a", depends_on=["parent"], on_dependency_failure="run") for _ in range(BULK)]
        queue.push_batch(bulk, now=NOW)
        for number in range(SLICE // 2):
            queue.push(task("b", task_id=f"waits{number}", depends_on=["parent"]), now=NOW)
        queue.push(task("b", task_id="b", depends_on=["parent"], on_dependency_failure=policy), now=NOW)
        queue.fail(pop(queue), "no", retry=False, now=NOW)
        for _ in range(2):
            queue.sweep(now=NOW)
        assert queue.get_task("b").state is (TaskState.QUEUED if policy == "run" else TaskState.CANCELED)
        assert queue.get_task("waits0").state is TaskState.DEFERRED
        assert queue.check_invariants() == []
        sweep_all(queue)
        assert queue.get_queue_sizes("a").ready == BULK
        (letter,) = queue.dlq.list().items
        queue.dlq.requeue(letter.entry_id, now=NOW)
        self.finish_parent(queue, "a", task_id="parent")
        sweep_all(queue)
        assert queue.get_task("waits0").state is TaskState.QUEUED

    def test_canceled_dependents_leave_no_keys(self, queue: FairQueue, redis: Redis) -> None:
        queue.push(task("a", task_id="parent"), now=NOW)
        ids = push_many(queue, "a", 2 * SLICE, depends_on=["parent"])
        ids += push_many(queue, "b", 2, depends_on=["parent"])
        assert redis.exists("fq:{default:0}:deps:first:parent")
        queue.cancel_many(ids, now=NOW)
        assert not list(redis.scan_iter("*:deps:*"))

    def test_an_entry_of_a_task_that_does_not_wait_is_found_and_repaired(self, queue: FairQueue, redis: Redis) -> None:
        queue.push_batch([task("a", task_id="parent"), task("a", task_id="other")], now=NOW)
        push_many(queue, "a", 2 * SLICE, depends_on=["parent"])
        redis.sadd("fq:{default:0}:deps:first:parent", "other")
        assert [violation.invariant for violation in queue.check_invariants()] == ["dependencies"]
        queue.repair()

    def finish_parent(self, queue: FairQueue, *users: str, task_id: str = "parent") -> None:
        while (lease := queue.pop("w", list(users) or "*", now=NOW)) is not None and lease.task_id != task_id:
            queue.finish(lease, now=NOW)
        assert lease is not None
        queue.finish(lease, now=NOW)

    def test_dependents_of_canceled_tasks_delay_no_other_user(self, queue: FairQueue) -> None:
        names = self.bulk(queue, BULK, 1)
        queue.cancel_many(names, now=NOW)
        queue.finish(queue.pop("w", ["b"], now=NOW), now=NOW)  # type: ignore[arg-type]
        assert self.sweeps_until_queued(queue, "b") <= 2
        sweep_all(queue)
        assert queue.get_stats().states["canceled"] == 2 * BULK

    def sweeps_until_queued(self, queue: FairQueue, task_id: str) -> int:
        for number in range(100):
            if queue.get_task(task_id).state is TaskState.QUEUED:
                return number
            queue.sweep(now=NOW)
        return 100


class TestDue:
    """Scheduled tasks whose time has come."""

    def test_a_task_due_after_a_large_bulk_of_another_user_starts_soon(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, execute_after=NOW + 10)
        queue.push(task("b", execute_after=NOW + 10.001), now=NOW)
        assert pops_until(queue, "b", NOW + 11) <= 2

    def test_one_sweep_makes_a_due_task_ready_among_the_due_tasks_of_many_users(self, queue: FairQueue) -> None:
        for i in range(SLICE // 2):
            push_many(queue, f"a{i}", 2 * SLICE, execute_after=NOW + 10)
        queue.push(task("b", 6, execute_after=NOW + 11), now=NOW)
        queue.sweep(now=NOW + 12)
        assert queue.get_queue_sizes("b").ready == 1

    def test_a_task_between_two_bulks_waits_for_two_pops_at_most(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK, execute_after=NOW + 10)
        queue.push(task("b", execute_after=NOW + 11), now=NOW)
        push_many(queue, "a", BULK, execute_after=NOW + 12)
        assert pops_until(queue, "b", NOW + 13) <= 2

    def test_due_retries_of_one_user_do_not_delay_another(self, queue: FairQueue) -> None:
        push_many(queue, "a", BULK)
        queue.push(task("b"), now=NOW)
        leases = queue.pop_batch(BULK + 1, "w", now=NOW)
        mine = [lease for lease in leases if lease.user_id == "b"]
        bulk = [lease for lease in leases if lease.user_id == "a"]
        queue.settle([Outcome.fail(lease, "down", delay=1) for lease in bulk], worker="w", now=NOW)
        queue.settle([Outcome.fail(lease, "down", delay=1) for lease in mine], worker="w", now=NOW + 0.5)
        assert pops_until(queue, "b", NOW + 2) <= 2

    def test_users_with_many_due_tasks_take_turns(self, queue: FairQueue) -> None:
        """More users than one slice has tasks: each sweep serves those that were not served by the one before."""
        users = [f"u{i}" for i in range(3 * SLICE)]
        for user in users:
            push_many(queue, user, 5, execute_after=NOW + 10)
        for number in range(3):
            queue.sweep(now=NOW + 11 + number)
        assert {queue.get_queue_sizes(user).ready for user in users} == {1}

    def test_due_tasks_become_ready_in_the_order_of_their_times(self, queue: FairQueue) -> None:
        moments = [NOW + 10 + (37 * i) % 100 / 100 for i in range(100)]
        queue.push_batch([task("a", payload=moment, execute_after=moment) for moment in moments], now=NOW)
        leases = [queue.pop("w", now=NOW + 20) for _ in range(100)]
        assert [lease.payload for lease in leases if lease] == sorted(moments)

    def test_due_tasks_are_found_when_the_index_of_due_tasks_is_missing(self, queue: FairQueue, redis: Redis) -> None:
        push_many(queue, "a", 3 * SLICE, execute_after=NOW + 10)
        redis.delete("fq:{default:0}:due", "fq:{default:0}:queue:user:a:scheduled")
        sweeps = 1
        while queue.sweep(now=NOW + 11).more:
            sweeps += 1
        assert queue.get_queue_sizes("a").ready == 3 * SLICE
        assert sweeps <= 10

    def test_a_canceled_scheduled_task_leaves_its_index_soon(self, queue: FairQueue, redis: Redis) -> None:
        (task_id,) = push_many(queue, "a", 1, execute_after=NOW + 10)
        queue.cancel(task_id, now=NOW)
        push_many(queue, "b", 1, execute_after=NOW + 10)
        queue.sweep(now=NOW + 11)
        assert not redis.exists("fq:{default:0}:due", "fq:{default:0}:queue:user:a:scheduled")
