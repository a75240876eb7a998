"""Which of the tasks that are pushed in one call belong together, and what a full backlog means for the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.dependencies.graph import MAX_EDGES, MAX_GRAPH
from django_fairque.engine.model.errors import PushRefusedError, TaskIdConflictError
from django_fairque.engine.model.records import PushResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.operations import Steps


@dataclass
class Part:
    """Tasks by their place in the call. ``is_graph``: they are accepted as a whole or not at all.

    ``is_joined``: only because that is one call instead of many; if it is refused, each may be tried alone.
    """

    run_id: str = ""
    is_graph: bool = False
    is_joined: bool = False
    indexes: list[int] = field(default_factory=list)
    edges: int = 0


def parts_of(tasks: Sequence[Task]) -> list[Part]:
    """What is sent together, in the order in which it begins: each run, tasks without one that depend on each other here,
    those that depend on tasks elsewhere, and all others, as long as nothing of the rest begins in between.
    """
    leaders = _leaders(tasks)
    parts: list[Part] = []
    graphs: dict[str | int, Part] = {}
    last: Part | None = None  # what the next one may join that belongs to no graph
    for index, task in enumerate(tasks):
        graph = task.run_id or leaders.get(index)
        if graph is None:
            depends = bool(task.depends_on)
            if last is None or last.is_joined != depends or (depends and not _has_room(last, task)):
                last = Part(is_graph=depends, is_joined=depends)
                parts.append(last)
            part = last
        elif graph in graphs:
            part = graphs[graph]
        else:
            part = graphs[graph] = Part(task.run_id, is_graph=True)
            parts.append(part)
            last = None
        part.indexes.append(index)
        part.edges += len(task.depends_on)
    return parts


def _has_room(part: Part, task: Task) -> bool:
    return len(part.indexes) < MAX_GRAPH and part.edges + len(task.depends_on) <= MAX_EDGES


def _leaders(tasks: Sequence[Task]) -> dict[int, int]:
    """Of each task without a run that depends on another one here, or is depended on: the first of all that hang together."""
    at = {task.task_id: index for index, task in enumerate(tasks) if not task.run_id}
    above: dict[int, int] = {}

    def first(index: int) -> int:
        while above[index] != index:
            above[index] = above[above[index]]
            index = above[index]
        return index

    for index, task in enumerate(tasks):
        for name in () if task.run_id else task.depends_on:
            if name in at:
                one, other = (first(above.setdefault(each, each)) for each in (index, at[name]))
                above[max(one, other)] = min(one, other)
    return {index: first(index) for index in above}


def push_apart(
    tasks: Sequence[Task],
    push_singles: Callable[[Sequence[Task]], Steps[list[PushResult]]],
    push_graph: Callable[[Sequence[Task], str], Steps[list[PushResult]]],
) -> Steps[list[PushResult]]:
    """Push the parts one after the other; the results name those that are refused, which keep no other back."""
    results: dict[int, PushResult] = {}
    for part in parts_of(tasks):
        some = [tasks[index] for index in part.indexes]
        try:
            done = yield from push_graph(some, part.run_id) if part.is_graph else push_singles(some)
        except PushRefusedError as error:
            done = [each for each in error.results if isinstance(each, PushResult)]
            if part.is_joined and len(some) > 1:
                for task in some:
                    done += yield from _alone(task, push_graph)
            elif not done:
                done = [PushResult(task.task_id, _status_of(error)) for task in some]
        results.update(zip(part.indexes, done, strict=True))
    return [results[index] for index in range(len(tasks))]


def _alone(task: Task, push_graph: Callable[[Sequence[Task], str], Steps[list[PushResult]]]) -> Steps[list[PushResult]]:
    try:
        return (yield from push_graph([task], ""))
    except PushRefusedError as error:
        return [PushResult(task.task_id, _status_of(error))]


def _status_of(error: PushRefusedError) -> str:
    """The status of each task of a graph that was refused with this error."""
    return "id_conflict" if isinstance(error, TaskIdConflictError) else "backlog_full"
