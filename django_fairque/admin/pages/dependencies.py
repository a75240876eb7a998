"""Dependencies between tasks, as lists and as a graph, with tasks that will never be released. Operators can release
and cancel tasks here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import FRAGMENT_HEADER, Action, AdminPage, Question
from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.formatting import number
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_fairque.engine.dependencies.dependencies import DependencyGraph, DependencyView, Node

WAITING_TASKS_PER_PAGE = 25
BLOCKERS_PER_TASK = 10
"""Maximum number of tasks that the list shows as blocking one task."""
GRAPH_MAX_TASKS = 2000
"""Maximum number of tasks in a graph. The graph around one task has at most `DRAWING_MAX_TASKS` tasks."""
GRAPH_MAX_STEPS = 10
"""Maximum number of steps from a task to the ends of the graph around it. Each step needs a round trip."""


class DependenciesPage(AdminPage):
    """All deferred tasks. With ``task`` in the query, the graph around a task; with ``run``, the graph of a run."""

    name = "dependencies"
    title = gettext_lazy("Dependencies")
    permission = "view_dependency"
    refreshes = False
    """Whether the page is refreshed. True only for a drawn graph, because operators type no text there and its tasks
    change their states."""

    def template_context(self) -> dict[str, Any]:
        task_id, run_id = (self.request.GET.get(key, "").strip() for key in ("task", "run"))
        found: dict[str, Any] = {"task_id": task_id, "run_id": run_id, "may_change": self.may("change_dependency")}
        try:
            if task_id:
                return {**found, **self._of_task(task_id)}
            if run_id:
                return {**found, **self._graph(self.queue.run_graph(run_id, GRAPH_MAX_TASKS))}
            return {**found, **self._read_waiting_tasks()}
        except (TaskNotFoundError, ValueError) as error:
            if FRAGMENT_HEADER in self.request.headers:
                raise  # no message, because each refresh would add one to the next page
            messages.error(self.request, str(error))
            return found

    def _of_task(self, task_id: str) -> dict[str, Any]:
        view = self.queue.dependencies(task_id, DRAWING_MAX_TASKS, GRAPH_MAX_STEPS)
        node = view.graph.nodes[task_id]
        return {
            **self._graph(view.graph),
            "node": task_link(self, task_id, node),
            "is_deferred": node.state is TaskState.DEFERRED,
            "is_open": node.state is not None and not node.state.is_ended,
            "sets": neighbors(self, view, DRAWING_MAX_TASKS),
        }

    def _graph(self, graph: DependencyGraph) -> dict[str, Any]:
        states = sorted({get_state(node) for node in graph.nodes.values()})
        facts = {"graph": graph, "legend": states}
        if len(graph.nodes) > DRAWING_MAX_TASKS:
            rows = [Counter(get_state(graph.nodes[task_id]) for task_id in layer) for layer in layers(graph)]
            return {**facts, "counts": [[row[state] for state in states] for row in rows]}
        tasks = {task_id: task_link(self, task_id, node) for task_id, node in graph.nodes.items()}
        drawing = draw(graph)
        self.refreshes = True
        return {
            **facts,
            "drawing": drawing,
            "stages": [(*stage, stage_text(number, stage[0])) for number, stage in enumerate(drawing.stages, 1)],
            "boxes": [(tasks[task_id], graph.nodes[task_id], *place) for task_id, place in drawing.places.items()],
            "margin": DRAWING_MARGIN,
            "box_width": BOX_WIDTH,
            "box_height": BOX_HEIGHT,
            "layers": [[tasks[task_id] for task_id in layer] for layer in layers(graph)],
        }

    def _read_waiting_tasks(self) -> dict[str, Any]:
        """Read one page of deferred tasks. Each task is returned with the tasks that block it."""
        stats = self.queue.get_stats(0).dependencies
        page = self.queue.find(Search(TaskState.DEFERRED), WAITING_TASKS_PER_PAGE, self.request.GET.get("cursor"))
        blockers = self.queue.blockers([task.task_id for task in page.tasks], BLOCKERS_PER_TASK)
        rows = [
            {
                "task": task,
                "url": self.url(self.name, task=task.task_id),
                "blockers": [task_link(self, node.task_id, node) for node in found.nodes],
                "more": found.count - len(found.nodes),
                "orphans": found.orphans,
            }
            for task in page.tasks
            for found in [blockers[task.task_id]]
        ]
        orphaned = [row for row in rows if row["orphans"]]
        return {"stats": stats, "rows": rows, "orphaned": orphaned, **self.build_page_links(page.cursor)}

    @property
    def subject(self) -> str:
        task_id = self.request.GET.get("task", "").strip()
        if not task_id:
            raise ValueError(_("Choose a task first."))
        return task_id

    @Action("change_dependency")
    def release(self) -> str:
        """Remove the task's dependencies, so that their states no longer affect the task."""
        task_id = self.subject
        if not self.is_confirmed:
            count = self.queue.dependencies(task_id, 1).blocked_count
            text = ngettext(
                "%(task)s waits for %(count)s task. It is to start without it, and without its result.",
                "%(task)s waits for %(count)s tasks. It is to start without them, and without their results.",
                count,
            )
            raise Question([text % {"task": task_id, "count": number(count)}], _("Release it"))
        if not self.queue.ignore_dependencies(task_id):
            raise ValueError(_("The task does not wait for others (any more)."))
        return _("The task was released.")

    @Action("change_dependency")
    def cancel_subtree(self) -> str:
        """Cancel the task and all tasks that depend on it. The last tasks of the graph are canceled first, so that no
        task is released in the meantime.
        """
        task_id = self.subject
        view = self.queue.dependencies(task_id, DRAWING_MAX_TASKS, GRAPH_MAX_STEPS)
        ids = open_subtree(view)
        if not ids:
            raise ValueError(_("The task had ended before, and nothing waits for it."))
        text = ngettext(
            "%(count)d task is canceled: %(task)s, and what depends on it.",
            "%(count)d tasks are canceled: %(task)s, and what depends on it.",
            len(ids),
        )
        more = "" if view.graph.is_whole else " " + _("There are more, which are canceled as soon as these are.")
        self.ask_first(text % {"count": len(ids), "task": task_id} + more, _("Cancel them"))
        done = results.cancel_many(self.queue, ids, self.canceled_by)
        return ngettext("%s task was canceled.", "%s tasks were canceled.", done) % number(done)


