"""Which of the tasks that are pushed in one call belong together, and what a full backlog means for the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model import errors

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands

MAX_GRAPH_TASKS = 2000
"""Tasks in one graph: pushing it is one script call, which keeps the server from all others (25 ms for as many)."""
MAX_GRAPH_EDGES = 10_000


def check_graph(tasks: Sequence[Task]) -> None:
    """Raise unless these tasks can be pushed as one graph.

    Raises:
        DependencyCycleError: names the cycle, ``a → b → a``: each depends on the next.
        TaskValidationError: too many tasks or dependencies, or two tasks of one id.
    """
    if len(tasks) > MAX_GRAPH_TASKS:
        raise errors.TaskValidationError(
            f"a graph may have at most {MAX_GRAPH_TASKS:,} tasks, got {len(tasks):,}; push it in parts that depend on ids of "
            f"the parts before"
        )
    edges = sum(len(task.depends_on) for task in tasks)
    if edges > MAX_GRAPH_EDGES:
        raise errors.TaskValidationError(
            f"a graph may have at most {MAX_GRAPH_EDGES:,} dependencies, got {edges:,}; put a task between the stages"
        )
    by_id = {task.task_id: task for task in tasks}
    if len(by_id) < len(tasks):
        twice = next(task.task_id for index, task in enumerate(tasks) if by_id[task.task_id] is not tasks[index])
        raise errors.TaskValidationError(f"two tasks of one graph have the id {twice!r}")
    check_acyclic({task.task_id: task.depends_on for task in tasks})


def check_acyclic(edges: Mapping[str, Sequence[str]]) -> None:
    """Raise `DependencyCycleError` if some of these edges form a cycle."""
    following = set(edges)
    for node, others in edges.items():
        if not following.isdisjoint(others):
            break
        following.remove(node)
    if following:  # not in the usual order, in which each depends only on those before it
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            raise cycle_error(error.args[1][::-1]) from None


def cycle_error(path: Sequence[str]) -> errors.DependencyCycleError:
    """For a path whose each task depends on the next, the last one being the first."""
    return errors.DependencyCycleError(f"tasks would wait for each other: {' → '.join(path)}; nothing was pushed", path)


def dependency_args(tasks: Sequence[Task], elsewhere: Mapping[str, int]) -> list[Any]:
    """The part of ``push.lua``'s arguments that says what depends on what; ``elsewhere`` has other shards' tasks."""
    remotes = [each for each in dict.fromkeys(name for task in tasks for name in task.depends_on) if each in elsewhere]
    args: list[Any] = [len(remotes), *(part for each in remotes for part in (each, elsewhere[each]))]
    args.append(sum(bool(task.depends_on) for task in tasks))
    for index, task in enumerate(tasks, 1):
        if task.depends_on:
            args += [index, task.on_dependency_failure, len(task.depends_on), *task.depends_on]
    return args


def raise_graph_refusal(commands: Commands, tasks: Sequence[Task], reply: Sequence[bytes]) -> None:
    """Raise what the script found wrong with a graph; nothing was written then."""
    kind, details = reply[1], [value.decode() for value in reply[2:]]
    if kind == b"missing":
        task = tasks[int(details[0]) - 1]
        raise errors.TaskNotFoundError(
            f"task {task.task_id!r} depends on {details[1]!r}, which queue {commands.name!r} does not know: push it "
            f"before or together with it (finished tasks are forgotten after result_ttl, "
            f"{commands.config.result_ttl:.0f} s); nothing was pushed"
        )
    if kind == b"cycle":
        raise cycle_error(details)
    if kind == b"size":
        raise errors.TaskValidationError(
            f"task {details[0]!r} has too many tasks behind it to look for a cycle (10,000); use a new id for it"
        )
    if kind == b"conflict":
        raise id_conflict_error(commands.name, tasks[int(details[0]) - 1].task_id, tasks)
    if kind == b"full":
        task = tasks[int(details[0]) - 1]
        raise errors.BacklogFullError(
            f"the backlog of user {task.user_id!r} is full (queue {commands.name!r}), so none of the {len(tasks)} tasks "
            f"of this graph was accepted; try again later, or raise max_backlog or max_backlog_bytes",
            refused=[each.task_id for each in tasks],
        )


def id_conflict_error(queue: str, task_id: str, tasks: Sequence[Task]) -> errors.TaskIdConflictError:
    """For a graph of these tasks, one of which has the id of another user's task."""
    return errors.TaskIdConflictError(
        f"the id {task_id!r} belongs to a task of another user (queue {queue!r}), so none of the {len(tasks)} tasks of this "
        f"graph was accepted; choose ids that no two users share, for example with the user in them",
        refused=[each.task_id for each in tasks],
    )


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

    def has_room(self, task: Task) -> bool:
        return len(self.indexes) < MAX_GRAPH_TASKS and self.edges + len(task.depends_on) <= MAX_GRAPH_EDGES


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
            if last is None or last.is_joined != depends or (depends and not last.has_room(task)):
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
