"""`task` makes a function a task: something that can be sent, and that workers run."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from django_fairque.engine.model.errors import short

from . import registry, sending
from .attribution import knowing_user
from .calls import Caller
from .errors import TaskUsageError
from .options import DECLARABLE, SENDABLE, TaskOptions, changed
from .queues import get_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self, Unpack

    from django_fairque.engine.model.task import Task

    from .options import DeclaredOptions, SendOptions
    from .pipelines import Pipeline, Step
    from .results import TaskResult

P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")
B = ParamSpec("B")
Built = TypeVar("Built")

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")


@dataclass(frozen=True, eq=False, repr=False)
class Sendable(Generic[P]):
    """What plain and batch tasks share: everything but how the function itself is called. Immutable."""

    function: Callable[..., Any]
    name: str
    options: TaskOptions
    caller: Caller = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        caller = Caller(self.function, self.name, takes_items=bool(self.options.batch))
        object.__setattr__(self, "caller", caller)
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))
        for attribute in (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"):
            value = self.function if attribute == "__wrapped__" else getattr(self.function, attribute, None)
            object.__setattr__(self, attribute, value)

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    @property
    def origin(self) -> str:
        """Where the function was written; the same after a reload."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """A copy that is sent with other options; the task itself is not changed."""
        return self._with(changed(self.options, options, SENDABLE, f"{self.name}.using()"))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult:
        """Send one call; inside a database transaction, when that commits. The id is valid at once.

        Raises:
            TaskUsageError: the arguments don't fit the function, or the options each other.
            TaskSerializationError: the arguments are not JSON, or too large.
            BacklogFullError, RedisConnectionError: it was not accepted.
        """
        return sending.send(self.options, [self.build(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult:
        """As `enqueue`."""
        return (await sending.asend(self.options, [await self._knowing_user(self.build, args, kwargs)]))[0]

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """The call without sending it: a step to put together with others, ``a.s() >> (b.s() | c.s())``.

        The arguments are checked now, and are JSON when the step is sent.
        """
        from .pipelines import Step

        self.caller.bind(args, kwargs)
        return Step(self._step, self.name, self.options, args, dict(kwargs))

    def to_task(self) -> Task:
        """The engine's task for a call without arguments, as a schedule keeps it: ``task=refresh`` means ``refresh.s()``.

        `TaskUsageError` if the function needs some.
        """
        return self.as_step().to_task()

    @property
    def expires(self) -> float | None:
        """As `Step.expires`, of such a call."""
        return self.as_step().expires

    def as_step(self) -> Step:
        """The call without arguments, which a task that needs none stands for in a pipeline: ``a >> b`` is
        ``a.s() >> b.s()``. `TaskUsageError` if it needs some.
        """
        from .pipelines import Step

        try:
            self.caller.bind((), {})
        except TaskUsageError as error:
            raise TaskUsageError(
                f"a task stands for its call only if it needs no arguments; write .s(…): {error}"
            ) from None
        return Step(self._step, self.name, self.options, (), {}, bare=self)

    def __rshift__(self, after: Pipeline | AnyDefinition) -> Pipeline:
        """As `Step`, if it needs no arguments."""
        return self.as_step() >> after

    def __lshift__(self, before: Pipeline | AnyDefinition) -> Pipeline:
        return self.as_step() << before

    def __or__(self, beside: Pipeline | AnyDefinition) -> Pipeline:
        return self.as_step() | beside

    def _step(self, options: TaskOptions, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Task:
        return self.caller.build(options, args, kwargs, get_config().queue_config(options.queue))

    def enqueue_many(self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[TaskResult]:
        """Send many calls, each ``(args, kwargs)``, in as few round trips as they fit; one result for each.

        All of them are checked before any is sent.
        """
        return sending.send(self.options, self._build_many(calls))

    async def aenqueue_many(self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[TaskResult]:
        """As `enqueue_many`."""
        return await sending.asend(self.options, await self._knowing_user(self._build_many, calls))

    async def _knowing_user(self, build: Callable[B, Built], *args: B.args, **kwargs: B.kwargs) -> Built:
        if self.options.names_user:
            return build(*args, **kwargs)
        return await knowing_user(build, *args, **kwargs)

    def build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Task:
        """The engine's task for one call, checked and encoded; nothing is sent."""
        return self._step(self.options, args, kwargs)

    def _build_many(self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[Task]:
        if not isinstance(calls, Iterable):
            raise TaskUsageError(f"{self.name}.enqueue_many() takes several calls in a list, got {short(calls)}")
        config = get_config().queue_config(self.options.queue)
        tasks = [self.caller.build(self.options, *self._pair(call), config) for call in calls]
        if len(tasks) > 1 and self.options.task_id is not None:
            raise TaskUsageError(f"{self.name}.enqueue_many(): {len(tasks)} tasks can't share one task_id")
        return tasks

    def _pair(self, call: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(call, (tuple, list)) and len(call) == 2:
            args, kwargs = call
            if isinstance(args, Sequence) and not isinstance(args, (str, bytes)) and isinstance(kwargs, Mapping):
                return tuple(args), dict(kwargs)
        raise TaskUsageError(
            f"{self.name}.enqueue_many() takes pairs of a sequence and a mapping, such as (('acme', 42), {{}}); "
            f"got {short(call)}"
        )

    def _with(self, options: TaskOptions) -> Self:
        changed_copy = copy.copy(self)
        object.__setattr__(changed_copy, "options", options)
        return changed_copy


class TaskDefinition(Sendable[P], Generic[P, R]):
    """A function that is a task. Calling it runs it here and now, as any function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = self.function(*args, **kwargs)
        return value


class BatchDefinition(Sendable[[Item]], Generic[Item, R]):
    """A function that takes many tasks at once: enqueued item by item, called with a list of items."""

    def __call__(self, items: list[Item]) -> R:
        value: R = self.function(items)
        return value


AnyDefinition = Sendable[Any]


def handler_definition(handler: Callable[[Any], Any]) -> AnyDefinition:
    """What runs bare payloads (tasks without a name). The handler may itself be a task."""
    function = handler.function if isinstance(handler, Sendable) else handler
    return TaskDefinition(function, getattr(function, "__qualname__", repr(function)), TaskOptions())


@overload
def task(function: Callable[P, R], /) -> TaskDefinition[P, R]: ...
@overload
def task(
    *, batch: int, **options: Unpack[DeclaredOptions]
) -> Callable[[Callable[[list[Item]], R]], BatchDefinition[Item, R]]: ...
@overload
def task(**options: Unpack[DeclaredOptions]) -> Callable[[Callable[P, R]], TaskDefinition[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function (plain or ``async def``) a task; use it bare or with options.

    Args:
        name: what it is known by in the queue; ``module.qualname`` by default. Keep it when the function moves.
        priority, queue, max_retries, timeout, delay, expires, sla, on_dependency_failure: of each of its tasks, unless
            `using` says else.
        user: whom a task is for: the name of an argument, or a callable of the arguments.
        retry_on: the exceptions that are worth another attempt; all by default.
        backoff: base, cap and jitter of the delay between attempts, or a function of (retries so far, error).
        unique_for: seconds within which the same call for the same user is not sent twice.
        debounce: seconds to wait for a later call of the same arguments, which takes its place.
        debounce_max_wait: seconds after the first call at which it starts at the latest; ten times ``debounce`` by default.
        batch, batch_wait: call it with a list of up to so many items, waiting so many seconds for them.

    Raises:
        TaskUsageError: when the module is imported: an option is wrong or does not fit the function.
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
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise TaskUsageError(
            f"@task on {function.__qualname__}: name must be 1 to 200 letters, digits, '_', '.', ':' or '-', and begin with "
            f"a letter, digit or '_'; got {short(name)}"
        )
    checked = changed(TaskOptions(), options, DECLARABLE, f"@task on {name}")
    kind = BatchDefinition if checked.batch else TaskDefinition
    definition: AnyDefinition = kind(function, name, checked)
    definition.caller.check_declaration(checked)
    registry.register(definition)
    return definition
