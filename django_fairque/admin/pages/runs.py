"""Runs of pipelines: the newest runs with their progress, and a chart of one run with the tasks that determined its
duration.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import AdminPage
from django_fairque.admin.pages.dependencies import get_state, neighbors_by_id
from django_fairque.engine.model.records import TaskState
from django_fairque.monitoring.formatting import share

if TYPE_CHECKING:
    from django_fairque.engine.dependencies.dependencies import DependencyGraph, Node, RunProgress

RUNS_SHOWN = 20
RUN_MAX_TASKS = 200
"""Maximum number of a run's tasks that are drawn."""


class RunsPage(AdminPage):
    """The newest pipeline runs of all users."""

    name = "runs"
    title = gettext_lazy("Runs")
    permission = "view_dependency"

    def template_context(self) -> dict[str, Any]:
        rows = [
            {
                "run": run,
                "state": run_state(run),
                "url": self.url("run", quote(run.run_id)),
                "done": sum(count for state, count in run.states.items() if state.is_ended),
                "read": sum(run.states.values()),
                "part": share(run.done),
                "failed": run.states.get(TaskState.FAILED, 0),
                "length": (run.ended_at or 0.0) - run.created_at if run.done == 1.0 else time.time() - run.created_at,
            }
            for run in self.queue.recent_runs(RUNS_SHOWN)
        ]
        return {"rows": rows}


class RunPage(AdminPage):
    """The page of one run, whose id is the last part of the path."""

    name = "run"
    path = "runs/id-<str:key>/"
    title = gettext_lazy("Run")
    permission = "view_dependency"
    list_name = "runs"

    def template_context(self) -> dict[str, Any]:
        graph = self.queue.run_graph(self.key, RUN_MAX_TASKS)
        critical = critical_path(graph)
        chart = run_chart(graph, critical, time.time())
        return {
            "run_id": self.key,
            "graph": graph,
            "chart": chart,
            "rows": [(row, self.link("task", quote(row.node.task_id))) for row in chart.rows],
            "critical": [(node, self.link("task", quote(node.task_id)), worker_time(node)) for node in critical],
            "critical_ran": sum(worker_time(node) or 0.0 for node in critical),
            "graph_url": self.url("dependencies", run=self.key),
        }


def run_state(run: RunProgress) -> str:
    """Return the state of a run, determined from the tasks that were read, in the same way as `RunView.state`."""
    states = run.states
    if any(states.get(state) for state in (TaskState.SCHEDULED, TaskState.QUEUED, TaskState.STARTED)):
        return TaskState.STARTED.value
    if states.get(TaskState.FAILED):
        return TaskState.FAILED.value
    if states.get(TaskState.DEFERRED):
        return TaskState.DEFERRED.value
    return TaskState.CANCELED.value if states.get(TaskState.CANCELED) else TaskState.FINISHED.value


def worker_time(node: Node) -> float | None:
    """Return the seconds for which a worker had the last attempt of an ended task. None if the task has not ended or
    was never started.
    """
    if node.started_at is None or node.ended_at is None:
        return None
    return max(0.0, node.ended_at - node.started_at)


def critical_path(graph: DependencyGraph) -> list[Node]:
    """Return the tasks that determined the end of the run, in their order.

    The last entry is the task that ended last. The entry before a task is the dependency of that task which ended last.
    """
    parents, _children = neighbors_by_id(graph)
    ended = [node for node in graph.nodes.values() if node.ended_at is not None]
    if not ended:
        return []
    path = [max(ended, key=_end)]
    seen = {path[0].task_id}
    while before := [graph.nodes[task_id] for task_id in parents[path[-1].task_id] if task_id not in seen]:
        latest = max(before, key=_end)
        if latest.ended_at is None:
            break
        seen.add(latest.task_id)
        path.append(latest)
    return path[::-1]


def _end(node: Node) -> tuple[float, str]:
    return (node.ended_at or 0.0, node.task_id)


@dataclass(frozen=True)
class RunRow:
    """One task of the chart. ``parts`` are the parts of its bar: CSS class, start in seconds after the run's start, and
    length in seconds.
    """

    node: Node
    state: str
    parts: tuple[tuple[str, float, float], ...]
    is_critical: bool
    waited: float | None
    ran: float | None


@dataclass(frozen=True)
class RunChart:
    """The tasks of a run over time; ``begins_at`` and ``ends_at`` are Unix times, ``length`` is in seconds."""

    rows: tuple[RunRow, ...]
    begins_at: float
    ends_at: float

    @property
    def length(self) -> float:
        return self.ends_at - self.begins_at


def run_chart(graph: DependencyGraph, critical: Sequence[Node], now: float) -> RunChart:
    """Return a row for each task in the order of their starts. Tasks that have not started come last."""
    nodes: Mapping[str, Node] = graph.nodes
    moments = [
        moment
        for node in nodes.values()
        for moment in (node.created_at, node.started_at, node.ended_at)
        if moment is not None
    ]
    begin = min(moments, default=now)
    is_open = any(node.state is not None and not node.state.is_ended for node in nodes.values())
    end = max([*moments, now]) if is_open else max(moments, default=now)
    on_path = {node.task_id for node in critical}

    rows = []
    for node in sorted(
        nodes.values(), key=lambda node: (node.started_at or float("inf"), node.created_at or 0.0, node.task_id)
    ):
        started, parts = node.started_at, []
        # The time before a task is ready is not drawn, because the task waits for its dependencies.
        ready = node.ready_at if node.state not in (TaskState.DEFERRED, TaskState.SCHEDULED) else None
        is_ended = node.state is None or node.state.is_ended
        if is_ended and started is None:
            ready = None
        until = started if started is not None and node.state is not TaskState.QUEUED else end
        waited = max(0.0, until - ready) if ready is not None else None
        if ready is not None and waited:
            parts.append(("waited", max(0.0, ready - begin), waited))
        ran = None
        if started is not None and (is_ended or node.state is TaskState.STARTED):
            stop = max(started, node.ended_at or end)
            ran = stop - started
            parts.append(("ran", started - begin, ran))
        rows.append(RunRow(node, get_state(node), tuple(parts), node.task_id in on_path, waited, ran))
    return RunChart(tuple(rows), begin, end)
