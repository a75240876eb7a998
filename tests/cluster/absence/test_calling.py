"""Calls while a node is away: whose go on, whose fail, and how long anybody waits."""

from __future__ import annotations

import pytest

from django_fairque.engine.model.errors import RedisConnectionError, ShardsAwayError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.transport import node_health as cluster_nodes
from tests.engine.conftest import task
from tests.worker.conftest import eventually

from .away import CONFIG, USERS, VICTIM, Away, in_time, stopped

pytestmark = pytest.mark.thorough


def test_users_of_reachable_shards_are_served_and_other_users_get_an_error(queue: FairQueue, away: Away) -> None:
    away.kill()
    here, there = away.others[0], away.users[0]
    assert queue.push(task(here)).status == "accepted"
    with pytest.raises(RedisConnectionError), in_time():
        queue.push(task(there))
    second = task(here)
    with in_time():
        queue.push_graph([second, Task.create(away.others[1], 3, {}, depends_on=[second.task_id])], "run")
    batch = [task(user) for user in USERS]
    with (
        pytest.raises(ShardsAwayError, match=f"{len(away.users)} of {len(USERS)} tasks were not pushed") as caught,
        in_time(),
    ):
        queue.push_batch(batch)
    assert caught.value.shards == away.shards
    assert set(caught.value.task_ids) == {task.task_id for task in batch if task.user_id in away.users}
    assert queue.get_stats(0).states["queued"] == len(away.others) * 2 + 2


@pytest.mark.slow
def test_chosen_ids_are_found_on_living_shards(queue: FairQueue, patient_queue: FairQueue, away: Away) -> None:
    patient_queue.push(Task.create(away.others[0], 3, {}, task_id="mine"))
    away.kill()
    assert queue.get_task("mine").user_id == away.others[0]
    with pytest.raises(ShardsAwayError, match="the task 'other' can't be located"):
        queue.get_task("other")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_calls_wait_only_once_for_a_missing_node(queue: FairQueue, away: Away, how: str) -> None:
    """A call does not wait for each shard of the node, nor for each figure. A later call does not wait at all."""
    if how == "killed":
        away.kill()
        assert queue.get_stats().missing_shards == away.shards
        return
    with stopped(away):
        assert queue.get_stats().missing_shards == away.shards
        with in_time():  # waiting for each reply would take twice as long at least
            for _ in range(80):
                assert queue.get_stats().missing_shards == away.shards
            assert queue.users().missing_shards == away.shards


@pytest.mark.slow
def test_two_queues_with_one_client_both_know_the_missing_nodes(queue: FairQueue, away: Away) -> None:
    with stopped(away):
        queue.get_stats()
        absence = cluster_nodes.unreachable_nodes(queue.client)
        other = FairQueue(queue.client, config=CONFIG)
        assert absence.missing_shards(queue.client, other._shards) == away.shards
        assert other.get_stats().missing_shards == away.shards


def test_a_node_that_is_reachable_again_is_used_again(queue: FairQueue, away: Away) -> None:
    away.kill()
    assert queue.get_stats().missing_shards == away.shards
    away.start()
    eventually(lambda: not queue.get_stats().missing_shards, 20)
    assert queue.get_stats().states["queued"] == len(USERS)
    assert queue.push(task(away.users[0])).status == "accepted"
    assert queue.check_invariants() == []


@pytest.mark.slow
def test_a_replica_that_takes_over_is_used_without_a_retry(queue: FairQueue, away: Away) -> None:
    """The admin's pages call the queue without retries, too."""
    hasty = queue.with_retry_timeout(0)
    assert hasty.get_stats().missing_shards == ()
    away.six.nodes[away.primary].kill()
    eventually(lambda: away.six.primary_of(VICTIM) == away.replica, 20)
    eventually(lambda: not hasty.get_stats().missing_shards, 20)
    assert hasty.get_stats().states["queued"] == len(USERS)


async def test_coroutines_read_living_shards_while_others_are_missing(
    queue: FairQueue, async_queue: AsyncFairQueue, away: Away
) -> None:
    same = async_queue
    with stopped(away):
        with in_time():
            assert (await same.get_stats()).missing_shards == away.shards
        with in_time():
            assert (await same.get_stats()).missing_shards == away.shards
            assert (await same.users()).missing_shards == away.shards
            assert (await same.health()).missing_shards == away.shards
            assert (await same.schedules.list()).missing_shards == away.shards
            assert (await same.dlq.counts()).missing_shards == away.shards


@pytest.mark.slow
def test_a_cluster_without_a_single_living_node_raises_a_connection_error(queue: FairQueue, away: Away) -> None:
    for server in away.six.nodes.values():
        server.kill()
    with pytest.raises(RedisConnectionError, match="can't be reached"):
        queue.get_stats()
