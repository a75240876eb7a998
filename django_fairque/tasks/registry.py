"""The decorator `task`, and the tasks of this process by name.

A worker runs only functions that are registered here. It never imports a module because a server names it.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from django_fairque.engine.model.errors import ConfigurationError, nearest, short

from . import sending
from .definition import AnyDefinition, BatchDefinition, Item, P, TaskDefinition
from .errors import TaskNotRegisteredError, TaskUsageError
from .options import DECLARABLE, DeclaredOptions, TaskOptions, changed
from .value_types import register_types

if TYPE_CHECKING:
    from typing_extensions import Unpack


R = TypeVar("R")

TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")

_tasks: dict[str, AnyDefinition] = {}
_imports: dict[str, object] = {}
"""By name, the import of its module that made the task."""
_duplicates: dict[str, tuple[AnyDefinition, AnyDefinition]] = {}
_listeners: list[Callable[[str], None]] = []
_mistake_sources: list[Callable[[], list[str]]] = []


def on_register(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the name of each task that is registered from now on; the same listener once."""
    if listener not in _listeners:
        _listeners.append(listener)


def register(definition: AnyDefinition) -> None:
    """Make it runnable under its name. Only the same function, imported again (autoreload), may replace one.

    A second function of the same name in the same module replaces the first as well, as it does in the module itself;
    `duplicates` lists it.
    """
    name = definition.name
    known = _tasks.setdefault(name, definition)
    # A spec is made anew each time its module is imported or reloaded; there is none in a shell.
    spec = getattr(sys.modules.get(definition.function.__module__), "__spec__", None)
    before, _imports[name] = _imports.get(name), spec
    if name.partition(".")[0] in sending.SHELL_MODULES:
        sending.unimportable.add(name)
    if known is definition:
        for listener in _listeners:
            listener(name)
        return
    is_stranger = known.origin != definition.origin
    is_second = before is not None and before is spec and known.function is not definition.function
    if is_stranger or is_second:
        _duplicates[name] = (known, definition)
    elif before is not spec:
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


def _place(definition: AnyDefinition) -> str:
    code = getattr(inspect.unwrap(definition.function), "__code__", None)
    return definition.origin + (f" ({code.co_filename}:{code.co_firstlineno})" if code else "")


def add_mistake_source(source: Callable[[], list[str]]) -> None:
    """Have `mistakes` call ``source``, which returns what is wrong with declarations, in a sentence each."""
    if source not in _mistake_sources:
        _mistake_sources.append(source)


def mistakes() -> list[str]:
    """What is wrong with the project's model events and with the options of its `django.tasks`, in a sentence each. No task is
    sent for these.
    """
    return [text for source in _mistake_sources for text in source()]


def refuse_mistakes() -> None:
    """Raise `ConfigurationError` with all `mistakes`, if there are any."""
    if found := mistakes():
        count = "a mistake" if len(found) == 1 else f"{len(found)} mistakes"
        raise ConfigurationError("\n- ".join([f"{count} in what the project declares; correct them", *found]))


def find(name: str) -> AnyDefinition | None:
    return _tasks.get(name)


def get(name: str) -> AnyDefinition:
    """The task of that name; `TaskNotRegisteredError` if `find` does not know it."""
    found = find(name)
    if found is None:
        raise not_registered(name)
    return found


def batch_sizes() -> dict[str, int]:
    """The batch tasks, by name, with how many of their tasks run in one call."""
    return {name: size for name, definition in list(_tasks.items()) if (size := definition.options.batch)}


def names() -> list[str]:
    """Of every task that `find` knows, sorted."""
    return sorted(_tasks)


def modules() -> list[str]:
    """The names of the modules in which these are declared, sorted."""
    return sorted({definition.function.__module__ for definition in list(_tasks.values())})


def not_registered(name: str) -> TaskNotRegisteredError:
    """What there is to say of a name that `find` does not know."""
    near = nearest(name, _tasks)
    hint = f"did you mean {near!r}?" if near else "is its module imported, its code deployed?"
    return TaskNotRegisteredError(f"no task named {name!r} is registered in this process; {hint}")