def task_link(page: AdminPage, task_id: str, node: Node | None = None) -> dict[str, str]:
    """Return a task's name, state and URL, as far as they are known and the user may see the task."""
    name, state = (node.name, get_state(node)) if node else ("", "")
    label = shorten(name or task_id)
    return {"id": task_id, "name": name, "label": label, "state": state, "url": page.link("task", quote(task_id))}


def neighbors(page: AdminPage, view: DependencyView, most: int, *, declared: bool = False) -> list[dict[str, Any]]:
    """Return lists of the tasks around a task, each with at most ``most`` tasks. With ``declared``, add the declared
    dependencies.
    """
    lists = [(_("Waits for"), view.blocked, view.blocked_count), (_("Waited for by"), view.waiting, view.waiting_count)]
    if declared:
        lists.append((_("Declared to depend on"), view.parents, len(view.parents)))
    nodes = view.graph.nodes
    return [
        {
            "title": title,
            "count": count,
            "tasks": [task_link(page, task_id, nodes.get(task_id)) for task_id in ids[:most]],
            "more": count - len(ids[:most]),
        }
        for title, ids, count in lists
        if count
    ]


def open_subtree(view: DependencyView) -> list[str]:
    """Return the ids of the view's task and of the tasks in its graph that depend on it, except tasks that have ended.
    The last tasks of the graph come first.
    """
    nodes = view.graph.nodes
    states = {task_id: nodes[task_id].state for task_id in reversed(_descendants(view.graph, view.task_id))}
    return [task_id for task_id, state in states.items() if state is not None and not state.is_ended]


def stage_text(number: int, count: int) -> str:
    """Return the heading of one layer of the graph."""
    text = ngettext("Layer %(number)d: %(count)d task", "Layer %(number)d: %(count)d tasks", count)
    return text % {"number": number, "count": count}


def _descendants(graph: DependencyGraph, task_id: str) -> list[str]:
    """Return the task and all tasks that depend on it, in the order of the graph's layers."""
    _parents, children = neighbors_by_id(graph)
    reached, waiting = {task_id}, [task_id]
    while waiting:
        found = set(children[waiting.pop()]) - reached
        reached |= found
        waiting += found
    return [task_id for layer in layers(graph) for task_id in layer if task_id in reached]


