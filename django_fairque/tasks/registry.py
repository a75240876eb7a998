"""The tasks of this process by name. Only what is registered here ever runs: nothing is imported because a server says so."""

from __future__ import annotations

import difflib
import inspect
import sys
from typing import TYPE_CHECKING

from .errors import TaskNotRegisteredError, TaskUsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .definition import AnyDefinition

_tasks: dict[str, AnyDefinition] = {}
_imports: dict[str, object] = {}
"""By name, the import of its module that made the task."""
_duplicates: dict[str, tuple[AnyDefinition, AnyDefinition]] = {}
_listeners: list[Callable[[str], None]] = []


def on_register(listener: Callable[[str], None]) -> None:
    """Tell ``listener`` the name of each task that is registered from now on; the same listener once."""
    if listener not in _listeners:
        _listeners.append(listener)


def register(definition: AnyDefinition) -> None:
    """Make it runnable under its name. Only the same function, imported again (autoreload), may replace one.

    A second function of the same name in the same module replaces the first as well, as it does in the module itself;
    `duplicates` tells of it.
    """
    name = definition.name
    known = _tasks.setdefault(name, definition)
    before, _imports[name] = _imports.get(name), _import_of(definition)
    if known is definition:
        for listener in _listeners:
            listener(name)
        return
    is_stranger = known.origin != definition.origin
    is_second = before is not None and before is _imports[name] and known.function is not definition.function
    if is_stranger or is_second:
        _duplicates[name] = (known, definition)
    elif before is not _imports[name]:
        _duplicates.pop(name, None)
    if is_stranger:
        raise TaskUsageError(
            f"two tasks are named {name!r}: {known.origin} and {definition.origin}; give one of them another "
            "name with @task(name=…)"
        )
    _tasks[name] = definition


def duplicates() -> dict[str, tuple[str, str]]:
    """The names that two functions were registered under, and where each of the two is."""
    return {
        name: (_place(first), _place(second))
        for name, (first, second) in _duplicates.items()
        if name in _tasks and _tasks[name].function in (first.function, second.function)
    }


def _import_of(definition: AnyDefinition) -> object:
    """What is made anew each time its module is imported or reloaded; None where there is no such thing, as in a shell."""
    return getattr(sys.modules.get(definition.function.__module__), "__spec__", None)


def _place(definition: AnyDefinition) -> str:
    code = getattr(inspect.unwrap(definition.function), "__code__", None)
    return definition.origin + (f" ({code.co_filename}:{code.co_firstlineno})" if code else "")


def find(name: str) -> AnyDefinition | None:
    return _tasks.get(name)


def batch_sizes() -> dict[str, int]:
    """The batch tasks, by name, with how many of their tasks run in one call."""
    return {name: size for name, definition in list(_tasks.items()) if (size := definition.options.batch)}


def names() -> list[str]:
    """Of every task that `find` knows, sorted."""
    return sorted(_tasks)


def not_registered(name: str) -> TaskNotRegisteredError:
    """What there is to say of a name that `find` does not know."""
    near = difflib.get_close_matches(name, _tasks, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "is its module imported, its code deployed?"
    return TaskNotRegisteredError(f"no task named {name!r} is registered in this process; {hint}")
