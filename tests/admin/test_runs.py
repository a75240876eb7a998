"""The pages Runs and Run: progress of pipelines, their tasks over time, and the critical path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse

from django_fairque.admin.pages.runs import critical_path, run_chart
from django_fairque.engine.dependencies.dependencies import DependencyGraph, Node
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db


def node(task_id: str, *parents: str, **options: Any) -> Task:
    return Task.create("ann", 3, None, task_id=task_id, depends_on=parents, **options)


def shown(client: Client, page: str = "runs", *args: str) -> str:
    answer = client.get(reverse(f"admin:django_fairque_{page}", args=[quote(each) for each in args]))
    assert answer.status_code == 200
    return answer.content.decode()


def work(queue: FairQueue, task_id: str) -> None:
    lease = queue.pop("w:1")
    assert lease is not None
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


def test_each_run_with_its_progress(admin_client: Client, diamond: FairQueue) -> None:
    diamond.push(Task.create("bob", 3, None))
    diamond.push_graph([node("x")], "other")
    text = shown(admin_client)
    assert re.findall(r'<th scope="row" class="fq-id"><a href="[^"]*"><bdi>(.*?)</bdi>', text) == ["other", "r"]
    assert '<progress value="1" max="4"' in text
    assert "1 of 4" in text
    assert "first" in text
    assert "No runs among" not in text


def test_without_runs(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("bob", 3, None))
    assert "No runs among the newest tasks." in shown(admin_client)


def test_a_run_over_time(admin_client: Client, diamond: FairQueue) -> None:
    work(diamond, "b")
    text = shown(admin_client, "run", "r")
    assert text.count('<th scope="row" class="fq-name">') == 4
    assert text.count('class="fq-part-ran"') == 2
    assert text.count('class="fq-part-waited"') >= 1, "c"
    assert text.count('class="fq-critical"') == 2
    path = text.split('id="fq-critical"')[1].split("</ol>")[0]
    assert re.findall(r"<bdi>(.*?)</bdi>", path) == ["first", "b"]
    assert "style=" not in text.split('class="fq-run"')[1].split("</table>")[0]


def test_a_run_that_is_not_known(admin_client: Client, queue: FairQueue) -> None:
    url = reverse("admin:django_fairque_run", args=[quote("nothing")])
    assert "knows no run" in led_to(admin_client, url, "runs")


def test_hostile_ids(admin_client: Client, queue: FairQueue) -> None:
    hostile = "<script>alert(1)</script>/?#"
    queue.push_graph([node(hostile, name=hostile)], hostile)
    for text in (shown(admin_client), shown(admin_client, "run", hostile)):
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text


def made(task_id: str, started: float | None, ended: float | None, state: TaskState = TaskState.FINISHED) -> Node:
    return Node(task_id, "", "u", state, 0.0, started, started, ended)


class TestCriticalPath:
    def test_goes_back_to_the_dependency_that_ended_last(self) -> None:
        nodes = [made("a", 0, 1), made("b", 1, 9), made("c", 1, 4), made("d", 9, 10), made("e", 1, 5)]
        edges = (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "e"))
        graph = DependencyGraph({each.task_id: each for each in nodes}, edges)
        assert [each.task_id for each in critical_path(graph)] == ["a", "b", "d"]

    def test_of_a_run_of_which_nothing_has_ended(self) -> None:
        assert critical_path(DependencyGraph({"a": made("a", 1, None, TaskState.STARTED)})) == []
        assert critical_path(DependencyGraph()) == []

    def test_ends_although_records_are_damaged(self) -> None:
        nodes = {each: made(each, 1, 2) for each in "ab"}
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
            assert 0 <= float(at) <= float(at) + float(width) <= 1000.2
    assert [part for part, *_ in bars["c"]] == ["ran"]
    assert [part for part, *_ in bars["e"]] == ["waited"]
    assert (bars["d"], bars["f"]) == ((), ())
    assert [row.node.task_id for row in chart.rows if row.is_critical] == ["a"]
    assert run_chart(DependencyGraph(), [], 5.0).rows == ()
