"""Tasks that wait for tasks on other shards."""

from __future__ import annotations

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskIdConflictError, TaskNotFoundError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task
from tests.engine.sharding.sharded import ONE, THREE, TWO, finish_all, names_of, users_of


class TestDependencies:
    def test_a_dependency_on_another_shard_releases_its_dependent_when_it_ends(self, queue: FairQueue) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        assert queue.get_task(second).state is TaskState.DEFERRED
        view = queue.dependencies(first)
        assert (view.waiting, view.graph.edges) == ((second,), ((first, second),))
        assert queue.dependencies(second).blocked == (first,)
        assert queue.blockers([second])[second].orphans == ()
        assert finish_all(queue) == [ONE, TWO]

    def test_an_ended_dependency_on_another_shard_does_not_block(self, queue: FairQueue) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        finish_all(queue)
        queue.push(task(TWO, depends_on=[first]), now=NOW)
        assert finish_all(queue) == [TWO]

    def test_an_unknown_dependency_on_another_shard_is_refused(self, queue: FairQueue) -> None:
        absent = Task.create(ONE, 3, None).task_id
        with pytest.raises(TaskNotFoundError, match="does not know"):
            queue.push(task(TWO, depends_on=[absent]), now=NOW)
        assert names_of(queue) == {}

    @pytest.mark.parametrize(
        ("policy", "state"), [("wait", TaskState.DEFERRED), ("cancel", TaskState.CANCELED), ("run", TaskState.QUEUED)]
    )
    def test_a_dependency_s_failure_on_another_shard_follows_policy(
        self, queue: FairQueue, policy: str, state: TaskState
    ) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first], on_dependency_failure=policy), now=NOW).task_id
        queue.fail(queue.pop("w", now=NOW), "x", retry=False, now=NOW)  # type: ignore[arg-type]
        queue.carry_messages(now=NOW)
        assert queue.get_task(second).state is state
        queue.dlq.requeue(f"{first}~1", now=NOW)
        finish_all(queue)
        assert queue.get_task(second).state is (TaskState.CANCELED if policy == "cancel" else TaskState.FINISHED)

    @pytest.mark.parametrize("how", ["cancel", "discard", "forget"])
    def test_a_dependency_that_will_never_finish_cancels_its_dependents(self, queue: FairQueue, how: str) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        if how == "cancel":
            queue.cancel(first, now=NOW)
        else:
            queue.fail(queue.pop("w", now=NOW), "x", retry=False, now=NOW)  # type: ignore[arg-type]
            queue.carry_messages(now=NOW)
        later = NOW + 605_000 if how == "forget" else NOW
        if how == "discard":
            queue.dlq.discard(f"{first}~1", now=NOW)
        for _ in range(3):
            queue.sweep(now=later)
            queue.carry_messages(now=later)
        assert queue.get_task(second).state is TaskState.CANCELED

    def test_a_sweep_carries_messages_that_were_left(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        queue.push(task(TWO, depends_on=[first]), now=NOW)
        here, there = queue.shards[0], queue.shards[1]
        settled = here.settle([Outcome.finish(lease) for lease in here.pop_batch(1, "w", now=NOW)], now=NOW)
        assert settled.has_messages
        assert here.sweep(now=NOW).messages == 1
        assert there.pop("w", now=NOW) is None
        assert queue.carry_messages(now=NOW) == 1
        assert queue.carry_messages(now=NOW) == 0
        assert there.pop("w", now=NOW) is not None
        assert here.sweep(now=NOW).messages == 0

    def test_a_message_between_shards_that_arrives_twice_has_one_effect(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        tasks = [task(TWO, depends_on=[first]), task(THREE, depends_on=[first])]
        queue.push_graph(tasks, now=NOW)
        outbox = "fq:{default:0}:outbox"
        (lease,) = queue.shards[0].pop_batch(1, "w", now=NOW)
        queue.finish(lease, now=NOW)
        kept = redis.hgetall(outbox)
        assert kept
        queue.carry_messages(now=NOW)
        redis.hset(outbox, mapping=kept)  # type: ignore[arg-type]
        queue.carry_messages(now=NOW)
        assert queue.get_stats().totals["resolved"] == 2
        assert sorted(finish_all(queue)) == sorted([TWO, THREE])

    def test_a_lost_question_about_a_dependency_is_sent_again(self, queue: FairQueue, redis: Redis) -> None:
        first = queue.push(task(ONE), now=NOW).task_id
        second = queue.push(task(TWO, depends_on=[first]), now=NOW).task_id
        redis.delete("fq:{default:0}:deps:remote:" + first)  # pretend that a failover lost it
        redis.hdel("fq:{default:0}:task:" + first, "watched", "waited")
        (lease,) = queue.shards[0].pop_batch(1, "w", now=NOW)
        queue.finish(lease, now=NOW)
        queue.carry_messages(now=NOW)
        assert queue.get_task(second).state is TaskState.DEFERRED
        queue.sweep(now=NOW + 61)
        queue.carry_messages(now=NOW + 61)
        assert queue.get_task(second).state is TaskState.QUEUED


def test_a_chosen_id_of_a_user_on_another_shard_is_refused(queue: FairQueue) -> None:
    (mine,), (theirs,) = users_of(1, 1), users_of(0, 1)
    queue.push(task(mine, task_id="x"), now=NOW)
    with pytest.raises(TaskIdConflictError):
        queue.push(task(theirs, task_id="x"), now=NOW)
    queue.push(task(mine, task_id="child", depends_on=["x"]), now=NOW)
    assert queue.check_invariants() == []
    assert queue.pop("w", [theirs], now=NOW + 1) is None
    queue.finish(pop(queue, NOW + 1, users=[mine]), {"of": "mine"}, now=NOW + 1)
    assert queue.get_task("child").state is TaskState.QUEUED
    assert queue.parent_results("child") == {"x": {"of": "mine"}}


def test_results_of_parents_with_chosen_ids_on_any_shard(queue: FairQueue) -> None:
    users = [users_of(shard, 1)[0] for shard in range(3)]
    for number, user in enumerate(users):
        queue.push(task(user, task_id=f"parent {number}"), now=NOW)
    parents = [f"parent {number}" for number in range(3)]
    queue.push(task(users[1], task_id="child", depends_on=parents), now=NOW)
    for number in range(3):
        queue.finish(pop(queue, NOW + 1, users=[users[number]]), number, now=NOW + 1)
    assert queue.parent_results("child") == dict(zip(parents, range(3), strict=True))
