"""The pages Runs and Run: progress of pipelines, their tasks over time, and the critical path."""

from __future__ import annotations

import re
from typing import Any

import pytest

from django_fairque.admin.pages.runs import critical_path, run_chart
from django_fairque.engine.dependencies.dependencies import DependencyGraph, Node
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to, page_url, read
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db


def node(task_id: str, *parents: str, **options: Any) -> Task:
    return Task.create("ann", 3, None, task_id=task_id, depends_on=parents, **options)


def shown(client: Client, page: str = "runs", *args: str) -> str:
    return read(client, page_url(page, *args))


def work(queue: FairQueue, task_id: str) -> None:
    lease = pop(queue, "w:1")
    assert lease.task_id == task_id
    queue.finish(lease)
    while queue.sweep().more:
        pass


@pytest.fixture
def diamond(queue: FairQueue) -> FairQueue:
    """a -> b, c -> d, in run r; a has finished."""
    queue.push_graph([node("a", name="first"), node("b", "a"), node("c", "a"), node("d", "b", "c")], "r")
    work(queue, "a")
    return queue


def test_each_run_is_listed_with_its_progress(admin_client: Client, diamond: FairQueue) -> None:
    diamond.push(Task.create("bob", 3, None))
    diamond.push_graph([node("x")], "other")
    text = shown(admin_client)
    assert re.findall(r'<th scope="row" class="fq-id"><a href="[^"]*"><bdi>(.*?)</bdi>', text) == ["other", "r"]
    assert '<progress value="1" max="4"' in text
    assert "1 of 4" in text
    assert "first" in text
    assert "No runs among" not in text


def test_a_run_is_drawn_over_time_with_its_critical_path(admin_client: Client, diamond: FairQueue) -> None:
    work(diamond, "b")
    text = shown(admin_client, "run", "r")
    assert text.count('<th scope="row" class="fq-name">') == 4
    assert text.count('class="fq-part-ran"') == 2
    assert text.count('class="fq-part-waited"') >= 1, "c"
    assert text.count('class="fq-critical"') == 2
    path = text.split('id="fq-critical"')[1].split("</ol>")[0]
    assert re.findall(r"<bdi>(.*?)</bdi>", path) == ["first", "b"]
    assert "style=" not in text.split('class="fq-run"')[1].split("</table>")[0]


def test_a_queue_without_runs_and_an_unknown_run_are_explained(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("bob", 3, None))
    assert "This queue has no runs." in shown(admin_client)
    assert "knows no run" in led_to(admin_client, page_url("run", "nothing"), "runs")


def made(task_id: str, started: float | None, ended: float | None, state: TaskState = TaskState.FINISHED) -> Node:
    return Node(task_id, "", "u", state, 0.0, started, started, ended)


def test_the_critical_path_contains_the_dependency_that_ended_last() -> None:
    nodes = [made("a", 0, 1), made("b", 1, 9), made("c", 1, 4), made("d", 9, 10), made("e", 1, 5)]
    edges = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "e"))
    graph = DependencyGraph({node.task_id: node for node in nodes}, edges)
    assert [node.task_id for node in critical_path(graph)] == ["a", "b", "d"]


def test_a_run_without_an_ended_task_has_no_critical_path() -> None:
    assert critical_path(DependencyGraph({"a": made("a", 1, None, TaskState.STARTED)})) == []
    assert critical_path(DependencyGraph()) == []


def test_the_critical_path_of_damaged_records_does_not_loop_forever() -> None:
    nodes = {name: made(name, 1, 2) for name in "ab"}
    assert len(critical_path(DependencyGraph(nodes, (("a", "b"), ("b", "a"))))) == 2


def test_bars_stay_inside_the_chart() -> None:
    nodes = {
        "a": made("a", 1, 2),
        "b": made("b", 99.999, 100),
        "c": made("c", 50, None, TaskState.STARTED),
        "d": Node("d", "", "u", None),
        "e": Node("e", "", "u", TaskState.QUEUED, 0.0, 60.0),
        "f": Node("f", "", "u", TaskState.CANCELED, 0.0, 0.0, None, 70.0),
    }
    chart = run_chart(DependencyGraph(nodes), [nodes["a"]], 120.0)
    assert chart.length == 120
    bars = {row.node.task_id: row.parts for row in chart.rows}
    for name in nodes:
        for _, at, width in bars[name]:
            assert 0 <= at <= at + width <= chart.length
    assert [part for part, *_ in bars["c"]] == ["ran"]
    assert [part for part, *_ in bars["e"]] == ["waited"]
    assert (bars["d"], bars["f"]) == ((), ())
    assert [row.node.task_id for row in chart.rows if row.is_critical] == ["a"]
    assert run_chart(DependencyGraph(), [], 5.0).rows == ()
