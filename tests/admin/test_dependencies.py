"""The page Dependencies, as staff use it, and the layout of graphs."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest

from django_fairque.admin.pages import dependencies as module
from django_fairque.admin.pages.dependencies import (
    BOX_HEIGHT,
    BOX_WIDTH,
    DRAWING_MAX_ROWS,
    DRAWING_MAX_TASKS,
    GRAPH_MAX_STEPS,
    draw,
    layers,
    shorten,
)
from django_fairque.engine.dependencies.dependencies import DependencyGraph, Node
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import page_url, post, read
from tests.counting import counted
from tests.fixture_types import Client, FairQueue, Redis
from tests.stored_tasks import remove_task

pytestmark = pytest.mark.django_db

url = partial(page_url, "dependencies")


def node(task_id: str, *parents: str, **options: Any) -> Task:
    return Task.create("ann", 3, None, task_id=task_id, depends_on=parents, **options)


@pytest.fixture
def diamond(queue: FairQueue) -> FairQueue:
    """a -> b, c -> d, in run r."""
    queue.push_graph([node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c")], "r")
    return queue


def shown(client: Client, **query: str) -> str:
    return read(client, url(**query))


def act(client: Client, task_id: str, action: str, **fields: str) -> str:
    return str(post(client, url(task=task_id), action=action, **fields).content.decode())


def states(queue: FairQueue, ids: str) -> list[str]:
    return [queue.get_task(task_id).state.value for task_id in ids]


def test_waiting_tasks_are_listed(admin_client: Client, diamond: FairQueue) -> None:
    text = shown(admin_client)
    rows = re.findall(r'<th scope="row" class="fq-id"><a href="[^"]*task=(\w)', text)
    assert sorted(rows) == ["b", "c", "d"]
    assert "Orphans" not in text
    assert "<dd>4</dd>" in text, "dependencies"


def test_the_list_of_waiting_tasks_has_pages(admin_client: Client, queue: FairQueue) -> None:
    queue.push_graph([node("a"), *(node(f"b{n:02}", "a") for n in range(module.WAITING_TASKS_PER_PAGE + 2))])
    text = shown(admin_client)
    following = re.search(r'href="([^"]*)" rel="next"', text)
    assert following is not None
    second = admin_client.get(following[1].replace("&amp;", "&")).content.decode()
    assert len(re.findall(r'<th scope="row" class="fq-id">', second)) == 2


def test_tasks_that_wait_for_a_lost_task_are_orphans(admin_client: Client, diamond: FairQueue, redis: Redis) -> None:
    remove_task(redis, "a")
    text = shown(admin_client)
    assert "Orphans on this page" in text
    assert text.count("</a>: a</li>") == 2


def test_a_task_with_many_dependencies_names_a_few_and_counts_the_rest(admin_client: Client, queue: FairQueue) -> None:
    parents = [f"p{n:02}" for n in range(module.BLOCKERS_PER_TASK + 3)]
    queue.push_graph([*map(node, parents), node("t", *parents)])
    assert "and 3 more" in shown(admin_client)


def test_the_list_of_waiting_tasks_reads_a_bounded_number_of_records(
    admin_client: Client, queue: FairQueue, redis: Redis
) -> None:
    parents = [f"p{n}" for n in range(30)]
    queue.push_graph([*map(node, parents), *(node(f"t{n}", *parents) for n in range(100))])
    stats = counted(redis, lambda: shown(admin_client))
    assert sum(stat["calls"] for stat in stats.values()) <= 450


def test_a_graph_is_drawn_around_a_task_and_of_a_run(admin_client: Client, diamond: FairQueue) -> None:
    text = shown(admin_client, task="b")
    assert (text.count('class="fq-box"'), text.count('class="fq-edge"')) == (4, 4)
    for words in ("Waits for (1)", "Waited for by (1)", "/tasks/id-a/"):
        assert words in text
    assert re.findall(r">Layer (\d: \d tasks?)<", text) == ["1: 1 task", "2: 2 tasks", "3: 1 task"]
    assert re.findall(r"<li>Layer (\d)<ul>", text) == ["1", "2", "3"]
    text = shown(admin_client, run="r")
    assert text.count('class="fq-box"') == 4
    assert 'data-state="queued"' in text


def test_the_graph_of_a_long_chain_ends_after_some_steps(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    queue.push_graph([node("t0"), *(node(f"t{n}", f"t{n - 1}") for n in range(1, 100))], "r")
    text = shown(admin_client, task="t50")
    assert text.count('class="fq-box"') == 2 * GRAPH_MAX_STEPS + 1
    assert "There is more than these 21 tasks." in text


def test_a_graph_of_too_many_tasks_is_counted_instead_of_drawn(admin_client: Client, queue: FairQueue) -> None:
    for run, size in (("r", DRAWING_MAX_TASKS), ("large", DRAWING_MAX_TASKS + 1)):
        queue.push_graph([node(run), *(node(f"{run}{n}", run) for n in range(size - 1))], run)
    assert shown(admin_client, run="r").count('class="fq-box"') == DRAWING_MAX_TASKS
    text = shown(admin_client, run="large")
    assert '<svg class="fq-graph"' not in text
    assert "Too many tasks to draw" in text
    assert f'<td class="fq-number">{DRAWING_MAX_TASKS}</td>' in text
    assert "There is more than these 200 tasks." in shown(admin_client, task="large")


@pytest.mark.parametrize("query", [{"task": "nobody"}, {"run": "nobody"}, {"task": "x" * 300}])
def test_an_unknown_task_or_run_has_no_graph(admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
    text = shown(admin_client, **query)
    assert 'class="error"' in text
    assert '<svg class="fq-graph"' not in text


def test_a_task_is_released_from_its_dependencies_after_a_question(admin_client: Client, diamond: FairQueue) -> None:
    text = act(admin_client, "d", "release")
    assert "d waits for 2 tasks. It is to start without them" in text
    assert states(diamond, "d") == ["deferred"]
    assert "The task was released." in act(admin_client, "d", "release", confirm="yes")
    assert states(diamond, "abcd") == ["queued", "deferred", "deferred", "queued"]
    assert diamond.check_invariants() == []
    assert str(AuditEntry.objects.get()) == "default: d"
    assert "does not wait for others" in act(admin_client, "d", "release", confirm="yes")


def test_a_task_is_canceled_with_its_dependents_after_a_question(admin_client: Client, diamond: FairQueue) -> None:
    assert "2 tasks are canceled: b, and what depends on it." in act(admin_client, "b", "cancel_subtree")
    assert "canceled" not in states(diamond, "abcd")
    assert "2 tasks were canceled." in act(admin_client, "b", "cancel_subtree", confirm="yes")
    assert states(diamond, "abcd") == ["queued", "canceled", "deferred", "canceled"]
    assert "had ended before" in act(admin_client, "b", "cancel_subtree", confirm="yes")
    assert AuditEntry.objects.count() == 1


def test_a_large_subtree_is_canceled_as_a_whole(admin_client: Client, queue: FairQueue) -> None:
    queue.push_graph([node("a"), *(node(f"b{n}", "a") for n in range(DRAWING_MAX_TASKS + 50))])
    assert "There are more" in act(admin_client, "a", "cancel_subtree")
    act(admin_client, "a", "cancel_subtree", confirm="yes")
    while queue.sweep().more:
        pass
    assert queue.get_stats(0).states["canceled"] == DRAWING_MAX_TASKS + 51


@pytest.mark.parametrize("action", ["release", "cancel_subtree"])
def test_an_action_needs_a_known_task(admin_client: Client, diamond: FairQueue, action: str) -> None:
    assert "Choose a task first." in act(admin_client, "", action, confirm="yes")
    assert "&#x27;nobody&#x27;" in act(admin_client, "nobody", action, confirm="yes")


def graph_of(edges: dict[str, list[str]]) -> DependencyGraph:
    nodes = {name: Node(name, "", "u", TaskState.QUEUED) for name in edges}
    return DependencyGraph(nodes, tuple((parent, child) for child, some in edges.items() for parent in some))


def test_each_task_is_drawn_after_its_dependencies() -> None:
    graph = graph_of({"a": [], "b": ["a"], "c": ["a", "b"], "d": [], "e": ["d", "c"]})
    assert layers(graph) == [["a", "d"], ["b"], ["c"], ["e"]]


def test_boxes_of_a_graph_do_not_overlap() -> None:
    graph = graph_of({"a": [], **{f"b{n}": ["a"] for n in range(3 * DRAWING_MAX_ROWS)}, "z": ["b0", "b40"]})
    drawing = draw(graph)
    places = list(drawing.places.values())
    for index, (x, y) in enumerate(places):
        assert x + BOX_WIDTH <= drawing.width
        assert y + BOX_HEIGHT <= drawing.height
        assert all(
            abs(x - other_x) >= BOX_WIDTH or abs(y - other_y) >= BOX_HEIGHT for other_x, other_y in places[:index]
        )
    assert len(drawing.paths) == 3 * DRAWING_MAX_ROWS + 2


def test_a_wide_layer_is_wrapped_inside_one_stage() -> None:
    graph = graph_of({"a": [], **{f"b{n}": ["a"] for n in range(80)}, "z": ["b0"]})
    drawing = draw(graph)
    assert [count for count, _left, _width in drawing.stages] == [1, 80, 1]
    _count, left, width = drawing.stages[1]
    inside = [x for x, _y in drawing.places.values() if left < x and x + BOX_WIDTH < left + width]
    assert len(inside) == 80
    assert len(set(inside)) == 80 / DRAWING_MAX_ROWS, "wrapped"


def test_a_long_name_keeps_its_end() -> None:
    assert shorten("shop.tasks.reports.monthly_summary") == "…ports.monthly_summary"
    assert shorten("monthly_summary") == "monthly_summary"


def test_edges_to_tasks_that_were_not_read_are_left_out() -> None:
    graph = graph_of({"a": ["elsewhere"]})
    assert (layers(graph), draw(graph).paths) == ([["a"]], [])
    assert (layers(DependencyGraph()), draw(DependencyGraph()).places) == ([], {})
