"""The options of a task: those of the decorator, those of one call, and their checks."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict, Union, get_type_hints

from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.priority import Priority

from .errors import TaskUsageError

MAX_BATCH = 1000
MEMORY_PATTERN = re.compile(r"([0-9]{1,9}) ?(MB|GB)", re.IGNORECASE)
DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
MAX_LOG_LEVEL = 1000
MEMORY_UNITS = {"MB": 2**20, "GB": 2**30}
ON_DEPENDENCY_FAILURE_VALUES = ("wait", "cancel", "run")
"""Those of the engine's tasks (not imported: it would cost every web process pydantic)."""

Check = Callable[[Any, str], Any]
"""``(value, name)`` -> the value as it is kept; `ValueError` says what was expected."""
Seconds = Union[float, timedelta]  # noqa: UP007 - evaluated on 3.10 too
Moment = Union[float, datetime, timedelta]  # noqa: UP007
OwnBackoff = Callable[[int, BaseException], float | timedelta | None]
"""``(retries so far, error)`` -> seconds until the next attempt, None to give up."""


class Backoff(TypedDict, total=False):
    """The delay before a retry: ``base × 2^retries`` seconds, at most ``cap``, lengthened at random by up to the
    fraction ``jitter``.

    Values that are not given are the queue's: ``base`` 1 second, ``cap`` 3600 seconds, ``jitter`` 0.1 by default.
    """

    base: float
    cap: float
    jitter: float


class _SharedOptions(TypedDict, total=False):
    priority: Priority | int
    queue: str
    max_retries: int | None
    max_deliveries: int | None
    timeout: Seconds | None
    delay: Seconds | None
    sla: Seconds | None
    on_dependency_failure: str
    unique_for: Seconds | None
    debounce: Seconds | None
    debounce_max_wait: Seconds | None
    task_id: str | None
    depends_on: object
    """An id or a result of `enqueue`, or several."""


class DeclaredOptions(_SharedOptions, total=False):
    """What ``@task(…)`` takes, in addition to ``batch``. Lengths of time are seconds or a timedelta."""

    name: str
    user: str | Callable[..., object]
    expires: Seconds | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    backoff: Backoff | OwnBackoff | None
    batch_wait: Seconds
    isolated: bool
    max_memory: str | None
    capture_logs: bool | int | str
    middleware: Sequence[object]
    """Subclasses of `TaskMiddleware`, instances, or their dotted paths."""


class SendOptions(_SharedOptions, total=False):
    """What ``.using(…)`` takes."""

    user_id: object
    execute_after: Moment | None
    expires_at: Moment | None
    on_commit: bool | None
    database: str | None


DECLARABLE: frozenset[str] = DeclaredOptions.__optional_keys__ | {"batch"}
SENDABLE = SendOptions.__optional_keys__


def user_id(value: object, name: str) -> str:
    """An id from what applications call their users by: text, an integer key or a UUID (as text)."""
    import uuid

    if (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, uuid.UUID):
        value = str(value)
    if not isinstance(value, str):
        raise TaskValidationError(
            f"{name} must be text, an integer or a UUID, got {type(value).__name__} {short(value)}; pass the key of the user"
        )
    return check_id(value, name)


CELERY_OPTIONS = {
    "countdown": "delay",
    "eta": "execute_after",
    "time_limit": "timeout",
    "soft_time_limit": "timeout",
    "autoretry_for": "retry_on",
    "default_retry_delay": "backoff",
    "retry_backoff": "backoff",
    "routing_key": "queue",
    "queue_name": "queue",
    "run_after": "execute_after",
}
"""Our name for an option of Celery or of `django.tasks`."""


def celery_hint(name: str) -> str:
    """What to write in place of an argument of ``apply_async``; empty for any other name."""
    option = CELERY_OPTIONS.get(name, name if name in SENDABLE else "")
    return f"{name} is no argument of the task: write .using({option}=…).enqueue(…)" if option else ""


def unknown_option(name: str, allowed: frozenset[str]) -> str:
    """The hint for an unknown option: the place where it belongs, the nearest name, or all names."""
    known = CELERY_OPTIONS.get(name, "")
    if known in allowed and known:
        return f"unknown option {name!r}; it is called {known!r} here"
    known = known or name
    if known in SENDABLE and allowed is DECLARABLE:
        return f"{known!r} is an option of one call, not of the declaration: write .using({known}=…).enqueue(…)"
    if known in DECLARABLE and allowed is SENDABLE:
        return f"{known!r} is an option of the declaration, not of one call: write @task({known}=…)"
    return f"unknown option {short(name)}; {suggestion(name, sorted(allowed))}"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {short(value)}")
    return value


def _or_none(check: Check) -> Check:
    return lambda value, name: None if value is None else check(value, name)


