"""``fairque_task`` as an operator uses it."""

from __future__ import annotations

import json
import re

import pytest

from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.fixture_types import Settings
from tests.leases import pop

from .conftest import Run


@pytest.fixture
def graph(queue: FairQueue) -> None:
    def node(name: str, *parents: str) -> Task:
        return Task.create("acme", 3, {"n": 1}, name=f"app.{name}", task_id=name, depends_on=parents)

    queue.push_graph([node("a"), node("b", "a"), node("c", "a", "b")], "r1")
    queue.xcom("r1").push("rows", [1, 2])


def test_a_queued_task_is_shown_with_an_estimate_of_its_start(queue: FairQueue, run: Run) -> None:
    queue.push_batch([Task.create("ann", 3, 1, task_id=f"t{number}") for number in range(1000)])
    queue.heartbeat("w", {})
    queue.finish(pop(queue), took=1.0)
    pop(queue)
    shown = run("fairque_task", "show", "t900")
    assert re.search(r"\nstarts    It starts in about \d+ min \(probably between \d+ min and \d+ min\)\.\n", shown)


@pytest.mark.usefixtures("graph")
def test_a_task_is_shown_with_its_dependencies(queue: FairQueue, run: Run) -> None:
    shown = run("fairque_task", "show", "b")
    for words in (
        "state     deferred",
        'payload   {"n":1}',
        "run       r1",
        "why       It waits for 1 task: a (queued).",
        "waits for 1:\n  a  queued",
    ):
        assert words in shown
    assert "waited for by 1:\n  c  deferred" in shown
    queue.finish(pop(queue), {"rows": 3})
    assert 'result    {"rows": 3}' in run("fairque_task", "show", "a")


def test_an_unknown_name_is_the_first_reason_for_a_wait(queue: FairQueue, run: Run) -> None:
    queue.heartbeat("w:1", {"users": "*", "unknown_tasks": '["gone"]'})
    queue.push(Task.create("ann", 3, 1, name="gone", task_id="t", execute_after=4e9))
    why = [line.split(None, 1)[1] for line in run("fairque_task", "show", "t").splitlines() if line.startswith("why ")]
    assert why[0].startswith("No worker knows a task named gone: deploy its code")
    assert why[1].startswith("It is scheduled for 2096-")


def test_all_times_of_a_task_are_in_one_time_zone(queue: FairQueue, run: Run, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    queue.push(Task.create("ann", 3, 1, task_id="t", execute_after=4e9))
    shown = run("fairque_task", "show", "t")
    assert "due       2096-10-02 07:06:40Z" in shown
    assert "why       It is scheduled for 2096-10-02 07:06:40 UTC" in shown


@pytest.mark.usefixtures("graph")
def test_a_task_that_was_returned_after_its_start_is_shown_with_the_count(queue: FairQueue, run: Run) -> None:
    assert "given back" not in run("fairque_task", "show", "a")
    for _ in range(2):
        queue.release_worker("w", started=[pop(queue).token])
    assert "given back 2 times after it had begun" in run("fairque_task", "show", "a")


@pytest.mark.usefixtures("graph")
def test_a_run_is_shown_and_canceled(run: Run) -> None:
    head, _columns, *tasks = run("fairque_task", "run", "r1").splitlines()
    assert head == "run r1: running (1 queued, 2 deferred)"
    assert [line.split()[:2] for line in tasks] == [["a", "queued"], ["b", "deferred"], ["c", "deferred"]]
    sorted_lines = run("fairque_task", "run", "r1", "--sort", "task", "--reverse", "--limit", "2").splitlines()
    assert [line.split()[0] for line in sorted_lines[2:]] == ["c", "b", "2"]
    lines = run("fairque_task", "run", "r1", "--json").splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["a", "b", "c"]
    assert run("fairque_task", "xcom", "r1") == "rows  [1, 2]\n1 value\n"
    assert run("fairque_task", "cancel-run", "r1") == "3 tasks canceled\n"
    assert run("fairque_task", "cancel", "a") == "it had ended before\n"


@pytest.mark.usefixtures("graph")
def test_tasks_are_listed_and_canceled(run: Run) -> None:
    lines = run("fairque_task", "list", "--state", "deferred", "--user", "acme").splitlines()
    assert [line.split()[0] for line in lines] == ["task", "b", "c"]
    assert run("fairque_task", "list", "--limit", "1").endswith("1 shown; there are more\n")
    assert run("fairque_task", "cancel", "b") == "canceled\n"
    assert "dependency b was canceled" in run("fairque_task", "show", "c")


def test_log_lines_are_printed_on_request(queue: FairQueue, run: Run) -> None:
    queue.push(Task.create("ann", 3, 1, task_id="t"))
    lease = pop(queue, "w:1")
    assert "no log lines" in run("fairque_task", "show", "t", "--logs")
    lines = [LogLine(1_800_000_000.0, "ERROR", "shop", "token=swordfish \x1b[2J\nsecond line")]
    queue.logs.record(lease, lines, 1200)
    assert "second line" not in run("fairque_task", "show", "t")
    shown = run("fairque_task", "show", "t", "--logs")
    assert "log of attempt 1 by w:1, 1 line (1,200 before them were not kept):" in shown
    assert "  2027-01-15 08:00:00Z  ERROR     shop  token=•••••• \\x1b[2J\n    second line" in shown
    assert "token=swordfish" in run("fairque_task", "show", "t", "--logs", "--unredacted")
