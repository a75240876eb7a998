"""Runs of a schedule whose former run has not ended, runs that start later by their jitter, and the list of the latest runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.schedules import schedule_ops
from django_fairque.engine.schedules.schedule_ops import KEPT_RUNS, Schedule
from django_fairque.engine.scripting.operations import ScriptCall
from tests.engine.conftest import NOW, MakeQueue, pop, sweep_all, task

OPEN_STATES = ("queued", "started", "deferred", "scheduled")


def add(queue: FairQueue, overlap: str, **options: Any) -> Schedule:
    return queue.schedules.add("s", task=task("ann"), overlap=overlap, now=NOW, **{"every": 60, **options})


def fire(queue: FairQueue, minute: float) -> str:
    """Fire the run time of a minute, and return the task's id; empty if none was enqueued."""
    (fired,) = queue.schedules.fire_due(now=NOW + 60 * minute)
    assert not fired.is_refused
    return fired.task_id


def happened(queue: FairQueue) -> list[tuple[str, int]]:
    """Return what became of the latest runs, the oldest first, with their numbers."""
    return [(run.happened, run.count) for run in reversed(queue.schedules.get("s").runs)]


def state(queue: FairQueue, task_id: str) -> TaskState:
    return queue.get_task(task_id).state


class TestOverlap:
    def test_runs_overlap_by_default(self, queue: FairQueue) -> None:
        queue.schedules.add("s", task=task("ann"), every=60, now=NOW)
        assert [state(queue, fire(queue, minute)) for minute in (1, 2)] == [TaskState.QUEUED] * 2

    @pytest.mark.parametrize("not_ended", ["queued", "started", "scheduled"])
    def test_a_run_is_skipped_until_the_task_of_the_former_run_has_ended(
        self, queue: FairQueue, not_ended: str
    ) -> None:
        add(queue, "skip")
        first = fire(queue, 1)
        if not_ended != "queued":
            lease = pop(queue, NOW + 61)
        if not_ended == "scheduled":
            queue.fail(lease, "again", delay=1000, now=NOW + 62)
        assert state(queue, first).value == not_ended
        assert [fire(queue, minute) for minute in (2, 3)] == ["", ""]
        queue.cancel(first, now=NOW + 190)
        assert fire(queue, 4)
        assert happened(queue) == [("enqueued", 1), ("skipped", 2), ("enqueued", 1)]

    @pytest.mark.parametrize("end", ["finish", "fail", "cancel"])
    def test_one_run_waits_until_the_former_run_has_ended_in_any_way(self, queue: FairQueue, end: str) -> None:
        add(queue, "queue")
        first = fire(queue, 1)
        lease = pop(queue, NOW + 61)
        second, third = fire(queue, 2), fire(queue, 3)
        assert (state(queue, second), third) == (TaskState.DEFERRED, "")
        ends: dict[str, Callable[[], object]] = {
            "finish": lambda: queue.finish(lease, now=NOW + 181),
            "fail": lambda: queue.fail(lease, "broken", retry=False, now=NOW + 181),
            "cancel": lambda: queue.cancel(first, now=NOW + 181),
        }
        ends[end]()
        assert pop(queue, NOW + 182).task_id == second
        fourth = fire(queue, 4)
        assert state(queue, fourth) is TaskState.DEFERRED
        runs = queue.schedules.get("s").runs
        assert [(run.happened, run.task_id, run.behind) for run in runs] == [
            ("enqueued", fourth, second),
            ("skipped", "", ""),
            ("enqueued", second, first),
            ("enqueued", first, ""),
        ]

    def test_a_run_waits_for_the_started_task_if_the_run_between_was_canceled(self, queue: FairQueue) -> None:
        add(queue, "queue")
        fire(queue, 1)
        lease = pop(queue, NOW + 61)
        for minute in (2, 3, 4):
            waiting = fire(queue, minute)
            assert state(queue, waiting) is TaskState.DEFERRED
            queue.cancel(waiting, now=NOW + 60 * minute + 1)
        last = fire(queue, 5)
        queue.finish(lease, now=NOW + 301)
        assert state(queue, last) is TaskState.QUEUED

    @pytest.mark.parametrize("overlap", ["allow", "queue"])
    def test_a_run_that_a_full_limit_refuses_is_skipped(self, queue: FairQueue, overlap: str) -> None:
        limited = task("ann", limits=[TaskLimit("rebuild", 1, at_limit="skip")])
        queue.schedules.add("s", task=limited, every=60, overlap=overlap, now=NOW)
        first = fire(queue, 1)
        assert [fire(queue, minute) for minute in (2, 3)] == ["", ""]
        last = queue.schedules.get("s").last
        assert last is not None
        assert (last.task_id, happened(queue)) == (first, [("enqueued", 1), ("skipped", 2)])
        queue.finish(pop(queue, NOW + 190), now=NOW + 191)
        assert state(queue, fire(queue, 4)) is TaskState.QUEUED

    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    def test_a_run_starts_if_the_last_task_is_forgotten(self, make_queue: MakeQueue, overlap: str) -> None:
        queue = make_queue(result_ttl=60)
        add(queue, overlap, every=240)
        first = fire(queue, 4)
        queue.finish(pop(queue, NOW + 241), now=NOW + 242)
        sweep_all(queue, NOW + 400)
        assert queue.get_tasks([first]) == {}
        assert state(queue, fire(queue, 8)) is TaskState.QUEUED

    def test_a_run_is_tried_again_if_the_last_task_is_forgotten_meanwhile(self, make_queue: MakeQueue) -> None:
        queue = make_queue(result_ttl=60)
        add(queue, "queue", every=240, catch_up=600)
        fire(queue, 4)
        steps = schedule_ops.fire_due(queue._shards, 1, NOW + 480)
        request = next(steps)
        while not isinstance(request, ScriptCall):
            request = steps.send(queue._transport.send(request))
        queue.finish(pop(queue, NOW + 481), now=NOW + 482)
        sweep_all(queue, NOW + 600)
        with pytest.raises(StopIteration) as stop:
            steps.send(queue._transport.send(request))
        assert [fired.is_refused for fired in stop.value.value] == [True]
        assert state(queue, fire(queue, 10)) is TaskState.QUEUED

    def test_a_waiting_run_counts_in_its_users_backlog(self, make_queue: MakeQueue) -> None:
        queue = make_queue(max_backlog=1)
        add(queue, "queue")
        fire(queue, 1)
        (fired,) = queue.schedules.fire_due(now=NOW + 120)
        assert fired.is_refused
        pop(queue, NOW + 121)
        assert state(queue, fire(queue, 2.1)) is TaskState.DEFERRED

    def test_the_schedule_of_another_user_on_the_same_shard_waits_too(self, queue: FairQueue) -> None:
        add(queue, "queue")
        fire(queue, 1)
        queue.schedules.add("s", task=task("bob"), every=60, overlap="queue", now=NOW + 61)
        assert state(queue, fire(queue, 2)) is TaskState.DEFERRED

    def test_a_schedule_of_another_shard_does_not_wait_for_the_former_users_task(self, redis: Redis) -> None:
        queue = FairQueue(redis, config=QueueConfig(shards=2))
        users = {queue._shards.get_shard(user).keys.shard: user for user in map(str, range(20))}
        for user, minute in ((users[0], 1), (users[1], 2), (users[1], 3)):
            queue.schedules.add("s", task=task(user), every=60, overlap="skip", now=NOW + 60 * minute - 30, start=NOW)
            queue.schedules.fire_due(now=NOW + 60 * minute)
        assert happened(queue) == [("enqueued", 1), ("skipped", 1)]

    @pytest.mark.parametrize("overlap", ["skip", "queue"])
    def test_random_histories_never_have_two_started_tasks(self, queue: FairQueue, overlap: str) -> None:
        """The oracle: at most one task is started, at most one more waits, and a run is skipped only if it has to be."""
        draw, now, open_leases, most = random.Random(overlap), NOW, list[Lease](), 1 if overlap == "skip" else 2
        add(queue, overlap, every=1, catch_up=1e6)
        for _ in range(300):
            now += draw.random()
            before = [found for name in OPEN_STATES for found in queue.tasks(name).items]
            action = draw.choice(["fire", "fire", "pop", "finish", "fail", "cancel"])
            if action == "fire":
                for fired in queue.schedules.fire_due(1, now=now):
                    assert bool(fired.task_id) is (len(before) < most), (fired, before)
            elif action == "pop" and (lease := queue.pop("w", now=now, lease=1e6)) is not None:
                open_leases.append(lease)
            elif action == "cancel" and before:
                queue.cancel(draw.choice(before).task_id, now=now)
                open_leases = [lease for lease in open_leases if state(queue, lease.task_id) is TaskState.STARTED]
            elif action in ("finish", "fail") and open_leases:
                lease = open_leases.pop()
                queue.finish(lease, now=now) if action == "finish" else queue.fail(lease, "x", delay=2, now=now)
            assert len(open_leases) <= 1
            assert sum(queue.get_stats(0).states[name] for name in OPEN_STATES) <= most


