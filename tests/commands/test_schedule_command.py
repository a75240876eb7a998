"""``fairque_schedule`` as an operator uses it."""

from __future__ import annotations

import json
import time

import pytest
from django.core.management.base import CommandError

from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.fixture_types import Redis
from tests.leases import pop
from tests.stored_tasks import remove_task

from .conftest import Run

TASK = "library.tasks.analyse_document"


def test_a_schedule_is_added_run_and_removed(queue: FairQueue, run: Run) -> None:
    added = run(
        *("fairque_schedule", "add", "nightly", "--task", TASK, "--cron", "30 4 * * *", "--timezone", "Asia/Tokyo"),
        *("--args", '["acme", 7]', "--missed", "one", "--expires", "3600"),
    )
    assert added.startswith("nightly: 30 4 * * * (Asia/Tokyo), next 20")
    assert added.rstrip().endswith("04:30:00+0900")
    header, row = run("fairque_schedule", "list").splitlines()
    assert header.split() == ["name", "when", "task", "user", "next", "last", "from"]
    assert row.split()[-2:] == ["-", "command"]
    assert {"nightly", TASK, "acme"} <= set(row.split())
    assert run("fairque_schedule", "pause", "nightly") == "nightly: paused, next never\n"
    assert "paused" in run("fairque_schedule", "list")
    assert run("fairque_schedule", "resume", "nightly").startswith("nightly: resumed, next 20")
    sent = run("fairque_schedule", "run", "nightly").split()[2]
    assert queue.get_task(sent).payload == {"args": ["acme", 7], "kwargs": {}}
    assert len(run("fairque_schedule", "next", "nightly", "-n", "3").splitlines()) == 3
    listed = json.loads(run("fairque_schedule", "list", "--json"))
    assert (listed["missed"], listed["expires"]) == ("one", 3600)
    assert run("fairque_schedule", "remove", "nightly") == "nightly: removed\n"
    assert run("fairque_schedule", "list") == "queue 'default' has no schedules\n"


def test_a_pause_has_a_note_and_an_end(queue: FairQueue, run: Run) -> None:
    queue.schedules.add("s", task=Task.create("acme", 3, None), every=60)
    shown = "paused until 2100-01-01 18:00:00Z (the shop moves)"
    paused = run("fairque_schedule", "pause", "s", "--note", "the shop moves", "--until", "2100-01-01T18:00Z")
    assert paused.startswith(f"s: {shown}, next 2100-01-01 18:0")
    assert shown in run("fairque_schedule", "list")
    run("fairque_schedule", "pause", "s", "--for", "2h")
    assert 7100 < (queue.schedules.get("s").pause_until or 0) - time.time() < 7300


def test_the_latest_runs_are_listed_with_results_and_durations(queue: FairQueue, run: Run, redis: Redis) -> None:
    options = ("--every", "60", "--overlap", "skip", "--jitter", "0.5", "--catch-up", "90")
    run("fairque_schedule", "add", "s", "--task", TASK, "--args", '["acme", 7]', *options, "--timezone", "Asia/Tokyo")
    schedule = queue.schedules.get("s")
    assert (schedule.overlap, schedule.jitter, schedule.catch_up) == ("skip", 0.5, 90)
    for minute in (1, 2, 3, 4, 5):
        queue.schedules.fire_due(now=schedule.start + 60 * minute + 1)
        if minute == 3:
            lease = pop(queue, now=schedule.start + 182)
            queue.finish(lease, now=schedule.start + 185)
    ids = [f"schedule:s:{to_us(schedule.start + 60 * minute)}" for minute in (1, 4)]
    header, *rows = run("fairque_schedule", "runs", "s").splitlines()
    assert header.split() == ["run", "time", "result", "duration", "task"]
    assert [" ".join(row.split()[2:]) for row in rows] == [
        "skipped - -",
        f"queued - {ids[1]}",
        "skipped, 2 in all - -",
        f"finished 3 s {ids[0]}",
    ]
    assert rows[0].split()[1].endswith("+0900")
    *_, first = map(json.loads, run("fairque_schedule", "runs", "s", "--json").splitlines())
    assert (first["happened"], first["state"], first["duration"], first["task_id"]) == (
        "enqueued",
        "finished",
        3,
        ids[0],
    )
    remove_task(redis, ids[0])
    assert "its task is not kept any more" in run("fairque_schedule", "runs", "s")
    redis.flushall()


