"""The options of a task: the options of the decorator, the options of one call, and the checks of both."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypedDict, Union, get_type_hints

from django.conf import settings
from django.utils import timezone

from django_fairque.engine.model.durations import duration, moment
from django_fairque.engine.model.errors import TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import check_id, split_names
from django_fairque.engine.model.lanes import Lane, check_lane, check_lane_and_priority
from django_fairque.engine.model.priority import Priority

from .errors import TaskUsageError
from .limits import Limit, check_limits

MAX_BATCH = 1000
TASK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
MEMORY_PATTERN = re.compile(r"([0-9]{1,9}) ?(MB|GB)", re.IGNORECASE)
DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
MAX_LOG_LEVEL = 1000
MEMORY_UNITS = {"MB": 2**20, "GB": 2**30}
ON_DEPENDENCY_FAILURE_VALUES = ("wait", "cancel", "run")
"""The same values as in the engine's `Task`. The list is repeated here, because importing the engine's model would make
every web process import pydantic."""

Check = Callable[[Any, str], Any]
"""A function ``(value, name)`` that returns the checked value in the form that is kept. Its `ValueError` contains the
expected form."""
Seconds = Union[float, timedelta]  # noqa: UP007 - evaluated on 3.10 too
Moment = Union[float, datetime, timedelta]  # noqa: UP007
OwnBackoff = Callable[[int, BaseException], float | timedelta | None]
"""A function ``(retries so far, error)`` that returns the seconds until the next attempt, or None to give up."""


class Backoff(TypedDict, total=False):
    """The delay before a retry: ``base × 2^retries`` seconds, at most ``cap``. A random part is added, up to the
    fraction ``jitter`` of the delay.

    Missing values are taken from the queue, whose defaults are ``base`` 1 second, ``cap`` 3600 seconds and ``jitter``
    0.1.
    """

    base: float
    cap: float
    jitter: float


class _SharedOptions(TypedDict, total=False):
    priority: Priority | int
    lane: Lane | None
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
    """The id of a task, the result of `enqueue`, or a sequence of these."""


class DeclaredOptions(_SharedOptions, total=False):
    """The options of ``@task(…)``, in addition to ``batch``. Lengths of time are seconds or a timedelta."""

    name: str
    user: str | Callable[..., object]
    expires: Seconds | None
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    backoff: Backoff | OwnBackoff | None
    batch_wait: Seconds
    isolated: bool
    max_memory: str | None
    capture_logs: bool | int | str
    limits: Limit | Sequence[Limit]
    middleware: Sequence[object]
    """Subclasses of `TaskMiddleware`, their instances, or their dotted paths."""


class SendOptions(_SharedOptions, total=False):
    """The options of ``.using(…)``."""

    user_id: object
    execute_after: Moment | None
    expires_at: Moment | None
    on_commit: bool | None
    database: str | None


DECLARABLE: frozenset[str] = DeclaredOptions.__optional_keys__ | {"batch"}
SENDABLE = SendOptions.__optional_keys__
ENGINE_OPTIONS = split_names("""
    task_id max_deliveries execute_after delay expires_at expires sla timeout unique_for debounce debounce_max_wait
    depends_on on_dependency_failure
""")
"""Names of options that are passed unchanged to the engine's task."""


def user_id(value: object, name: str) -> str:
    """Return the id of a user as text. A project can pass a text, an integer key or a UUID."""
    import uuid

    if (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, uuid.UUID):
        value = str(value)
    if not isinstance(value, str):
        raise TaskValidationError(
            f"{name} must be text, an integer or a UUID, got {type(value).__name__} {short(value)}; pass the key of the user"
        )
    return check_id(value, name)


def celery_hint(name: str) -> str:
    """Return the hint for an argument of Celery's ``apply_async``; empty for any other name."""
    option = CELERY_OPTIONS.get(name, name if name in SENDABLE else "")
    return f"{name} is no argument of the task: write .using({option}=…).enqueue(…)" if option else ""


