"""A task queue for Django on Redis or Valkey that shares workers fairly between users.

The names below are the public interface. Each is imported when it is first used, so that a web process loads only the names
that it uses, and the package can be imported before Django is set up.
"""

from typing import TYPE_CHECKING

from django_fairque.early_signals import install as _install_early_signals

_install_early_signals()  # called before the settings and modules of the project are loaded, which may take seconds

if TYPE_CHECKING:
    from django_fairque.engine.maintenance.snapshot import Violation as Violation

    from .audit import acting_as as acting_as
    from .conf import FairQueueConfig as FairQueueConfig
    from .conf import QueueConfig as QueueConfig
    from .conf import RedisConfig as RedisConfig
    from .conf import WorkerConfig as WorkerConfig
    from .conf import aget_queue as aget_queue
    from .conf import get_queue as get_queue
    from .engine.dead_letters.letters import DLQEntry as DLQEntry
    from .engine.dependencies.dependencies import DependencyView as DependencyView
    from .engine.model.errors import AtLimitError as AtLimitError
    from .engine.model.errors import BacklogFullError as BacklogFullError
    from .engine.model.errors import ConfigurationError as ConfigurationError
    from .engine.model.errors import DataFormatError as DataFormatError
    from .engine.model.errors import DependencyCycleError as DependencyCycleError
    from .engine.model.errors import FairQueueError as FairQueueError
    from .engine.model.errors import LuaScriptError as LuaScriptError
    from .engine.model.errors import NotPermittedError as NotPermittedError
    from .engine.model.errors import NotReplicatedError as NotReplicatedError
    from .engine.model.errors import PushRefusedError as PushRefusedError
    from .engine.model.errors import QueueNotDrainedError as QueueNotDrainedError
    from .engine.model.errors import RedisConnectionError as RedisConnectionError
    from .engine.model.errors import ServerRefusedError as ServerRefusedError
    from .engine.model.errors import ShardsAwayError as ShardsAwayError
    from .engine.model.errors import StaleLeaseError as StaleLeaseError
    from .engine.model.errors import TaskIdConflictError as TaskIdConflictError
    from .engine.model.errors import TaskNotFoundError as TaskNotFoundError
    from .engine.model.errors import TaskSerializationError as TaskSerializationError
    from .engine.model.errors import TaskValidationError as TaskValidationError
    from .engine.model.errors import UnsignedTaskError as UnsignedTaskError
    from .engine.model.errors import UnsupportedServerError as UnsupportedServerError
    from .engine.model.errors import UntrustedServerError as UntrustedServerError
    from .engine.model.lease import Lease as Lease
    from .engine.model.outcome import Outcome as Outcome
    from .engine.model.priority import Priority as Priority
    from .engine.model.priority import calculate_score as calculate_score
    from .engine.model.records import FailureType as FailureType
    from .engine.model.records import PushResult as PushResult
    from .engine.model.records import TaskState as TaskState
    from .engine.model.task import Task as Task
    from .engine.queue.async_queue import AsyncFairQueue as AsyncFairQueue
    from .engine.queue.queue import FairQueue as FairQueue
    from .engine.users.users import UserQueue as UserQueue
    from .tasks.context import acurrent_user_id as acurrent_user_id
    from .tasks.context import as_user as as_user
    from .tasks.context import current_task as current_task
    from .tasks.context import current_user_id as current_user_id
    from .tasks.context import lane as lane
    from .tasks.errors import Discard as Discard
    from .tasks.errors import Retry as Retry
    from .tasks.errors import SoftTimeLimitExceeded as SoftTimeLimitExceeded
    from .tasks.errors import TaskCanceledError as TaskCanceledError
    from .tasks.errors import TaskFailedError as TaskFailedError
    from .tasks.errors import TaskMemoryError as TaskMemoryError
    from .tasks.errors import TaskNotFinishedError as TaskNotFinishedError
    from .tasks.errors import TaskNotRegisteredError as TaskNotRegisteredError
    from .tasks.errors import TaskSignatureError as TaskSignatureError
    from .tasks.errors import TaskTimeoutError as TaskTimeoutError
    from .tasks.errors import TaskUsageError as TaskUsageError
    from .tasks.errors import TaskWaitTimeoutError as TaskWaitTimeoutError
    from .tasks.execution import BatchResult as BatchResult
    from .tasks.limits import Concurrency as Concurrency
    from .tasks.limits import Rate as Rate
    from .tasks.middleware import TaskMiddleware as TaskMiddleware
    from .tasks.middleware import TaskRun as TaskRun
    from .tasks.middleware import TaskSend as TaskSend
    from .tasks.pipelines import Pipeline as Pipeline
    from .tasks.pipelines import PipelineResult as PipelineResult
    from .tasks.pipelines import Step as Step
    from .tasks.pipelines import chain as chain
    from .tasks.pipelines import group as group
    from .tasks.registry import task as task
    from .tasks.results import TaskResult as TaskResult
    from .version import __version__ as __version__
    from .worker import AsyncWorker as AsyncWorker
    from .worker import Worker as Worker
else:
    from django_fairque.lazy import export_lazily

    _MODULES = {
        "audit": "acting_as",
        "conf": "FairQueueConfig QueueConfig RedisConfig WorkerConfig aget_queue get_queue",
        "engine.dead_letters.letters": "DLQEntry",
        "engine.dependencies.dependencies": "DependencyView",
        "engine.maintenance.snapshot": "Violation",
        "engine.model.errors": (
            "AtLimitError BacklogFullError ConfigurationError DataFormatError DependencyCycleError FairQueueError LuaScriptError "
            "NotPermittedError NotReplicatedError PushRefusedError QueueNotDrainedError RedisConnectionError "
            "ServerRefusedError ShardsAwayError StaleLeaseError TaskIdConflictError TaskNotFoundError "
            "TaskSerializationError TaskValidationError UnsignedTaskError UnsupportedServerError UntrustedServerError"
        ),
        "engine.model.lease": "Lease",
        "engine.model.outcome": "Outcome",
        "engine.model.priority": "Priority calculate_score",
        "engine.model.records": "FailureType PushResult TaskState",
        "engine.model.task": "Task",
        "engine.queue.async_queue": "AsyncFairQueue",
        "engine.queue.queue": "FairQueue",
        "engine.users.users": "UserQueue",
        "tasks.context": "acurrent_user_id as_user current_task current_user_id lane",
        "tasks.errors": (
            "Discard Retry SoftTimeLimitExceeded TaskCanceledError TaskFailedError TaskMemoryError "
            "TaskNotFinishedError TaskNotRegisteredError TaskSignatureError TaskTimeoutError TaskUsageError "
            "TaskWaitTimeoutError"
        ),
        "tasks.execution": "BatchResult",
        "tasks.limits": "Concurrency Rate",
        "tasks.middleware": "TaskMiddleware TaskRun TaskSend",
        "tasks.pipelines": "Pipeline PipelineResult Step chain group",
        "tasks.registry": "task",
        "tasks.results": "TaskResult",
        "version": "__version__",
        "worker": "AsyncWorker Worker",
    }
    __getattr__, __dir__, __all__ = export_lazily(__name__, _MODULES)
