"""Middleware: code of a project around sending and running its tasks, and the headers that travel with a task.

Which middleware there is: that of the setting ``MIDDLEWARE`` in its order, then that of ``@task(middleware=…)``. The first is the
outermost. What leaves a block of a middleware is an error or nothing: the value of ``__exit__`` is not looked at, so that none
can turn the failure of a task into a success.
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
from django.utils.module_loading import import_string

from django_fairque.engine.model.errors import ConfigurationError, short

from .context import HEADERS_KEY, METADATA_KEY, TaskContext
from .errors import TaskUsageError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

    from django_fairque.engine.model.task import Task

Facts = TypeVar("Facts", "TaskSend", "TaskRun")

MAX_HEADERS_BYTES = 16_384
"""Most bytes of the names and values of a task's headers together."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

NO_MIDDLEWARE = nullcontext()
"""What a middleware returns that does nothing here."""


@dataclass(eq=False)
class TaskSend:
    """One call that sends tasks, for `TaskMiddleware.around_send`."""

    queue: str
    """The name of the queue."""
    tasks: Sequence[Task]
    """The tasks that are sent: one of `enqueue`, those of an `enqueue_many` or of a pipeline."""
    headers: dict[str, str] = field(default_factory=dict)
    """What travels with each of the tasks. Middleware adds to it before the tasks are sent. At first it has
    the ``baggage`` of OpenTelemetry, if there is some and ``TRACING`` is on; else nothing."""


class TaskRun:
    """One call of a task's function, for `TaskMiddleware.around_run`. A worker makes it of the ``tasks`` of the call, the
    ``name`` of the task, and ``is_async``: whether its function is a coroutine function.
    """

    def __init__(self, tasks: Sequence[TaskContext], name: str, *, is_async: bool) -> None:
        self.tasks = tuple(tasks)
        """Each task of a batch; else the only one. Their facts are those of `current_task`."""
        self.name = name
        """The name of the task."""
        self.is_async = is_async
        """Whether the function is a coroutine function."""

    def __repr__(self) -> str:
        return f"<run of {self.name!r} for {', '.join(repr(task.id) for task in self.tasks)}>"

    @property
    def task(self) -> TaskContext:
        """The task; of a batch the first one."""
        return self.tasks[0]

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self.task.queue

    @property
    def user_id(self) -> str | None:
        """The user that it runs for; None if the tasks of a batch are for several."""
        users = {task.user_id for task in self.tasks}
        return users.pop() if len(users) == 1 else None

    @property
    def headers(self) -> dict[str, str]:
        """What travels with the task; of a batch what is the same for all its tasks."""
        first, *others = [task.headers for task in self.tasks]
        for other in others:
            first = {name: value for name, value in first.items() if other.get(name) == value}
        return first


class TaskMiddleware:
    """Code around sending and around running tasks. Extend it, and override the methods that you need.

    Each returns a context manager. One instance serves all threads and coroutines of a process, so keep the facts of one
    call in the context manager and not in the instance. An error that leaves ``__enter__`` or ``__exit__`` of
    `around_send` goes to the code that sends; one of `around_run` is the failure of the task. None of them can keep an
    error from going on.
    """

    async_capable: ClassVar[bool] = False
    """Whether the synchronous context managers never block, so that they can be entered on an event loop, too. If not,
    around a coroutine they are entered and left in the thread in which its synchronous code (`sync_to_async`) runs.
    Default: False."""

    def around_send(self, send: TaskSend) -> AbstractContextManager[object]:  # noqa: ARG002 - for those that override it
        """Return what happens around sending: what is added to ``send.headers`` on entering travels with the tasks.

        ``send`` has the facts. Inside a transaction this is when the tasks are enqueued, and not the commit.
        """
        self._check_pair("around_send", "around_asend")
        return NO_MIDDLEWARE

    def around_asend(self, send: TaskSend) -> AbstractAsyncContextManager[object]:
        """Return what happens around sending from a coroutine (``aenqueue``); by default `around_send`.

        ``send`` has the facts.
        """
        return NO_MIDDLEWARE if self._lacks("around_send") else self._adapted(self.around_send, send)

    def around_run(self, run: TaskRun) -> AbstractContextManager[object]:  # noqa: ARG002 - for those that override it
        """Return what happens around a task's function. Its time counts as the task's, for limits too.

        ``run`` has the facts. A batch is one run.
        """
        self._check_pair("around_run", "around_arun")
        return NO_MIDDLEWARE

    def around_arun(self, run: TaskRun) -> AbstractAsyncContextManager[object]:
        """Return what happens around the coroutine of an ``async def`` task; by default `around_run`.

        ``run`` has the facts.
        """
        return NO_MIDDLEWARE if self._lacks("around_run") else self._adapted(self.around_run, run)

    def _lacks(self, method: str) -> bool:
        return getattr(type(self), method) is getattr(TaskMiddleware, method)

    def _check_pair(self, method: str, asynchronous: str) -> None:
        """Raise `TaskUsageError` if only ``asynchronous`` is overridden: without a word, a task would run without it."""
        if not self._lacks(asynchronous):
            raise TaskUsageError(
                f"{type(self).__qualname__} has {asynchronous} only, and this code is synchronous: override {method} as well"
            )

    def _adapted(
        self, method: Callable[[Facts], AbstractContextManager[object]], facts: Facts
    ) -> AbstractAsyncContextManager[object]:
        make = partial(method, facts)
        return _OnLoop(make) if self.async_capable else _InThread(make)