def unknown_option(name: str, allowed: frozenset[str]) -> str:
    """Return the hint for an unknown option: the place where the option can be used, or the option with the most
    similar name, or the names of all options.
    """
    if name in NEEDLESS_OPTIONS:
        return f"unknown option {name!r}; leave it out: {NEEDLESS_OPTIONS[name]}"
    known = CELERY_OPTIONS.get(name, "")
    if known in allowed and known:
        return f"unknown option {name!r}; it is called {known!r} here"
    known = known or name
    if known in SENDABLE and allowed is DECLARABLE:
        return f"{known!r} is an option of one call, not of the declaration: write .using({known}=…).enqueue(…)"
    if known in DECLARABLE and allowed is SENDABLE:
        other = " or .using(expires_at=timedelta(…))" if known == "expires" else ""
        return f"{known!r} is an option of the declaration, not of one call: write @task({known}=…){other}"
    return f"unknown option {short(name)}; {suggestion(name, sorted(allowed))}"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, got {short(value)}")
    return value


def _task_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or not TASK_NAME.fullmatch(value):
        raise ValueError(
            f"{name} must be 1 to 200 letters, digits, '_', '.', ':' or '-', and begin with a letter, digit or '_'; "
            f"got {short(value)}"
        )
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
    if isinstance(value, datetime) and value.tzinfo is None and not settings.USE_TZ:
        value = timezone.make_aware(value)  # like Django, interpret a naive datetime in TIME_ZONE
    moment(value, name)  # a timedelta is kept, because it is counted from the time when the task is sent
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
    """Return the ids of tasks to depend on. ``value`` is a task id, a result of `enqueue`, or a sequence of these."""
    several = [value] if isinstance(value, str) or hasattr(value, "id") else value
    if isinstance(several, bytes) or not isinstance(several, Iterable):
        raise ValueError(  # noqa: TRY004
            f"{name} must be a task id, a result of enqueue(), or a sequence of these, got {short(value)}"
        )
    ids = []
    for dependency in several:
        if hasattr(dependency, "results"):
            raise ValueError(
                f"{name} names tasks, got the run {short(dependency)}; name those of its tasks to wait for: run[step]"
            )
        ids.append(check_id(getattr(dependency, "id", dependency), f"a task id in {name}"))
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
    for entry in several:
        if not (isinstance(entry, str) and DOTTED_PATH.fullmatch(entry)) and not hasattr(entry, "around_run"):
            raise ValueError(
                f"{name} must be a list of subclasses of TaskMiddleware, instances, or their dotted paths, got {short(entry)}"
            )
    return tuple(several)