@_or_none
def _delay(value: Any, name: str) -> float | None:
    return duration(value, name) or None


@_or_none
def _positive(value: Any, name: str) -> float:
    checked = duration(value, name)
    if checked == 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {short(value)}; leave it out for no {name}")
    return checked


def _moment(value: Any, name: str) -> Any:
    moment(value, name)  # a timedelta is kept: it counts from when the task is sent
    return value


def _whole(least: int, most: int) -> Check:
    def check(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError(f"{name} must be an integer from {least} to {most}, got {short(value)}")
        return value

    return check


def _user(value: Any, name: str) -> Any:
    if callable(value) or (isinstance(value, str) and value):
        return value
    raise ValueError(
        f"{name} must be the name of an argument or a callable of the task's arguments, got {short(value)}"
    )


def _retry_on(value: Any, name: str) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError(f"{name} must be an exception class or a tuple of them, got {short(kind)}")  # noqa: TRY004
    return kinds


def _backoff(value: Any, name: str) -> Any:
    if value is None or callable(value):
        return value
    known = Backoff.__annotations__
    if not isinstance(value, Mapping):
        raise ValueError(  # noqa: TRY004
            f"{name} must be a mapping of {', '.join(known)}, or a function of (retries, error), got {short(value)}"
        )
    for key in value:
        if key not in known:
            raise ValueError(f"{name}: {unknown_option(str(key), frozenset(known))}")
    checked = {key: duration(number, f"{name}[{key!r}]") for key, number in value.items()}
    if checked.get("jitter", 0) > 1:
        raise ValueError(f"{name}['jitter'] must be a fraction from 0 to 1, got {short(value['jitter'])}")
    return checked


def _dependencies(value: Any, name: str) -> tuple[str, ...]:
    """Ids, or whatever has one: the results of what was enqueued before. One is as good as a sequence of one."""
    several = [value] if isinstance(value, str) or hasattr(value, "id") else value
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise ValueError(  # noqa: TRY004
            f"{name} must be a task id, a result of enqueue(), or a sequence of these, got {short(value)}"
        )
    ids = []
    for each in several:
        if hasattr(each, "results"):
            raise ValueError(
                f"{name} names tasks, got the run {short(each)}; name those of its tasks to wait for: run[step]"
            )
        ids.append(check_id(getattr(each, "id", each), f"a task id in {name}"))
    return tuple(ids)


def _policy(value: Any, name: str) -> str:
    if value not in ON_DEPENDENCY_FAILURE_VALUES:
        raise ValueError(f"{name} must be one of {', '.join(ON_DEPENDENCY_FAILURE_VALUES)}, got {short(value)}")
    return str(value)


def _priority(value: Any, _name: str) -> Priority:
    return Priority.from_int(value)


def _switch(value: Any, name: str) -> bool:
    return bool(_flag(value, name))


def _flag(value: Any, name: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be True, False or None (as configured), got {short(value)}")
    return value


@_or_none
def _memory(value: Any, name: str) -> int:
    found = MEMORY_PATTERN.fullmatch(value) if isinstance(value, str) else None
    size = int(found[1]) * MEMORY_UNITS[found[2].upper()] if found else 0
    if not size:
        raise ValueError(f'{name} must be a text of a whole number and MB or GB, as "500MB", got {value!r:.80}')
    return size


def _log_level(value: Any, name: str) -> int | None:
    if value is None or isinstance(value, bool):
        return logging.NOTSET if value else None
    level = logging.getLevelName(value.upper()) if isinstance(value, str) else value
    if not isinstance(level, int) or not 0 <= level <= MAX_LOG_LEVEL:
        raise ValueError(f"{name} must be True, False or the name or number of a log level, got {short(value)}")
    return level


def _middleware(value: Any, name: str) -> tuple[object, ...]:
    several = [value] if isinstance(value, str) or not isinstance(value, Iterable) else value
    for each in several:
        if not (isinstance(each, str) and DOTTED_PATH.fullmatch(each)) and not hasattr(each, "around_run"):
            raise ValueError(
                f"{name} must be a list of subclasses of TaskMiddleware, instances, or their dotted paths, got {short(each)}"
            )
    return tuple(several)


@dataclass(frozen=True)
class TaskOptions:
    """Checked options, each with its check; lengths of time in seconds. None leaves a thing to the queue's or worker's
    configuration.
    """

    priority: Annotated[Priority, _priority] = Priority.NORMAL
    queue: Annotated[str, _text] = "default"
    user: Annotated[str | Callable[..., object] | None, _user] = None
    user_id: Annotated[str | None, user_id] = None
    max_retries: Annotated[int | None, _or_none(_whole(0, 1000))] = None
    max_deliveries: Annotated[int | None, _or_none(_whole(1, 1000))] = None
    timeout: Annotated[float | None, _positive] = None
    delay: Annotated[float | None, _delay] = None
    execute_after: Annotated[Moment | None, _moment] = None
    expires: Annotated[float | None, _positive] = None
    expires_at: Annotated[Moment | None, _moment] = None
    sla: Annotated[float | None, _positive] = None
    retry_on: Annotated[Sequence[type[BaseException]], _retry_on] = (BaseException,)
    backoff: Annotated[Backoff | OwnBackoff | None, _backoff] = None
    unique_for: Annotated[float | None, _positive] = None
    debounce: Annotated[float | None, _positive] = None
    debounce_max_wait: Annotated[float | None, _positive] = None
    batch: Annotated[int, _whole(1, MAX_BATCH)] = 0
    batch_wait: Annotated[float, duration] = 0.0
    isolated: Annotated[bool, _switch] = False
    max_memory: Annotated[int | None, _memory] = None
    """Bytes."""
    capture_logs: Annotated[int | None, _log_level] = None
    """The lowest level of log records that are kept; None for none."""
    middleware: Annotated[tuple[object, ...], _middleware] = ()
    task_id: Annotated[str | None, _or_none(check_id)] = None
    depends_on: Annotated[tuple[str, ...], _dependencies] = ()
    on_dependency_failure: Annotated[str, _policy] = "wait"
    on_commit: Annotated[bool | None, _flag] = None
    database: Annotated[str | None, _or_none(_text)] = None

    @property
    def is_separate(self) -> bool:
        """Whether each run has a separate process."""
        return self.isolated or self.max_memory is not None

    @property
    def is_constant(self) -> bool:
        """Whether they mean the same at each call: no moment, id or key is computed for it."""
        computed = (
            self.task_id,
            self.execute_after,
            self.expires_at,
            self.unique_for,
            self.debounce,
        )
        return all(each is None for each in computed)

    @property
    def names_user(self) -> bool:
        """Whether they say whom a task is for; else it is the current user."""
        return self.user_id is not None or self.user is not None


REPLACES = {"delay": "execute_after", "execute_after": "delay", "expires": "expires_at", "expires_at": "expires"}
"""Two ways of saying one thing: the later one takes the place of the earlier."""


_CHECKS: dict[str, Check] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(TaskOptions, include_extras=True).items()
}


def changed(options: TaskOptions, changes: Mapping[str, Any], allowed: frozenset[str], where: str) -> TaskOptions:
    """``options`` with ``changes``, each checked; `TaskUsageError` says where, what was expected and what came."""
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in allowed:
            raise TaskUsageError(f"{where}: {unknown_option(name, allowed)}")
        other = REPLACES.get(name)
        if other is not None and other in changes and value is not None and changes[other] is not None:
            raise TaskUsageError(f"{where}: {name} and {other} say the same thing in two ways: give one of them")
        try:
            checked[name] = _CHECKS[name](value, name)
        except ValueError as error:
            raise TaskUsageError(f"{where}: {error}") from None
        if other and other not in changes:
            checked[other] = None
    result = replace(options, **checked)
    for problem in contradictions(result):
        raise TaskUsageError(f"{where}: {problem}")
    return result


def checked_option(name: str, value: Any, label: str) -> Any:
    """The value of one option as `TaskOptions` keeps it; `ValueError` says what was expected of the ``label``."""
    return _CHECKS[name](value, label)


def contradictions(options: TaskOptions) -> list[str]:
    """What is wrong with options that are right one by one."""
    problems = []
    if options.unique_for is not None and options.debounce is not None:
        problems.append("unique_for keeps the first of several and debounce the last: give one, and None for the other")
    if options.debounce is not None and (options.delay is not None or options.execute_after is not None):
        problems.append("debounce is a delay itself: give no other")
    if options.debounce_max_wait is not None and options.debounce is None:
        problems.append("debounce_max_wait says for how long debounce may go on: give debounce as well")
    elif options.debounce_max_wait is not None and options.debounce_max_wait < (options.debounce or 0):
        problems.append(
            f"debounce_max_wait ({options.debounce_max_wait:g} s) is less than debounce ({options.debounce:g} s)"
        )
    if options.delay is not None and options.expires is not None and options.expires <= options.delay:
        problems.append(f"it would expire ({options.expires:g} s) before it may start ({options.delay:g} s)")
    if options.batch_wait and not options.batch:
        problems.append("batch_wait is how long a batch waits to be filled: give batch (its size) as well")
    if options.is_separate and options.batch:
        option = "isolated" if options.isolated else "max_memory"
        problems.append(f"{option} runs each task in a separate process, and batch many in one call: give one of them")
    if options.capture_logs is not None and options.batch:
        problems.append("capture_logs keeps the lines of one task, and a batch is one call for many: give one of them")
    return problems
