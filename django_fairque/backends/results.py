"""Converts the queue's record of a task into the `TaskResult` of `django.tasks`."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from inspect import isclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.dateparse import parse_datetime
from django.utils.timezone import get_default_timezone, make_naive

from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.tasks.errors import Discard, TaskCanceledError, TaskFailedError, TaskNotRegisteredError

from .compat import AnyResult, AnyTask, TaskError, TaskResult, TaskResultStatus, task_backends

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease
    from django_fairque.engine.model.task import Task as Record
    from django_fairque.tasks.results import TaskResult as Handle


PRIORITY_BANDS = {
    Priority.CRITICAL: 90,
    Priority.VERY_HIGH: 60,
    Priority.HIGH: 20,
    Priority.NORMAL: -19,
    Priority.LOW: -59,
    Priority.VERY_LOW: -100,
}
"""The lowest priority number of each priority class, the highest class first."""


def get_priority_class(number: int) -> Priority:
    """Return the priority class of a task with the priority ``number`` (-100 to 100)."""
    return next(priority for priority, least in PRIORITY_BANDS.items() if number >= least)


def get_priority_number(priority: Priority) -> int:
    """Return a priority number for a priority class, for tasks that were sent without a number: 0 for NORMAL, otherwise
    the lowest number of the class.
    """
    return 0 if priority is Priority.NORMAL else PRIORITY_BANDS[priority]


@dataclass(frozen=True)
class TaskMetadata:
    """The options of a call, as they were sent with the task. Unknown options are None, for example for a task that a
    schedule has sent.
    """

    at: datetime | None = None
    backend: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    user_id: str | None = None

    @classmethod
    def from_record(cls, record: Record) -> TaskMetadata:
        """Return the metadata in the payload of a task's record. Operators can edit payloads, so invalid values count
        as missing.
        """
        recorded = record.payload.get("about") if isinstance(record.payload, dict) else None
        if not isinstance(recorded, dict):
            return cls()
        priority = recorded.get("priority")
        is_number = isinstance(priority, int) and not isinstance(priority, bool) and -100 <= priority <= 100
        return cls(
            _metadata_moment(recorded.get("at")),
            _metadata_text(recorded.get("backend")),
            priority if is_number else None,
            _metadata_moment(recorded.get("run_after")),
            _metadata_text(recorded.get("user_id")),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
            if value is not None
        }


def _metadata_moment(value: object) -> datetime | None:
    try:
        return parse_datetime(value) if isinstance(value, str) else None
    except ValueError:  # the text has the right form, but the day does not exist
        return None


def _metadata_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


STATUSES = dict.fromkeys(TaskState, TaskResultStatus.READY) | {
    TaskState.STARTED: TaskResultStatus.RUNNING,
    TaskState.FINISHED: TaskResultStatus.SUCCESSFUL,
    TaskState.FAILED: TaskResultStatus.FAILED,
    TaskState.CANCELED: TaskResultStatus.FAILED,
}
ATTEMPT_KINDS = frozenset({"failed", "crashed", "lease_ended", "discarded"})
"""Kinds of history entries that end an attempt if the entry names a worker. An entry without a worker is about a task
that did not run."""
ERROR_KINDS = ATTEMPT_KINDS | {"expired", "poisoned", "canceled"}

CLASS_PATH = re.compile(r"[A-Za-z_][\w.<>]*")
NOT_REGISTERED, DISCARD, CANCELED, FAILED = (
    f"{kind.__module__}.{kind.__qualname__}"
    for kind in (TaskNotRegisteredError, Discard, TaskCanceledError, TaskFailedError)
)


class StoredError(TaskError):
    """An error in the form in which the queue stores it. Its class is searched only in imported modules, because a name
    from the server must never cause an import.
    """

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        module, _, name = self.exception_class_path.rpartition(".")
        if module not in sys.modules:
            raise ImportError(
                f"{self.exception_class_path!r}: no module {module!r} is imported in this process; import it first"
            )
        found = getattr(sys.modules[module], name, None)
        if not isclass(found) or not issubclass(found, BaseException):
            raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
        return found


def build_enqueued_result(task: AnyTask, handle: Handle, args: list[Any], kwargs: dict[str, Any], now: datetime) -> Any:
    """Return the result of a call that was sent at the time ``now`` or that waits for a commit. ``handle`` shows
    which.
    """
    return _result(task, handle.id, args, kwargs, None if handle.is_waiting else now)


def build_result(task: AnyTask, record: Record, queue: str, attempts: Sequence[Attempt], alias: str) -> AnyResult:
    """Return the result of a task from the queue's record. ``task`` is the task as it was declared."""
    payload = record.payload if isinstance(record.payload, dict) else {}
    about = TaskMetadata.from_record(record)
    if record.state is TaskState.STARTED and record.started_at is not None:
        attempts = [
            attempt for attempt in attempts if attempt.at <= record.started_at
        ]  # the current run has no history entry yet
    workers = [attempt.worker for attempt in attempts if _is_run(attempt)]
    if record.state in (TaskState.STARTED, TaskState.FINISHED):
        workers.append(record.worker)
    result = _result(
        _as_sent(task, record, queue, about, alias),
        record.task_id,
        list(payload.get("args") or ()),
        dict(payload.get("kwargs") or {}),
        about.at or _moment(record.created_at),
        status=STATUSES[record.state],
        started_at=_moment(record.started_at),
        last_attempted_at=_moment(record.started_at),
        finished_at=_moment(record.ended_at),
        errors=[
            StoredError(exception_class_path=_class_path(attempt), traceback=attempt.traceback or attempt.error)
            for attempt in attempts
            if _is_error(attempt)
        ],
        worker_ids=workers,
    )
    update(result, _return_value=record.result)
    return result


