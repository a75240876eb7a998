"""The figures of a user by hour and by day, compared with counts of the tests. The tests give the time of each call."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.statistics.queue_stats import wait_bucket_middle
from django_fairque.engine.users.history import UserHistory, UserPeriod, add_up_periods
from tests.conftest import MakeServer
from tests.counting import commands
from tests.engine.conftest import MakeQueue, pop, sweep_all, task
from tests.engine.scripting.test_costs import used_memory
from tests.user_load import run_load
from tests.user_records import change_record

HOUR, DAY = 3600.0, 86_400.0
START = 2_000_073_600.0
"""The beginning of a day in UTC."""
KEY = "fq:{default:0}:periods:ann"


def end_one(queue: FairQueue, at: float, user: str = "ann", waited: float = 0.0, **options: Any) -> None:
    """Push and finish one task; ``at`` is in seconds after the beginning."""
    queue.push(task(user, **options), now=START + at - waited)
    queue.finish(pop(queue, START + at, users=[user]), took=0.01, now=START + at)


def read(queue: FairQueue, at: float, user: str = "ann") -> UserHistory:
    return queue.user(user).history(now=START + at)


def counts(periods: list[UserPeriod]) -> dict[int, tuple[int, ...]]:
    """Return the counts of the periods with activity, by the number of the period after the beginning."""
    found: dict[int, tuple[int, ...]] = {}
    for period in periods:
        values = (period.finished, period.failed, period.dead, period.sla_kept, period.sla_missed)
        if any(values):
            found[round((period.begin - START) / period.seconds)] = values
    return found


def test_an_unknown_user_has_a_history_of_empty_periods(queue: FairQueue) -> None:
    found = read(queue, 5 * HOUR, "nobody")
    assert (len(found.hours), len(found.days)) == (48, 35)
    assert found.hours[-1] == UserPeriod(round(START + 5 * HOUR), 3600)
    assert found.days[-1] == UserPeriod(round(START), 86_400)


@pytest.mark.parametrize("options", [{"hours": 0}, {"hours": 49}, {"days": 0}, {"days": 36}])
def test_a_history_of_another_length_is_refused(queue: FairQueue, options: dict[str, int]) -> None:
    with pytest.raises(TaskValidationError, match=next(iter(options))):
        queue.user("ann").history(**options)


def test_hours_and_days_are_kept_until_their_places_are_used_again(queue: FairQueue) -> None:
    for hour in range(0, 60 * 24, 5):
        end_one(queue, hour * HOUR)
    found = read(queue, (60 * 24 - 1) * HOUR)
    assert counts(found.hours) == dict.fromkeys(range(60 * 24 - 45, 60 * 24, 5), (1, 0, 0, 1, 0))
    by_day = Counter(hour // 24 for hour in range(0, 60 * 24, 5))
    assert counts(found.days) == {day: (by_day[day], 0, 0, by_day[day], 0) for day in range(25, 60)}


def test_waits_and_slas_of_an_hour_are_those_of_its_attempts(queue: FairQueue) -> None:
    for minute in range(18):
        end_one(queue, 60 * minute, sla=5)
    for waited in (10, 300):
        end_one(queue, 1200 + waited, waited=waited, sla=5)
    period = read(queue, 1800).hours[-1]
    assert (period.sla_kept, period.sla_missed, period.wait.count) == (18, 2, 20)
    assert (period.wait.p50, period.wait.p95) == (wait_bucket_middle(0), wait_bucket_middle(7))


def test_the_lease_of_a_dead_process_counts_as_a_failed_attempt(queue: FairQueue) -> None:
    queue.push(task("ann"), now=START)
    pop(queue, START, lease=30)
    sweep_all(queue, START + 60)
    assert counts(read(queue, 60).hours) == {0: (0, 1, 0, 1, 0)}
    lease = pop(queue, START + 70)
    queue.release_worker("w", started=[lease.token], crashed=[lease.token], now=START + 80)
    assert counts(read(queue, 80).hours)[0][:2] == (0, 2)


def test_a_task_that_was_given_back_unstarted_is_not_counted(queue: FairQueue) -> None:
    queue.push(task("ann"), now=START)
    queue.release(pop(queue, START), now=START + 1)
    assert counts(read(queue, 2).hours) == {}


def test_a_forgotten_user_keeps_its_history_and_goes_on_with_it(queue: FairQueue, redis: Redis) -> None:
    end_one(queue, 60)
    sweep_all(queue, START + 2 * HOUR)
    assert not redis.exists("fq:{default:0}:user:ann")
    assert counts(read(queue, 2 * HOUR).hours) == {0: (1, 0, 0, 1, 0)}
    end_one(queue, 2 * HOUR)
    end_one(queue, 2 * HOUR + 1)
    assert counts(read(queue, 2 * HOUR).hours) == {0: (1, 0, 0, 1, 0), 2: (2, 0, 0, 2, 0)}
    assert counts(read(queue, 2 * HOUR).days) == {0: (3, 0, 0, 3, 0)}
    sweep_all(queue, START + 4 * HOUR)
    assert counts(read(queue, 4 * HOUR).days) == {0: (3, 0, 0, 3, 0)}


def test_a_user_that_returns_within_the_hour_adds_to_it(make_queue: MakeQueue) -> None:
    queue = make_queue(user_ttl=60)
    for minute in (0, 5, 10):
        end_one(queue, 60 * minute)
        sweep_all(queue, START + 60 * minute + 120)
    assert counts(read(queue, 900).hours) == counts(read(queue, 900).days) == {0: (3, 0, 0, 3, 0)}


def test_an_hour_of_a_clock_that_was_ahead_is_kept_apart(queue: FairQueue, redis: Redis) -> None:
    end_one(queue, 60)
    end_one(queue, HOUR + 60)
    ahead = round(START / HOUR) + 40
    change_record(redis, "fq:{default:0}:user:ann", period=ahead, ended_0=7, ended_3=7, before_0=None, before_3=None)
    end_one(queue, HOUR + 70)
    assert counts(read(queue, HOUR + 80).hours)[1] == (1, 0, 0, 1, 0)
    assert counts(read(queue, 41 * HOUR).hours)[40] == (7, 0, 0, 7, 0)


@pytest.mark.parametrize("text", ["", "x", "-1 5|", "1e9|", "|", "5", "9" * 30 + " 1|"])
def test_a_damaged_record_of_an_hour_counts_as_none(queue: FairQueue, redis: Redis, text: str) -> None:
    end_one(queue, 60)
    gone: dict[str, None] = dict.fromkeys(["period", *(f"ended_{index}" for index in range(21))])
    change_record(redis, "fq:{default:0}:user:ann", **gone)
    redis.hset(KEY, mapping={"h0": text, "d0": text})
    assert counts(read(queue, 70).hours) == {}
    end_one(queue, 80)
    assert counts(read(queue, 90).hours) == {0: (1, 0, 0, 1, 0)}


def test_a_call_that_ends_many_tasks_of_a_user_writes_no_more_than_before(queue: FairQueue, redis: Redis) -> None:
    """The hour is a field of the record, which is written once in any case. The first call of an hour writes the last one."""

    def settle_ten(at: float) -> int:
        queue.push_batch([task("ann") for _ in range(10)], now=START + at)
        leases = queue.pop_batch(10, "w", now=START + at)
        outcomes = [Outcome.finish(lease, took=0.01) for lease in leases]
        return commands(redis, lambda: queue.settle(outcomes, 0, worker="w", now=START + at))

    settle_ten(0)
    usual = [settle_ten(60 * minute) for minute in (1, 2, 3)]
    assert len(set(usual)) == 1
    assert settle_ten(HOUR) == usual[0] + 3  # the hour, and the ends of the key and of the hour of names
    assert [settle_ten(hour * HOUR) for hour in (2, 3, 10)] == [usual[0] + 2] * 3
    assert settle_ten(25 * HOUR) == usual[0] + 2


def test_the_history_ends_by_itself_five_weeks_after_the_last_task(queue: FairQueue, redis: Redis) -> None:
    for hour in range(30):
        end_one(queue, hour * HOUR)
    assert 35 * DAY < int(redis.ttl(KEY)) <= 36 * DAY
    assert redis.hlen(KEY) == 31  # 29 hours and two days


@pytest.mark.thorough
@pytest.mark.parametrize("hours", [1, 4])
def test_an_hour_of_a_working_user_takes_at_most_300_bytes(make_server: MakeServer, hours: int) -> None:
    server, users = make_server(), [f"user-{i}" for i in range(200)]
    with server.client() as redis:
        queue = FairQueue(redis)
        for hour in range(hours):
            for waited in (0, 0.02, 0.2, 1, 7, 40):
                at = START + hour * HOUR + waited
                queue.push_batch([task(user) for user in users], now=at - waited)
                leases = queue.pop_batch(len(users), "w", now=at)
                queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], 0, worker="w", now=at)
        sweep_all(queue, START + (hours + 2) * HOUR)
    names = [f"fq:{{default:0}}:periods:{user}" for user in users]
    before = used_memory(server)
    with server.client() as redis:
        assert max(int(redis.memory_usage(name)) for name in names) / hours <= 300
        assert redis.delete(*names) == len(users)
    assert 0 < (before - used_memory(server)) / (hours * len(users)) <= 300


@pytest.mark.thorough
def test_the_history_and_report_of_users_under_load_equal_the_counts_of_the_test(make_queue: MakeQueue) -> None:
    """80 users, batches of many users, all kinds of outcomes, retries, dead processes, and users that are forgotten."""
    queue = make_queue(user_ttl=600, retry_jitter=0)
    load = run_load(queue, START + 20 * HOUR)
    wanted, clock = load.counts, load.clock
    first = int(clock // HOUR) - 47
    assert first > START // HOUR  # places of the first hours were used again
    for user in load.users:
        found = queue.user(user).history(now=clock)
        for period in found.hours:
            mine = wanted.get((user, period.begin // 3600), Counter())
            figures = (period.finished, period.failed, period.dead, period.sla_kept, period.sla_missed)
            assert figures == tuple(mine[name] for name in ("finished", "failed", "dead", "sla_kept", "sla_missed"))
            assert period.wait.count == mine["sla_kept"] + mine["sla_missed"]
        for period in found.days:
            of_day = [
                mine for (name, hour), mine in wanted.items() if name == user and hour // 24 == period.begin // 86_400
            ]
            assert period.finished == sum(mine["finished"] for mine in of_day)
            assert period.failed == sum(mine["failed"] for mine in of_day)
        total = add_up_periods(found.days)
        assert total.finished == sum(period.finished for period in found.days)
        for hours in (2, 48):
            report = queue.user(user).report(hours, now=clock)
            mine = load.count(user, int(clock // HOUR) - hours + 1)
            assert (report.ended, report.recent.dead) == (mine["finished"] + mine["dead"], mine["dead"])
            assert report.is_whole
            by_error = {group.sample: group.count for group in report.errors}
            assert by_error == {error[1:]: count for error, count in mine.items() if error.startswith("!")}
            assert report.known_errors == report.recent.dead


def test_a_report_of_other_hours_is_refused(queue: FairQueue) -> None:
    for hours in (0, 49):
        with pytest.raises(TaskValidationError, match="hours"):
            queue.user("ann").report(hours)


def test_a_report_counts_failures_whose_errors_are_no_longer_kept(queue: FairQueue) -> None:
    for number in range(3):
        queue.push(task("ann", max_retries=0), now=START)
        queue.fail(pop(queue, START), f"order {number} failed", now=START + 60 * number)
    requeued = queue.dlq.letters().items[0]
    queue.dlq.requeue(requeued.entry_id, now=START + 300)
    report = queue.user("ann").report(now=START + HOUR)
    assert (report.recent.dead, report.known_errors, len(report.errors)) == (3, 2, 1)
    assert report.failing_since == START + 60
    assert queue.user("ann").report(1, now=START + HOUR).errors == ()
