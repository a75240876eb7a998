"""The queue's definition of a task of `django.tasks`. The definition is registered under the task's module path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, overload

from django.utils import timezone

from django_fairque import signals
from django_fairque.backends import results
from django_fairque.backends.compat import AnyTask, GenericTask, InvalidTask, TaskContext, task_enqueued
from django_fairque.backends.compat import task as django_task
from django_fairque.backends.options import checked_attempts
from django_fairque.backends.results import TaskMetadata
from django_fairque.backends.running import ResultBackoffFunction, runner
from django_fairque.engine.model.durations import duration
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.tasks import registry
from django_fairque.tasks.definition import DEFAULT_USER, Sendable
from django_fairque.tasks.options import TaskOptions
from django_fairque.tasks.options import user_id as checked_user_id

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from django_fairque.backends.options import PathOptions, UserOf
    from django_fairque.engine.model.task import Task as Record


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class FairqueTask(GenericTask[P, R]):
    """A task of `django.tasks`. ``user_id`` is the user that the task is for: text, an integer or a UUID, stored as
    text.

    If ``user_id`` is None, the backend's ``USER`` option determines the user. ``run_in`` is the timedelta that was
    passed to `using` as ``run_after``. The server counts it from the moment at which it accepts the task, and
    ``run_after`` is this process's estimate of the result. ``max_attempts`` is the maximum number of attempts of a task
    that fails. ``backoff`` is a function of the exception and the `TaskResult` that returns the seconds or timedelta
    until the next attempt, or None to stop. If one of these is None, ``OPTIONS`` determines it.
    """

    user_id: str | None = None
    max_attempts: int | None = None
    backoff: ResultBackoffFunction | None = field(default=None, compare=False)
    run_in: timedelta | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.user_id is not None:
            try:
                object.__setattr__(self, "user_id", checked_user_id(self.user_id, "user_id"))
            except TaskValidationError as error:
                raise InvalidTask(str(error)) from None
        try:
            _ = self.max_attempts is None or checked_attempts(self.max_attempts, "max_attempts")
        except ValueError as error:
            raise InvalidTask(str(error)) from None
        if self.backoff is not None and not callable(self.backoff):
            raise InvalidTask(f"backoff must be a callable of (error, task_result), got {short(self.backoff)}")
        super().__post_init__()

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        user_id: object = None,
    ) -> Self:
        """Return a copy that is sent with other options. An option that is None stays unchanged.

        ``priority``, ``queue_name``, ``run_after`` and ``backend`` are Django's options. A timedelta in ``run_after``
        is counted from the moment at which the server accepts the task. ``user_id`` is the user: text, an integer or a
        UUID. Raises `InvalidTask` if a value can't be used.
        """
        run_in: timedelta | None = None
        if isinstance(run_after, timedelta):
            run_in, run_after = run_after, timezone.now() + run_after
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "user_id": user_id,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if run_after is not None:
            changes["run_in"] = run_in
        return replace(self, **changes)


class _TaskOptions(TypedDict, total=False):
    priority: int
    queue_name: str
    backend: str
    user_id: object
    max_attempts: int | None
    backoff: ResultBackoffFunction | None


@overload
def task(
    function: Callable[Concatenate[TaskContext[Any, Any], P], R],
    /,
    *,
    takes_context: Literal[True],
    **options: Unpack[_TaskOptions],
) -> FairqueTask[P, R]: ...
@overload
def task(
    function: Callable[P, R], /, *, takes_context: Literal[False] = False, **options: Unpack[_TaskOptions]
) -> FairqueTask[P, R]: ...
@overload
def task(
    *, takes_context: Literal[True], **options: Unpack[_TaskOptions]
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], FairqueTask[P, R]]: ...
@overload
def task(
    *, takes_context: Literal[False] = False, **options: Unpack[_TaskOptions]
) -> Callable[[Callable[P, R]], FairqueTask[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a task with Django's own decorator, so that type checkers know `FairqueTask.using`.

    ``function`` and ``options`` are the same as for ``django.tasks.task``. ``user_id`` is the user of all calls.
    ``max_attempts`` and ``backoff`` are the same as for `FairqueTask` (not on Django 6.0, whose decorator accepts no
    options of backends). Returns the task, or a decorator if it is called with options only. Raises `InvalidTask` if
    the task can't be used.
    """
    return django_task(function, **options) if function is not None else django_task(**options)


