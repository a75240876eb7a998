"""Django's task interface: `django.tasks` since Django 6.0, and on Django 5.2 the same interface from the package
django-tasks.
"""

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import Task, TaskContext, TaskResult, TaskResultStatus, default_task_backend, task, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
else:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, default_task_backend, task, task_backends
    except ImportError as error:
        raise ImportError(
            "django_fairque.backends needs Django's task interface, which Django has from 6.0 on: on Django "
            f"{django.__version__} install the package django-tasks"
        ) from error
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = TaskResult[..., Any]

    class GenericTask(Task[P, R]):
        """Django's class `Task` with type parameters, as a base class. At run time Django's class has no type
        parameters.
        """
else:
    AnyTask, AnyResult = Task, TaskResult

    class GenericTask(Task):
        def __class_getitem__(cls, parameters: Any) -> Any:
            return cls


__all__ = [
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "GenericTask",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "normalize_json",
    "task",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
