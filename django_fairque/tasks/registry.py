"""The decorator `task`, and the tasks of this process by name.

A worker runs only functions that are registered here. A name that comes from a server never causes an import.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from django_fairque.engine.model.errors import ConfigurationError, nearest, short

from . import sending
from .definition import AnyDefinition, BatchDefinition, Item, P, TaskDefinition
from .errors import TaskNotRegisteredError, TaskUsageError
from .limits import find_problem
from .options import DECLARABLE, DeclaredOptions, TaskOptions, change_options
from .value_types import register_types

if TYPE_CHECKING:
    from typing_extensions import Unpack


R = TypeVar("R")

_tasks: dict[str, AnyDefinition] = {}
_imports: dict[str, object] = {}
"""By name, the module spec of the import that made the task."""
_duplicates: dict[str, tuple[AnyDefinition, AnyDefinition]] = {}
_listeners: list[Callable[[str], None]] = []
_mistake_sources: list[Callable[[], list[str]]] = []


def on_register(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the name of each task that is registered from now on. The same listener is added once."""
    if listener not in _listeners:
        _listeners.append(listener)


def register(definition: AnyDefinition) -> None:
    """Make the task runnable under its name. Only a new import of the same function (autoreload) may replace a task.

    A second function of the same name in the same module also replaces the first one, as it does in the module itself;
    `duplicates` lists it.
    """
    name = definition.name
    known = _tasks.setdefault(name, definition)
    # Each import or reload of a module makes a new spec. A shell has none.
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
    """Return the names that two functions were registered under, and where each of the two is."""
    return {
        name: (_place(first), _place(second))
        for name, (first, second) in _duplicates.items()
        if name in _tasks and _tasks[name].function in (first.function, second.function)
    }


def _place(definition: AnyDefinition) -> str:
    code = getattr(inspect.unwrap(definition.function), "__code__", None)
    return definition.origin + (f" ({code.co_filename}:{code.co_firstlineno})" if code else "")


def add_mistake_source(source: Callable[[], list[str]]) -> None:
    """Have `mistakes` call ``source``, which returns the mistakes in declarations, each as a sentence."""
    if source not in _mistake_sources:
        _mistake_sources.append(source)


def mistakes() -> list[str]:
    """Return the mistakes in the project's model events and in the options of its `django.tasks`, each as a sentence.
    No task is sent for these declarations.
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
    """Return the task of that name. Raises `TaskNotRegisteredError` if `find` does not know it."""
    found = find(name)
    if found is None:
        raise not_registered(name)
    return found


def batch_sizes() -> dict[str, int]:
    """Return the number of tasks in one call for each batch task, by name."""
    return {name: size for name, definition in list(_tasks.items()) if (size := definition.options.batch)}


def names() -> list[str]:
    """Return the names of all registered tasks, sorted."""
    return sorted(_tasks)


def modules() -> list[str]:
    """Return the names of the modules that declare the registered tasks, sorted."""
    return sorted({definition.function.__module__ for definition in list(_tasks.values())})


def not_registered(name: str) -> TaskNotRegisteredError:
    """Return the error for a name that `find` does not know."""
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
    """Make a function (plain or ``async def``) a task. Use it bare (``@task``, with the ``function``) or with
    ``options``.

    Lengths of time are seconds or a timedelta; None leaves a value to the queue or the worker. The options are, by name:

    - ``name``: The name of the task in the queue. Keep it when the function moves. Default: ``module.qualname``.
    - ``user``: The user that a task is for: the name of an argument, or a function of the arguments. Default: the
      current user.
    - ``priority``: From ``VERY_LOW`` to ``VERY_HIGH``, or ``CRITICAL``. Default: ``NORMAL``.
    - ``lane``: The lane across all users: ``urgent`` if a person waits for the task, ``normal``, or ``bulk`` if it may
      wait for the tasks of all others. Urgent and bulk tasks have no ``priority``. Default: that of the block or the
      running task, else ``normal``.
    - ``queue``: The name of a declared queue. Default: ``default``.
    - ``max_retries``: The number of attempts after the first. Default: the queue's, 3.
    - ``max_deliveries``: The largest number of starts if none has an outcome, because the process dies or the lease
      ends. Then the task is a dead letter of type ``poisoned``. With 1 it never starts a second time: it is a dead
      letter too if another task ends its process, or if its worker is stopped while it runs. Default: the queue's, 5.
    - ``retry_on``: The exceptions that are worth another attempt. Others make a dead letter at once. Default: every
      exception.
    - ``backoff``: The pause before a retry: ``{"base": 1, "cap": 3600, "jitter": 0.1}``, or a function of (retries so
      far, error) that returns seconds, or None to stop retrying. The function is called after the last failure too.
      Default: 1, 2, 4, 8 … s.
    - ``timeout``: The time that one attempt may take. A longer attempt fails and is always retried. Default: the
      queue's, else the worker's, 300 s.
    - ``delay``: The time until a task may start. The server counts it. Default: none.
    - ``expires``: The time after which a task is a dead letter if it has not started. This limit ends retries too. The
      server counts it. Default: none.
    - ``sla``: The time within which a task should start. Default: the priority's.
    - ``task_id``: The id of the task that each call makes. While a task with this id has not ended, sending it again
      changes nothing. Default: a new one.
    - ``depends_on``: The id or the result of a task that must have finished before, or several. Default: none.
    - ``on_dependency_failure``: The reaction to the failure of a task that this one depends on: ``wait``, ``cancel`` or
      ``run``. Default: ``wait``.
    - ``unique_for``: The time within which the same call for the same user is the same task. The first call counts.
      Default: none.
    - ``debounce``: The time to wait for another call with the same arguments, which starts the wait again. The last
      call's ``expires`` counts, the first call's ``depends_on``. Default: none.
    - ``debounce_max_wait``: The time after the first call at which the wait ends at the latest. Default: ten times
      ``debounce``.
    - ``isolated``: Run each task in a separate process, which no other task can end. Default: ``False``.
    - ``max_memory``: Isolate each task, and end its process if it uses more resident memory than this, for example
      ``"500MB"`` or ``"2GB"``. Only that task fails. Default: none.
    - ``capture_logs``: Keep the lines that each attempt logs: ``True``, or the lowest level, such as ``"INFO"``. Not
      for batches. Default: ``False``.
    - ``middleware``: Middleware inside that of the setting ``MIDDLEWARE``: subclasses of ``TaskMiddleware``, instances,
      or their dotted paths. Default: none.
    - ``limits``: Limits by key, shared by all tasks that name the key: at most four keys, as ``Concurrency`` and
      ``Rate``. Default: none.
    - ``batch``: The largest number of items in the list that the function is called with, from 1 to 1000. Default:
      none.
    - ``batch_wait``: The time to wait for a batch to fill. Default: 0.

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
    default_name = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
    name_option = {"name": options.pop("name", default_name)}
    named = change_options(TaskOptions(), name_option, DECLARABLE, f"@task on {function.__qualname__}")
    name = named.name
    checked = change_options(named, options, DECLARABLE, f"@task on {name}")
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
    kinds = [parameter.kind for parameter in parameters.values()]
    if options.batch and kinds not in ([inspect.Parameter.POSITIONAL_ONLY], [inspect.Parameter.POSITIONAL_OR_KEYWORD]):
        raise TaskUsageError(f"@task on {name}: a batch task has one parameter, the list of items, got {signature}")
    if problem := find_problem(options.limits, signature, is_batch=bool(options.batch)):
        raise TaskUsageError(f"@task on {name}: {problem}")
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
