"""`Task`, and the forms in which tasks are sent to the server and read from it.

Python uses seconds (floats, since the epoch for moments), the scripts integer microseconds (`to_us`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from django_fairque.engine.model import durations
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model import trace_context as traces
from django_fairque.engine.model.durations import (
    check_integer,
    duration,
    moment_or_span,
    positive_us,
    round_seconds,
    seconds,
    to_us,
)
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError, short
from django_fairque.engine.model.ids import check_encodable, check_id, new_task_id
from django_fairque.engine.model.lanes import (
    Lane,
    check_lane,
    check_lane_and_priority,
    class_of,
    read_lane,
    read_priority,
)
from django_fairque.engine.model.limits import TaskLimit, check_limits, decode_limits, divide_limits, encode_limits
from django_fairque.engine.model.payload import pack, unpack
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.signature import split_signature

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from typing_extensions import Unpack

    from django_fairque.engine.model.options import LanesConfig, QueueConfig

MAX_TASK_NAME_CHARACTERS = 200
MAX_DEPENDENCIES = 5000

DependencyFailurePolicy = Literal["wait", "cancel", "run"]
"""The reaction of a task to a dependency that fails: wait until it is requeued and finishes, be canceled, or run anyhow."""
DEPENDENCY_FAILURE_POLICIES: tuple[DependencyFailurePolicy, ...] = ("wait", "cancel", "run")

CHOSEN_ID_FIELD = "chosen"

LEASE_FIELDS = (
    *("id", "token", "deliveries", "lease", "payload", "user", "name", "priority", "created", "ready"),
    *("retries", "max_retries", "timeout", "due", "expires", "deadline", "run"),
    *("trace", "suspect"),
)
"""The values of a lease, in order: bytes, empty if there is no value. `leases_of_reply` takes them from a script's reply."""


@dataclass(frozen=True)
class Undecodable:
    """Replaces a payload that is not valid JSON. ``raw`` is the payload, ``error`` the reason."""

    raw: bytes
    error: str


class Kind(NamedTuple):
    """The conversion of a kind of value between Python and its form in records and templates.

    ``write`` returns the form of a value, and ``read`` the value of a form in bytes. An empty form means no value.
    """

    write: Callable[[Any], int | str | bytes]
    read: Callable[[bytes], Any]


class Stored(NamedTuple):
    """An annotation of an attribute of `Task`, which describes how the attribute is stored and checked.

    ``field`` is the name in the record; empty if the form in the record depends on more than this attribute. ``check``
    is called by `Task.create` with a value and its name, and returns the value to keep; None if the value is only
    checked together with others.
    """

    field: str = ""
    kind: Kind = Kind(str, bytes.decode)
    """The form of the value in a record; text by default."""
    check: Callable[[Any, str], Any] | None = None


def _read_time(us: bytes) -> float | None:
    found = seconds(us)
    if found is not None and not 0 <= found <= durations.LATEST_TIME + durations.MAX_DURATION_SECONDS:
        raise ValueError(f"{us!r:.40} is no moment")
    return found