def build_running_result(task: AnyTask, lease: Lease, queue: str, attempts: Sequence[Attempt]) -> AnyResult:
    """Return the result of a task that starts now in this process."""
    record = lease.task.model_copy(update={"started_at": lease.started_at, "worker": lease.worker})
    return build_result(task, record, queue, attempts, find_alias(task, record))


def find_alias(task: AnyTask, record: Record) -> str:
    """Return the name of the backend that sent a task, if this process has this backend; otherwise the backend of the
    task's declaration.
    """
    alias = TaskMetadata.from_record(record).backend
    return alias if alias in task_backends.settings else task.backend


def update(result: AnyResult, **fields: Any) -> None:
    """Change a result. Results are frozen objects; Django's own backends change them in the same way."""
    for name, value in fields.items():
        object.__setattr__(result, name, value)


def _result(
    task: AnyTask, task_id: str, args: list[Any], kwargs: dict[str, Any], enqueued_at: datetime | None, **known: Any
) -> AnyResult:
    moments = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
    known = {"status": TaskResultStatus.READY, "errors": [], "worker_ids": [], **moments, **known}
    return TaskResult(
        task=task, id=task_id, enqueued_at=enqueued_at, args=args, kwargs=kwargs, backend=task.backend, **known
    )


def _as_sent(task: AnyTask, record: Record, queue: str, about: TaskMetadata, alias: str) -> AnyTask:
    """Return the declared task with the changes that `using` made before it was sent."""
    sent: dict[str, Any] = {"queue_name": queue, "backend": alias, "run_after": about.run_after}
    if about.priority is not None:
        sent["priority"] = about.priority
    elif record.lane == "normal" and get_priority_class(task.priority) is not record.priority:
        sent["priority"] = get_priority_number(record.priority)
    if hasattr(task, "user_id"):
        sent["user_id"] = about.user_id
    if all(getattr(task, name) == value for name, value in sent.items()):
        return task
    return unvalidated_copy(task, sent)  # a task that was sent runs even in a queue that `enqueue` would refuse


def unvalidated_copy(task: AnyTask, changes: Mapping[str, Any]) -> AnyTask:
    """Return a copy of the task with ``changes``. The validation in Django's constructor is skipped."""
    copy: AnyTask = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(task, field.name)))
    return copy


def _is_run(attempt: Attempt) -> bool:
    """Return whether the function ran in this attempt. A worker that does not know the function only postpones the
    task.
    """
    return attempt.kind in ATTEMPT_KINDS and bool(attempt.worker) and _parse_exception_class(attempt) != NOT_REGISTERED


def _is_error(attempt: Attempt) -> bool:
    """Return whether an exception ended the attempt. A task that raised `Retry` has a reason, but no exception."""
    return attempt.kind in ERROR_KINDS and (attempt.kind != "failed" or _parse_exception_class(attempt) is not None)


def _class_path(attempt: Attempt) -> str:
    """Return the path of the exception's class. For a failure without an exception (a crash, an expiry), return an
    error class that represents the failure.
    """
    if attempt.kind == "discarded" and attempt.worker:
        return DISCARD
    if attempt.kind in ("canceled", "discarded"):
        return CANCELED
    return _parse_exception_class(attempt) or FAILED


def _parse_exception_class(attempt: Attempt) -> str | None:
    """Return the exception class at the beginning of the text; None if the text has none."""
    path = attempt.error.partition(":")[0]
    if attempt.kind not in ("failed", "poisoned") or not CLASS_PATH.fullmatch(path):
        return None
    if "." in path:
        return path
    found = getattr(builtins, path, None)
    return f"builtins.{path}" if isclass(found) and issubclass(found, BaseException) else None


def _moment(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment if settings.USE_TZ else make_naive(moment, get_default_timezone())
