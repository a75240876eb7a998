"""Declared tasks: the object that `@task` makes from a function, and the conversion of a call into a task of the
engine.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from django_fairque import conf
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import moment, positive_us, round_seconds
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError, short, short_text
from django_fairque.engine.model.ids import MAX_ID_BYTES
from django_fairque.engine.model.priority import Priority

from . import sending
from .context import call_with_user, current_lane, current_user_id
from .errors import TaskUsageError
from .limits import Limit, build_limits, find_problem
from .options import ENGINE_OPTIONS, SENDABLE, SendOptions, TaskOptions, celery_hint, change_options, user_id
from .pipelines import Composable, Step
from .results import R_co
from .value_types import CallTypes, describe_problem, is_convertible

if TYPE_CHECKING:
    from datetime import timedelta

    from typing_extensions import Self, Unpack

    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.model.limits import TaskLimit
    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.task import Task

    from .results import TaskResult

DEFAULT_USER = "default"
"""The user of tasks that name no user and are enqueued without a current user. All these tasks share the fair share of
one user."""


def _name_of_type(value: object) -> str:
    """Return a text for a parameter's default. For a value that is not JSON, return the name of its type, because its
    own text may contain a memory address that differs between processes.
    """
    return f"<{type(value).__qualname__}>"


P = ParamSpec("P")
V = TypeVar("V")
Item = TypeVar("Item")
B = ParamSpec("B")
Built = TypeVar("Built")
Calls = Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
"""The arguments of several calls, as pairs of positional and keyword arguments."""


@dataclass(frozen=True, eq=False, repr=False)
class Sendable(Composable, Generic[P, R_co]):
    """The common part of plain and batch tasks: everything except calling the function. Immutable."""

    function: Callable[..., Any]
    """The function that the task calls."""
    name: str
    """The task's name in the queue."""
    options: TaskOptions
    """The task's options."""
    is_async: bool = field(init=False)
    """Whether the task's function is an ``async def`` function."""
    about: Mapping[str, Any] | None = field(init=False, default=None)
    """JSON data that is sent with the arguments and that the function does not receive."""
    types: CallTypes | None = field(init=False, default=None)
    """The conversion of arguments and results whose types JSON lacks; None if there are none."""
    _made_before: tuple[TaskOptions, QueueConfig, Lane | None, Task | None, dict[str, Any]] | None = field(
        init=False, default=None
    )
    """The options, configuration and lane of the last call. From the second call with the same values on, also a task
    to copy, if only the user and the payload of a call can differ. The last entry names the given `ENGINE_OPTIONS`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(self.function))
        for attribute in (*functools.WRAPPER_ASSIGNMENTS, "__wrapped__"):
            value = self.function if attribute == "__wrapped__" else getattr(self.function, attribute, None)
            object.__setattr__(self, attribute, value)

    def read_types(self) -> CallTypes | None:
        """Read the annotations of the function, only once. Returns `types`."""
        found = CallTypes(self.function, self.signature, is_batch=bool(self.options.batch))
        object.__setattr__(self, "types", found if found.is_needed else None)
        return self.types

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    @property
    def origin(self) -> str:
        """The place where the function is defined, which is the same after a reload."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's parameters."""
        return inspect.signature(self.function)

    @cached_property
    def _simple_parameters(self) -> tuple[list[str], int, AbstractSet[str], AbstractSet[str]] | None:
        """Return four values: the names of the positional parameters, the minimum number of arguments in a purely
        positional call, the names of the required parameters, and all names. Return None if the function has
        positional-only parameters, ``*args`` or ``**kwargs``.
        """
        parameters = self.signature.parameters.values()
        if any(
            parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) for parameter in parameters
        ):
            return None
        positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
        required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
        least = len(required) if required <= set(positional) else len(positional) + 1  # required parameters come first
        return positional, least, required, {parameter.name for parameter in parameters}

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call by the name of the parameter. Return None for an item of a batch task.

        ``args`` and ``kwargs`` are the function's arguments. Raises `TaskUsageError` if they don't fit it.
        """
        if self.options.batch:
            if len(args) == 1 and not kwargs:
                return None
            raise TaskUsageError(
                f"{self.name}.enqueue() takes one item of the batch, by position, got {len(args)} and {len(kwargs)} by name"
            )
        if (simple := self._simple_parameters) is not None and len(args) <= len(simple[0]):
            given = dict(zip(simple[0], args))  # noqa: B905 - there may be fewer arguments
            if not kwargs and len(args) >= simple[1]:
                return given
            if given.keys().isdisjoint(kwargs):
                given.update(kwargs)
                if simple[2] <= given.keys() <= simple[3]:
                    return given
        try:
            return self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            others = (name for name in kwargs if name not in self.signature.parameters)
            hint = next(filter(None, map(celery_hint, others)), f"its arguments are {self.signature}")
            raise TaskUsageError(f"{self.name}.enqueue(): {short_text(str(error))}; {hint}") from None

    def using(self, **options: Unpack[SendOptions]) -> Self:
        """Return a copy that is sent with other options; the task itself is not changed.

        These ``options`` are, by name:

        - ``user_id``: The user that the call is for: text, an integer or a UUID. Default: the user that the declaration
          names.
        - ``execute_after``: The moment at which a task may start; a timedelta has the same meaning as in ``delay``.
          Default: none.
        - ``expires_at``: The moment at which a task that has not started becomes a dead letter; a timedelta has the
          same meaning as in ``expires``. Default: none.
        - ``on_commit``: Send the task when the database transaction commits. ``False`` sends at once, even inside a
          transaction. Default: the setting ``ENQUEUE_ON_COMMIT``, true.
        - ``database``: The alias of the database whose transaction the task waits for. Default: the first one with an
          open transaction.
        - ``priority``, ``lane``, ``queue``, ``max_retries``, ``max_deliveries``, ``timeout``, ``delay``, ``sla``,
          ``task_id``, ``depends_on``, ``on_dependency_failure``, ``unique_for``, ``debounce``, ``debounce_max_wait``:
          those of `task`. Default: as declared.

        Lengths of time are seconds or a timedelta; moments are a Unix time, an aware datetime, or a timedelta from now.
        `Task.create` explains the options that it has too.

        Raises `TaskUsageError` if an option is unknown, wrong, or contradicts another.
        """
        other = copy.copy(self)
        object.__setattr__(other, "options", change_options(self.options, options, SENDABLE, f"{self.name}.using()"))
        return other

    @overload  # overload for coroutine functions
    def enqueue(self: Sendable[P, Coroutine[Any, Any, V]], *args: P.args, **kwargs: P.kwargs) -> TaskResult[V]: ...
    @overload
    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[R_co]: ...
    def enqueue(self, *args: Any, **kwargs: Any) -> TaskResult[Any]:
        """Send a task for one call of the function. Inside a database transaction, the task is sent when the
        transaction commits.

        ``args`` and ``kwargs`` are the function's arguments: JSON values, and values of other types if the parameter is
        annotated with the type. Returns a handle on the task, whose id is valid at once.

        Raises `TaskUsageError` if the arguments don't fit the function, or if options contradict each other;
        `TaskSerializationError` if the arguments are not JSON, or too large; `BacklogFullError`, `UnsignedTaskError` or
        `RedisConnectionError` if the queue did not accept the task.
        """
        return sending.send(self.options, [self._build(self.options, args, kwargs)])[0]

    @overload
    async def aenqueue(
        self: Sendable[P, Coroutine[Any, Any, V]], *args: P.args, **kwargs: P.kwargs
    ) -> TaskResult[V]: ...
    @overload
    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[R_co]: ...
    async def aenqueue(self, *args: Any, **kwargs: Any) -> TaskResult[Any]:
        """Send a task for one call, as `enqueue` does; for use in a coroutine. Inside a database transaction, the task
        is sent when the transaction commits.

        ``args``, ``kwargs`` and the errors are the same as for `enqueue`. Returns a handle on the task.
        """
        return (await sending.asend(self.options, [await self._knowing_user(self.build, args, kwargs)]))[0]

    def s(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return the call as a step, without sending it. Steps can be combined: ``a.s() >> (b.s() | c.s())``.

        ``args`` and ``kwargs`` are the function's arguments. This method checks that the arguments fit the function;
        whether they are JSON is checked when the step is sent. Raises `TaskUsageError` if they don't fit the function.
        """
        self.bind(args, kwargs)
        return Step(self._build, self.name, self.options, args, dict(kwargs))

    def to_task(self) -> Task:
        """Return the engine's task for a call without arguments. Schedules use this: ``task=refresh`` means
        ``refresh.s()``.

        Raises `TaskUsageError` if the function needs arguments.
        """
        return self.as_step().to_task()

    @property
    def expires(self) -> float | None:
        """Return the seconds after which a call without arguments expires (`Step.expires`). Raises `TaskUsageError` if
        the function needs arguments.
        """
        return self.as_step().expires

    def as_step(self) -> Step:
        """Return the step for a call without arguments. In a pipeline, a task itself can be written for this step: ``a
        >> b`` is ``a.s() >> b.s()``.

        Raises `TaskUsageError` if the function needs arguments.
        """
        try:
            self.bind((), {})
        except TaskUsageError as error:
            raise TaskUsageError(
                f"a task stands for its call only if it needs no arguments; write .s(…): {error}"
            ) from None
        return Step(self._build, self.name, self.options, (), {}, bare=self)

    @overload
    def enqueue_many(
        self: Sendable[P, Coroutine[Any, Any, V]], calls: Calls, *, over: float | timedelta | None = None
    ) -> list[TaskResult[V]]: ...
    @overload
    def enqueue_many(self, calls: Calls, *, over: float | timedelta | None = None) -> list[TaskResult[R_co]]: ...
    def enqueue_many(self, calls: Calls, *, over: float | timedelta | None = None) -> list[TaskResult[Any]]:
        """Send many calls, in as few round trips as possible. All calls are checked before any call is sent.

        ``calls`` are pairs ``(args, kwargs)``. ``over`` is a length of time (seconds or a timedelta) in which the calls
        may start, at equal intervals and in their order: the first call at once, the last call one interval before the
        end of this time. None, the default, lets all calls start at once. Returns one handle for each call, in the same
        order. Raises the errors of `enqueue`; after a `BacklogFullError` the other tasks are accepted.
        """
        return sending.send(self.options, self._build_many(calls, over))

    @overload
    async def aenqueue_many(
        self: Sendable[P, Coroutine[Any, Any, V]], calls: Calls, *, over: float | timedelta | None = None
    ) -> list[TaskResult[V]]: ...
    @overload
    async def aenqueue_many(self, calls: Calls, *, over: float | timedelta | None = None) -> list[TaskResult[R_co]]: ...
    async def aenqueue_many(self, calls: Calls, *, over: float | timedelta | None = None) -> list[TaskResult[Any]]:
        """Send many calls, from a coroutine.

        ``calls``, ``over`` (seconds or a timedelta; None by default) and the errors are the same as for `enqueue_many`.
        Returns one handle for each call, in the same order.
        """
        return await sending.asend(self.options, await self._knowing_user(self._build_many, calls, over))

    async def _knowing_user(self, build: Callable[B, Built], *args: B.args, **kwargs: B.kwargs) -> Built:
        if self.options.names_user:
            return build(*args, **kwargs)
        return await call_with_user(build, *args, **kwargs)

    def build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Task:
        """Return the engine's task for one call, checked and encoded. The task is not sent.

        ``args`` and ``kwargs`` are the function's arguments. Raises `TaskUsageError` and `TaskSerializationError` as
        `enqueue` does.
        """
        return self._build(self.options, args, kwargs)

    def _build(
        self, options: TaskOptions, args: Sequence[Any], kwargs: Mapping[str, Any], config: QueueConfig | None = None
    ) -> Task:
        config = config or conf.get_config().queue_config(options.queue)
        bound = self.bind(args, kwargs)
        stored = (args, kwargs) if self.types is None else self._dump(args, kwargs, bound)
        payload: dict[str, Any] = {"args": stored[0], "kwargs": stored[1]}
        if self.about:
            payload["about"] = self.about
        lane = self._lane(options, config)
        before = self._made_before
        is_known = before is not None and before[0] is options and before[1] is config and before[2] == lane
        pattern = before[3] if before is not None and is_known else None
        if pattern is None:
            self._check_times(options)
        try:
            user = self._user(options, bound, args, kwargs)
            if pattern is not None:
                return pattern.copy_for_user(user, payload, config.max_payload_bytes)
            from django_fairque.engine.model.task import Task

            if before is not None and is_known:
                given = before[4]
            else:
                given = {name: getattr(options, name) for name in ENGINE_OPTIONS}
                given = {name: value for name, value in given.items() if value != getattr(TaskOptions, name)}
                if lane is not None:
                    given["lane"] = lane
            limits = self._limits(options, user, bound, config) if options.limits else ()
            window = options.unique_for if options.unique_for is not None else options.debounce
            task = Task.create(
                user,
                options.priority if lane in (None, "normal") else Priority.NORMAL,
                payload,
                name=self.name,
                max_retries=config.default_max_retries if options.max_retries is None else options.max_retries,
                unique_key="" if window is None else self._unique_key(user, bound, stored[0]),
                max_payload_bytes=config.max_payload_bytes,
                limits=limits,
                **given,
            )
        except TaskSerializationError as error:
            raise TaskSerializationError(
                f"{self.name}.enqueue(): {self._explain_error(error, bound, *stored)}"
            ) from error
        except TaskValidationError as error:
            raise type(error)(f"{self.name}.enqueue(): {error}") from error
        # Not at the first call, because most copies that `using` returns are sent only once.
        pattern = task.copy_for_user(user, None, config.max_payload_bytes) if is_known and options.is_constant else None
        object.__setattr__(self, "_made_before", (options, config, lane, pattern, given))
        return task

    def _lane(self, options: TaskOptions, config: QueueConfig) -> Lane | None:
        """Return the lane of the task; None if its lane follows from its priority, as in some queues."""
        if options.lane is not None:
            return options.lane
        lane = current_lane.get()
        return None if lane is None or config.lanes.lane_of(options.priority) != "normal" else lane

    def _limits(
        self, options: TaskOptions, user: str, bound: dict[str, Any] | None, config: QueueConfig
    ) -> tuple[TaskLimit, ...]:
        try:
            return build_limits(options.limits, user, partial(self._argument, bound or {}), config.shards)
        except KeyError:  # the limits of a task of `django.tasks` are checked when it is sent
            raise TaskUsageError(find_problem(options.limits, self.signature, is_batch=bound is None)) from None

    def _argument(self, bound: dict[str, Any], name: str) -> Any:
        """Return an argument of a call, or the parameter's default."""
        return bound[name] if name in bound else self.signature.parameters[name].default

    def build_limits(
        self, user: str, args: Sequence[Any], kwargs: Mapping[str, Any], config: QueueConfig
    ) -> tuple[TaskLimit, ...]:
        """Return the limits of one call for ``user`` in a queue with the options ``config``.

        ``args`` and ``kwargs`` are the function's arguments. Raises `TaskUsageError` if the arguments don't fit the
        function, or a limit can't be used.
        """
        return self._limits(self.options, user, self.bind(args, kwargs), config)

    def limit_keys(self, user: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Limit, str]]:
        """Yield each declared limit, with the key that it has in one call for ``user``.

        ``args`` and ``kwargs`` are the function's arguments. Raises `TaskUsageError` if a key can't be used.
        """
        bound = self.bind(args, kwargs) or {}
        for limit in self.options.limits:
            yield limit, limit.fill_key(user, partial(self._argument, bound))

    def _dump(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], bound: dict[str, Any] | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        assert self.types is not None  # noqa: S101 - the caller has looked
        try:
            return self.types.dump(args, kwargs)
        except TaskUsageError as error:
            given = {"item": args[0]} if bound is None else bound
            hints = (describe_problem(value, f"argument {name!r}") for name, value in given.items())
            raise TaskUsageError(f"{self.name}.enqueue(): {next(filter(None, hints), error)}") from None

    def _explain_error(
        self,
        error: TaskSerializationError,
        bound: dict[str, Any] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return an error text that names the argument that is not JSON, the problem, and the solution."""
        given: Mapping[str, Any] = (
            {"the item": args[0]} if bound is None else self.signature.bind(*args, **kwargs).arguments
        )
        for parameter, value in given.items():
            name = parameter if bound is None else f"argument {parameter!r}"
            try:
                json_payload.dumps(value, what=name)
            except TaskSerializationError as found:
                return describe_problem(value, name) or f"{found}{self._advice(parameter, value)}"
        return str(error)

    def _advice(self, parameter: str, value: Any) -> str:
        """Return advice about a parameter: the reason why its annotation is not used, or the suggestion to add one."""
        kind = type(value).__name__
        found = CallTypes(self.function, self.signature, is_batch=bool(self.options.batch))
        if problem := found.problems.get(parameter):
            return f". Its annotation is not used ({problem})"
        declared = self.signature.parameters.get(parameter)
        if declared is not None and declared.annotation is declared.empty and is_convertible(value):
            return f". Or annotate the parameter ({parameter}: {kind}), and the function receives a {kind}"
        return ""

    def _user(
        self, options: TaskOptions, bound: dict[str, Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> str:
        if options.user_id is not None:
            return options.user_id
        if options.user is None:
            return current_user_id() or DEFAULT_USER
        if isinstance(options.user, str):
            assert bound is not None  # noqa: S101 - the user of a batch task is never an argument's name: see check_declaration
            value = self._argument(bound, options.user)
            if type(value) is str and value.isascii() and 0 < len(value) <= MAX_ID_BYTES:
                return value  # for other values, `user_id` raises an error that explains the problem
            return user_id(value, f"the user (argument {options.user!r})")
        user = options.user(*args, **kwargs)
        return DEFAULT_USER if user is None else user_id(user, "what the user function returns")

    def _check_times(self, options: TaskOptions) -> None:
        """Raise `TaskUsageError` if the task would expire before it may start. A moment and a length of time are
        compared with the help of this process's clock.
        """
        now = time.time()
        due = now + options.delay if options.delay is not None else moment(options.execute_after, "execute_after")
        expiry = now + options.expires if options.expires is not None else moment(options.expires_at, "expires_at")
        if due is not None and expiry is not None and expiry <= due:
            raise TaskUsageError(
                f"{self.name}.enqueue(): it would expire ({expiry - now:g} s from now) before it may start "
                f"({due - now:g} s from now)"
            )

    def _unique_key(self, user: str, bound: dict[str, Any] | None, args: Sequence[Any]) -> str:
        """Return a key that is equal for calls of this task for the same user with equal arguments, no matter whether
        the arguments are positional, named or defaults.
        """
        called: Any = list(args)
        if bound is not None:
            call = inspect.BoundArguments(self.signature, bound)
            call.apply_defaults()
            called = call.arguments if self.types is None else self.types.dump_known(call.args, call.kwargs)
        try:
            text = json.dumps([user, called], sort_keys=True, default=_name_of_type)
        except (TypeError, ValueError, RecursionError):
            return self.name  # the next check refuses the call, because the payload is not JSON either
        return f"{self.name}:{hashlib.blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=16).hexdigest()}"

    def _build_many(self, calls: Calls, over: float | timedelta | None) -> list[Task]:
        if not isinstance(calls, Iterable):
            raise TaskUsageError(f"{self.name}.enqueue_many() takes several calls in a list, got {short(calls)}")
        config = conf.get_config().queue_config(self.options.queue)
        tasks = [self._build(self.options, *self._pair(call), config) for call in calls]
        if len(tasks) > 1 and self.options.task_id is not None:
            raise TaskUsageError(f"{self.name}.enqueue_many(): {len(tasks)} tasks can't share one task_id")
        return tasks if over is None else self._delay_evenly(tasks, over)

    def _delay_evenly(self, tasks: list[Task], over: float | timedelta) -> list[Task]:
        """Return the tasks with evenly growing delays. The server counts each delay from the arrival of the task; with
        an outbox, from the commit.
        """
        try:
            interval = positive_us(over, "over") / 1_000_000 / max(1, len(tasks))
        except TaskValidationError as error:
            raise TaskUsageError(f"{self.name}.enqueue_many(): {error}") from None
        for name in ("delay", "execute_after", "debounce"):
            if getattr(self.options, name) is not None:
                raise TaskUsageError(
                    f"{self.name}.enqueue_many(): over and {name} both say when the tasks start; give one of them"
                )
        self._check_times(replace(self.options, delay=interval * (len(tasks) - 1)))
        return [tasks[index].set_delay(round_seconds(index * interval)) for index in range(len(tasks))]

    def _pair(self, call: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(call, (tuple, list)) and len(call) == 2:
            args, kwargs = call
            # a fast path, because arguments have exactly these types in nearly all calls
            if type(args) is tuple and type(kwargs) is dict:
                return args, kwargs.copy()
            is_sequence = isinstance(args, (tuple, list, Sequence)) and not isinstance(args, (str, bytes))
            # usual classes are checked first, because this is faster
            if is_sequence and isinstance(kwargs, (dict, Mapping)):
                return tuple(args), dict(kwargs)
        raise TaskUsageError(
            f"{self.name}.enqueue_many() takes pairs of a sequence and a mapping, such as (('acme', 42), {{}}); "
            f"got {short(call)}"
        )


class TaskDefinition(Sendable[P, R_co], Generic[P, R_co]):
    """A function that is a task. Calling the object runs the function directly, without the queue."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        value: R_co = self.function(*args, **kwargs)
        return value


class BatchDefinition(Sendable[[Item], Any], Generic[Item, R_co]):
    """A task that handles many items with one call of its function. Each item is enqueued separately; the function is
    called with a list of ``items``.
    """

    def __call__(self, items: list[Item]) -> R_co:
        value: R_co = self.function(items)
        return value


AnyDefinition = Sendable[Any, Any]


def handler_definition(handler: Callable[[Any], Any]) -> AnyDefinition:
    """Return the task that runs bare payloads (tasks without a name). The configured handler may itself be a task."""
    function = handler.function if isinstance(handler, Sendable) else handler
    return TaskDefinition(function, getattr(function, "__qualname__", repr(function)), TaskOptions())