DRAWING_MAX_TASKS = 200
"""Maximum number of tasks in a graph that is drawn. The tasks of a larger graph are only counted."""
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, DRAWING_MARGIN = 168, 40, 56, 12, 16
STAGE_HEADING_HEIGHT = 28
STAGE_PADDING = 10
"""Distance in pixels between the edge of a stage and its boxes, and between the columns of a stage."""
DRAWING_MAX_ROWS = 20
"""Maximum number of tasks in one column. A layer with more tasks has several columns in its stage."""
LABEL_MAX_CHARACTERS = 22


@dataclass(frozen=True)
class Drawing:
    """The drawing of a graph, with positions in pixels."""

    places: dict[str, tuple[int, int]]
    """The upper left corner of each task's box."""
    stages: list[tuple[int, int, int]]
    """The frame around each layer: its number of tasks, left edge and width."""
    paths: list[str]
    """The edges, as SVG path data."""
    width: int
    height: int

    @property
    def stage_height(self) -> int:
        return self.height - 2 * DRAWING_MARGIN


def layers(graph: DependencyGraph) -> list[list[str]]:
    """Return the task ids by layer. The layer of a task is the length of the longest path from a task without
    dependencies. Each layer is sorted.
    """
    parents, children = neighbors_by_id(graph)
    depth = {task_id: 0 for task_id in graph.nodes if not parents[task_id]}
    left = {task_id: len(parents[task_id]) for task_id in graph.nodes}
    reached = list(depth)
    for task_id in reached:  # the loop appends to this list while it runs
        for child in children[task_id]:
            depth[child] = max(depth.get(child, 0), depth[task_id] + 1)
            left[child] -= 1
            if not left[child]:
                reached.append(child)
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for task_id in sorted(graph.nodes):
        found[depth.get(task_id, 0)].append(task_id)
    return found


def draw(graph: DependencyGraph) -> Drawing:
    """Draw one stage for each layer, from left to right. Each task is placed near the height of its dependencies."""
    parents, _children = neighbors_by_id(graph)
    places: dict[str, tuple[int, int]] = {}
    stages: list[tuple[int, int, int]] = []
    left, top = DRAWING_MARGIN, DRAWING_MARGIN + STAGE_HEADING_HEIGHT
    for layer in layers(graph):
        ordered = sorted(layer, key=lambda task_id: (_height(places, parents[task_id]), task_id))
        for index, task_id in enumerate(ordered):
            column, row = divmod(index, DRAWING_MAX_ROWS)
            x = left + STAGE_PADDING + column * (BOX_WIDTH + STAGE_PADDING)
            places[task_id] = (x, top + row * (BOX_HEIGHT + GAP_Y))
        columns = (len(layer) - 1) // DRAWING_MAX_ROWS + 1
        stages.append((len(layer), left, columns * (BOX_WIDTH + STAGE_PADDING) + STAGE_PADDING))
        left += stages[-1][2] + GAP_X
    paths = [_path(places[parent], places[child]) for child in graph.nodes for parent in parents[child]]
    bottom = max((y for _x, y in places.values()), default=top) + BOX_HEIGHT + GAP_Y
    return Drawing(places, stages, paths, left - GAP_X + DRAWING_MARGIN, bottom + DRAWING_MARGIN)


def get_state(node: Node) -> str:
    return node.state.value if node.state else "unknown"


def neighbors_by_id(graph: DependencyGraph) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    """Return the dependencies and the dependents of each task in the graph."""
    parents: dict[str, list[str]] = {task_id: [] for task_id in graph.nodes}
    children: dict[str, list[str]] = {task_id: [] for task_id in graph.nodes}
    for parent, child in dict.fromkeys(graph.edges):
        if parent in parents and child in parents:
            parents[child].append(parent)
            children[parent].append(child)
    return parents, children


def _height(places: Mapping[str, tuple[int, int]], parents: Sequence[str]) -> float:
    heights = [places[task_id][1] for task_id in parents if task_id in places]
    return sum(heights) / len(heights) if heights else 0.0


def shorten(label: str) -> str:
    """Keep the end of a long name, which distinguishes tasks of one module."""
    return label if len(label) <= LABEL_MAX_CHARACTERS else f"…{label[1 - LABEL_MAX_CHARACTERS :]}"


def _path(parent: tuple[int, int], child: tuple[int, int]) -> str:
    x, y, to_x, to_y = parent[0] + BOX_WIDTH, parent[1] + BOX_HEIGHT // 2, child[0], child[1] + BOX_HEIGHT // 2
    bend = GAP_X // 2
    return f"M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