class _OnLoop:
    """A synchronous context manager that is entered on the event loop."""

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._manager = make()

    async def __aenter__(self) -> None:
        self._manager.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.__exit__(kind, error, trace)


class _InThread:
    """A synchronous context manager that is made, entered and left in the thread of the coroutine's synchronous code, where
    its database connections are.

    It is entered and left in one context (`contextvars.Context`), because a variable can only be reset in the context in which
    it was set. What it sets there the coroutine sees as well.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make = make
        self._context = Context()
        self._entered: AbstractContextManager[object] | None = None

    async def __aenter__(self) -> None:
        try:
            await sync_to_async(self._call)(self._enter)
        except asyncio.CancelledError:  # the thread goes on, and enters it all the same
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
        """Call it in that context. `sync_to_async` copies variables from the coroutine to here, and back to there."""
        _copy_variables(copy_context(), self._context.run, self._context)
        try:
            self._context.run(function, *args)
        finally:
            _copy_variables(self._context, lambda put, value: put(value), copy_context())


def _copy_variables(source: Context, run: Callable[[Callable[[Any], object], Any], object], target: Context) -> None:
    """Set what differs: ``run`` calls the setter of a variable with a value in the target."""
    for variable, value in source.items():
        if variable not in target or target[variable] is not value:
            run(variable.set, value)


# --- which there is ---

_instances: dict[object, TaskMiddleware] = {}
"""By dotted path or class, for the whole process."""


def load(given: object) -> TaskMiddleware:
    """The middleware that a dotted path or a class stands for, or this one; `ConfigurationError` if it is none."""
    if isinstance(given, TaskMiddleware):
        return given
    found = _instances.get(given)
    return _instances.setdefault(given, _made(given)) if found is None else found


def _made(given: object) -> TaskMiddleware:
    named: Any = given
    if isinstance(given, str):
        try:
            named = import_string(given)
        except ImportError as error:
            raise ConfigurationError(
                f"middleware: expected the dotted path of a subclass of TaskMiddleware, got {short(given)}: {error}"
            ) from error
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
    """All of them, in their order. Raises `ConfigurationError` for the first that is none."""
    return tuple(map(load, given))


# --- around sending ---


class Sending(ExitStack):
    """Around one call that sends tasks: the span, then the middleware; then the tasks get their headers."""

    def __init__(self, span: AbstractContextManager[object], middleware: Iterable[object], send: TaskSend) -> None:
        super().__init__()
        self._span, self._middleware, self._send = span, middleware, send

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            entered.enter_context(self._span)
            for each in load_all(self._middleware):
                enter(entered, each.around_send(self._send))
            attach_headers(self._send)
            self.push(entered.pop_all())
        return self


class AsyncSending(AsyncExitStack):
    """The same from a coroutine."""

    def __init__(self, span: AbstractContextManager[object], middleware: Iterable[object], send: TaskSend) -> None:
        super().__init__()
        self._span, self._middleware, self._send = span, middleware, send

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as entered:
            entered.enter_context(self._span)
            for each in load_all(self._middleware):
                await aenter(entered, each.around_asend(self._send))
            attach_headers(self._send)
            self.push_async_exit(entered.pop_all())
        return self


def enter(stack: ExitStack, manager: AbstractContextManager[object]) -> None:
    """Enter it; it is left with the stack, and keeps no error from going on."""
    manager.__enter__()

    def leave(*error: Any) -> None:
        manager.__exit__(*error)

    stack.push(leave)


async def aenter(stack: AsyncExitStack, manager: AbstractAsyncContextManager[object]) -> None:
    """The same for coroutines."""
    await manager.__aenter__()

    async def leave(*error: Any) -> None:
        await manager.__aexit__(*error)

    stack.push_async_exit(leave)


def attach_headers(send: TaskSend) -> None:
    """Put the headers into the payloads of the tasks. Raises `TaskUsageError` if they are none."""
    if not send.headers:
        return
    check_headers(send.headers)
    for task in send.tasks:
        metadata = {**task.payload.get(METADATA_KEY, {}), HEADERS_KEY: dict(send.headers)}
        task.with_payload({**task.payload, METADATA_KEY: metadata})


def check_headers(headers: dict[str, str]) -> None:
    """Raise `TaskUsageError` unless they are few, and text."""
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
    """The function with the middleware around it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for each in middleware:
                enter(stack, each.around_run(run))
            return function(*args, **kwargs)

    async def acall(*args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as stack:
            for each in middleware:
                await aenter(stack, each.around_arun(run))
            return await function(*args, **kwargs)

    return acall if run.is_async else call