class Option(NamedTuple):
    """The metadata of an option: its check, its default as a text, and its names in Celery and `django.tasks`."""

    check: Check
    default: str = "none"
    other_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskOptions:
    """All options of `@task` and ``.using(…)``, with their checked values: lengths of time in seconds, sizes in bytes.
    If an option is None, the queue or the worker determines the value.

    The docstring of an option is also used in the documentation and in the docstrings of `@task` and ``using``, where
    ``python -m tests.tools.task_options`` writes it.
    """

    name: Annotated[str, Option(_task_name, "``module.qualname``")] = ""
    """The name of the task in the queue. Keep the name when you move the function."""
    user: Annotated[str | Callable[..., object] | None, Option(_user, "the current user", ("tenant", "customer"))] = (
        None
    )
    """The user that a task is for: the name of an argument that contains the user, or a function that gets the
    arguments and returns the user."""
    user_id: Annotated[str | None, Option(user_id, "the user that the declaration names")] = None
    """The user that the call is for: text, an integer or a UUID."""
    priority: Annotated[Priority, Option(_priority, "``NORMAL``")] = Priority.NORMAL
    """The order among the tasks of the same user, from ``VERY_LOW`` to ``VERY_HIGH``, or ``CRITICAL``."""
    lane: Annotated[
        Lane | None, Option(_or_none(check_lane), "that of the block or the running task, else ``normal``")
    ] = None
    """The lane, which orders the tasks of all users: ``urgent`` if a person waits for the task, ``normal``, or ``bulk``
    if the task may wait for all other tasks. In the urgent and bulk lanes ``priority`` has no effect."""
    queue: Annotated[str, Option(_text, "``default``", ("routing_key", "queue_name"))] = "default"
    """The name of a declared queue."""
    max_retries: Annotated[int | None, Option(_or_none(_whole(0, 1000)), "the queue's, 3", ("retry_kwargs",))] = None
    """The number of attempts after the first."""
    max_deliveries: Annotated[int | None, Option(_or_none(_whole(1, 1000)), "the queue's, 5")] = None
    """The maximum number of starts if no start has an outcome, because the process dies or the lease ends. After that
    the task is a dead letter of type ``poisoned``. With 1 (and ``max_retries=0``) the task never starts a second time: it is
    a dead letter even if another task ended its process, or if its worker was stopped while it ran."""
    retry_on: Annotated[Sequence[type[BaseException]], Option(_retry_on, "every exception", ("autoretry_for",))] = (
        BaseException,
    )
    """The exceptions after which a task is tried again. After any other exception the task is a dead letter at once."""
    backoff: Annotated[
        Backoff | OwnBackoff | None,
        Option(
            _backoff, "1, 2, 4, 8 … s", ("default_retry_delay", "retry_backoff", "retry_backoff_max", "retry_jitter")
        ),
    ] = None
    """The delay before a retry: ``{"base": 1, "cap": 3600, "jitter": 0.1}``, or a function of (retries so far, error)
    that returns seconds, or None to stop retrying. The function is also called after the last failure."""
    timeout: Annotated[
        float | None, Option(_positive, "the queue's, else the worker's, 300 s", ("time_limit", "soft_time_limit"))
    ] = None
    """The maximum time of one attempt. A longer attempt fails and is always retried."""
    delay: Annotated[float | None, Option(_delay, "none", ("countdown",))] = None
    """The time until a task may start, counted by the server."""
    execute_after: Annotated[Moment | None, Option(_moment, "none", ("eta", "run_after"))] = None
    """The moment at which a task may start; a timedelta has the same meaning as in ``delay``."""
    expires: Annotated[float | None, Option(_positive)] = None
    """The time after which a task that has not started becomes a dead letter, counted by the server. The task is not
    retried after this time either."""
    expires_at: Annotated[Moment | None, Option(_moment)] = None
    """The moment at which a task that has not started becomes a dead letter; a timedelta has the same meaning as in
    ``expires``."""
    sla: Annotated[float | None, Option(_positive, "the priority's")] = None
    """The time within which a task should start."""
    task_id: Annotated[str | None, Option(_or_none(check_id), "a new one")] = None
    """The id of the task that each call makes. While a task with this id has not ended, sending the same id again has
    no effect."""
    depends_on: Annotated[tuple[str, ...], Option(_dependencies)] = ()
    """The task that must finish before, or several tasks: task ids, or results of ``enqueue``."""
    on_dependency_failure: Annotated[str, Option(_policy, "``wait``")] = "wait"
    """The reaction if a task that this task depends on fails: ``wait``, ``cancel`` or ``run``."""
    unique_for: Annotated[float | None, Option(_positive)] = None
    """The time in which equal calls for the same user result in only one task. The time begins with the first call."""
    debounce: Annotated[float | None, Option(_positive)] = None
    """The time to wait for another call with the same arguments, which starts the wait again. The task gets ``expires``
    of the last call and ``depends_on`` of the first call."""
    debounce_max_wait: Annotated[float | None, Option(_positive, "ten times ``debounce``")] = None
    """The maximum time from the first call until the wait ends."""
    isolated: Annotated[bool, Option(_switch, "``False``")] = False
    """Run each task alone in a separate process, so that no other task can end its process."""
    max_memory: Annotated[int | None, Option(_memory)] = None
    """The maximum resident memory of the task's process, for example ``"500MB"`` or ``"2GB"``. The task runs alone in a
    separate process, which is ended if it uses more. Only that task fails."""
    capture_logs: Annotated[int | None, Option(_log_level, "``False``")] = None
    """Keep the log lines of each attempt: ``True``, or the lowest level to keep, such as ``"INFO"``. Not for
    batches."""
    middleware: Annotated[tuple[object, ...], Option(_middleware, other_names=("base",))] = ()
    """Middleware of this task, inside the middleware of the setting ``MIDDLEWARE``: subclasses of ``TaskMiddleware``,
    instances, or their dotted paths."""
    limits: Annotated[tuple[Limit, ...], Option(check_limits, "none", ("rate_limit",))] = ()
    """At most four limits (``Concurrency`` or ``Rate``), each with a key. All tasks that name the same key share the
    limit."""
    batch: Annotated[int, Option(_whole(1, MAX_BATCH))] = 0
    """The maximum number of items in the list with which the function is called, from 1 to 1000."""
    batch_wait: Annotated[float, Option(duration, "0")] = 0.0
    """The maximum time to wait until a batch is full."""
    on_commit: Annotated[bool | None, Option(_flag, "the setting ``ENQUEUE_ON_COMMIT``, true")] = None
    """Send the task when the database transaction commits. ``False`` sends at once, even inside a transaction."""
    database: Annotated[str | None, Option(_or_none(_text), "the first one with an open transaction")] = None
    """The alias of the database whose transaction the task waits for."""

    @property
    def is_separate(self) -> bool:
        """Whether each attempt runs in a separate process."""
        return self.isolated or self.max_memory is not None

    @property
    def is_constant(self) -> bool:
        """Whether the options have the same values in each call, because no moment, id or key is computed for a
        call.
        """
        computed = (
            self.task_id,
            self.execute_after,
            self.expires_at,
            self.unique_for,
            self.debounce,
        )
        return all(value is None for value in computed) and not any(limit.is_computed for limit in self.limits)

    @property
    def names_user(self) -> bool:
        """Whether the options determine the user of a task. If not, the task is for the current user."""
        return self.user_id is not None or self.user is not None


