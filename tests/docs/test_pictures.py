"""The pictures with figures, and the figures of README, are what the benchmarks wrote and what the engine does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.conf.sections import WorkerConfig
from django_fairque.engine.model.lanes import check_lane
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.pushing.push import REMOVED_ROW_RECORD_SECONDS
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.worker.reporting.outbox_thread import MIN_ROW_AGE_SECONDS
from tests.docs.blocks import DOCS
from tests.engine.conftest import NOW, task
from tests.tools import pictures

if TYPE_CHECKING:
    from redis import Redis


def test_the_pictures_are_up_to_date_with_the_results() -> None:
    old = [file.name for file, text in pictures.files().items() if file.read_text() != text]
    assert old == [], "run python -m tests.tools.pictures"


def test_the_results_show_what_readme_claims() -> None:
    found = pictures.results()
    fair, first_come = pictures.waits(found, "fair"), pictures.waits(found, "first come")
    assert len(fair) == len(first_come) == 8
    assert max(fair) < min(first_come) / 10
    assert sum(pictures.values(found, "kills", "tasks lost")) == 0
    assert len(pictures.FIGURES.findall(pictures.README.read_text())) == 1


def test_the_drawn_turns_are_those_of_the_engine(redis: Redis) -> None:
    queue = FairQueue(redis, "default", QueueConfig(fair_by="tasks"))
    queue.push_batch([task(user) for user in pictures.FIRST_COME], now=NOW)
    served = []
    while lease := queue.pop("w", lease=100, now=NOW):
        served.append(lease.user_id)
        queue.finish(lease, took=1, now=NOW)
    assert served == pictures.IN_TURN


def test_tasks_in_the_picture_of_lanes_start_as_in_the_engine(redis: Redis) -> None:
    queue = FairQueue(redis, "default", QueueConfig(fair_by="tasks"))
    for name, users in pictures.LANE_TASKS.items():
        queue.push_batch([task(user, lane=check_lane(name, "lane")) for user in users], now=NOW)
    served = []
    while lease := queue.pop("w", lease=100, now=NOW):
        served.append(lease.user_id)
        queue.finish(lease, took=1, now=NOW)
    assert served == pictures.IN_LANES


def test_a_queue_with_one_user_is_first_come_first_served(redis: Redis) -> None:
    """So the benchmark's second run, in which all tasks belong to one user, is what it is called."""
    queue = FairQueue(redis)
    pushed = [queue.push(task("everyone"), now=NOW + number / 1000).task_id for number in range(20)]
    assert [lease.task_id for lease in queue.pop_batch(20, "w", now=NOW + 1)] == pushed


def test_the_times_in_the_other_pictures_are_those_of_the_package() -> None:
    lease, outbox = ((DOCS / "images" / f"{name}.svg").read_text() for name in ("lease", "outbox"))
    assert f"A lease lasts {WorkerConfig().lease_seconds:g} s (LEASE_SECONDS)" in lease
    assert (REMOVED_ROW_RECORD_SECONDS, MIN_ROW_AGE_SECONDS) == (600, 1)
    assert "forgets it in 10 minutes" in outbox
    assert "after 1 s" in outbox
