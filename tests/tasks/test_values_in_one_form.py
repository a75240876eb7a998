"""The same values are the same call in every process, and moments arrive in every hour of a zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, Field, RootModel

from django_fairque import task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules.due_times import Timing
from django_fairque.tasks.execution import Services

from .helpers import run_next


@dataclass(frozen=True)
class Filter:
    numbers: frozenset[int]
    also: tuple[frozenset[int], ...] = ()


class Search(BaseModel):
    found: set[int] = Field(alias="numbers")
    filters: dict[str, Filter]


class Numbers(RootModel[set[int]]):
    pass


@dataclass
class Visit:
    at: datetime


ONE, OTHER = [0, 8, 16], [16, 8, 0]
"""The same numbers, which a set keeps in another order if they are added in another order."""


@pytest.mark.parametrize(
    ("hint", "make"),
    [
        (set[int], set),
        (dict[str, set[int]], lambda numbers: {"a": set(numbers)}),
        (list[tuple[frozenset[int], int]], lambda numbers: [(frozenset(numbers), 1)]),
        (Filter, lambda numbers: Filter(frozenset(numbers), (frozenset(numbers),))),
        (set[Filter], lambda numbers: {Filter(frozenset(numbers))}),
        (Search, lambda numbers: Search(numbers=set(numbers), filters={"a": Filter(frozenset(numbers))})),
        (Numbers, lambda numbers: Numbers(set(numbers))),
        (dict[str, int] | set[int], lambda numbers: {str(number): 1 for number in numbers}),
    ],
)
def test_equal_sets_in_another_order_are_one_unique_call(queue: FairQueue, hint: Any, make: Any) -> None:
    def index(values: Any, other: int = 1) -> None: ...

    index.__annotations__["values"] = hint
    assert list(set(ONE)) != list(set(OTHER))
    declared = task(unique_for=60)(index)
    first = declared.enqueue(make(ONE))
    assert declared.enqueue(make(OTHER)).id == first.id
    assert declared.enqueue(values=make(OTHER), other=1).id == first.id
    assert declared.enqueue(make([*ONE, 24])).id != first.id


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]


def changes_of(zone: ZoneInfo) -> list[datetime]:
    """Moments of a year around which the zone's clocks are set."""
    hours = [datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(minutes=30 * count) for count in range(17_520)]
    offsets = [hour.astimezone(zone).utcoffset() for hour in hours]
    return [hour for hour, before, after in zip(hours[1:], offsets, offsets[1:], strict=False) if before != after]


@pytest.mark.parametrize("name", ZONES)
def test_moments_around_each_change_of_clocks_arrive_unchanged(queue: FairQueue, services: Services, name: str) -> None:
    arrived: list[Any] = []

    @task
    def remind(at: datetime, *, visits: list[Visit], days: dict[datetime, set[datetime]]) -> datetime:
        arrived.append((at, visits[0].at, *days, *next(iter(days.values()))))
        return at

    zone = ZoneInfo(name)
    sent = []
    for change in changes_of(zone):
        for minutes in (-61, -15, 0, 15, 59):
            moment = (change + timedelta(minutes=minutes)).astimezone(zone)
            left_out = (change - timedelta(minutes=1)).astimezone(zone) + timedelta(minutes=16)  # if an hour is
            some = [moment, moment.replace(fold=1 - moment.fold), left_out]
            sent += some
            for at in some:
                result = remind.enqueue(at, visits=[Visit(at)], days={at: {at}})
                assert run_next(queue, services) == "finished"
                assert result.result().timestamp() == at.timestamp()
    assert [{moment.timestamp() for moment in found} for found in arrived] == [{at.timestamp()} for at in sent]


class Booking(BaseModel, frozen=True):
    at: datetime
    texts: list[str]


def test_a_moment_without_a_zone_keeps_its_fold(queue: FairQueue, services: Services) -> None:
    arrived: list[Any] = []

    @task
    def remind(at: datetime, *, bookings: tuple[Booking, ...], days: dict[str, list[Visit]]) -> datetime:
        arrived.extend((at, bookings[0].at, days["a"][0].at))
        return at

    for fold in (1, 0):
        at = datetime(2026, 10, 25, 2, 30, 0, 5, fold=fold)  # noqa: DTZ001 - it has no zone
        booking = Booking(at=at, texts=["2026-10-25t02:30:00"])
        result = remind.enqueue(at, bookings=(booking,), days={"a": [Visit(at)]})
        assert run_next(queue, services) == "finished"
        assert arrived == [at] * 3
        assert [moment.fold for moment in arrived] == [fold] * 3
        assert result.result().fold == fold
        arrived.clear()


@pytest.mark.parametrize("name", ZONES)
def test_a_schedule_runs_through_every_change_of_the_clocks(name: str) -> None:
    for change in changes_of(ZoneInfo(name)):
        timing = Timing.create("*/15 * * * *", None, name, 0)
        moment = change.timestamp() - 7200
        for _ in range(16):
            following = timing.find_next_run(moment)
            assert following == moment + 900
            moment = following