REPLACES = {"delay": "execute_after", "execute_after": "delay", "expires": "expires_at", "expires_at": "expires"}
"""Pairs of options that exclude each other: setting one option removes the other, which was set before."""


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(TaskOptions, include_extras=True).items()
}
CELERY_OPTIONS = {other: name for name, option in OPTIONS.items() for other in option.other_names}
"""The name of this package's option, by the name of the option in Celery or `django.tasks`."""
NEEDLESS_OPTIONS = {
    "bind": "current_task() in the task takes the place of self",
    "acks_late": "a task is always kept until it has ended",
    "ignore_result": "results are kept for RESULT_TTL",
}


def change_options(
    options: TaskOptions, changes: Mapping[str, Any], allowed: frozenset[str], where: str
) -> TaskOptions:
    """Return ``options`` with the checked ``changes``. Raise `TaskUsageError`, which names the call or declaration, the
    expected value and the given value.
    """
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in allowed:
            raise TaskUsageError(f"{where}: {unknown_option(name, allowed)}")
        other = REPLACES.get(name)
        if other is not None and other in changes and value is not None and changes[other] is not None:
            raise TaskUsageError(f"{where}: {name} and {other} say the same thing in two ways: give one of them")
        try:
            checked[name] = OPTIONS[name].check(value, name)
        except ValueError as error:
            raise TaskUsageError(f"{where}: {error}") from None
        if other and other not in changes:
            checked[other] = None
    result = replace(options, **checked)
    for problem in contradictions(result):
        raise TaskUsageError(f"{where}: {problem}")
    return result


def checked_option(name: str, value: Any, label: str) -> Any:
    """Return the value of an option in the form that `TaskOptions` keeps. Raise `ValueError` with the ``label`` and the
    expected value.
    """
    return OPTIONS[name].check(value, label)


def contradictions(options: TaskOptions) -> list[str]:
    """Return the problems of options that are valid separately but not together."""
    problems = []
    try:
        check_lane_and_priority(options.lane or "normal", options.priority)
    except TaskValidationError as error:
        problems.append(str(error))
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
