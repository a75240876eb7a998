"""What ``manage.py demo --serve`` sends: something for every page of the admin, and never too much."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from library.endless_day import (
    BURST_EVERY,
    LIMITED,
    LIMITED_BACKLOG,
    MAILBOX,
    MEMBERS,
    NOISY,
    ORGANIZATION,
    PAUSED,
    PAUSED_BACKLOG,
    WEIGHTS,
    EndlessDay,
    end_day,
)

from django_fairque.models import OutboxEntry

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)

SLOTS = 2


@pytest.fixture
def day(queue: FairQueue, settings: Settings) -> EndlessDay:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
    day = EndlessDay(queue, SLOTS, "json", [1, 2, 3])
    day.begin()
    return day


def test_a_quarter_of_a_minute_has_every_kind_of_task(queue: FairQueue, day: EndlessDay) -> None:
    for second in range(BURST_EVERY // 4 + 1):
        day.step(second)
    sizes = queue.get_queue_sizes_batch([*WEIGHTS, NOISY, LIMITED, PAUSED])
    assert all(size.ready for size in sizes.values())
    assert sizes[NOISY].ready > 5 * max(sizes[name].ready for name in WEIGHTS)
    assert (sizes[LIMITED].ready, sizes[PAUSED].ready) == (LIMITED_BACKLOG, PAUSED_BACKLOG)
    names = Counter(task.name.rpartition(".")[2] for task in queue.tasks("queued", limit=1000))
    assert {"serve_customer", "parse_document", "rebuild_search_index", "fetch_rates", "send_reminder"} <= names.keys()
    queue_stats = queue.get_stats()
    assert queue_stats.states["deferred"] > 0
    assert all(queue_stats.lanes[lane].ready for lane in ("urgent", "bulk"))
    stats = {stats.user_id: stats for stats in queue.user_stats([*WEIGHTS, LIMITED, PAUSED])}
    assert [stats[name].weight for name in WEIGHTS] == list(WEIGHTS.values())
    assert [stats[name].organization for name in MEMBERS] == [ORGANIZATION, ORGANIZATION]
    assert stats[LIMITED].max_running == 1
    assert stats[LIMITED].sla
    assert stats[PAUSED].paused
    assert queue.limit(f"mailbox:{MAILBOX}").stats().waiting >= len(WEIGHTS)
    assert len(queue.schedules.list()) == 2
    first, second = OutboxEntry.objects.order_by("id")
    assert (first.user_id, second.user_id, second.attempts, second.last_error) == (PAUSED, PAUSED, 0, "")
    assert "backlog" in first.last_error


def test_the_endless_day_adds_no_tasks_while_too_many_wait(queue: FairQueue, day: EndlessDay) -> None:
    """Without a worker nothing is done, so after some minutes the day stands still."""
    for minute in range(20):
        day.step(minute * BURST_EVERY + BURST_EVERY // 4)
    before = queue.get_stats().states["queued"]
    day.step(BURST_EVERY // 4)
    assert queue.get_stats().states["queued"] == before


def test_the_end_of_the_day_leaves_no_waiting_tasks(queue: FairQueue, day: EndlessDay) -> None:
    for second in (0, 5):
        day.step(second)
    end_day(queue)
    end_day(queue)
    assert queue.get_stats().states["queued"] == 0
    assert list(queue.schedules.list()) == []
    assert not OutboxEntry.objects.exists()
    assert not queue.user_stats([PAUSED])[0].paused
    assert queue.check_invariants() == []