@overload
def task(function: Callable[P, R], /) -> TaskDefinition[P, R]: ...
@overload
def task(
    *, batch: int, **options: Unpack[DeclaredOptions]
) -> Callable[[Callable[[list[Item]], R]], BatchDefinition[Item, R]]: ...
@overload
def task(**options: Unpack[DeclaredOptions]) -> Callable[[Callable[P, R]], TaskDefinition[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function (plain or ``async def``) a task; use it bare (``@task``, with the ``function``) or with
    ``options``, by name. Lengths of time are seconds or a timedelta; None leaves a value to the queue or the worker.

    - ``name``: its name in the queue; ``module.qualname`` by default. Keep it when the function moves.
    - ``user``: the user that a task is for: the name of an argument, or a callable of the arguments; by default the
      current user.
    - ``priority``: from ``Priority.VERY_LOW`` to ``Priority.CRITICAL``; NORMAL by default. ``queue``: the name of a
      declared queue; ``"default"`` by default.
    - ``max_retries``: the number of attempts after the first; the queue's by default (3). ``max_deliveries``: how
      often it is started at most if its process dies each time; the queue's by default (5); 1: never a second time.
    - ``retry_on``: the exceptions that are worth another attempt; all by default.
    - ``backoff``: base, cap (both in seconds) and jitter of the delay between attempts, or a function of (retries so
      far, error) that returns seconds; the queue's by default (1, 2, 4, 8 … seconds).
    - ``timeout``: how long one attempt may run; the queue's or the worker's by default (300 seconds).
    - ``delay``: the time until it may start; none by default. ``expires``: the time after which it is a dead letter if
      it has not started; none by default. ``sla``: the time within which it should start; that of its priority by
      default.
    - ``task_id``: the id of the task that each call makes; a new id by default. Sending it again while it has not ended
      changes nothing. ``depends_on``: the id of a task that must have finished before, or several; none by default.
    - ``on_dependency_failure``: what happens if a task that it depends on fails: ``"wait"`` (the default),
      ``"cancel"``, ``"run"``.
    - ``unique_for``: for this time the same call for the same user is not sent twice; none by default.
    - ``debounce``: the time to wait for a later call of the same arguments, which takes its place; none by default.
    - ``debounce_max_wait``: the time after the first call at which it starts at the latest; ten times ``debounce`` by
      default.
    - ``batch``: call it with a list of at most this many items, from 1 to 1000; one call for each task by default.
      ``batch_wait``: the time to wait for the list to fill; 0 by default.
    - ``middleware``: subclasses of `TaskMiddleware`, instances, or their dotted paths; none by default.
    - ``isolated``: run each task in a separate process; False by default. ``max_memory``: as ``isolated``, and end the
      process when it uses more (``"512 MB"``, ``"2 GB"``); no limit by default.
    - ``capture_logs``: keep the last lines that each attempt logs, for its page in the admin and ``fairque_task show
      --logs``: True, or the lowest level (``"INFO"``); False by default. Not for batches.

    Returns the task, or a decorator if it is called with options. Raises `TaskUsageError` when the module is imported,
    if an option is wrong or does not fit the function.
    """
    if function is not None and not callable(function):
        raise TaskUsageError(f"@task takes options by name only, got {short(function)}")

    def declare(declared: Callable[..., Any]) -> Any:
        return _declare(declared, dict(options))

    return declare if function is None else declare(function)


def _declare(function: Callable[..., Any], options: dict[str, Any]) -> AnyDefinition:
    if not inspect.isfunction(function):
        raise TaskUsageError(f"@task makes a task of a function, got {short(function)}; write a function that calls it")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskUsageError(
            f"@task on {function.__qualname__}: a generator has no result to keep; return a list instead"
        )
    name = options.pop("name", f"{function.__module__}.{function.__qualname__}".replace("<locals>.", ""))
    if not isinstance(name, str) or not TASK_NAME.fullmatch(name):
        raise TaskUsageError(
            f"@task on {function.__qualname__}: name must be 1 to 200 letters, digits, '_', '.', ':' or '-', and begin with "
            f"a letter, digit or '_'; got {short(name)}"
        )
    checked = changed(TaskOptions(), options, DECLARABLE, f"@task on {name}")
    kind = BatchDefinition if checked.batch else TaskDefinition
    definition: AnyDefinition = kind(function, name, checked)
    _check_function(definition)
    types = definition.read_types()
    register(definition)
    register_types(name, types)
    return definition


def _check_function(definition: AnyDefinition) -> None:
    """Raise `TaskUsageError` if the function and its options don't fit each other."""
    name, options, signature = definition.name, definition.options, definition.signature
    parameters = signature.parameters
    if next(iter(parameters), None) in ("self", "cls"):
        raise TaskUsageError(
            f"@task on {name}: it looks like a method, and a worker has no object to call it on; write a function"
        )
    kinds = [each.kind for each in parameters.values()]
    if options.batch and kinds not in ([inspect.Parameter.POSITIONAL_ONLY], [inspect.Parameter.POSITIONAL_OR_KEYWORD]):
        raise TaskUsageError(f"@task on {name}: a batch task has one parameter, the list of items, got {signature}")
    if not isinstance(options.user, str):
        return
    if options.batch:
        raise TaskUsageError(
            f"@task on {name}: the items of a batch task have no argument names: give user=lambda item: …, got {options.user!r}"
        )
    parameter = parameters.get(options.user)
    if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TaskUsageError(
            f"@task on {name}: user names the argument that holds the user; expected one of "
            f"{', '.join(parameters) or 'no arguments (there are none)'}, got {short(options.user)}"
        )
