"""The page of the next 24 hours: rows, marks, tables and time zones."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from django_fairque.admin.pages import upcoming
from django_fairque.admin.pages.schedules import SCHEDULES_PER_PAGE
from django_fairque.engine.model.task import Task
from django_fairque.engine.schedules.forecast import Forecast
from tests.admin.page_reader import log_in, page_url, read, words_of
from tests.fixture_types import Client, FairQueue, Redis
from tests.lab.benchmarks.admin import cost

pytestmark = pytest.mark.django_db


def add(queue: FairQueue, name: str, cron: str = "0 * * * *", **options: Any) -> None:
    queue.schedules.add(name, task=Task.create("ann", 3, None, name="shop.send"), cron=cron, **options)


def in_hours(hours: float, zone: str = "UTC") -> str:
    """Return the cron expression of the minute ``hours`` from now."""
    return f"{datetime.fromtimestamp(time.time() + hours * 3600, ZoneInfo(zone)):%M %H} * * *"


def page_rows(client: Client, **query: str) -> dict[str, Any]:
    return {row["plan"].schedule.name: row for row in client.get(page_url("upcoming", **query)).context["rows"]}


def count_marks(row: dict[str, Any]) -> int:
    return int(row["marks"].count("M") + row["bands"].count("M"))


def test_overlaps_overloads_and_pauses_are_in_the_tables(admin_client: Client, queue: FairQueue) -> None:
    for name in ("export", "import"):
        add(queue, name, in_hours(3))
    add(queue, "off")
    queue.schedules.pause("off", note="the shop moves")
    queue.heartbeat("w", {"concurrency": "1"})
    queue.push(Task.create("ann", 3, None, execute_after=time.time() + 7200))
    text = words_of(read(admin_client, page_url("upcoming")))
    for words in (
        "1 overlap of two or more runs.",
        "1 time with more runs than the slots of the running workers (1).",
        "paused the shop moves",
        "UTC 2 export , import",
    ):
        assert words in text
    found = page_rows(admin_client)
    assert {name: (row["plan"].count, row["overlaps"]) for name, row in found.items()} == {
        "export": (1, 1),
        "import": (1, 1),
        "off": (0, 0),
    }
    assert [bool(row["overlap_marks"]) for row in found.values()] == [True, True, False]
    hours = admin_client.get(page_url("upcoming")).context["hours"]
    assert sum(hour["scheduled"] for hour in hours) == 1
    assert [[name for _, name, _ in hour["runs"]] for hour in hours if hour["runs"]] == [["export", "import"]]


def test_a_run_is_shown_in_the_zones_of_the_page_and_of_the_schedule(admin_client: Client, queue: FairQueue) -> None:
    add(queue, "tokyo", "30 9 * * *", timezone="Asia/Tokyo")
    add(queue, "dublin", "30 9 * * *", timezone="Africa/Abidjan")  # always UTC
    text = words_of(read(admin_client, page_url("upcoming")))
    assert re.search(r"tokyo .*? \d{4}-\d\d-\d\d 00:30 09:30 Asia/Tokyo", text)
    assert "Abidjan" not in text


@pytest.mark.parametrize(
    ("zone", "begin", "expected"),
    [
        # Labels are hours of the page's zone. In the night with 25 hours, four hours lie between 00:00 and 03:00.
        ("Asia/Kolkata", "2026-11-30T00:10", [(3, 2.833), (6, 5.833)]),
        ("Europe/Berlin", "2026-10-24T23:50", [(0, 0.167), (3, 4.167)]),
        ("Europe/Berlin", "2026-03-28T23:50", [(0, 0.167), (3, 2.167)]),
    ],
)
def test_labels_are_full_hours_of_the_pages_zone(zone: str, begin: str, expected: list[tuple[int, float]]) -> None:
    first = datetime.fromisoformat(begin).replace(tzinfo=ZoneInfo(zone)).timestamp()
    edges = [first, *(float(edge) for edge in range(int(first // 3600 + 1) * 3600, int(first + 86_400), 3600))]
    found = Forecast(first, first + 86_400, (), tuple((edge, 0) for edge in edges), 0, (), ())
    with timezone.override(zone):
        ticks = list(upcoming._ticks(found))
    labels = [(int(label[:2]), percent / 100 * 24) for percent, label in ticks[: len(expected)]]
    assert [hour for hour, _ in labels] == [hour for hour, _ in expected]
    assert [hours for _, hours in labels] == pytest.approx([hours for _, hours in expected], abs=0.01)


def test_a_page_has_at_most_a_thousand_marks(admin_client: Client, queue: FairQueue) -> None:
    for number in range(90):
        add(queue, f"hourly{number:02}", f"{number % 60} * * * *")
        add(queue, f"daily{number:02}", f"{number % 60} 4 * * *")
    found = page_rows(admin_client)
    assert len(found) == SCHEDULES_PER_PAGE
    marks = {name: count_marks(row) for name, row in found.items()}
    assert 500 < sum(marks.values()) <= upcoming.MAX_MARKS
    assert set(marks.values()) == {1, 24}, "runs of some schedules are put together"
    assert all(row["plan"].count == 24 for name, row in found.items() if name.startswith("hourly"))
    assert len(page_rows(admin_client, start=str(SCHEDULES_PER_PAGE))) == 180 - SCHEDULES_PER_PAGE
    assert page_rows(admin_client, start="x").keys() == found.keys()


@pytest.mark.usefixtures("each_page_reads_status")
def test_the_page_costs_few_round_trips(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    for number in range(200):
        add(queue, f"s{number}", f"{number % 60} {number % 24} * * *")
    read(admin_client, page_url("upcoming"))
    _, others = cost(redis, lambda: admin_client.get(page_url("model_events")))
    _, trips = cost(redis, lambda: admin_client.get(page_url("upcoming")))
    assert trips - others <= 10


def test_staff_who_may_see_the_upcoming_runs_get_a_link_from_the_schedules(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_schedule")
    add(queue, "s")
    where = page_url("upcoming", queue="default")
    assert f'<a href="{where}"><bdi>Next 24 hours</bdi></a>' in read(client, page_url("schedules"))
    assert page_url("schedules", queue="default", runs="s").replace("&", "&amp;") in read(client, where)
