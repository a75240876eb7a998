"""The commands show urgent and bulk tasks, in every state."""

from __future__ import annotations

import json
import re

import pytest
from django.core.management import CommandError

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.task import Task
from django_fairque.management.terminal import read_figures
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info
from tests.fixture_types import FairQueue
from tests.lane_tasks import OTHER_LANES, USERS, push_in_all_states

from .conftest import Bury, Run


@pytest.fixture
def tasks(queue: FairQueue) -> dict[str, Lane]:
    """Tasks of both lanes in every state: the lane of each task by id."""
    return push_in_all_states(queue)


def test_tasks_are_listed_with_their_lanes(run: Run, tasks: dict[str, Lane]) -> None:
    text = run("fairque_task", "list")
    rows = [json.loads(line) for line in run("fairque_task", "list", "--json").splitlines()]
    lanes = {row["task"]: row["lane"] for row in rows}
    for task_id, lane in tasks.items():
        assert re.search(rf"^{task_id} +\w+ +{lane.upper()} ", text, re.MULTILINE)
        assert lanes[task_id] == lane


def test_a_task_is_shown_with_its_lane(run: Run, tasks: dict[str, Lane]) -> None:
    for task_id, lane in tasks.items():
        shown = run("fairque_task", "show", task_id)
        assert f"\nlane      {lane}\n" in shown
        assert "\npriority" not in shown
    assert "why       It is a bulk task: it waits until no urgent or normal task" in run(
        "fairque_task", "show", "bulk queued"
    )


@pytest.mark.parametrize(
    "words",
    [
        *(("fairque_task", "run", f"{lane} run") for lane in OTHER_LANES),
        *(("fairque_stats", "--user", user) for user in USERS.values()),
        ("fairque_stats", "--top", "5"),
        ("fairque_stats", "--names"),
        ("fairque_user", "list"),
        ("fairque_dlq", "list"),
        ("fairque_dlq", "groups"),
        ("fairque_check",),
    ],
    ids=" ".join,
)
def test_other_commands_work_with_tasks_in_lanes(run: Run, tasks: dict[str, Lane], words: tuple[str, ...]) -> None:
    assert run(*words)


def test_the_figures_of_a_queue_are_shown_by_lane(run: Run, tasks: dict[str, Lane], queue: FairQueue) -> None:
    text = run("fairque_stats")
    assert re.search(r"^lane +ready +running +started +wait p50 +p95 +p99$", text, re.MULTILINE)
    assert re.search(r"^urgent +2 +1 +3 +\S+ m?s ", text, re.MULTILINE)
    assert re.search(r"^bulk +2 +1 +3 +\S+ m?s ", text, re.MULTILINE)
    lanes = json.loads(run("fairque_stats", "--json"))["lanes"]
    assert {lane: (figures["ready"], figures["running"], figures["started"]) for lane, figures in lanes.items()} == {
        "urgent": (2, 1, 3),
        "normal": (0, 0, 0),
        "bulk": (2, 1, 3),
    }
    queue.purge()


def test_lanes_are_not_shown_for_a_queue_without_them(run: Run, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, 1))
    assert "lane" not in run("fairque_stats")


def test_dead_letters_are_requeued_in_a_lane(run: Run, queue: FairQueue, bury: Bury) -> None:
    entries = [bury() for _ in range(4)]
    assert run("fairque_dlq", "requeue", entries[0], "--lane", "urgent") == "1 requeued\n"
    assert run("fairque_dlq", "requeue", entries[1]) == "1 requeued\n"
    assert run("fairque_dlq", "requeue", "--all", "--yes", "--lane", "bulk") == "2 requeued\n"
    assert [queue.get_task(entry[:-2]).lane for entry in entries] == ["urgent", "normal", "bulk", "bulk"]
    with pytest.raises(CommandError, match="invalid choice: 'fast'"):
        run("fairque_dlq", "requeue", entries[0], "--lane", "fast")


def test_reserved_slots_of_all_processes_are_shown(run: Run, queue: FairQueue) -> None:
    assert "reserved" not in run("fairque_stats")
    reserves: list[dict[Lane, int]] = [{"urgent": 1, "normal": 2}, {"urgent": 1}, {"normal": 0}, {}]
    for number, reserve in enumerate(reserves):
        worker = f"w{number}"
        options = WorkerOptions(worker, queues=("default",), concurrency=8, reserve=reserve)
        queue.heartbeat(worker, worker_info(options, done=0, running=0, status="working"))
    assert "\nslots    reserved urgent 2, normal 2\n" in run("fairque_stats")
    assert json.loads(run("fairque_stats", "--json"))["reserved"] == "urgent 2, normal 2"
    assert "slots    32, running 0, reserved urgent 2, normal 2" in read_figures(queue, 1).heading
    queue.heartbeat("w5", {"reserve": "<b>,urgent=x,bulk=1,normal"})
    assert "\nslots    reserved urgent 2, normal 2\n" in run("fairque_stats")
