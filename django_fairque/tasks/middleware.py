"""Middleware: code of a project that runs around sending and running tasks, and the headers that are sent with a task.

The middleware of the setting ``MIDDLEWARE`` comes first, in the order of the setting, then the middleware of
``@task(middleware=…)``. The first middleware is the outermost. Middleware can raise an error but can't suppress one:
the value of ``__exit__`` is ignored, so that no middleware can turn the failure of a task into a success.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from asgiref.sync import sync_to_async

from django_fairque.engine.model.errors import ConfigurationError, short

from .context import HEADERS_KEY, METADATA_KEY, TaskContext
from .errors import TaskUsageError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from django_fairque.engine.model.task import Task

Facts = TypeVar("Facts", "TaskSend", "TaskRun")

MAX_HEADERS_BYTES = 16_384
"""Maximum bytes of the names and values of a task's headers together."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

NO_MIDDLEWARE = nullcontext()
"""The context manager of a middleware that does not override a method."""


@dataclass(eq=False)
class TaskSend:
    """One call that sends tasks, for `TaskMiddleware.around_send`."""

    queue: str
    """The name of the queue to which the tasks are sent."""
    tasks: Sequence[Task]
    """The tasks that are sent: one task of `enqueue`, or all tasks of `enqueue_many` or of a pipeline."""
    headers: dict[str, str] = field(default_factory=dict)
    """The headers that are sent with each of the tasks. Middleware adds to them before the tasks are sent. If
    ``TRACING`` is on, the initial headers contain the ``baggage`` of OpenTelemetry, if there is any."""


class TaskRun:
    """One call of a task's function, for `TaskMiddleware.around_run`. A worker makes this object from the ``tasks`` of
    the call, the ``name`` of the task, and ``is_async``, which shows whether the function is a coroutine function.
    """

    def __init__(self, tasks: Sequence[TaskContext], name: str, *, is_async: bool) -> None:
        self.tasks = tuple(tasks)
        """All tasks of a batch, or else the only task. Each entry has the attributes of `current_task`."""
        self.name = name
        """The name of the task."""
        self.is_async = is_async
        """Whether the function is a coroutine function."""

    def __repr__(self) -> str:
        return f"<run of {self.name!r} for {', '.join(repr(task.id) for task in self.tasks)}>"

    @property
    def task(self) -> TaskContext:
        """The task that runs; for a batch, its first task."""
        return self.tasks[0]

    @property
    def queue(self) -> str:
        """The name of the queue from which the task comes."""
        return self.task.queue

    @property
    def user_id(self) -> str | None:
        """The user of the task; None if the tasks of a batch have several users."""
        users = {task.user_id for task in self.tasks}
        return users.pop() if len(users) == 1 else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were sent with the task. For a batch, the headers that are equal in all its tasks."""
        first, *others = [task.headers for task in self.tasks]
        for other in others:
            first = {name: value for name, value in first.items() if other.get(name) == value}
        return first


class TaskMiddleware:
    """Code around sending and around running tasks. Extend this class, and override the methods that you need.

    Each method returns a context manager. One instance serves all threads and coroutines of a process, so keep the data
    of one call in the context manager and not in the instance. An error in ``__enter__`` or ``__exit__`` of
    `around_send` is raised in the code that sends the task. An error in those of `around_run` makes the task fail.
    Middleware can't suppress an error.
    """

    async_capable: ClassVar[bool] = False
    """Whether the synchronous context managers never block, so that an event loop may enter them. If False, a coroutine
    enters and leaves them in the thread that runs its synchronous code (`sync_to_async`). Default: False."""

    def around_send(self, send: TaskSend) -> AbstractContextManager[object]:  # noqa: ARG002 - overriding methods use it
        """Return the context manager around sending. Headers that its ``__enter__`` adds to ``send.headers`` are sent
        with the tasks.

        ``send`` describes the call. Inside a transaction the context ends when the tasks are enqueued, and not at the
        commit.
        """
        self._check_pair("around_send", "around_asend")
        return NO_MIDDLEWARE

    def around_asend(self, send: TaskSend) -> AbstractAsyncContextManager[object]:
        """Return the context manager around sending from a coroutine (``aenqueue``); by default `around_send`.

        ``send`` describes the call.
        """
        return NO_MIDDLEWARE if self._lacks("around_send") else self._adapt_method(self.around_send, send)

    def around_run(self, run: TaskRun) -> AbstractContextManager[object]:  # noqa: ARG002 - overriding methods use it
        """Return the context manager around a task's function. The time that the context manager takes counts as time
        of the task, also for time limits.

        ``run`` describes the call. For a batch there is only one call.
        """
        self._check_pair("around_run", "around_arun")
        return NO_MIDDLEWARE

    def around_arun(self, run: TaskRun) -> AbstractAsyncContextManager[object]:
        """Return the context manager around the coroutine of an ``async def`` task; by default `around_run`.

        ``run`` describes the call.
        """
        return NO_MIDDLEWARE if self._lacks("around_run") else self._adapt_method(self.around_run, run)

    def _lacks(self, method: str) -> bool:
        return getattr(type(self), method) is getattr(TaskMiddleware, method)

    def _check_pair(self, method: str, asynchronous: str) -> None:
        """Raise `TaskUsageError` if only the method named ``asynchronous`` is overridden. Otherwise synchronous tasks
        would silently run without the middleware.
        """
        if not self._lacks(asynchronous):
            raise TaskUsageError(
                f"{type(self).__qualname__} has {asynchronous} only, and this code is synchronous: override {method} as well"
            )

    def _adapt_method(
        self, method: Callable[[Facts], AbstractContextManager[object]], facts: Facts
    ) -> AbstractAsyncContextManager[object]:
        make = partial(method, facts)
        return _OnLoop(make) if self.async_capable else _InThread(make)


class _OnLoop:
    """An asynchronous context manager that enters and leaves a synchronous context manager on the event loop."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._manager = make()

    async def __aenter__(self) -> None:
        self._manager.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.__exit__(kind, error, trace)