class TestJitter:
    def test_a_task_starts_later_by_the_same_part_of_the_jitter_each_time(self, queue: FairQueue) -> None:
        made = add(queue, "allow", jitter=20, expires=5)
        delays = [made.put_off(NOW + 60 * minute) for minute in range(1, 200)]
        assert delays == [made.put_off(NOW + 60 * minute) for minute in range(1, 200)]
        assert (min(delays) < 1, max(delays) > 19, max(delays) < 20) == (True, True, True)
        assert replace(made, name="other").put_off(NOW + 60) != delays[0]
        sent = queue.get_task(fire(queue, 1))
        assert (sent.state, sent.task_id) == (TaskState.SCHEDULED, f"schedule:s:{NOW + 60:.0f}000000")
        begin = to_us(NOW + 60 + delays[0])
        assert [to_us(moment or 0) - begin for moment in (sent.execute_after, sent.expires_at)] == [0, 5_000_000]
        assert queue.schedules.get("s").next_at == NOW + 120

    @pytest.mark.parametrize("when", [{"every": 60}, {"cron": "* * * * *", "every": None}])
    def test_a_task_starts_before_the_next_run_time(self, queue: FairQueue, when: dict[str, Any]) -> None:
        made = add(queue, "allow", jitter=86_400, **when)
        first = made.next_at or 0
        assert 50 < max(made.put_off(first + 60 * minute) for minute in range(200)) < 60

    def test_a_waiting_run_starts_after_its_jitter(self, queue: FairQueue) -> None:
        add(queue, "queue", jitter=59)
        fire(queue, 1)
        second = fire(queue, 2)
        due = queue.get_task(second).execute_after or 0
        queue.finish(pop(queue, NOW + 120), now=NOW + 120)
        assert (state(queue, second), due > NOW + 120) == (TaskState.SCHEDULED, True)
        assert queue.pop("w", now=due - 0.01) is None
        assert pop(queue, due).task_id == second