def test_a_schedule_is_added_with_a_lane(queue: FairQueue, run: Run) -> None:
    run("fairque_schedule", "add", "s", "--task", TASK, "--every", "60", "--args", '["acme", 7]', "--lane", "bulk")
    assert queue.get_task(run("fairque_schedule", "run", "s").split()[2]).lane == "bulk"


def test_declared_schedules_can_be_adopted_by_command(queue: FairQueue, run: Run) -> None:
    queue.schedules.report_version("newer 1234abcd", "w1")
    assert run("fairque_schedule", "list") == "queue 'default' has no schedules\n"
    adopted = run("fairque_schedule", "adopt")
    assert adopted.startswith("queue 'default': the declared schedules of version ")
    assert adopted.endswith(" are in force\n")
    *_, line = run("fairque_schedule", "list").splitlines()
    assert line.startswith("running workers have declared different schedules: version ")
    assert "(1 worker, in force); version newer (1 worker)" in line
    assert run("fairque_check").startswith(f"{line}\n")


def test_the_next_hours_of_all_schedules_are_listed(queue: FairQueue, run: Run) -> None:
    soon = (time.time() // 3600 + 2) * 3600
    for name in ("export", "import"):
        queue.schedules.add(
            name, task=Task.create("acme", 3, None), cron=time.strftime("%M %H * * *", time.gmtime(soon))
        )
    queue.schedules.add("often", task=Task.create("acme", 3, None), every=60)
    queue.schedules.add("off", task=Task.create("acme", 3, None), every=60, enabled=False)
    queue.push(Task.create("acme", 3, None, execute_after=soon + 5))
    queue.heartbeat("w", {"concurrency": "1"})
    first, head, *rows = run("fairque_schedule", "upcoming").splitlines()
    moment = time.strftime("%Y-%m-%d %H:00:00+0000", time.gmtime(soon))
    until = moment.replace(":00+0000", ":01+0000")
    assert first.endswith(", 1 slot of running workers")
    assert head.split() == ["schedule", "runs", "next", "takes", "overlaps"]
    assert [" ".join(row.split()) for row in rows[1:]] == [
        f"export 1 {moment} - 1",
        f"import 1 {moment} - 1",
        "off 0 paused - 0",
        f"! {moment} to {until}: 2 runs overlap: export, import",
        f"! {moment} to {until}: 2 runs for 1 slot of running workers: export, import, often",
        f"{moment}: 1 scheduled task in this hour",
    ]
    assert rows[0].split()[:2] == ["often", "1,440"]
    found = json.loads(run("fairque_schedule", "upcoming", "--json"))
    assert [span["names"] for span in found["overlaps"]] == [["export", "import"]]
    assert {schedule["name"]: schedule["count"] for schedule in found["schedules"]}["often"] == 1440
    assert sum(hour["tasks"] for hour in found["scheduled"]) == 1
    assert "export" in run("fairque_schedule", "upcoming", "--hours", "1")
    with pytest.raises(CommandError, match="hours must be a whole number from 1 to 48, got 100"):
        run("fairque_schedule", "upcoming", "--hours", "100")


@pytest.mark.usefixtures("queue")
def test_next_runs_of_a_schedule_end_with_the_last_date_of_the_calendar(run: Run) -> None:
    run("fairque_schedule", "add", "leap", "--task", TASK, "--cron", "0 0 29 2 *", "--args", '["acme", 7]')
    assert run("fairque_schedule", "next", "leap", "-n", "3000").splitlines()[-1].startswith("9996-02-29 00:00:00")
