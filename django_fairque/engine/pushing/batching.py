"""Dividing the tasks of one call into parts that are pushed together, and the errors of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model import errors
from django_fairque.engine.model.limits import describe_skipping

if TYPE_CHECKING:
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands

MAX_GRAPH_TASKS = 2000
"""The largest number of tasks in one graph. A graph is pushed in one script call, which blocks the server (25 ms for 2000)."""
MAX_GRAPH_EDGES = 10_000


def check_graph(tasks: Sequence[Task]) -> None:
    """Raise unless these tasks can be pushed as one graph.

    Raises:
        DependencyCycleError: names the cycle, ``a → b → a``: each task depends on the next.
        TaskValidationError: too many tasks or dependencies, or two tasks with the same id.
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
    if following:  # the tasks are not in the usual order, in which each task depends only on earlier tasks
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            raise cycle_error(error.args[1][::-1]) from None


def cycle_error(path: Sequence[str]) -> errors.DependencyCycleError:
    """Return the error for a cycle: each task of ``path`` depends on the next, and the last task is also the first."""
    return errors.DependencyCycleError(f"tasks would wait for each other: {' → '.join(path)}; nothing was pushed", path)


def dependency_args(tasks: Sequence[Task], elsewhere: Mapping[str, int]) -> list[Any]:
    """Return the dependencies as arguments of ``push.lua``; ``elsewhere`` maps tasks on other shards to their shards' numbers."""
    remotes = [
        parent for parent in dict.fromkeys(name for task in tasks for name in task.depends_on) if parent in elsewhere
    ]
    args: list[Any] = [len(remotes), *(part for remote in remotes for part in (remote, elsewhere[remote]))]
    args.append(sum(bool(task.depends_on) for task in tasks))
    for index, task in enumerate(tasks, 1):
        if task.depends_on:
            args += [index, task.on_dependency_failure, len(task.depends_on), *task.depends_on]
    return args


def raise_graph_refusal(commands: Commands, tasks: Sequence[Task], reply: Sequence[bytes]) -> None:
    """Raise the error for the script's reply if it refused the graph. The script then wrote nothing."""
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
    if kind == b"limited":
        task = tasks[int(details[0]) - 1]
        raise errors.AtLimitError(
            f"a limit of task {task.task_id!r} has no place ({describe_skipping(task.limits)}; queue {commands.name!r}), so none "
            f"of the {len(tasks)} tasks of this graph was accepted",
            refused=[one.task_id for one in tasks],
        )
    if kind == b"conflict":
        raise id_conflict_error(commands.name, tasks[int(details[0]) - 1].task_id, tasks)
    if kind == b"full":
        task = tasks[int(details[0]) - 1]
        raise errors.BacklogFullError(
            f"the backlog of user {task.user_id!r} is full (queue {commands.name!r}), so none of the {len(tasks)} tasks "
            f"of this graph was accepted; try again later, or raise max_backlog or max_backlog_bytes",
            refused=[task.task_id for task in tasks],
        )


def id_conflict_error(queue: str, task_id: str, tasks: Sequence[Task]) -> errors.TaskIdConflictError:
    """Return the error for a graph of these tasks, one of which has the id of another user's task."""
    return errors.TaskIdConflictError(
        f"the id {task_id!r} belongs to a task of another user (queue {queue!r}), so none of the {len(tasks)} tasks of this "
        f"graph was accepted; choose ids that no two users share, for example with the user in them",
        refused=[task.task_id for task in tasks],
    )


@dataclass
class Part:
    """A part of the tasks of a call, by their ``indexes``. If ``is_graph``, they are accepted as a whole or not at all.

    If ``is_joined``, unrelated tasks are pushed as one graph to save calls. If this graph is refused, each task is
    pushed alone.
    """

    run_id: str = ""
    is_graph: bool = False
    is_joined: bool = False
    indexes: list[int] = field(default_factory=list)
    edges: int = 0

    def has_room(self, task: Task) -> bool:
        return len(self.indexes) < MAX_GRAPH_TASKS and self.edges + len(task.depends_on) <= MAX_GRAPH_EDGES


def divide_tasks(tasks: Sequence[Task]) -> list[Part]:
    """Divide the tasks of a call into parts that are sent together, in the order of their first tasks.

    Each run is a part. Tasks without a run that depend on each other are a part. Successive tasks that depend only on tasks of
    earlier calls are a part, and so are successive tasks without dependencies.
    """
    leaders = _leaders(tasks)
    parts: list[Part] = []
    graphs: dict[str | int, Part] = {}
    last: Part | None = None  # the part that the next task without a graph may join
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
    """Map each task that is connected with other tasks of the call by dependencies to the first task of its group.

    Tasks with a run are left out.
    """
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
                one, other = (first(above.setdefault(position, position)) for position in (index, at[name]))
                above[max(one, other)] = min(one, other)
    return {index: first(index) for index in above}