class _InThread:
    """An asynchronous context manager that makes, enters and leaves a synchronous context manager in the thread that
    runs the coroutine's synchronous code, because the database connections are there.

    The same context (`contextvars.Context`) is used for entering and leaving, because a variable can only be reset in
    the context in which it was set. Variables that are set in this context are copied to the coroutine.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._context = Context()
        self._entered: AbstractContextManager[object] | None = None

    async def __aenter__(self) -> None:
        try:
            await sync_to_async(self._call)(self._enter)
        except asyncio.CancelledError:  # the thread continues, and enters the context manager
            await sync_to_async(self._call)(self._leave, None, None, None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await sync_to_async(self._call)(self._leave, kind, error, trace)

    def _enter(self) -> None:
        manager = self._make()
        manager.__enter__()
        self._entered = manager

    def _leave(self, *error: Any) -> None:
        if self._entered is not None:
            manager, self._entered = self._entered, None
            manager.__exit__(*error)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Call the function in the kept context. `sync_to_async` copies the context variables between this thread and
        the coroutine.
        """
        _copy_variables(copy_context(), self._context.run, self._context)
        try:
            self._context.run(function, *args)
        finally:
            _copy_variables(self._context, lambda put, value: put(value), copy_context())


def _copy_variables(source: Context, run: Callable[[Callable[[Any], object], Any], object], target: Context) -> None:
    """Set the context variables that have different values. ``run`` calls a variable's setter with a value in the
    target context.
    """
    for variable, value in source.items():
        if variable not in target or target[variable] is not value:
            run(variable.set, value)


# --- loading ---

_instances: dict[object, TaskMiddleware] = {}
"""The middleware instances of this process, by dotted path or class."""


def load(given: object) -> TaskMiddleware:
    """Return the middleware for a dotted path, a class or an instance. Raises `ConfigurationError` for any other
    value.
    """
    if isinstance(given, TaskMiddleware):
        return given
    found = _instances.get(given)
    return _instances.setdefault(given, _make_middleware(given)) if found is None else found


