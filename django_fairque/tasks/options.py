"""The options of a task: those of the decorator, those of one call, and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, Union

from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.priority import Priority

from .errors import TaskUsageError

MAX_BATCH = 1000
MEMORY_PATTERN = re.compile(r"([0-9]{1,9}) ?(MB|GB)", re.IGNORECASE)
MEMORY_UNITS = {"MB": 2**20, "GB": 2**30}
ON_DEPENDENCY_FAILURE_VALUES = ("wait", "cancel", "run")
"""Those of the engine's tasks (not imported: it would cost every web process pydantic)."""

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


class DeclaredOptions(TypedDict, total=False):
    """What ``@task(…)`` takes, in addition to ``batch``. Lengths of time are seconds or a timedelta."""

    name: str
    priority: Priority | int
    queue: str
    user: str | Callable[..., object]
    max_retries: int | None
    timeout: Seconds | None
    delay: Seconds | None
    expires: Seconds | None
    sla: Seconds | None
    on_dependency_failure: str
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    backoff: Backoff | OwnBackoff | None
    unique_for: Seconds | None
    debounce: Seconds | None
    debounce_max_wait: Seconds | None
    batch_wait: Seconds
    isolated: bool
    max_memory: str | None


class SendOptions(TypedDict, total=False):
    """What ``.using(…)`` takes."""

    user_id: object
    priority: Priority | int
    queue: str
    delay: Seconds | None
    execute_after: Moment | None
    expires_at: Moment | None
    task_id: str | None
    max_retries: int | None
    timeout: Seconds | None
    sla: Seconds | None
    unique_for: Seconds | None
    debounce: Seconds | None
    debounce_max_wait: Seconds | None
    depends_on: object
    """An id or a result of `enqueue`, or several."""
    on_dependency_failure: str
    on_commit: bool | None
    database: str | None


@dataclass(frozen=True)
class TaskOptions:
    """Checked options; lengths of time in seconds. None leaves a thing to the queue's or worker's configuration."""

    priority: Priority = Priority.NORMAL
    queue: str = "default"
    user: str | Callable[..., object] | None = None
    user_id: str | None = None
    max_retries: int | None = None
    timeout: float | None = None
    delay: float | None = None
    execute_after: Moment | None = None
    expires: float | None = None
    expires_at: Moment | None = None
    sla: float | None = None
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    backoff: Backoff | OwnBackoff | None = None
    unique_for: float | None = None
    debounce: float | None = None
    debounce_max_wait: float | None = None
    batch: int = 0
    batch_wait: float = 0.0
    isolated: bool = False
    max_memory: int | None = None
    """Bytes."""
    task_id: str | None = None
    depends_on: tuple[str, ...] = ()
    on_dependency_failure: str = "wait"
    on_commit: bool | None = None
    database: str | None = None

    @property
    def is_separate(self) -> bool:
        """Whether each run has a separate process."""
        return self.isolated or self.max_memory is not None

    @property
    def names_user(self) -> bool:
        """Whether they say whom a task is for; else it is the current user."""
        return self.user_id is not None or self.user is not None


REPLACES = {
    "delay": "execute_after",
    "execute_after": "delay",
    "expires": "expires_at",
    "expires_at": "expires",
}
"""Two ways of saying one thing: the later one takes the place of the earlier."""


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
    for problem in _contradictions(result):
        raise TaskUsageError(f"{where}: {problem}")
    return result


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


def unknown_option(name: str, allowed: frozenset[str]) -> str:
    """The hint for an unknown option: the nearest name, or all names."""
    return f"unknown option {short(name)}; {suggestion(name, sorted(allowed))}"


def _contradictions(options: TaskOptions) -> list[str]:
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
    return problems


def _priority(value: Any, _name: str) -> Priority:
    return Priority.from_int(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {short(value)}")
    return value


def _chosen_id(value: Any, name: str) -> str | None:
    return None if value is None else check_id(value, name)


def _optional_text(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _delay(value: Any, name: str) -> float | None:
    return None if value is None else duration(value, name) or None


def _positive(value: Any, name: str) -> float | None:
    checked = None if value is None else duration(value, name)
    if checked == 0:
        raise ValueError(f"{name} must be more than 0 seconds, got {short(value)}; leave it out for no {name}")
    return checked


def _moment(value: Any, name: str) -> Any:
    moment(value, name)  # converted when the task is sent: a timedelta counts from then
    return value


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {short(value)}")
    return value


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
    return tuple(_dependency(each, name) for each in several)


def _dependency(value: Any, name: str) -> str:
    if hasattr(value, "results"):
        raise ValueError(
            f"{name} names tasks, got the run {short(value)}; name those of its tasks to wait for: run[step]"
        )
    return check_id(getattr(value, "id", value), f"a task id in {name}")


def _policy(value: Any, name: str) -> str:
    if value not in ON_DEPENDENCY_FAILURE_VALUES:
        raise ValueError(f"{name} must be one of {', '.join(ON_DEPENDENCY_FAILURE_VALUES)}, got {short(value)}")
    return str(value)


def _flag(value: Any, name: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be True, False or None (as configured), got {short(value)}")
    return value


def _memory(value: Any, name: str) -> int | None:
    if value is None:
        return None
    found = MEMORY_PATTERN.fullmatch(value) if isinstance(value, str) else None
    size = int(found[1]) * MEMORY_UNITS[found[2].upper()] if found else 0
    if not size:
        raise ValueError(f'{name} must be a text of a whole number and MB or GB, as "500MB", got {value!r:.80}')
    return size


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "priority": _priority,
    "queue": _text,
    "user": _user,
    "user_id": user_id,
    "max_retries": lambda value, name: None if value is None else _whole(value, name, 0, 1000),
    "timeout": _positive,
    "delay": _delay,
    "execute_after": _moment,
    "expires": _positive,
    "expires_at": _moment,
    "sla": _positive,
    "retry_on": _retry_on,
    "backoff": _backoff,
    "unique_for": _positive,
    "debounce": _positive,
    "debounce_max_wait": _positive,
    "batch": lambda value, name: _whole(value, name, 1, MAX_BATCH),
    "batch_wait": duration,
    "isolated": lambda value, name: bool(_flag(value, name)),
    "max_memory": _memory,
    "task_id": _chosen_id,
    "depends_on": _dependencies,
    "on_dependency_failure": _policy,
    "on_commit": _flag,
    "database": _optional_text,
}

DECLARABLE = frozenset(DeclaredOptions.__annotations__) | {"batch"}
SENDABLE = frozenset(SendOptions.__annotations__)
