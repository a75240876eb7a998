"""The decorator `task`, and the tasks of this process by name.

A worker runs only functions that are registered here. A task name that comes from the server never causes an import.
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
"""The module spec of the import that declared a task, by the task's name."""
_duplicates: dict[str, tuple[AnyDefinition, AnyDefinition]] = {}
_listeners: list[Callable[[str], None]] = []
_mistake_sources: list[Callable[[], list[str]]] = []


def on_register(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the name of each task that is registered from now on. If the same listener is passed
    again, it is still called once.
    """
    if listener not in _listeners:
        _listeners.append(listener)


def register(definition: AnyDefinition) -> None:
    """Make the task runnable under its name. A task may only be replaced by a new import of the same function
    (autoreload).

    A second function with the same name in the same module also replaces the first function, as in the module itself;
    `duplicates` then lists the name.
    """
    name = definition.name
    known = _tasks.setdefault(name, definition)
    # Each import or reload of a module makes a new spec. Modules of a shell have no spec.
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
    """Return the names that are used by two functions, each with the places of both functions."""
    return {
        name: (_place(first), _place(second))
        for name, (first, second) in _duplicates.items()
        if name in _tasks and _tasks[name].function in (first.function, second.function)
    }


def _place(definition: AnyDefinition) -> str:
    code = getattr(inspect.unwrap(definition.function), "__code__", None)
    return definition.origin + (f" ({code.co_filename}:{code.co_firstlineno})" if code else "")


def add_mistake_source(source: Callable[[], list[str]]) -> None:
    """Make `mistakes` call ``source``, which returns the mistakes in some declarations, each as a sentence."""
    if source not in _mistake_sources:
        _mistake_sources.append(source)


def mistakes() -> list[str]:
    """Return the mistakes in the project's model events and in its `django.tasks` options, each as a sentence.
    Declarations with mistakes send no tasks.
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
    """Return the task with this name. Raises `TaskNotRegisteredError` if no such task is registered."""
    found = find(name)
    if found is None:
        raise not_registered(name)
    return found


def batch_sizes() -> dict[str, int]:
    """Return the maximum number of items per call for each batch task, by task name."""
    return {name: size for name, definition in list(_tasks.items()) if (size := definition.options.batch)}


def names() -> list[str]:
    """Return the names of all registered tasks, sorted."""
    return sorted(_tasks)


def modules() -> list[str]:
    """Return the names of the modules that declare the registered tasks, sorted."""
    return sorted({definition.function.__module__ for definition in list(_tasks.values())})


def not_registered(name: str) -> TaskNotRegisteredError:
    """Return the error for a task name that is not registered."""
    near = nearest(name, _tasks)
    hint = f"did you mean {near!r}? Otherwise " if near else ""
    return TaskNotRegisteredError(
        f"no task named {name!r} is registered in this process; {hint}declare it in the module tasks of an app in "
        "INSTALLED_APPS, or import its module there, and restart workers that run older code"
    )


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

    - ``name``: The name of the task in the queue. Keep the name when you move the function. Default:
      ``module.qualname``.
    - ``user``: The user that a task is for: the name of an argument that contains the user, or a function that gets the
      arguments and returns the user. Default: the current user.
    - ``priority``: The order among the tasks of the same user, from ``VERY_LOW`` to ``VERY_HIGH``, or ``CRITICAL``.
      Default: ``NORMAL``.
    - ``lane``: The lane, which orders the tasks of all users: ``urgent`` if a person waits for the task, ``normal``, or
      ``bulk`` if the task may wait for all other tasks. In the urgent and bulk lanes ``priority`` has no effect.
      Default: that of the block or the running task, else ``normal``.
    - ``queue``: The name of a declared queue. Default: ``default``.
    - ``max_retries``: The number of attempts after the first. Default: the queue's, 3.
    - ``max_deliveries``: The maximum number of starts if no start has an outcome, because the process dies or the lease
      ends. After that the task is a dead letter of type ``poisoned``. With 1 (and ``max_retries=0``) the task never
      starts a second time: it is a dead letter even if another task ended its process, or if its worker was stopped
      while it ran. Default: the queue's, 5.
    - ``retry_on``: The exceptions after which a task is tried again. After any other exception the task is a dead
      letter at once. Default: every exception.
    - ``backoff``: The delay before a retry: ``{"base": 1, "cap": 3600, "jitter": 0.1}``, or a function of (retries so
      far, error) that returns seconds, or None to stop retrying. The function is also called after the last failure.
      Default: 1, 2, 4, 8 … s.
    - ``timeout``: The maximum time of one attempt. A longer attempt fails and is always retried. Default: the queue's,
      else the worker's, 300 s.
    - ``delay``: The time until a task may start, counted by the server. Default: none.
    - ``expires``: The time after which a task that has not started becomes a dead letter, counted by the server. The
      task is not retried after this time either. Default: none.
    - ``sla``: The time within which a task should start. Default: the priority's.
    - ``task_id``: The id of the task that each call makes. While a task with this id has not ended, sending the same id
      again has no effect. Default: a new one.
    - ``depends_on``: The task that must finish before, or several tasks: task ids, or results of ``enqueue``. Default:
      none.
    - ``on_dependency_failure``: The reaction if a task that this task depends on fails: ``wait``, ``cancel`` or
      ``run``. Default: ``wait``.
    - ``unique_for``: The time in which equal calls for the same user result in only one task. The time begins with the
      first call. Default: none.
    - ``debounce``: The time to wait for another call with the same arguments, which starts the wait again. The task
      gets ``expires`` of the last call and ``depends_on`` of the first call. Default: none.
    - ``debounce_max_wait``: The maximum time from the first call until the wait ends. Default: ten times ``debounce``.
    - ``isolated``: Run each task alone in a separate process, so that no other task can end its process. Default:
      ``False``.
    - ``max_memory``: The maximum resident memory of the task's process, for example ``"500MB"`` or ``"2GB"``. The task
      runs alone in a separate process, which is ended if it uses more. Only that task fails. Default: none.
    - ``capture_logs``: Keep the log lines of each attempt: ``True``, or the lowest level to keep, such as ``"INFO"``.
      Not for batches. Default: ``False``.
    - ``middleware``: Middleware of this task, inside the middleware of the setting ``MIDDLEWARE``: subclasses of
      ``TaskMiddleware``, instances, or their dotted paths. Default: none.
    - ``limits``: At most four limits (``Concurrency`` or ``Rate``), each with a key. All tasks that name the same key
      share the limit. Default: none.
    - ``batch``: The maximum number of items in the list with which the function is called, from 1 to 1000. Default:
      none.
    - ``batch_wait``: The maximum time to wait until a batch is full. Default: 0.

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
    """Raise `TaskUsageError` if the function does not fit the options."""
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
