"""A task of `django.tasks` as the queue knows one, registered by its module path, and the backend's ``OPTIONS``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeGuard

from django.utils import timezone
from django.utils.module_loading import import_string

from django_fairque import signals
from django_fairque.backends import results
from django_fairque.backends.compat import AnyTask, InvalidTask, InvalidTaskBackend, task_enqueued
from django_fairque.backends.results import TaskMetadata, class_of
from django_fairque.backends.running import runner
from django_fairque.engine.model.errors import TaskValidationError, nearest, short
from django_fairque.tasks import registry
from django_fairque.tasks.definition import DEFAULT_USER, Sendable
from django_fairque.tasks.options import DECLARABLE, SENDABLE, TaskOptions, changed
from django_fairque.tasks.options import user_id as checked_user_id

if TYPE_CHECKING:
    from typing_extensions import Self

    from django_fairque.engine.model.task import Task as Record

UserOf = Callable[[AnyTask, "list[Any]", "dict[str, Any]"], object]
"""``(task, args, kwargs)`` -> whom it is for; None for nobody in particular."""

KNOWN = ("MAX_RETRIES", "USER")


@dataclass(frozen=True)
class BackendOptions:
    """Checked options."""

    user: UserOf | None = None
    max_retries: int = 0


def read_options(options: Mapping[str, Any], alias: str) -> BackendOptions:
    """The options of a backend; `InvalidTaskBackend` with everything that is wrong with them."""
    found = option_problems(options)
    if found:
        raise InvalidTaskBackend(f"OPTIONS of TASKS[{alias!r}]: {'; '.join(found)}")
    user = options.get("USER")
    return BackendOptions(import_string(user) if isinstance(user, str) else user, max_retries(options))


def option_problems(options: Mapping[str, Any]) -> list[str]:
    """What is wrong, one sentence each."""
    sentences = []
    for name in options:
        if name not in KNOWN:
            near = nearest(str(name).upper(), KNOWN)
            hint = f"did you mean {near!r}?" if near else f"expected some of {', '.join(KNOWN)}"
            sentences.append(f"unknown option {name!r}; {hint}")
    if wrong := _wrong_user(options.get("USER")):
        sentences.append(f"USER must be a callable of (task, args, kwargs), or its dotted path; {wrong}")
    if not _is_right(retries := options.get("MAX_RETRIES", 0)):
        sentences.append(f"MAX_RETRIES must be an integer from 0 to 1000, got {short(retries)}")
    return sentences


def max_retries(options: Mapping[str, Any]) -> int:
    """How often a failed task is tried again; 0 unless the options (when they are right) say more."""
    given = options.get("MAX_RETRIES", 0)
    return given if _is_right(given) else 0


def _is_right(retries: object) -> TypeGuard[int]:
    return isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= 1000


def _wrong_user(value: object) -> str:
    """What is there instead; empty if it is right."""
    if value is None or callable(value):
        return ""
    if not isinstance(value, str):
        return f"got {short(value)}"
    try:
        found = import_string(value)
    except ImportError as error:
        return f"{value!r} can't be imported ({error})"
    return "" if callable(found) else f"{value!r} is {short(found)}"


@dataclass(frozen=True, kw_only=True)
class FairqueTask(AnyTask):
    """A task of `django.tasks`. ``user_id`` is the user that it is for: text, an integer or a UUID, kept as text.

    None leaves the user to the backend's ``USER`` option.
    """

    user_id: str | None = None

    def __post_init__(self) -> None:
        if self.user_id is not None:
            try:
                object.__setattr__(self, "user_id", checked_user_id(self.user_id, "user_id"))
            except TaskValidationError as error:
                raise InvalidTask(str(error)) from None
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
        """Return a copy that is sent with other options; None keeps a value.

        ``priority``, ``queue_name``, ``run_after`` and ``backend`` are Django's; a timedelta in ``run_after`` counts
        from now. ``user_id`` is the user: text, an integer or a UUID. Raises `InvalidTask` if a value can't be used.
        """
        if isinstance(run_after, timedelta):
            run_after = timezone.now() + run_after
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "user_id": user_id,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, eq=False, repr=False)
class DjangoDefinition(Sendable[Any, Any]):
    """``task`` is Django's, as it was declared."""

    task: AnyTask

    def sending(self, task: AnyTask, max_retries: int, user_id: object, now: datetime) -> Self:
        """The one that sends ``task``, which may have been changed by ``using``. A ``user_id`` of None names nobody."""
        given = {"queue": task.queue_name, "max_retries": max_retries, "priority": class_of(task.priority)}
        if user_id is not None:
            given["user_id"] = user_id
        if (due := task.run_after) is not None:
            given["execute_after"] = due if timezone.is_aware(due) else timezone.make_aware(due)
        about = TaskMetadata(now, task.backend, int(task.priority), due, getattr(task, "user_id", None))
        call = copy.copy(self)
        options = changed(TaskOptions(), given, DECLARABLE | SENDABLE, f"{task.module_path}.enqueue()")
        object.__setattr__(call, "options", options)
        object.__setattr__(call, "about", about.to_json())
        return call


def find(name: str) -> DjangoDefinition | None:
    """What was declared under that name; nothing is imported to find it."""
    found = registry.find(name)
    return found if isinstance(found, DjangoDefinition) else None


def register(task: AnyTask, max_retries: int, user_of: UserOf) -> DjangoDefinition:
    """Make the task's function known to workers; the first declaration of a function is the one that counts."""
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

    options = TaskOptions(priority=class_of(task.priority), queue=task.queue_name, max_retries=max_retries, user=user)
    definition = DjangoDefinition(runner(task), name, options, task)
    _ = definition.signature  # found once, for all copies that `sending` makes
    registry.register(definition)
    return definition


def announce(sender: str, task: Record, queue: str, **_: Any) -> None:
    """Receiver of the queue's own `task_pushed`."""
    known = find(sender)
    if known is None:
        return
    result = results.stored(known.task, task, queue, (), results.alias_of(known.task, task))
    task_enqueued.send(type(result.task.get_backend()), task_result=result)


signals.task_pushed.connect(announce, dispatch_uid="django_fairque.backends")
