"""A task queue for Django on Redis or Valkey that shares workers fairly between users.

The names below are the public interface. Each is imported when it is first used, so that a web process pays only
for what it uses, and the package can be imported before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.engine.dead_letters.letters import DLQEntry
    from django_fairque.engine.dependencies.dependencies import DependencyView
    from django_fairque.engine.maintenance.snapshot import Violation
    from django_fairque.engine.model.errors import (
        BacklogFullError,
        ConfigurationError,
        DependencyCycleError,
        FairQueueError,
        LuaScriptError,
        NotPermittedError,
        NotReplicatedError,
        PushRefusedError,
        QueueNotDrainedError,
        RedisConnectionError,
        ServerRefusedError,
        ShardsAwayError,
        StaleLeaseError,
        TaskIdConflictError,
        TaskNotFoundError,
        TaskSerializationError,
        TaskValidationError,
        UnsupportedServerError,
        UntrustedServerError,
    )
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.outcome import Outcome
    from django_fairque.engine.model.priority import Priority, calculate_score
    from django_fairque.engine.model.records import FailureType, PushResult, TaskState
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.async_queue import AsyncFairQueue
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.users import UserQueue
    from django_fairque.tasks.context import acurrent_user_id, as_user, current_user_id
    from django_fairque.tasks.errors import Discard, Retry
    from django_fairque.tasks.execution import BatchResult

    from .conf import FairQueueConfig, QueueConfig, RedisConfig, WorkerConfig, aget_queue, get_queue
    from .tasks.context import current_task
    from .tasks.errors import (
        SoftTimeLimitExceeded,
        TaskCanceledError,
        TaskFailedError,
        TaskMemoryError,
        TaskNotFinishedError,
        TaskNotRegisteredError,
        TaskSignatureError,
        TaskTimeoutError,
        TaskUsageError,
        TaskWaitTimeoutError,
    )
    from .tasks.pipelines import Pipeline, PipelineResult, Step, chain, group
    from .tasks.registry import task
    from .tasks.results import TaskResult
    from .worker import AsyncWorker, Worker

__version__ = "0.1.0"
"""The version of the package."""

__all__ = [
    "AsyncFairQueue",
    "AsyncWorker",
    "BacklogFullError",
    "BatchResult",
    "ConfigurationError",
    "DLQEntry",
    "DependencyCycleError",
    "DependencyView",
    "Discard",
    "FailureType",
    "FairQueue",
    "FairQueueConfig",
    "FairQueueError",
    "Lease",
    "LuaScriptError",
    "NotPermittedError",
    "NotReplicatedError",
    "Outcome",
    "Pipeline",
    "PipelineResult",
    "Priority",
    "PushRefusedError",
    "PushResult",
    "QueueConfig",
    "QueueNotDrainedError",
    "RedisConfig",
    "RedisConnectionError",
    "Retry",
    "ServerRefusedError",
    "ShardsAwayError",
    "SoftTimeLimitExceeded",
    "StaleLeaseError",
    "Step",
    "Task",
    "TaskCanceledError",
    "TaskFailedError",
    "TaskIdConflictError",
    "TaskMemoryError",
    "TaskNotFinishedError",
    "TaskNotFoundError",
    "TaskNotRegisteredError",
    "TaskResult",
    "TaskSerializationError",
    "TaskSignatureError",
    "TaskState",
    "TaskTimeoutError",
    "TaskUsageError",
    "TaskValidationError",
    "TaskWaitTimeoutError",
    "UnsupportedServerError",
    "UntrustedServerError",
    "UserQueue",
    "Violation",
    "Worker",
    "WorkerConfig",
    "__version__",
    "acurrent_user_id",
    "aget_queue",
    "as_user",
    "calculate_score",
    "chain",
    "current_task",
    "current_user_id",
    "get_queue",
    "group",
    "task",
]

_MODULES = {
    "conf": ("FairQueueConfig", "QueueConfig", "RedisConfig", "WorkerConfig", "aget_queue", "get_queue"),
    "engine.queue.async_queue": ("AsyncFairQueue",),
    "engine.dependencies.dependencies": ("DependencyView",),
    "engine.model.errors": (
        *("BacklogFullError", "ConfigurationError", "DependencyCycleError", "FairQueueError", "LuaScriptError"),
        *(
            "NotPermittedError",
            "NotReplicatedError",
            "PushRefusedError",
            "QueueNotDrainedError",
            "RedisConnectionError",
        ),
        *("ServerRefusedError", "ShardsAwayError", "StaleLeaseError", "TaskIdConflictError", "TaskNotFoundError"),
        *("TaskSerializationError", "TaskValidationError", "UnsupportedServerError", "UntrustedServerError"),
    ),
    "engine.model.lease": ("Lease",),
    "engine.model.task": ("Task",),
    "engine.model.outcome": ("Outcome",),
    "engine.model.priority": ("Priority", "calculate_score"),
    "engine.queue.queue": ("FairQueue",),
    "engine.dead_letters.letters": ("DLQEntry",),
    "engine.model.records": ("FailureType", "PushResult", "TaskState"),
    "engine.maintenance.snapshot": ("Violation",),
    "engine.users.users": ("UserQueue",),
    "tasks.context": ("acurrent_user_id", "as_user", "current_task", "current_user_id"),
    "tasks.execution": ("BatchResult",),
    "tasks.registry": ("task",),
    "tasks.errors": (
        *("Discard", "Retry"),
        *("SoftTimeLimitExceeded", "TaskCanceledError", "TaskFailedError", "TaskNotFinishedError"),
        *(
            "TaskMemoryError",
            "TaskNotRegisteredError",
            "TaskSignatureError",
            "TaskTimeoutError",
            "TaskUsageError",
            "TaskWaitTimeoutError",
        ),
    ),
    "tasks.pipelines": ("Pipeline", "PipelineResult", "Step", "chain", "group"),
    "tasks.results": ("TaskResult",),
    "worker": ("AsyncWorker", "Worker"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # or every name would be there for a type checker

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
