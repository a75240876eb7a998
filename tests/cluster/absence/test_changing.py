"""A change of a whole queue while a node is away reaches the living shards, and the error names the other shards."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from django_fairque.engine.model.errors import RedisConnectionError, ShardsAwayError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.async_queue import AsyncFairQueue
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.health import Alert
from tests.engine.conftest import task

from .away import USERS, Away, in_time, stopped


@pytest.fixture
def busy(queue: FairQueue, patient_queue: FairQueue) -> FairQueue:
    """Every user has a task that waits, one in the run, and three dead letters."""
    patient_queue.push_batch([task(user, name=name) for user in USERS for name in LETTERS])
    while lease := patient_queue.pop("worker"):
        patient_queue.fail(lease, ValueError("no"), retry=False)
    patient_queue.dlq.discard_all(name="")  # remove the dead letters of the fixture
    patient_queue.push_graph([task(user) for user in USERS], "run")
    patient_queue.push_batch([task(user) for user in USERS])
    return queue


LETTERS = ("to requeue", "to give up", "to forget")
CHANGES: dict[str, Callable[[FairQueue], int]] = {
    "tasks of run 'run' were canceled": lambda queue: queue.cancel_run("run"),
    "tasks were canceled": lambda queue: queue.purge(),
    "dead letters were requeued": lambda queue: queue.dlq.requeue_all(name="to requeue"),
    "dead letters were given up": lambda queue: queue.dlq.discard_all(name="to give up"),
    "dead letters were forgotten": lambda queue: queue.dlq.cleanup(0),
}
"""Changes by the words of their errors, in an order in which none takes a task of another; a user has one of each."""


@pytest.mark.slow
def test_a_change_reaches_living_shards_and_its_error_names_missing_shards(
    busy: FairQueue, patient_queue: FairQueue, away: Away
) -> None:
    away.kill()
    for done, change in CHANGES.items():
        words = rf"^{len(away.others)} {done}, and not all could be looked at: shards "
        with pytest.raises(ShardsAwayError, match=words) as caught:
            change(busy)
        assert caught.value.shards == away.shards
    with pytest.raises(ShardsAwayError, match=r"^0 repairs were made"):
        busy.repair()
    away.start()
    away.six.wait_whole()
    for done, change in CHANGES.items():  # the shards that were away still have these tasks; others were requeued
        more = len(away.others) if done == "tasks were canceled" else 0
        assert change(patient_queue) == len(away.users) + more, done
    assert patient_queue.check_invariants() == []


@pytest.mark.slow
def test_tasks_and_dead_letters_change_on_living_shards(busy: FairQueue, patient_queue: FairQueue, away: Away) -> None:
    later = patient_queue.push_batch([task(user, execute_after=time.time() + 3600) for user in USERS])
    scheduled = [result.task_id for result in later]
    waiting = [result.task_id for result in patient_queue.push_batch([task(user) for user in USERS])]
    letters = {name: [entry.entry_id for entry in patient_queue.dlq.list(100, name=name).items] for name in LETTERS}
    changes: dict[str, Callable[[FairQueue], int]] = {
        "tasks were canceled": lambda queue: queue.cancel_many(waiting),
        "tasks were queued": lambda queue: queue.run_now(*scheduled),
        "dead letters were requeued": lambda queue: queue.dlq.requeue_many(letters["to requeue"]),
        "dead letters were given up": lambda queue: queue.dlq.discard_many(letters["to give up"]),
    }
    away.kill()
    for done, change in changes.items():
        words = rf"^{len(away.others)} {done}, and not all could be looked at: shards "
        with pytest.raises(ShardsAwayError, match=words) as caught:
            change(busy)
        assert caught.value.shards == away.shards
    away.start()
    away.six.wait_whole()
    for done, change in changes.items():
        assert change(patient_queue) == len(away.users), done
    assert patient_queue.check_invariants() == []


@pytest.mark.slow
def test_a_purge_that_living_shards_can_fill_is_no_error(busy: FairQueue, away: Away) -> None:
    away.kill()
    some = len(away.others) // 2
    assert busy.purge(some) == some
    assert busy.get_stats().states["queued"] == 2 * len(away.others) - some


@pytest.mark.slow
def test_a_change_waits_once_for_a_silent_node_with_several_shards(busy: FairQueue, away: Away) -> None:
    with stopped(away), pytest.raises(ShardsAwayError), in_time():
        busy.purge()


@pytest.mark.slow
def test_alerts_are_returned_while_shards_are_missing(queue: FairQueue, patient_queue: FairQueue, away: Away) -> None:
    begun = time.time() + 1000
    for user in USERS:
        patient_queue.user(user).set_sla(10.0, now=begun)
        patient_queue.push(Task.create(user, 3, {}), now=begun)
    for seconds in (5.0, 9.0, 20.0):
        patient_queue.sweep(now=begun + seconds)
    away.kill()
    found = []
    while some := _alerts(queue, begun + 20.0):
        found += some
    assert {alert.user_id for alert in found} == set(away.others)
    with pytest.raises(RedisConnectionError):
        queue.take_alerts()


def _alerts(queue: FairQueue, now: float) -> list[Alert]:
    try:
        return queue.take_alerts(now=now)
    except RedisConnectionError:
        return []


@pytest.mark.slow
async def test_coroutines_change_living_shards_while_others_are_missing(
    busy: FairQueue, async_queue: AsyncFairQueue, away: Away
) -> None:
    same = async_queue
    away.kill()
    with pytest.raises(ShardsAwayError, match=f"^{2 * len(away.others)} tasks were canceled"), in_time():
        await same.purge()
    with pytest.raises(ShardsAwayError, match=f"^{len(away.others)} dead letters were requeued"), in_time():
        await same.dlq.requeue_all(name="to requeue")