class TestLatestRuns:
    def test_missed_run_times_are_one_entry_of_the_history(self, queue: FairQueue) -> None:
        add(queue, "allow", catch_up=30)
        fire(queue, 1)
        assert fire(queue, 5.9) == ""
        (missed, _) = queue.schedules.get("s").runs
        assert (missed.happened, missed.first, missed.run_time, missed.count) == ("missed", NOW + 120, NOW + 300, 4)

    def test_one_task_for_missed_run_times_names_their_number(self, queue: FairQueue) -> None:
        add(queue, "allow", missed="one")
        fired = queue.schedules.fire_due(now=NOW + 60 * 5.9)
        assert [found.run_time - NOW for found in fired] == [240, 300]
        assert happened(queue) == [("enqueued", 4), ("enqueued", 1)]

    def test_a_refused_task_is_an_entry_of_the_history(self, queue: FairQueue, redis: Redis) -> None:
        add(queue, "allow")
        fire(FairQueue(redis, queue.name, QueueConfig(max_payload_bytes=1)), 1)
        assert happened(queue) == [("refused", 1)]

    def test_the_latest_twenty_runs_are_kept_until_the_schedule_is_removed(
        self, queue: FairQueue, redis: Redis
    ) -> None:
        add(queue, "allow")
        ids = [fire(queue, minute) for minute in range(1, KEPT_RUNS + 5)]
        assert [run.task_id for run in queue.schedules.get("s").runs] == ids[::-1][:KEPT_RUNS]
        assert queue.schedules.list()[0].runs == ()
        queue.schedules.remove("s")
        assert not redis.keys("*schedules*")

    def test_damaged_runs_stop_no_schedule(self, queue: FairQueue, redis: Redis) -> None:
        add(queue, "queue")
        for minute, damage in enumerate(("{", "[1]", '[["enqueued"]]', '"text"'), 1):
            redis.hset("fq:{default:0}:schedules:runs", "s", damage)
            assert (queue.schedules.get("s").runs, bool(fire(queue, minute))) == ((), True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlap": "forbid"}, "overlap must be one of allow, skip, queue, got 'forbid'"),
        ({"jitter": -1}, "jitter must be a number of seconds from 0"),
        ({"jitter": "5"}, "jitter must be a number of seconds from 0"),
    ],
)
def test_wrong_values_of_overlap_jitter_and_catch_up_are_refused(
    queue: FairQueue, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        queue.schedules.add("s", task=task(), every=60, **options)
