"""The tasks of this process by name. Only what is registered here ever runs: nothing is imported because a server says so."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from .errors import TaskNotRegisteredError, TaskUsageError

if TYPE_CHECKING:
    from .definition import AnyDefinition

_tasks: dict[str, AnyDefinition] = {}


def register(definition: AnyDefinition) -> None:
    """Make it runnable under its name. Only the same function, imported again (autoreload), may replace one."""
    known = _tasks.setdefault(definition.name, definition)
    if known is definition:
        return
    if known.origin != definition.origin:
        raise TaskUsageError(
            f"two tasks are named {definition.name!r}: {known.origin} and {definition.origin}; give one of them another "
            "name with @task(name=…)"
        )
    _tasks[definition.name] = definition


def find(name: str) -> AnyDefinition | None:
    return _tasks.get(name)


def not_registered(name: str) -> TaskNotRegisteredError:
    """What there is to say of a name that `find` does not know."""
    near = difflib.get_close_matches(name, _tasks, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "is its module imported, its code deployed?"
    return TaskNotRegisteredError(f"no task named {name!r} is registered in this process; {hint}")
