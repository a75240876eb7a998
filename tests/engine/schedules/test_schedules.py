"""Schedules are due at the right times. Each time is fired once, also if several processes fire or one dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import BacklogFullError, TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.pauses import Pause
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules import schedule_ops
from django_fairque.engine.schedules.due_times import Timing, find_zone
from django_fairque.engine.schedules.schedule_ops import Schedule
from django_fairque.engine.scripting.operations import ScriptCall
from tests.engine.conftest import NOW, MakeQueue, pop, task
from tests.servers import Server

ROOT = Path(__file__).parent.parent.parent.parent


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def instants(cron: str, zone: str, start: str, count: int) -> list[str]:
    """The next instants in UTC."""
    timing, at, found = Timing.create(cron, None, zone, moment(start)), moment(start), []
    for _ in range(count):
        following = timing.find_next_run(at)
        assert following is not None
        at = following
        found.append(datetime.fromtimestamp(at, timezone.utc).strftime("%m-%d %H:%M"))
    return found


class TestTiming:
    @pytest.mark.parametrize(
        ("cron", "zone", "start", "expected"),
        [
            # Berlin skips 02:00 to 03:00 on 2027-03-28 (01:00 UTC): a job of 02:30 runs right after the gap, once.
            ("30 2 * * *", "Europe/Berlin", "2027-03-27T00:00+01:00", ["03-27 01:30", "03-28 01:00", "03-29 00:30"]),
            # ... and repeats that hour on 2027-10-31: once.
            ("30 2 * * *", "Europe/Berlin", "2027-10-30T00:00+02:00", ["10-30 00:30", "10-31 00:30", "11-01 01:30"]),
            # Every hour follows real time on both nights.
            ("0 * * * *", "Europe/Berlin", "2027-03-28T00:30+01:00", ["03-28 00:00", "03-28 01:00", "03-28 02:00"]),
            ("0 * * * *", "Europe/Berlin", "2027-10-31T01:30+02:00", ["10-31 00:00", "10-31 01:00", "10-31 02:00"]),
            # New York skips 02:00 to 03:00 on 2027-03-14 (07:00 UTC), repeats 01:00 to 02:00 on 2027-11-07.
            ("15 2 * * *", "America/New_York", "2027-03-13T12:00-05:00", ["03-14 07:00", "03-15 06:15"]),
            ("15 1 * * *", "America/New_York", "2027-11-06T12:00-04:00", ["11-07 05:15", "11-08 06:15"]),
            ("*/30 * * * *", "America/New_York", "2027-11-07T01:15-04:00", ["11-07 05:30", "11-07 06:00"]),
            ("0 0 29 2 *", "UTC", "2027-01-01T00:00+00:00", ["02-29 00:00"]),
        ],
    )
    def test_a_cron_schedule_uses_its_time_zone(self, cron: str, zone: str, start: str, expected: list[str]) -> None:
        assert instants(cron, zone, start, len(expected)) == expected

    def test_the_run_times_of_an_interval_do_not_drift(self) -> None:
        timing = Timing.create(None, 0.1 * 70, "UTC", NOW)
        at = NOW
        for n in range(1, 1000):
            at = timing.find_next_run(at + 0.0001 * (n % 7)) or 0
            assert at == pytest.approx(NOW + 7 * n, abs=1e-6)
        assert timing.find_next_run(NOW - 100) == NOW

    @pytest.mark.parametrize("cron", ["*/5 * * * *", "0 3 * * *", "0 0 1 1 *", "0 0 29 2 *"])
    def test_the_last_run_time_before_a_moment_is_found(self, cron: str) -> None:
        timing = Timing.create(cron, None, "Europe/Berlin", NOW)
        first = timing.find_next_run(NOW) or 0
        for later in (0, 299, 86_400, 400 * 86_400, 5 * 366 * 86_400):
            last = timing.find_last_run(first + later, first)
            assert first <= last <= first + later
            assert (timing.find_next_run(last) or 0) > first + later

    @pytest.mark.parametrize(
        ("options", "last"),
        [
            ({"cron": "0 0 29 2 *"}, "9996-02-29"),
            ({"cron": "0 0 1 * *", "timezone": "Asia/Tokyo"}, "9999-12-01"),
            ({"every": 366 * 86_400.0}, "9999-"),
        ],
    )
    def test_run_times_of_a_schedule_end_with_the_calendar(self, options: dict[str, Any], last: str) -> None:
        schedule = Schedule("s", {}, **{"start": NOW, **options})
        found = list(schedule.iterate_next_runs(moment("9990-01-01T00:00+00:00"), 1000))
        assert 1 < len(found) < 1000
        assert str(datetime.fromtimestamp(found[-1], find_zone(schedule.timezone))).startswith(last)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"cron": "0 0 30 2 *"}, "never fires: no month it names has such a day"),
            ({"cron": "* * */20 * 1L"}, "never fires"),
            ({"cron": "61 * * * *"}, "can't be understood: Bad minute; expected five fields"),
            ({"cron": "* * *"}, "expected five fields"),
            ({"cron": "*/5 * * * * *"}, "has 6 fields; expected five fields"),
            ({}, "either cron or every"),
            ({"cron": "* * * * *", "every": 5}, "either cron or every"),
            ({"cron": 5}, "cron must be a string of five fields"),
            ({"every": 0.5}, "from 1 to ten years, got 0.5"),
            ({"every": True}, "from 1 to ten years, got True"),
            ({"every": 5, "time_zone": "UTC"}, "no option 'time_zone'; did you mean 'timezone'"),
            ({"every": 5, "colour": "red"}, "expected one of cron, every, timezone"),
            ({"every": "5"}, "number of seconds"),
            ({"every": 5, "timezone": "Europe/Berln"}, "did you mean Europe/Berlin"),
            ({"every": 5, "timezone": "utc_"}, "did you mean UTC"),
            *[
                ({"every": 5, "timezone": name}, f"got '{name}', an abbreviation, .*: give the zone of a city")
                for name in ("CEST", "AEST", "BST", "IST", "cest")
            ],
            ({"every": 5, "timezone": "../etc/passwd"}, "name of a time zone"),
            ({"every": 5, "missed": "twice"}, "one of skip, one, all, got 'twice'"),
            ({"every": 5, "catch_up": -1}, "catch_up must be"),
            ({"every": 5, "catch_up": 10**5000}, "catch_up must be a number of seconds from 0 to"),
            ({"every": 5, "expires": -1}, "expires must be a number of seconds from 0"),
            ({"every": 5, "expires": 0}, "expires must be more than 0 seconds"),
            ({"every": 5, "expires": "soon"}, "expires must be a number of seconds"),
        ],
    )
    def test_invalid_options_of_a_schedule_are_refused(
        self, queue: FairQueue, redis: Redis, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(TaskValidationError, match=words):
            queue.schedules.add("s", task=task(), now=NOW, **options)
        assert not redis.keys("*schedules*")

    def test_lengths_of_time_may_be_timedeltas(self, queue: FairQueue) -> None:
        hour = timedelta(hours=1)
        given: dict[str, Any] = {"every": hour, "catch_up": hour / 2, "expires": hour / 4, "now": NOW}
        made = queue.schedules.add("s", task=task(), **given)
        assert (made.every, made.catch_up, made.expires) == (3600, 1800, 900)
        assert made.next_at == NOW + 3600
        with pytest.raises(TaskValidationError, match=r"from 1 to ten years, got 0\.5"):
            queue.schedules.add("s", task=task(), every=timedelta(seconds=0.5))

    @pytest.mark.parametrize("bad", [task(depends_on=["a"]), task(execute_after=NOW), task(expires_at=NOW), "app.task"])
    def test_a_schedule_refuses_tasks_that_can_not_recur(self, queue: FairQueue, bad: Any) -> None:
        with pytest.raises(TaskValidationError):
            queue.schedules.add("s", task=bad, every=5)


def pushed(queue: FairQueue) -> list[float]:
    """For which instants tasks were pushed, from their ids."""
    found = queue.tasks("queued", limit=1000).items
    return sorted(int(run.task_id.rpartition(":")[2]) / 1e6 - NOW for run in found)


def first_fire(queue: FairQueue) -> ScriptCall:
    """Return the call that fires the first schedule, without sending it."""
    steps = schedule_ops.fire_due(queue._shards, 10, NOW + 60)
    request = next(steps)
    while not isinstance(request, ScriptCall):
        request = steps.send(queue._transport.send(request))
    return request


class TestFiring:
    def test_a_schedule_fires_once_at_each_instant(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task("acme", 5, {"n": 1}, name="app.report", sla=60), every=60, now=NOW)
        assert queue.schedules.fire_due(now=NOW + 59) == []
        (fired,) = queue.schedules.fire_due(now=NOW + 60)
        assert queue.schedules.fire_due(now=NOW + 60) == []
        made = queue.get_task(fired.task_id)
        found = (made.user_id, made.priority, made.payload, made.name, made.sla)
        assert found == ("acme", 5, {"n": 1}, "app.report", 60)
        schedule = queue.schedules.get("s")
        assert schedule.next_at == NOW + 120
        assert schedule.last is not None
        assert (schedule.last.run_time, schedule.last.task_id) == (NOW + 60, fired.task_id)

    def test_an_expiry_counts_from_the_run_time(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), every=60, expires=90, now=NOW)
        queue.schedules.pause("s", now=NOW)
        queue.schedules.resume("s", now=NOW)
        (fired,) = queue.schedules.fire_due(now=NOW + 95)
        assert queue.get_task(fired.task_id).expires_at == NOW + 60 + 90
        by_hand = queue.schedules.run_now("s", now=NOW + 100)
        assert queue.get_task(by_hand).expires_at == NOW + 100 + 90
        assert queue.schedules.get("s").expires == 90
        queue.schedules.add("s", task=task(), every=60, now=NOW + 100)
        assert queue.schedules.get("s").expires is None

    def test_a_task_that_is_fired_too_late_does_not_run(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), every=3600, expires=600, missed="one", now=NOW)
        (fired,) = queue.schedules.fire_due(now=NOW + 3600 + 1200)
        assert queue.pop("w", now=NOW + 3600 + 1200) is None
        assert queue.get_task(fired.task_id).state is TaskState.FAILED
        assert [letter.failure_type.value for letter in queue.dlq.letters().items] == ["expired"]

    def test_a_schedule_written_by_an_older_version_has_no_expiry(self, queue: FairQueue, redis: Redis) -> None:
        queue.schedules.add("s", task=task(), every=60, now=NOW)
        (written,) = redis.hvals("fq:{default:0}:schedules")
        older = {name: value for name, value in json.loads(written).items() if name != "expires"}
        redis.hset("fq:{default:0}:schedules", "s", json.dumps(older))
        assert queue.schedules.get("s").expires is None
        (fired,) = queue.schedules.fire_due(now=NOW + 60)
        assert queue.get_task(fired.task_id).expires_at is None

    def test_the_sweep_returns_the_time_of_the_next_due_schedule(self, queue: FairQueue) -> None:
        assert queue.sweep(now=NOW).schedule_at is None
        queue.schedules.add("s", task=task(), every=60, now=NOW)
        assert queue.sweep(now=NOW).schedule_at == NOW + 60

    @pytest.mark.parametrize(
        ("missed", "expected"),
        [("skip", [960, 1020]), ("one", [900, 960, 1020]), ("all", [60.0 * n for n in range(1, 18)])],
    )
    def test_missed_instants_fire_as_configured(self, queue: FairQueue, missed: str, expected: list[float]) -> None:
        queue.schedules.add("s", task=task(), every=60, missed=missed, now=NOW)
        while queue.schedules.fire_due(limit=5, now=NOW + 1020):
            pass
        assert pushed(queue) == expected

    def test_a_cron_that_fired_years_ago_fires_only_its_latest_missed_instant(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), cron="*/5 * * * *", missed="one", now=NOW)
        later = NOW + 3 * 366 * 86_400
        (only,) = [fired for fired in queue.schedules.fire_due(now=later) if fired.run_time <= later - 60]
        assert later - 360 <= only.run_time

    def test_a_schedule_waits_while_the_backlog_is_full(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_backlog=1)
        queue.schedules.add("s", task=task("u"), every=60, now=NOW)
        queue.push(task("u"), now=NOW)
        (fired,) = queue.schedules.fire_due(now=NOW + 60)
        assert fired.is_refused
        with pytest.raises(BacklogFullError):
            queue.schedules.run_now("s", now=NOW + 60)
        pop(queue, NOW + 61)
        (fired,) = queue.schedules.fire_due(now=NOW + 61)
        assert fired.task_id

    def test_a_full_backlog_delays_no_other_users_schedules(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_backlog=1)
        for number in range(3):
            queue.schedules.add(f"full{number}", task=task("full"), every=60, now=NOW)
        queue.push(task("full"), now=NOW)
        queue.schedules.add("s", task=task("u"), every=60, now=NOW + 1)
        found = queue.schedules.fire_due(limit=1, now=NOW + 61)
        assert [schedule.name for schedule in found if not schedule.is_refused] == ["s"]

    def test_the_missed_instants_of_one_schedule_do_not_delay_another(self, queue: FairQueue) -> None:
        queue.schedules.add("missed", task=task("u"), every=1, missed="all", now=NOW)
        queue.schedules.add("s", task=task("u"), every=3600, now=NOW)
        names = [fired.name for fired in queue.schedules.fire_due(limit=10, now=NOW + 3600)]
        assert names == ["missed", "s", *["missed"] * 8]

    def test_a_task_that_became_invalid_is_skipped_with_its_reason(self, queue: FairQueue, redis: Redis) -> None:
        queue.schedules.add("large", task=task("u", payload={"text": "x" * 500}), every=60, now=NOW)
        queue = FairQueue(redis, queue.name, QueueConfig(max_payload_bytes=100))
        queue.schedules.add("s", task=task("u"), every=60, now=NOW + 1)
        large, other = queue.schedules.fire_due(now=NOW + 61)
        assert "takes 511 bytes, the limit (max_payload_bytes) is 100" in large.error
        assert not large.task_id
        assert other.task_id
        assert queue.schedules.get("large").next_at == NOW + 120

    def test_a_damaged_record_delays_no_other_schedule(self, queue: FairQueue, redis: Redis) -> None:
        for name in ("damaged", "s"):
            queue.schedules.add(name, task=task("u"), every=60, now=NOW)
        redis.hset("fq:{default:0}:schedules", "damaged", "{")
        fired, damaged = queue.schedules.fire_due(now=NOW + 60)
        assert (fired.name, damaged.name) == ("s", "damaged")
        assert damaged.is_refused
        assert "damaged" in damaged.error

    def test_the_queue_returns_the_time_of_the_next_due_schedule(self, queue: FairQueue) -> None:
        assert queue.schedules.next_due(NOW) is None
        for name, every in (("minute", 60), ("hour", 3600)):
            queue.schedules.add(name, task=task("u"), every=every, now=NOW)
        assert queue.schedules.next_due(NOW) == NOW + 60
        assert queue.schedules.next_due(NOW + 60) == NOW + 3600
        assert queue.schedules.next_due(NOW + 3600) is None

    def test_a_repeated_firing_of_a_schedule_has_one_effect(self, queue: FairQueue) -> None:

        queue.schedules.add("s", task=task(), every=60, now=NOW)
        request = first_fire(queue)
        assert [queue._transport.send(request) for _ in range(3)] == [1, 0, 0]
        assert pushed(queue) == [60]

    def test_a_changed_schedule_fires_only_with_its_new_settings(self, queue: FairQueue) -> None:

        for change in (
            lambda: queue.schedules.add("s", task=task(payload="new"), every=60, now=NOW),
            lambda: queue.schedules.pause("s", now=NOW),
            lambda: queue.schedules.remove("s", now=NOW),
        ):
            queue.schedules.add("s", task=task(payload="old"), every=60, now=NOW)
            request = first_fire(queue)
            change()
            assert queue._transport.send(request) == 0
        assert pushed(queue) == []

    def test_ten_threads_that_fire_at_once_push_each_instant_once(self, queue: FairQueue) -> None:
        for name in "abc":
            queue.schedules.add(name, task=task(), every=60, missed="all", now=NOW)
        with ThreadPoolExecutor(10) as pool:
            for n in range(1, 21):
                list(pool.map(lambda _, n=n: queue.schedules.fire_due(now=NOW + 60 * n), range(10)))
        assert pushed(queue) == sorted(60.0 * n for n in range(1, 21) for _ in "abc")


SCHEDULER = """
import sys
from redis import Redis
from django_fairque.engine.queue.queue import FairQueue
queue = FairQueue(Redis.from_url(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    queue.schedules.fire_due(now=float(line))
    print(line.strip(), flush=True)
"""


def test_two_schedulers_push_each_instant_once_although_one_freezes(server: Server, queue: FairQueue) -> None:
    """24 simulated runs: a scheduler that is frozen while it fires continues later with the values that it had read before."""
    queue.schedules.add("s", task=task(), every=60, missed="all", now=NOW)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCHEDULER, server.url],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for n in range(1, 25):
            frozen, awake = workers[n % 2], workers[1 - n % 2]
            say(frozen, n)
            for _ in range(n * 500):  # stopped at another point of its way each time
                pass
            frozen.send_signal(signal.SIGSTOP)
            say(awake, n)
            hear(awake)
            frozen.send_signal(signal.SIGCONT)
            hear(frozen)
        assert pushed(queue) == [60.0 * n for n in range(1, 25)]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def say(worker: subprocess.Popen[str], n: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{NOW + 60 * n}\n")
    worker.stdin.flush()


def hear(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    assert worker.stdout.readline()


class TestKeeping:
    def test_changing_a_schedule_s_task_keeps_its_run_times(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(payload=1), every=60, now=NOW)
        queue.schedules.fire_due(now=NOW + 60)
        again = queue.schedules.add("s", task=task(payload=2), every=60, now=NOW + 90)
        assert (again.next_at, again.task["payload"]) == (NOW + 120, 2)
        assert again.last is not None
        changed = queue.schedules.add("s", task=task(payload=2), every=50, now=NOW + 90)
        assert changed.next_at == NOW + 140

    def test_a_disabled_schedule_does_not_make_up_for_missed_instants(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), every=60, missed="all", now=NOW)
        queue.schedules.pause("s", now=NOW)
        assert queue.schedules.fire_due(now=NOW + 600) == []
        assert queue.schedules.get("s").next_at is None
        queue.schedules.resume("s", now=NOW + 610)
        assert queue.schedules.get("s").next_at == NOW + 660

    def test_running_a_schedule_now_pushes_a_task_each_time(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(payload=7), every=60, now=NOW)
        ids = {queue.schedules.run_now("s", now=NOW) for _ in range(2)}
        assert {queue.get_task(task_id).payload for task_id in ids} == {7}
        assert len(ids) == 2
        assert queue.schedules.get("s").next_at == NOW + 60

    def test_schedules_can_be_listed_and_removed(self, queue: FairQueue, redis: Redis) -> None:
        for name in ("b", "a", "*{x}:\n"):
            queue.schedules.add(name, task=task(), cron="0 3 * * *", timezone="Asia/Tokyo", now=NOW)
        assert [schedule.name for schedule in queue.schedules.list()] == ["*{x}:\n", "a", "b"]
        assert queue.schedules.get("a").when == "0 3 * * * (Asia/Tokyo)"
        assert [queue.schedules.remove(name) for name in ("a", "a", "b", "*{x}:\n")] == [True, False, True, True]
        assert not redis.keys("*schedules*")
        for call in (queue.schedules.get, queue.schedules.resume, queue.schedules.run_now):
            with pytest.raises(TaskNotFoundError, match="no schedule 'a'"):
                call("a")

    def test_a_schedule_that_a_later_version_wrote_is_read_and_fired(self, queue: FairQueue, redis: Redis) -> None:
        queue.schedules.add("s", task=task(), every=60, now=NOW)
        key = queue._shards.home.keys("schedules")
        written = json.loads(redis.hget(key, "s") or "")
        redis.hset(key, "s", json.dumps({"from_the_future": 1, **written}))
        assert queue.schedules.fire_due(now=NOW + 60)[0].task_id

    def test_a_pause_has_a_note_and_ends_by_itself(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), every=60, missed="all", now=NOW)
        queue.schedules.pause("s", note=" while  the shop moves ", until=timedelta(seconds=600), now=NOW)
        paused = queue.schedules.get("s")
        assert paused.get_pause(NOW + 599) == Pause("while the shop moves", NOW + 600)
        assert (paused.get_pause(NOW + 600), paused.next_at) == (None, NOW + 660)
        assert queue.schedules.add("s", task=task(), every=60, now=NOW + 10).next_at == NOW + 60, "it is added anew"
        queue.schedules.pause("s", until=NOW + 601, now=NOW + 10)
        assert queue.schedules.fire_due(now=NOW + 601) == []
        assert pushed(queue) == []
        (fired,) = queue.schedules.fire_due(now=NOW + 660)
        assert fired.run_time == NOW + 660

    def test_another_pause_replaces_the_first_and_a_schedule_is_resumed(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task(), every=60, now=NOW)
        queue.schedules.pause("s", note="one", until=NOW + 600, now=NOW)
        queue.schedules.pause("s", note="two", now=NOW)
        paused = queue.schedules.get("s")
        assert (paused.get_pause(NOW + 9999), paused.next_at) == (Pause("two"), None)
        for _ in range(2):
            queue.schedules.resume("s", now=NOW + 70)
        resumed = queue.schedules.get("s")
        assert (resumed.get_pause(NOW + 70), resumed.pause_note, resumed.next_at) == (None, "", NOW + 120)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"note": "x" * 201}, "at most 200 characters"),
            ({"until": NOW - 1}, "until must be later than now"),
            ({"until": "soon"}, "until must be"),
        ],
    )
    def test_an_invalid_pause_changes_nothing(self, queue: FairQueue, options: dict[str, Any], words: str) -> None:
        before = queue.schedules.add("s", task=task(), every=60, now=NOW)
        with pytest.raises(TaskValidationError, match=words):
            queue.schedules.pause("s", now=NOW, **options)
        assert queue.schedules.get("s") == before
