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


def get(name: str) -> AnyDefinition:
    """The task of that name; `TaskNotRegisteredError` with the nearest match if there is none."""
    definition = _tasks.get(name)
    if definition is None:
        near = difflib.get_close_matches(name, _tasks, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "was its module imported?"
        raise TaskNotRegisteredError(f"no task named {name!r} is registered; {hint}")
    return definition


def names() -> list[str]:
    return sorted(_tasks)


def autodiscover() -> None:
    """Import the module ``tasks`` of every installed app, so that its tasks are registered."""
    from django.utils.module_loading import autodiscover_modules

    autodiscover_modules("tasks")
