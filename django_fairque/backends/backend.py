"""`FairqueBackend` implements Django's interface of a task backend with the queues of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django.apps import apps
from django.core import checks
from django.utils import timezone

from django_fairque import conf
from django_fairque.backends import definition as definitions
from django_fairque.backends import results
from django_fairque.conf.current import current_interceptor
from django_fairque.documentation import page_address
from django_fairque.engine.model.errors import ConfigurationError, TaskNotFoundError, TaskValidationError, nearest
from django_fairque.engine.model.ids import check_id
from django_fairque.tasks import registry
from django_fairque.tasks.limits import find_problem
from django_fairque.tasks.results import aget_result_queue, get_result_queue

from .compat import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_backends,
)
from .definition import DjangoDefinition, FairqueTask
from .options import BackendOptions, PathOptions

if TYPE_CHECKING:
    from datetime import datetime

    from django_fairque.engine.model.records import Attempt
    from django_fairque.engine.model.task import Task as Record


P = ParamSpec("P")
R = TypeVar("R")


def _resolve_schedule_user(task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> object:
    """Return the user of a call that was made by a schedule and not by the backend."""
    backend = task.get_backend()
    return backend.resolve_user(task, args, kwargs) if isinstance(backend, FairqueBackend) else None


def _check_queue(name: str) -> None:
    """Raise `InvalidTask` if a queue is not declared in ``FAIRQUE``."""
    config = conf.get_config()
    try:
        config.queue_config(name)
    except ConfigurationError as error:
        raise InvalidTask(str(error)) from None


def mistakes() -> list[str]:
    """Return the mistakes in the ``OPTIONS`` of all backends of this package in ``TASKS``, each as a sentence."""
    found: list[str] = []
    for alias in task_backends.settings:
        # a backend that can't be imported belongs to another package; its users get the error
        with suppress(InvalidTaskBackend):
            backend = task_backends[alias]
            found += backend.option_mistakes() if isinstance(backend, FairqueBackend) else []
    return found


registry.add_mistake_source(mistakes)


class FairqueBackend(BaseTaskBackend):
    """Sends tasks of `django.tasks` to the queues of django_fairque. Django makes one backend object for each thread,
    so the object keeps only its options.
    """

    task_class = FairqueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the options. The options of Django's proposal for retries may also be written outside of ``OPTIONS``.

        ``alias`` is the backend's name in ``TASKS``, and ``params`` is its entry in that setting.
        """
        super().__init__(alias, params)
        proposed: dict[str, Any] = {name: params[name] for name in ("MAX_ATTEMPTS", "BACKOFF") if name in params}
        self.options = {**proposed, **self.options}

    @cached_property
    def settings(self) -> BackendOptions:
        """The checked ``OPTIONS``; ``settings.problems`` lists the mistakes in them."""
        return BackendOptions(self.options)

    def validate_task(self, task: AnyTask) -> None:
        """Check a ``task`` as Django does, and register it, because workers run only tasks that are registered in their
        process.

        Raises `InvalidTask` if the task can't be used.
        """
        super().validate_task(self._apply_task_options(task))
        self._definition(task)

    def enqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Send a task for one call. Inside a transaction, the task is sent at the commit (until then, ``enqueued_at``
        is None).

        ``task`` is the task, ``args`` and ``kwargs`` are its arguments. Returns the result. Raises `InvalidTask` or
        `TypeError` if the task or its arguments can't be sent, and the errors of `Sendable.enqueue`.
        """
        sent, definition, given, named, now = self._call(task, args, kwargs)
        handle = definition.enqueue(*given, **named)
        result: TaskResult[P, R] = results.build_enqueued_result(sent, handle, given, named, now)
        if current_interceptor() is not None:  # in a test, the task may already have run
            result.refresh()
        return result

    async def aenqueue(self, task: Task[P, R], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult[P, R]:
        """Send a task for one call from a coroutine.

        ``task``, ``args``, ``kwargs`` and the errors are the same as for `enqueue`. Returns the result.
        """
        sent, definition, given, named, now = self._call(task, args, kwargs)
        handle = await definition.aenqueue(*given, **named)
        result: TaskResult[P, R] = results.build_enqueued_result(sent, handle, given, named, now)
        if current_interceptor() is not None:
            await result.arefresh()
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return a result. The queues in ``QUEUES`` are searched first.

        ``result_id`` is the id of the result. Raises `TaskResultDoesNotExist` if no queue knows the id, or if the
        task's function is not declared in this process.
        """
        for name in self._list_queues(result_id):
            queue = get_result_queue(name, current_interceptor())
            try:
                record = queue.get_task(result_id)
            except TaskNotFoundError:
                continue
            return self._build_result(record, name, queue.history(result_id))
        raise TaskResultDoesNotExist(result_id)

    async def aget_result(self, result_id: str) -> AnyResult:
        """Return a result from a coroutine. ``result_id`` is the id of the result. Raises `TaskResultDoesNotExist` in
        the same cases as `get_result`.
        """
        for name in self._list_queues(result_id):
            queue = await aget_result_queue(name, current_interceptor())
            try:
                record = await queue.get_task(result_id)
            except TaskNotFoundError:
                continue
            return self._build_result(record, name, await queue.history(result_id))
        raise TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Return the system check messages about this backend's entry in ``TASKS``. Sends no request. ``kwargs`` are ignored."""
        where = f"TASKS[{self.alias!r}]"
        paths = definitions.known_paths()
        found: list[checks.CheckMessage] = [
            checks.Error(mistake, hint=f"{page_address('reference/python')} lists them.", id="fairque.E040")
            for mistake in self.option_mistakes()
        ]
        if not apps.is_installed("django_fairque"):
            text = f"{where} sends tasks to django_fairque, which is not in INSTALLED_APPS"
            hint = 'Add "django_fairque": without it there is no manage.py fairque_worker, and no task runs.'
            found.append(checks.Error(text, hint=hint, id="fairque.E042"))
        for pattern in self.settings.list_unmatched_patterns(paths):
            near = nearest(pattern, paths)
            text = (
                f"OPTIONS of {where}: TASK_OPTIONS[{pattern!r}] matches no task of django.tasks that is declared here"
            )
            hint = (
                f"Did you mean {near!r}?"
                if near
                else "Write the module path of a task, and add its app to INSTALLED_APPS."
            )
            found.append(checks.Warning(text, hint=hint, id="fairque.W042"))
        try:
            declared = conf.get_config().queues
        except ConfigurationError:
            return found  # a mistake in the configuration is reported by its check
        expected = ", ".join(map(repr, declared))
        for name in sorted(self.queues - set(declared)):
            text = f"QUEUES of {where}: {name!r} is not a queue of django_fairque; expected some of {expected}"
            found.append(checks.Error(text, hint='Declare it in FAIRQUE["QUEUES"].', id="fairque.E041"))
        return found

    def option_mistakes(self) -> list[str]:
        """Return the mistakes in ``OPTIONS``. These include patterns that together give one task contradictory
        options.
        """
        found = [(path, self.settings.get_options(path).problem) for path in definitions.known_paths()]
        found += [(path, self._find_limit_problem(path)) for path in definitions.known_paths()]
        contradictions = [f"{path}: {problem}" for path, problem in found if problem]
        return [
            f"OPTIONS of TASKS[{self.alias!r}]: {problem}" for problem in [*self.settings.problems, *contradictions]
        ]

    def _find_limit_problem(self, path: str) -> str:
        definition, limits = definitions.find(path), self.settings.get_options(path).options.limits
        return "" if definition is None else find_problem(limits, definition.signature, is_batch=False)

    def _definition(self, task: AnyTask) -> DjangoDefinition:
        return definitions.register(task, self.settings.get_options(task.module_path), _resolve_schedule_user)

    def _apply_task_options(self, task: AnyTask) -> AnyTask:
        """Set the queue and the priority from ``TASK_OPTIONS`` on the task, unless ``using`` has changed them."""
        options = self.settings.get_options(task.module_path)
        if options.queue is None and options.priority is None:
            return task
        known = definitions.find(task.module_path)
        declared = task if known is None else known.task
        changes: dict[str, Any] = {}
        if options.queue is not None and task.queue_name == declared.queue_name:
            changes["queue_name"] = options.queue
        if options.priority is not None and task.priority == declared.priority:
            changes["priority"] = options.priority
        return results.unvalidated_copy(task, changes)

    def _call(
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[AnyTask, DjangoDefinition, list[Any], dict[str, Any], datetime]:
        """Return four values: the task in the form in which it is sent, its definition, its arguments as JSON, and the
        time.
        """
        options = self._path_options(task)
        self.validate_task(task)
        task = self._apply_task_options(task)
        _check_queue(task.queue_name)
        given, named = list(map(normalize_json, args)), {name: normalize_json(value) for name, value in kwargs.items()}
        now = timezone.now()
        user_id = self.resolve_user(task, given, named)
        return task, self._definition(task).copy_with_task(task, options, user_id, now), given, named, now

    def _path_options(self, task: AnyTask) -> PathOptions:
        options = self.settings.get_options(task.module_path)
        if problems := [*self.settings.problems, *filter(None, [options.problem])]:
            raise InvalidTaskBackend(f"OPTIONS of TASKS[{self.alias!r}]: {'; '.join(problems)}")
        return options

    def resolve_user(self, task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> object:
        """Return the user of a call: the user of the ``task``, or else the result of the option ``USER`` for the task,
        ``args`` and ``kwargs``; None if there is no user.
        """
        user_id = getattr(task, "user_id", None)
        user_of = self.settings.get_options(task.module_path).user_of
        return user_id if user_id is not None or user_of is None else user_of(task, args, kwargs)

    def _list_queues(self, result_id: object) -> Sequence[str]:
        """Return all declared queues, the most likely ones first. All are needed, because an id does not contain its
        queue and schedules send to any declared queue.
        """
        try:
            check_id(result_id, "result_id")
        except TaskValidationError:
            raise TaskResultDoesNotExist(result_id) from None
        return sorted(conf.get_config().queues, key=lambda name: (not self._is_ours(name), name != "default", name))

    def _is_ours(self, queue: str) -> bool:
        return not self.queues or queue in self.queues

    def _build_result(self, record: Record, queue: str, attempts: Sequence[Attempt]) -> AnyResult:
        known = definitions.find(record.name)
        if known is None or not (self._is_ours(queue) or results.find_alias(known.task, record) == self.alias):
            raise TaskResultDoesNotExist(record.task_id)
        return results.build_result(known.task, record, queue, attempts, self.alias)
