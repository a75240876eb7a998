"""Tasks that depend on each other, pushed as a whole: what can be checked before anything is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import (
    BacklogFullError,
    DependencyCycleError,
    TaskIdConflictError,
    TaskNotFoundError,
    TaskValidationError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands

MAX_GRAPH = 2000
"""Tasks in one graph: pushing it is one script call, which keeps the server from all others (25 ms for as many)."""
MAX_EDGES = 10_000


def check_graph(tasks: Sequence[Task]) -> None:
    """Raise unless these tasks can be pushed as one graph.

    Raises:
        DependencyCycleError: names the cycle, ``a → b → a``: each depends on the next.
        TaskValidationError: too many tasks or dependencies, or two tasks of one id.
    """
    if len(tasks) > MAX_GRAPH:
        raise TaskValidationError(
            f"a graph may have at most {MAX_GRAPH:,} tasks, got {len(tasks):,}; push it in parts that depend on ids of "
            f"the parts before"
        )
    edges = sum(len(task.depends_on) for task in tasks)
    if edges > MAX_EDGES:
        raise TaskValidationError(
            f"a graph may have at most {MAX_EDGES:,} dependencies, got {edges:,}; put a task between the stages"
        )
    by_id = {task.task_id: task for task in tasks}
    if len(by_id) < len(tasks):
        twice = next(task.task_id for index, task in enumerate(tasks) if by_id[task.task_id] is not tasks[index])
        raise TaskValidationError(f"two tasks of one graph have the id {twice!r}")
    if cycle := find_cycle({task.task_id: task.depends_on for task in tasks}):
        raise cycle_error(cycle)


def find_cycle(edges: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A cycle among these edges as the path that closes it (``[a, b, a]``), or None. No recursion: chains are long."""
    done: set[str] = set()
    for start in edges:
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            node, leaves = stack.pop()
            if leaves:
                path.pop()
                on_path.discard(node)
                done.add(node)
            elif node in on_path:
                return [*path[path.index(node) :], node]
            elif node not in done:
                path.append(node)
                on_path.add(node)
                stack.append((node, True))
                stack += [(following, False) for following in edges.get(node, ())]
    return None


def cycle_error(path: Sequence[str]) -> DependencyCycleError:
    """For a path whose each task depends on the next, the last one being the first."""
    return DependencyCycleError(f"tasks would wait for each other: {' → '.join(path)}; nothing was pushed", path)


def dependency_args(tasks: Sequence[Task], elsewhere: Mapping[str, int]) -> list[Any]:
    """The part of ``push.lua``'s arguments that says what depends on what; ``elsewhere`` has other shards' tasks."""
    remotes = [each for each in dict.fromkeys(name for task in tasks for name in task.depends_on) if each in elsewhere]
    args: list[Any] = [len(remotes), *(part for each in remotes for part in (each, elsewhere[each]))]
    args.append(sum(bool(task.depends_on) for task in tasks))
    for index, task in enumerate(tasks, 1):
        if task.depends_on:
            args += [index, task.on_dependency_failure, len(task.depends_on), *task.depends_on]
    return args


def check_refusal(commands: Commands, tasks: Sequence[Task], reply: Sequence[bytes]) -> None:
    """Raise what the script found wrong with a graph; nothing was written then."""
    kind, details = reply[1], [value.decode() for value in reply[2:]]
    if kind == b"missing":
        task = tasks[int(details[0]) - 1]
        raise TaskNotFoundError(
            f"task {task.task_id!r} depends on {details[1]!r}, which queue {commands.name!r} does not know: push it "
            f"before or together with it (finished tasks are forgotten after result_ttl, "
            f"{commands.config.result_ttl:.0f} s); nothing was pushed"
        )
    if kind == b"cycle":
        raise cycle_error(details)
    if kind == b"size":
        raise TaskValidationError(
            f"task {details[0]!r} has too many tasks behind it to look for a cycle (10,000); use a new id for it"
        )
    if kind == b"conflict":
        raise id_conflict(commands.name, tasks[int(details[0]) - 1].task_id, tasks)
    if kind == b"full":
        task = tasks[int(details[0]) - 1]
        raise BacklogFullError(
            f"the backlog of user {task.user_id!r} is full (queue {commands.name!r}), so none of the {len(tasks)} tasks "
            f"of this graph was accepted; try again later, or raise max_backlog or max_backlog_bytes",
            refused=[each.task_id for each in tasks],
        )


def id_conflict(queue: str, task_id: str, tasks: Sequence[Task]) -> TaskIdConflictError:
    """For a graph of these tasks, one of which has the id of another user's task."""
    return TaskIdConflictError(
        f"the id {task_id!r} belongs to a task of another user (queue {queue!r}), so none of the {len(tasks)} tasks of this "
        f"graph was accepted; choose ids that no two users share, for example with the user in them",
        refused=[each.task_id for each in tasks],
    )