def _make_middleware(given: object) -> TaskMiddleware:
    named: Any = given
    if isinstance(given, str):
        from django_fairque.conf.sections import import_named  # with pydantic: only where it is needed

        named = import_named(given, "middleware", "a subclass of TaskMiddleware")
    if isinstance(named, TaskMiddleware):
        return named
    if not (isinstance(named, type) and issubclass(named, TaskMiddleware)):
        raise ConfigurationError(
            f"middleware: expected a subclass of django_fairque.TaskMiddleware, its dotted path or an instance, "
            f"{short(given)} is a {'class' if isinstance(named, type) else type(named).__name__}"
        )
    try:
        return named()
    except Exception as error:
        raise ConfigurationError(
            f"middleware: {short(given)} can't be made without arguments ({type(error).__name__}: {error}); name an instance"
        ) from error


def load_all(given: Iterable[object]) -> tuple[TaskMiddleware, ...]:
    """Return the middleware for all values, in their order. Raises `ConfigurationError` for the first value that is not
    a middleware.
    """
    return tuple(map(load, given))


# --- around sending ---


class Sending(ExitStack):
    """The context around one call that sends tasks. On entering, a span is opened first, then the middleware is
    entered, then the headers are attached to the tasks.
    """

    def __init__(self, span: AbstractContextManager[object], middleware: Iterable[object], send: TaskSend) -> None:
        super().__init__()
        self._span, self._middleware, self._send = span, middleware, send

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._span)
            for wrapper in load_all(self._middleware):
                enter(entered, wrapper.around_send(self._send))
            attach_headers(self._send)
            self.push(entered.pop_all())
        return self


class AsyncSending(AsyncExitStack):
    """The context around one call that sends tasks, in a coroutine."""

    def __init__(self, span: AbstractContextManager[object], middleware: Iterable[object], send: TaskSend) -> None:
        super().__init__()
        self._span, self._middleware, self._send = span, middleware, send

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as entered:
            entered.enter_context(self._span)
            for wrapper in load_all(self._middleware):
                await aenter(entered, wrapper.around_asend(self._send))
            attach_headers(self._send)
            self.push_async_exit(entered.pop_all())
        return self


def enter(stack: ExitStack, manager: AbstractContextManager[object]) -> None:
    """Enter the context manager, and register it in the stack, which will leave it. Its ``__exit__`` can't suppress an
    error.
    """
    manager.__enter__()

    def leave(*error: Any) -> None:
        manager.__exit__(*error)

    stack.push(leave)


async def aenter(stack: AsyncExitStack, manager: AbstractAsyncContextManager[object]) -> None:
    """Enter an asynchronous context manager in the same way as `enter`."""
    await manager.__aenter__()

    async def leave(*error: Any) -> None:
        await manager.__aexit__(*error)

    stack.push_async_exit(leave)


def attach_headers(send: TaskSend) -> None:
    """Add the headers to the payloads of the tasks. Raises `TaskUsageError` if the headers are not valid."""
    if not send.headers:
        return
    check_headers(send.headers)
    for task in send.tasks:
        metadata = {**task.payload.get(METADATA_KEY, {}), HEADERS_KEY: dict(send.headers)}
        task.with_payload({**task.payload, METADATA_KEY: metadata})


def check_headers(headers: dict[str, str]) -> None:
    """Raise `TaskUsageError` unless all names and values are valid texts of at most `MAX_HEADERS_BYTES` bytes
    together.
    """
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise TaskUsageError(
                f"the name of a header is 1 to 100 letters, digits, '_', '.' or '-' and begins with a letter or digit, "
                f"got {short(name)}"
            )
        if not isinstance(value, str):
            raise TaskUsageError(
                f"the header {name!r} must be text, got {type(value).__name__} {short(value)}; encode it, as JSON for example"
            )
        size += len(name) + len(value.encode(errors="surrogatepass"))
    if size > MAX_HEADERS_BYTES:
        largest = max(headers, key=lambda name: len(headers[name]))
        raise TaskUsageError(
            f"the headers of a task may have {MAX_HEADERS_BYTES:,} bytes, these have {size:,} (the largest is {largest!r}); "
            "store the data and pass a reference to it"
        )


# --- around running ---


def around_function(
    function: Callable[..., Any], middleware: Sequence[TaskMiddleware], run: TaskRun
) -> Callable[..., Any]:
    """Return the function with the middleware around it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for wrapper in middleware:
                enter(stack, wrapper.around_run(run))
            return function(*args, **kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as stack:
            for wrapper in middleware:
                await aenter(stack, wrapper.around_arun(run))
            return await function(*args, **kwargs)

    return acall if run.is_async else call