@dataclass(frozen=True, eq=False, repr=False)
class DjangoDefinition(Sendable[Any, Any]):
    """The queue's definition of a Django task. ``task`` is Django's task object as it was declared."""

    task: AnyTask

    def copy_with_task(self, task: AnyTask, given: PathOptions, user_id: object, now: datetime) -> Self:
        """Return a copy of the definition that sends ``task``, which ``using`` may have changed. If ``user_id`` is
        None, the copy sets no user.
        """
        about = TaskMetadata(now, task.backend, int(task.priority), task.run_after, getattr(task, "user_id", None))
        call = copy.copy(self)
        object.__setattr__(call, "options", _options_of_call(task, given, user_id))
        object.__setattr__(call, "about", about.to_json())
        return call


def _options_of_call(task: AnyTask, given: PathOptions, user_id: object) -> TaskOptions:
    changes: dict[str, Any] = {"queue": task.queue_name}
    if user_id is not None:
        changes["user_id"] = checked_user_id(user_id, "user_id")
    if (run_in := getattr(task, "run_in", None)) is not None:
        delay = duration(max(run_in, timedelta()), "run_after")
        changes |= {"delay": delay, "debounce": None, "debounce_max_wait": None}
        if given.options.expires is not None:
            changes["expires"] = delay + given.options.expires
    elif (due := task.run_after) is not None:
        due = changes["execute_after"] = due if timezone.is_aware(due) else timezone.make_aware(due)
        # The call chooses when the task may run, so nothing else delays the task, and its expiry is counted from that
        # time.
        changes |= {"delay": None, "debounce": None, "debounce_max_wait": None}
        if given.options.expires is not None:
            changes |= {"expires": None, "expires_at": due + timedelta(seconds=given.options.expires)}
    return replace(given.for_task(task, task.priority), **changes)


def find(name: str) -> DjangoDefinition | None:
    """Return the definition that is registered under this name, or None. No module is imported."""
    found = registry.find(name)
    return found if isinstance(found, DjangoDefinition) else None


def known_paths() -> list[str]:
    """Return the module paths of all tasks of `django.tasks` that this process has declared."""
    return [name for name in registry.names() if find(name) is not None]


def register(task: AnyTask, given: PathOptions, user_of: UserOf) -> DjangoDefinition:
    """Register the task's function for workers. If a function is declared several times, only the first declaration
    counts.
    """
    name = task.module_path
    known = registry.find(name)
    if isinstance(known, DjangoDefinition):
        if known.task.func is task.func:
            return known
    elif known is not None:
        raise InvalidTask(
            f"{name} is a task of django_fairque already (@django_fairque.task); use only one of the two decorators"
        )

    def user(*args: Any, **kwargs: Any) -> object:
        found = user_of(task, list(args), kwargs)
        return DEFAULT_USER if found is None else found

    queue, priority = given.queue or task.queue_name, task.priority if given.priority is None else given.priority
    options = replace(given.for_task(task, priority), queue=queue, user=user)
    definition = DjangoDefinition(runner(task), name, options, task)
    _ = definition.signature  # compute the signature once, for all copies that `copy_with_task` makes
    registry.register(definition)
    signals.task_pushed.connect(announce, sender=name, dispatch_uid="django_fairque.backends")
    return definition


def announce(sender: str, task: Record, queue: str, **_: Any) -> None:
    """Receive the queue's signal `task_pushed`, and send Django's `task_enqueued` for tasks that are declared in this
    process.
    """
    known = find(sender)
    if known is None:
        return
    result = results.build_result(known.task, task, queue, (), results.find_alias(known.task, task))
    task_enqueued.send(type(result.task.get_backend()), task_result=result)
