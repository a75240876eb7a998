"""Figures and lists while a node is away cover the living shards, and name the missing ones."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.inspection.pages import PartialList
from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.errors import ShardsAwayError
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.cluster.conftest import SHARDS
from tests.engine.conftest import task

from .away import USERS, Away


def test_figures_and_health_name_missing_shards(queue: FairQueue, patient_queue: FairQueue, away: Away) -> None:
    whole = patient_queue.get_stats()
    assert (whole.states["queued"], whole.missing_shards) == (len(USERS), ())
    away.kill()
    stats = queue.get_stats()
    assert (stats.states["queued"], stats.users) == (len(away.others), len(away.others))
    assert stats.missing_shards == away.shards
    activity = queue.get_activity()
    assert sum(span.pushed for span in activity.spans) == len(away.others)
    assert activity.missing_shards == away.shards
    shard_stats = queue.get_shard_stats()
    assert [one.shard for one in shard_stats if not one.is_up] == list(away.shards)
    assert len(shard_stats) == SHARDS
    assert sum(one.depth for one in shard_stats) == len(away.others)
    health = queue.health()
    assert health.status == "degraded"
    assert health.missing_shards == away.shards
    assert f"shards {', '.join(map(str, away.shards))} of {SHARDS} can't be reached" in health.reasons[0]


def test_pages_and_lists_work_while_shards_are_missing(queue: FairQueue, patient_queue: FairQueue, away: Away) -> None:
    page = patient_queue.tasks("queued", limit=7)  # the cursor is from before the outage
    away.kill()
    seen: list[Task] = []
    while page.cursor is not None:
        page = queue.tasks("queued", limit=7, cursor=page.cursor)
        seen += page.items
        assert page.missing_shards == away.shards
    assert {task.user_id for task in seen} <= set(away.others)
    users = queue.users(limit=100)
    assert (sorted(users.items), users.missing_shards) == (sorted(away.others), away.shards)
    found = queue.find(Search(TaskState.QUEUED), 100)
    assert ({task.user_id for task in found.tasks}, found.missing_shards) == (set(away.others), away.shards)
    matching = queue.matching(Search(TaskState.QUEUED))
    assert (len(matching.task_ids), matching.is_whole) == (len(away.others), False)
    assert matching.missing_shards == away.shards
    lists: list[PartialList[Any]] = [queue.busy_users(), queue.busiest_users(), queue.longest_waits(), queue.workers()]
    assert [found.missing_shards for found in (*lists, queue.check_invariants())] == [away.shards] * 5
    assert set(queue.busy_users()) == set(away.others)


@pytest.mark.thorough
def test_lists_leave_missing_shards_out_and_single_numbers_raise_an_error(
    queue: FairQueue, patient_queue: FairQueue, away: Away
) -> None:
    for lease in patient_queue.pop_batch(100, "w"):
        patient_queue.fail(lease, "no", retry=False)
    here, there = away.others[0], away.users[0]
    for name, user in (("here", here), ("there", there)):
        patient_queue.schedules.add(name, task=task(user), every=60)
    patient_queue.push_batch([task(user) for user in USERS])
    patient_queue.pause()
    away.kill()
    page = queue.dlq.list(100)
    assert (len(page.items), page.missing_shards) == (len(away.others), away.shards)
    assert len(queue.dlq.letters(100).items) == len(away.others)
    counts = queue.dlq.counts()
    assert (counts["failed"], counts.missing_shards) == (len(away.others), away.shards)
    groups = queue.dlq.groups()
    assert (groups.groups[0].count, groups.is_whole, groups.missing_shards) == (
        len(away.others),
        False,
        away.shards,
    )
    matching = queue.dlq.matching()
    assert (matching.count, matching.is_whole, matching.missing_shards) == (len(away.others), False, away.shards)
    found = queue.schedules.list()
    assert ([schedule.name for schedule in found], found.missing_shards) == (["here"], away.shards)
    queue.schedules.pause("here")
    queue.schedules.add("here", task=task(here), every=30)
    with pytest.raises(ShardsAwayError, match="the schedule 'new' can't be looked up"):
        queue.schedules.add("new", task=task(here), every=30)
    with pytest.raises(ShardsAwayError, match="the dead letters can't be counted") as caught:
        queue.dlq.count()
    assert caught.value.shards == away.shards
    with pytest.raises(ShardsAwayError, match="the pause of the queue can't be read"):
        queue.is_paused()
    with pytest.raises(ShardsAwayError, match="resumed without"):
        queue.resume()
    assert queue.is_paused() is False
    assert {lease.user_id for lease in queue.pop_batch(100, "w")} == set(away.others)
