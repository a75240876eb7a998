"""``fairque_schedule`` as an operator uses it."""

from __future__ import annotations

import json

import pytest

from django_fairque.engine.queue.queue import FairQueue

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
    assert run("fairque_schedule", "disable", "nightly") == "nightly: disabled, next never\n"
    assert "disabled" in run("fairque_schedule", "list")
    assert run("fairque_schedule", "enable", "nightly").startswith("nightly: enabled, next 20")
    sent = run("fairque_schedule", "run", "nightly").split()[2]
    assert queue.get_task(sent).payload == {"args": ["acme", 7], "kwargs": {}}
    assert len(run("fairque_schedule", "next", "nightly", "-n", "3").splitlines()) == 3
    listed = json.loads(run("fairque_schedule", "list", "--json"))
    assert (listed["missed"], listed["expires"]) == ("one", 3600)
    assert run("fairque_schedule", "remove", "nightly") == "nightly: removed\n"
    assert run("fairque_schedule", "list") == "queue 'default' has no schedules\n"


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


@pytest.mark.usefixtures("queue")
def test_next_runs_end_with_the_calendar(run: Run) -> None:
    run("fairque_schedule", "add", "leap", "--task", TASK, "--cron", "0 0 29 2 *", "--args", '["acme", 7]')
    assert run("fairque_schedule", "next", "leap", "-n", "3000").splitlines()[-1].startswith("9996-02-29 00:00:00")
