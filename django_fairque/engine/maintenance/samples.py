"""The sample of the backlog that maintenance records once a minute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django_fairque.engine.model.durations import number
from django_fairque.engine.model.lanes import CLASS_NAMES
from django_fairque.engine.scripting.operations import Operation, Read, read_sound
from django_fairque.engine.statistics.backlog import TOTALS, HourRecord
from django_fairque.engine.statistics.longest_waits import waits
from django_fairque.engine.statistics.wait_history import HISTORY_KEY, SAMPLED_USERS, HalfHour
from django_fairque.engine.users.fairness import longest_user_waits

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands


def record_sample(commands: Commands, now: float | None) -> Operation[None]:
    """Record the number of ready tasks, the wait of the oldest task that could start, and the users with the longest waits.

    Maintenance calls this once a minute.
    """
    keys = commands.keys
    depths = [f"depth:{priority}" for priority in CLASS_NAMES]
    (clock, values) = yield Read([("TIME",), ("HMGET", keys("stats"), *depths, *TOTALS)])
    seconds = int(clock[0]) + int(clock[1]) / 1_000_000 if now is None else now
    numbers = [int(number(value)) for value in values]
    ready, totals = max(0, sum(numbers[: len(depths)])), tuple(numbers[len(depths) :])
    longest = (yield from waits(commands, 1)).could_start
    of_users = yield from longest_user_waits(commands, SAMPLED_USERS, now)
    # The first task of the registry is the one that is checked next, and an older task whose SLA has passed may be checked later.
    oldest = max([0.0, *(seconds - task.since for task in longest), *(wait.seconds for wait in of_users)])
    oldest_us = round(oldest * 1_000_000)
    record = HourRecord(int(seconds) // 3600, ready, oldest_us, totals, totals)
    half_hour = HalfHour.from_waits(seconds, of_users)
    (written,), (earlier,) = yield from read_sound(
        [("HMGET", keys("stats:hours"), record.field), ("HMGET", keys(HISTORY_KEY), half_hour.field)]
    )
    half_hour = half_hour.with_earlier(HalfHour.parse(earlier))
    before = HourRecord.parse(written)
    if before is not None and before.hour == record.hour:
        most = max(ready, before.ready), max(oldest_us, before.oldest_us)
        record = replace(record, ready=most[0], oldest_us=most[1], first=before.first)
    fields = [record.field, record.pack(), half_hour.field, half_hour.pack()]
    yield commands.call("sweep", [ready, oldest_us, *fields], now)