def _check_name(value: Any, name: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TASK_NAME_CHARACTERS:
        raise TaskValidationError(
            f"{name} must be a string of at most {MAX_TASK_NAME_CHARACTERS} characters, got {short(value)}"
        )
    if not value.isascii():
        check_encodable(value, name)
    return value


def _check_max_retries(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
        raise TaskValidationError(f"{name} must be an integer from 0 to 1000, got {short(value)}")
    return value


def _check_max_deliveries(value: Any, name: str) -> int:
    return check_integer(value, name, 1, 1000)


def _check_timeout(value: Any, name: str) -> float:
    return positive_us(value, name) / 1_000_000


def _check_optional_id(value: Any, name: str) -> str:
    return check_id(value, name) if value else value


def _check_dependencies(ids: Any, name: str) -> tuple[str, ...]:
    if not ids:
        return ()
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise TaskValidationError(f"{name} must be a sequence of task ids, got {type(ids).__name__} {short(ids)}")
    found = tuple(dict.fromkeys(check_id(task_id, f"a task id in {name}") for task_id in ids))
    if len(found) > MAX_DEPENDENCIES:
        raise TaskValidationError(f"a task may depend on at most {MAX_DEPENDENCIES:,} others, got {len(found):,}")
    return found


def _check_policy(value: Any, name: str) -> str:
    if not isinstance(value, str) or value not in DEPENDENCY_FAILURE_POLICIES:
        raise TaskValidationError(f"{name} must be one of {', '.join(DEPENDENCY_FAILURE_POLICIES)}, got {short(value)}")
    return value


COUNT = Kind(int, lambda text: int(text or 0))
TIME = Kind(to_us, _read_time)
PAST = Kind(to_us, lambda text: _read_time(text) or 0.0)
PRIORITY = Kind(int, read_priority)
OPTIONAL_PRIORITY = Kind(int, lambda text: Priority(int(text)) if text else None)
STATE = Kind(lambda state: state.value, lambda text: TaskState(text.decode()))
IDS = Kind(pack, lambda text: tuple(task_id.decode() for task_id in unpack(text)))
LIMITS = Kind(encode_limits, decode_limits)
RESULT = Kind(
    lambda value: json_payload.dumps(value, what="result"),
    lambda text: json_payload.loads(text, what="result") if text else None,
)


class CreateOptions(TypedDict, total=False):
    """The options of `Task.create`."""

    task_id: str | None
    name: str
    lane: Lane
    max_retries: int
    max_deliveries: int | None
    execute_after: float | datetime | timedelta | None
    delay: float | timedelta | None
    expires_at: float | datetime | timedelta | None
    expires: float | timedelta | None
    sla: float | timedelta | None
    timeout: float | timedelta | None
    unique_key: str
    unique_for: float | timedelta | None
    debounce: float | timedelta | None
    debounce_max_wait: float | timedelta | None
    limits: Iterable[TaskLimit]
    depends_on: Iterable[str]
    on_dependency_failure: DependencyFailurePolicy
    run_id: str
    traceparent: str
    tracestate: str
    max_payload_bytes: int


class Task(BaseModel):
    """One piece of work. Immutable; made by `Task.create`, or read from the server. ``Task(…)`` needs an id, and does
    not check the ranges of values.

    Moments are Unix times in seconds, lengths of time seconds. ``created_at``, ``state`` and ``sla_deadline`` of a
    task that was read from the server are the server's values; before the push they are this process's estimates
    (``sla_deadline`` is None). The server adds ``delay`` and ``expires`` to its own time when it accepts the task, so
    ``execute_after`` and ``expires_at`` of such a task are None before the push.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")

    task_id: Annotated[str, Stored("id")]
    """The id, unique in the queue."""
    user_id: Annotated[str, Stored("user")]
    """The user for which the task runs."""
    priority: Annotated[Priority, Stored("priority", PRIORITY)]
    """The urgency of the task among those of its user; `Priority.NORMAL` for urgent and bulk tasks."""
    payload: Any = None
    """Any JSON value."""
    name: Annotated[str, Stored("name", check=_check_name)] = ""
    """The kind of work; empty if there is none."""
    lane: Annotated[Lane, Stored(check=check_lane)] = "normal"
    """The lane: ``"urgent"``, ``"normal"`` or ``"bulk"``."""
    retry_count: Annotated[int, Stored("retries", COUNT)] = 0
    """The number of retries that are used up."""
    max_retries: Annotated[int, Stored("max_retries", COUNT, _check_max_retries)] = 3
    """The total number of retries."""
    max_deliveries: Annotated[int, Stored("max_deliveries", COUNT, _check_max_deliveries)] = 0
    """The largest number of starts without an outcome; 0 for the value of the queue."""
    created_at: Annotated[float, Stored("created", PAST)] = Field(default_factory=lambda: round_seconds(time.time()))
    execute_after: Annotated[float | None, Stored("due", TIME)] = None
    """The moment before which the task does not start; None for at once."""
    delay: Annotated[float | None, Stored("delay", TIME)] = None
    """Seconds after the push before which the task does not start; None for no delay, or if ``execute_after`` was given."""
    expires_at: Annotated[float | None, Stored("expires", TIME)] = None
    """The moment at which the task becomes a dead letter if it has not started; None for never."""
    expires: Annotated[float | None, Stored("lifetime", TIME)] = None
    """Seconds after the push at which the task becomes a dead letter if it has not started. None after the push, see
    ``expires_at``."""
    timeout: Annotated[float | None, Stored("timeout", TIME, _check_timeout)] = None
    """Seconds for which the task may run; None for the value of the queue or worker."""
    sla: Annotated[float | None, Stored("sla", TIME, duration)] = None
    """Seconds within which the task should start; None for the value of the user or priority."""
    state: Annotated[TaskState, Stored("state", STATE)] = TaskState.QUEUED
    sla_deadline: Annotated[float | None, Stored("deadline", TIME)] = None
    ready_at: Annotated[float | None, Stored("ready", TIME)] = None
    """The moment since which the task could start; None if that moment has not come."""
    unique_key: Annotated[str, Stored("unique", check=_check_optional_id)] = ""
    """Tasks of one user with the same key count as the same task; empty without a key."""
    unique_for: Annotated[float | None, Stored("unique_for", TIME, duration)] = None
    """Seconds after the push during which a task with the same key is a duplicate; None for no such time."""
    debounce: Annotated[float | None, Stored("debounce", TIME, duration)] = None
    """Seconds to wait for a later push of the same key; None for no debounce."""
    debounce_max_wait: Annotated[float | None, Stored("debounce_max_wait", TIME, duration)] = None
    """The most seconds between the first push and the end of the wait."""
    started_at: Annotated[float | None, Stored("started", TIME)] = None
    """The moment at which the last attempt started; None if none has."""
    ended_at: Annotated[float | None, Stored("ended", TIME)] = None
    """The moment at which the task ended; None if it has not."""
    result: Annotated[Any, Stored("result", RESULT)] = None
    """The result of the task, as a JSON value."""
    result_bytes_removed: Annotated[int, Stored("result_removed", COUNT)] = 0
    """The size of the result in bytes, if it was removed because the user's results exceed ``max_result_bytes``; else 0."""
    payload_bytes_removed: Annotated[int, Stored("short", COUNT)] = 0
    """The size of the payload in bytes, if it was removed because the user has ``max_dead_letters`` dead letters; else 0."""
    worker: Annotated[str, Stored("worker")] = ""
    """The worker that had the task last; empty if there is none."""
    delivery: Annotated[int, Stored("deliveries", COUNT)] = 0
    """The number of times that the task was handed out without an outcome."""
    given_back: Annotated[int, Stored("returned", COUNT)] = 0
    """The number of times that the task was given back after it had begun."""
    limits: Annotated[tuple[TaskLimit, ...], Stored("limits", LIMITS, check_limits)] = ()
    """The limits by key that the task must respect, at most 4."""
    waits_at: Annotated[str, Stored("waits_at")] = ""
    """The limit at which a queued task waits for a place, as the server names it; empty if it waits for its turn only."""
    depends_on: Annotated[tuple[str, ...], Stored("parents", IDS, _check_dependencies)] = ()
    """The ids of the tasks on which the task depends."""
    on_dependency_failure: Annotated[DependencyFailurePolicy, Stored("policy", check=_check_policy)] = "wait"
    """The reaction to a dependency that becomes a dead letter."""
    run_id: Annotated[str, Stored("run", check=_check_optional_id)] = ""
    """The id of the task's run: a group of tasks that one call pushed, such as a pipeline. Empty without a run."""
    promoted_from: Annotated[Priority | None, Stored("promoted", OPTIONAL_PRIORITY)] = None
    """The priority before the first promotion after a long wait; None if the task was not promoted."""
    traceparent: Annotated[str, Stored()] = ""
    """The trace of the task, as W3C Trace Context writes it; empty if there is none."""
    tracestate: Annotated[str, Stored()] = ""
    """The state of the trace, as W3C Trace Context writes it."""

    _raw: bytes = PrivateAttr(default=b"")
    _chosen: bool = PrivateAttr(default=False)
    _signature: bytes | None = PrivateAttr(default=None)

    @classmethod
    def create(
        cls,
        user_id: str,
        priority: Priority | int,
        payload: Any,
        **options: Unpack[CreateOptions],
    ) -> Task:
        """Check the values and make a task. Nothing is sent.

        ``options`` are the names from ``task_id`` on. Lengths of time are seconds or a timedelta; moments are Unix times
        or an aware datetime. A timedelta in place of a moment is a length of time.

        - ``user_id``: the user that must be treated fairly; a non-empty string of at most 256 bytes.
        - ``priority``: from 1 (very low) to 6 (critical).
        - ``payload``: any JSON value; see `django_fairque.engine.model.payload`. Its JSON has at most
          ``max_payload_bytes`` bytes; 8 MiB by default, which is the largest value. The push checks the queue's
          ``max_payload_bytes``.
        - ``task_id``: an idempotency key; by default a new id. While a task of this id has not ended, a new push of the id
          is a duplicate; afterwards the new task replaces the ended task, also a dead letter. The push refuses an id that
          belongs to a task of another user (`TaskIdConflictError`).
        - ``name``: the kind of work, for run-time estimates and statistics; at most 200 characters, empty by default.
        - ``lane``: ``"urgent"`` if a person waits for it, ``"bulk"`` for work that may wait for all other tasks;
          ``"normal"`` by default. Urgent and bulk tasks have the priority 3 (normal) and start in order of arrival
          within their user.
        - ``max_retries``: how often the task is tried again after a failure, from 0 to 1000; 3 by default.
        - ``max_deliveries``: how often it is started at most, from 1 to 1000, if its process dies or its lease ends
          each time; then it becomes a dead letter of type ``poisoned``. With 1, and ``max_retries=0``, it never starts a
          second time, also if its worker is stopped while it runs. By default the queue's ``max_deliveries``.
        - ``execute_after`` or ``delay``: the moment before which it does not start, or the time after the push; at
          once by default.
        - ``expires_at`` or ``expires``: if it has not started by this moment, or this time after the push, it becomes
          a dead letter of type ``expired``; never by default. The server's clock counts ``delay`` and ``expires``.
        - ``sla``: the time within which it should start; by default the SLA of its user or priority.
        - ``timeout``: the time for which it may run; by default its queue's ``default_task_timeout`` or the worker's
          limit.
        - ``unique_key``, ``unique_for``: within ``unique_for`` after a push the same key of the same user is a
          duplicate; none by default.
        - ``debounce``: wait for this time; the same key pushed meanwhile for the same user replaces the payload and
          starts the wait again; none by default.
        - ``debounce_max_wait``: the time after the first push at which the wait ends at the latest; ten times
          ``debounce`` by default.
        - ``limits``: `TaskLimit` objects, at most 4; none by default. Each must have a place before it starts.
        - ``depends_on``: ids of tasks that must have finished before, at most 5,000. The tasks are known to the queue, or
          pushed in the same call; none by default.
        - ``on_dependency_failure``: when a dependency becomes a dead letter: ``"wait"`` until it is requeued and
          finishes (the default), ``"cancel"`` this task, or ``"run"`` it anyhow. A dependency that is canceled or
          discarded cancels this task too, unless the value is ``"run"``.
        - ``run_id``: the id of the run that consists of the tasks of one call (`FairQueue.run`, `FairQueue.cancel_run`);
          none by default.
        - ``traceparent``, ``tracestate``: the trace of the task, as W3C Trace Context writes it; none by default.

        Returns the task. Raises `TaskValidationError` if a value is out of range, and `TaskSerializationError` if the
        payload is not JSON or too large.
        """
        task_id = options.pop("task_id", None)
        limit = min(options.pop("max_payload_bytes", json_payload.MAX_PAYLOAD_BYTES), json_payload.MAX_PAYLOAD_BYTES)
        fields = _DEFAULTS.copy()
        fields["priority"] = Priority.from_int(priority)
        fields["user_id"] = check_id(user_id, "user_id")
        fields["task_id"] = check_id(task_id, "task_id") if task_id is not None else new_task_id(user_id)
        fields["payload"] = payload
        fields["created_at"] = round_seconds(time.time())
        if options:
            _check_options(options, fields)
            check_lane_and_priority(fields["lane"], fields["priority"])
        return cls._construct(fields, json_payload.dumps(payload, limit=limit), is_chosen=task_id is not None)

    def copy_for_user(self, user_id: str, payload: Any, max_payload_bytes: int) -> Task:
        """Return a new task with the values of this task, for another user and with another ``payload``.

        For code that creates many tasks with the same options: only ``user_id`` and ``payload``, of at most
        ``max_payload_bytes`` bytes, are checked. The new task has a new id. Raises the same errors as `create` for these two.
        """
        fields = self.__dict__.copy()
        fields["user_id"] = check_id(user_id, "user_id")
        fields["task_id"] = new_task_id(user_id)
        fields["payload"] = payload
        fields["created_at"] = time.time_ns() // 1000 / 1_000_000
        return self._construct(
            fields, json_payload.dumps(payload, limit=min(max_payload_bytes, json_payload.MAX_PAYLOAD_BYTES))
        )

    @classmethod
    def _construct(cls, fields: dict[str, Any], raw: bytes, *, is_chosen: bool = False) -> Task:
        """Construct a task of checked fields, in a quarter of the time that pydantic's `model_construct` takes."""
        task = cls.__new__(cls)
        put = object.__setattr__
        put(task, "__dict__", fields)
        put(task, "__pydantic_fields_set__", _ALL)
        put(task, "__pydantic_extra__", None)
        put(task, "__pydantic_private__", {"_raw": raw, "_chosen": is_chosen, "_signature": None})
        return task

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002 - pydantic gives it
        self._chosen = True
        if not self._raw and not isinstance(self.payload, Undecodable):
            self._raw = json_payload.dumps(self.payload)

    def set_payload_bytes(self, raw: bytes, chosen_id: str | None = None) -> Task:
        """Return this task itself, with its payload set as bytes. For the engine; use `create` to make a task.

        ``raw`` is the payload as JSON, ``chosen_id`` the id if the caller chose it, None (the default) if not.
        """
        _private(self).update(_raw=raw, _chosen=chosen_id is not None)
        return self

    def with_payload(self, payload: Any) -> Task:
        """Return this task itself, with another ``payload``. For the code that sends it; use `create` to make a task.

        Raises `TaskSerializationError` if the payload is not JSON. The push checks its size.
        """
        raw = json_payload.dumps(payload)
        self.__dict__["payload"] = payload
        _private(self)["_raw"] = raw
        return self

    def set_trace(self, trace: traces.Trace) -> Task:
        """Return this task itself, with the ``trace``. For the code that sends it; use `create` to make a task."""
        self.__dict__.update(traceparent=trace.parent, tracestate=trace.state)
        return self

    def set_delay(self, delay: float) -> Task:
        """Return this task itself, with a ``delay`` in seconds; 0 for none. For code that makes tasks; use `create`."""
        self.__dict__["delay"] = delay or None
        return self

    def with_signature(self, signature: bytes) -> Task:
        """Return this task itself, with a ``signature`` that was made before. For the engine: a push then does not sign."""
        self._signature = signature
        return self

    @property
    def signature(self) -> bytes | None:
        """The signature after the payload, with which workers check that the application pushed the task; may be None."""
        signature: bytes | None = self.__pydantic_private__["_signature"]  # type: ignore[index] # see `_private`
        return signature

    @property
    def trace(self) -> traces.Trace:
        """The trace that the task belongs to."""
        return traces.Trace(self.traceparent, self.tracestate)

    @property
    def payload_bytes(self) -> bytes:
        """The payload as JSON, in the form in which it is sent."""
        raw: bytes = self.__pydantic_private__["_raw"]  # type: ignore[index]
        return raw

    @property
    def has_chosen_id(self) -> bool:
        """Whether the caller chose the id. A second push of the id is then a duplicate."""
        chosen: bool = self.__pydantic_private__["_chosen"]  # type: ignore[index]
        return chosen

    def is_ready_to_execute(self, now: float | None = None) -> bool:
        """Return whether a worker may start the task now.

        A task is ready from ``execute_after`` until ``expires_at``, unless it waits for other tasks, runs or has
        ended; before the push ``delay`` and ``expires`` count from ``created_at``. ``now`` is a Unix time; by default
        that of this machine's clock.
        """
        at = time.time() if now is None else now
        due, expiry = self._moment(self.execute_after, self.delay), self._moment(self.expires_at, self.expires)
        is_due = (due or 0) <= at and (expiry is None or at < expiry)
        return is_due and self.state in (TaskState.QUEUED, TaskState.SCHEDULED)

    def _moment(self, at: float | None, span: float | None) -> float | None:
        return at if at is not None or span is None else self.created_at + span

    def can_retry(self, config: QueueConfig | None = None) -> bool:
        """Return whether the task has retries left.

        ``config`` are the queue's options; their ``max_retry_attempts`` limits the task's ``max_retries``. None for no
        such limit.
        """
        most = self.max_retries if config is None else min(self.max_retries, config.max_retry_attempts)
        return self.retry_count < most

    def get_retry_delay(
        self,
        config: QueueConfig | None = None,
        *,
        base: float | None = None,
        cap: float | None = None,
        jitter: float | None = None,
    ) -> float:
        """Return the seconds before the next attempt: ``base × 2^retry_count``, at most ``cap``.

        ``config`` are the queue's options, which give ``base``, ``cap`` and ``jitter`` unless they are passed.
        ``base`` is the delay before the first retry, 1 second by default; ``cap`` the longest delay, 3600 seconds by
        default; ``jitter`` the fraction by which the delay may be lengthened at random, 0 by default.
        """
        options = {} if config is None else config.retry_delay_options
        given = {"base": base, "cap": cap, "jitter": jitter}
        options.update({name: value for name, value in given.items() if value is not None})
        return durations.retry_delay(self.retry_count, **options)

    def increment_retry(self, config: QueueConfig | None = None, *, now: float | None = None) -> Task:
        """Return a copy of the task for its next retry, which is due after `get_retry_delay` seconds.

        ``config`` are the queue's options, for the delay. ``now`` is a Unix time; by default that of this machine's
        clock.
        """
        due = (time.time() if now is None else now) + self.get_retry_delay(config)
        return self.model_copy(
            update={"retry_count": self.retry_count + 1, "execute_after": round_seconds(due), "delay": None}
        )

    def copy_for_later_push(self, passed: float) -> Task:
        """Return a copy of the task for a later push. For the outbox: ``delay`` and ``expires`` are reduced by the seconds
        that have ``passed`` meanwhile."""
        spans = {"delay": self.delay, "expires": self.expires}
        left = {name: max(0.0, round_seconds(span - passed)) for name, span in spans.items() if span is not None}
        copy = self.model_copy(update=left)
        return copy.set_payload_bytes(self.payload_bytes, self.task_id if self.has_chosen_id else None)

    @property
    def push_template(self) -> PushTemplate:
        """The values that the task shares with many other tasks of a push."""
        # The same result as PushTemplate._make in half of the time.
        return tuple.__new__(PushTemplate, (*_template_values(self.__dict__), self.has_chosen_id))

    def to_lua_args(self) -> list[Any]:
        """Return the arguments of ``push.lua`` for a task that is pushed alone, in order: the task (without a signature),
        then its template.

        `from_lua_result` makes an equal task from them.
        """
        return PushArguments([self.task_id, self.user_id, self.payload_bytes, 1, self.push_template.pack()], self)

    def to_redis_dict(self) -> dict[str, str | bytes]:
        """Return the fields of the task's hash, with the payload and the other values of a push.

        `from_redis_dict` makes an equal task from them.
        """
        fields: dict[str, str | bytes] = {"payload": self.payload_bytes}
        for name, field, kind in _WRITTEN:
            value = class_of(self.lane, self.priority) if name == "priority" else getattr(self, name)
            if value != _DEFAULTS.get(name) or name in _ALWAYS_WRITTEN:
                form = kind.write(value)
                fields[field] = form if isinstance(form, bytes) else str(form)
        if self.traceparent:
            fields["trace"] = self.trace.encode()
        if self.has_chosen_id:
            fields[CHOSEN_ID_FIELD] = "1"
        return fields

    @classmethod
    def from_redis_dict(cls, fields: Mapping[Any, Any]) -> Task:
        """Return the task that a hash contains.

        ``fields`` are the hash's, in addition to ``id`` and ``payload``; keys and values may be bytes or text. A
        payload that can't be decoded becomes an `Undecodable`. Raises `TaskSerializationError` if anything else is
        missing or damaged.
        """
        data = {_text(key): _bytes(value) for key, value in fields.items()}
        raw, _ = split_signature(data.get("payload", b""))
        try:
            payload: Any = json_payload.loads(raw)
        except TaskSerializationError as error:
            payload = Undecodable(raw, str(error))
        return cls._construct({**decode_task(data), "payload": payload}, raw, is_chosen=CHOSEN_ID_FIELD in data)

    @classmethod
    def from_lua_result(cls, values: Sequence[bytes]) -> Task:
        """Return the task that a script's values describe.

        ``values`` are the `LEASE_FIELDS` of a lease, or the result of `to_lua_args`. A plain list copied from that result
        has no dependencies, run and trace, and the task counts as created now. Raises `TaskSerializationError` for other
        values.
        """
        try:
            if len(values) == len(PushArguments.FIELDS):
                return cls._from_push_arguments(values)
            fields = {name: value for name, value in zip(LEASE_FIELDS, values, strict=True) if value != b""}
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise TaskSerializationError(
                f"expected the {len(LEASE_FIELDS)} values of a lease, or what to_lua_args() returned, got {short(values)}"
            ) from error
        return cls.from_redis_dict({**fields, "state": TaskState.STARTED.value})

    @classmethod
    def _from_push_arguments(cls, values: Sequence[Any]) -> Task:
        task_id, user_id, raw, _count, packed = values
        form = PushTemplate.unpack(packed)
        fields = {**_DEFAULTS, "task_id": task_id, "user_id": user_id, "created_at": round_seconds(time.time())}
        fields.update({name: value for name, value in form._asdict().items() if name in cls.model_fields})
        fields["priority"], fields["lane"] = Priority(form.priority), form.lane
        fields["payload"] = json_payload.loads(raw)
        if isinstance(values, PushArguments):
            fields.update(values.others)
        return cls._construct(fields, raw, is_chosen=form.is_chosen)


class PushTemplate(NamedTuple):
    """The values that many tasks of a push share. A template is sent to the server, and evaluated there, once for all of them.

    ``name``, ``priority``, ``execute_after``, ``delay``, ``expires_at``, ``expires``, ``max_retries``, ``timeout``, ``sla``,
    ``unique_key``, ``unique_for``, ``debounce`` and ``debounce_max_wait`` are those of `Task`. Lengths of time are seconds,
    moments Unix times. If a moment and a length of time are given for the same option, the moment counts.
    """

    name: str
    priority: Priority
    execute_after: float | None
    delay: float | None
    expires_at: float | None
    expires: float | None
    max_retries: int
    timeout: float | None
    sla: float | None
    unique_key: str
    unique_for: float | None
    debounce: float | None
    debounce_max_wait: float | None
    retry_count: int
    """The number of retries before this push; 0 for almost every task, and then not sent."""
    max_deliveries: int
    """The task's own limit of starts without an outcome; 0 for almost every task, and then not sent."""
    lane: str
    """The lane, which is sent as a class next to the priorities."""
    limits: tuple[TaskLimit, ...]
    """The limits by key; none for most tasks, and then not sent."""
    is_chosen: bool
    """Whether the caller chose the task's id."""

    @classmethod
    def unpack(cls, packed: bytes) -> PushTemplate:
        """Return the template in the bytes ``packed``. Raises `ValueError`, `TypeError` or `LookupError` for other bytes."""
        found: dict[str, Any] = {"delay": None, "expires": None, "retry_count": 0, "max_deliveries": 0, "limits": ()}
        for name, form in zip(TEMPLATE_ORDER, unpack(packed), strict=False):
            if form.startswith(COUNTED) and name in SPAN_OF:
                found[name], found[SPAN_OF[name]] = None, TIME.read(form[len(COUNTED) :])
            else:
                found[name] = _TEMPLATE_KINDS[name].read(form)
                if name == "priority":
                    found["lane"] = read_lane(form)
        return cls(**found)

    def on_shard(self, lanes: LanesConfig, shard: int, shards: int) -> PushTemplate:
        """Return the template for ``shard``, one of ``shards`` (numbers), with the lane that ``lanes`` give its priority."""
        found = self
        if self.lane == "normal" and (lane := lanes.lane_of(self.priority)) != "normal":
            found = self._replace(lane=lane)
        return found._replace(limits=divide_limits(self.limits, shard, shards)) if self.limits and shards > 1 else found

    @lru_cache(maxsize=256)  # noqa: B019 - of a tuple, and few: most calls repeat the options of earlier ones
    def pack(self) -> bytes:
        """Return the template in the form and order that ``push.lua`` reads."""
        forms: list[int | str | bytes] = []
        for name in TEMPLATE_ORDER:
            value, span = getattr(self, name), getattr(self, SPAN_OF[name]) if name in SPAN_OF else None
            if name == "priority":
                forms.append(class_of(self.lane, self.priority))
            elif value is None and span is not None:
                forms.append(COUNTED + str(to_us(span)).encode())
            else:
                forms.append("" if value is None else _TEMPLATE_KINDS[name].write(value))
        own = [form or "" for form in forms[ALWAYS_IN_TEMPLATE:]]
        while own and not own[-1]:
            own.pop()
        return pack([*forms[:ALWAYS_IN_TEMPLATE], *own])


TEMPLATE_ORDER = (
    *("name", "priority", "is_chosen", "execute_after", "expires_at", "max_retries", "timeout", "sla", "unique_key"),
    *("unique_for", "debounce", "debounce_max_wait", "retry_count", "max_deliveries", "limits"),
)
"""The values of a template in the order of ``push.lua``. The length of time of `SPAN_OF` takes the position of its moment."""
ALWAYS_IN_TEMPLATE = TEMPLATE_ORDER.index("retry_count")
"""The number of values that are always sent. A later value is left out if it and all following values are 0."""
SPAN_OF = {"execute_after": "delay", "expires_at": "expires"}
"""For each field that is a moment, the field that may be given in its place: a length of time, counted from the push."""
COUNTED = b"+"
"""The mark of a length of time (microseconds) in place of a moment. The server adds the length to its time at the push."""


class PushArguments(list[Any]):
    """The arguments to push a task, and in ``others`` the task's fields that the arguments do not contain."""

    FIELDS = ("task_id", "user_id", "payload", "count", "form")

    def __init__(self, values: Iterable[Any], task: Task) -> None:
        super().__init__(values)
        held = {"task_id", "user_id", "payload", *PushTemplate._fields}
        self.others = {name: value for name, value in task.__dict__.items() if name not in held}


_ALL = set(Task.model_fields)
"""One set for all tasks: a set for each would take more memory than the task's fields. (Pydantic copies it for a copy.)"""
_DEFAULTS = {name: field.default for name, field in Task.model_fields.items() if not field.is_required()}
_TABLE: dict[str, Stored] = {
    name: entry for name, field in Task.model_fields.items() for entry in field.metadata if isinstance(entry, Stored)
}
_OPTIONS = {
    name: (_TABLE[name].check, None if name == "max_deliveries" else _DEFAULTS[name])
    for name in _TABLE
    if name in CreateOptions.__optional_keys__ and name in _DEFAULTS
}
"""The check of each option of `Task.create`, and the value that means that the option is not given."""
_WRITTEN = [(name, entry.field, entry.kind) for name, entry in _TABLE.items() if entry.field]
_ALWAYS_WRITTEN = ("state", "retry_count", "max_retries")
_READ = {entry.field: (name, entry.kind.read) for name, entry in _TABLE.items() if entry.field}
_ABSENT_IN_RECORD = {**_DEFAULTS, "priority": Priority.NORMAL, "max_retries": 0, "created_at": 0.0}
"""The values of fields that a record or a lease does not have."""
_TEMPLATE_KINDS = {name: entry.kind for name, entry in _TABLE.items()}
_TEMPLATE_KINDS["is_chosen"] = Kind(int, lambda text: text == b"1")
_template_values = itemgetter(*PushTemplate._fields[:-1])


def _private(task: Task) -> dict[str, Any]:
    """Return pydantic's dict of a task's private attributes: its ``__getattr__`` would take a microsecond for each."""
    return task.__pydantic_private__ or {}


def check_task(task: Task) -> Task:
    """Return ``task``; raise `TaskValidationError` if it is not a `Task`."""
    if not isinstance(task, Task):
        raise TaskValidationError(
            f"only a Task can be pushed, got {type(task).__name__} {short(task)}; make one with Task.create(), or enqueue "
            "a function that is declared with @task"
        )
    return task


def check_tasks(tasks: Iterable[Task]) -> list[Task]:
    """Return the tasks as a list; raise `TaskValidationError` if one is not a `Task`."""
    if not isinstance(tasks, (list, Iterable)) or isinstance(
        tasks, (str, bytes)
    ):  # the check for a list comes first, because it is faster than that for Iterable
        raise TaskValidationError(f"expected a sequence of tasks, got {type(tasks).__name__} {short(tasks)}")
    found = list(tasks)
    if set(map(type, found)) - {Task}:  # one fast check for all tasks, because pushes are large
        for task in found:
            check_task(task)
    return found


def _check_options(options: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """Check the options of `Task.create`, and add them to the fields of the task."""
    given = False
    for name, value in options.items():
        try:
            check, absent = _OPTIONS[name]
        except KeyError:
            raise TypeError(f"Task.create() got an unexpected keyword argument {name!r}") from None
        if value is not absent:
            fields[name] = value if check is None else check(value, name)
            given = True
    if not given:
        return
    for at, span in SPAN_OF.items():
        if fields[at] is not None or fields[span] is not None:
            fields[at], fields[span] = moment_or_span(fields[at], fields[span], at, span)
    _check_repetition(fields)
    if fields["traceparent"] or fields["tracestate"]:
        trace = _check_trace(fields["traceparent"], fields["tracestate"])
        fields["traceparent"], fields["tracestate"] = trace.parent, trace.state


def _check_repetition(fields: Mapping[str, Any]) -> None:
    """Check the options that decide which pushes are the same task. Each option by itself was checked before."""
    unique_for, debounce, debounce_max_wait = fields["unique_for"], fields["debounce"], fields["debounce_max_wait"]
    if unique_for is debounce is debounce_max_wait is None:
        return
    if (unique_for is not None or debounce is not None) and not fields["unique_key"]:
        raise TaskValidationError("unique_for and debounce need a unique_key: what makes two tasks the same?")
    if unique_for is not None and debounce is not None:
        raise TaskValidationError("unique_for keeps the first task and debounce the last one: give only one of them")
    if debounce_max_wait is None:
        return
    if debounce is None:
        raise TaskValidationError("debounce_max_wait needs debounce: it says for how long that may go on")
    if debounce_max_wait < debounce:
        raise TaskValidationError(
            f"debounce_max_wait must be at least debounce ({debounce:g} s), got {debounce_max_wait:g} s"
        )


def _check_trace(parent: object, state: object) -> traces.Trace:
    found = traces.read(parent, state) if isinstance(parent, str) and isinstance(state, str) else traces.NO_TRACE
    if not found.parent:
        raise TaskValidationError(
            f"traceparent must be 00-<32 hexadecimal digits>-<16>-<2> as W3C Trace Context says, got {short(parent)}; "
            "leave it out when there is no trace"
        )
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def decode_task(data: Mapping[str, bytes]) -> dict[str, Any]:
    """Return a task's values without its payload; raise `TaskSerializationError` if a field is missing or damaged."""
    found = _ABSENT_IN_RECORD.copy()
    try:
        found["task_id"], found["user_id"] = data["id"].decode(), data["user"].decode()
        for field, form in data.items():
            if field in _READ:
                name, read = _READ[field]
                found[name] = read(form)
        found["lane"] = read_lane(data.get("priority", b"3"))
        if data.get("trace"):
            trace = traces.decode_trace(data["trace"])
            found["traceparent"], found["tracestate"] = trace.parent, trace.state
    except (KeyError, ValueError) as error:
        raise TaskSerializationError(f"the record of a task is damaged: {error!r}") from error
    return found
