"""The options of a queue (`QueueConfig`), and the base class of all sections of the configuration.

A section is checked when it is made. All its mistakes are found at once and raised as one `ConfigurationError`. The message
names the expected and the actual value of each mistake; values that may contain a password are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_origin

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from django_fairque.engine.model.durations import MAX_DURATION_SECONDS
from django_fairque.engine.model.errors import ConfigurationError, nearest, short, short_text
from django_fairque.engine.model.ids import split_names
from django_fairque.engine.model.payload import MAX_PAYLOAD_BYTES
from django_fairque.engine.model.plans import Plans
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.signature import DEFAULT_KEY, SigningKey
from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from pydantic.functional_validators import ModelWrapValidatorHandler
    from typing_extensions import Self

    from django_fairque.engine.model.lanes import Lane

DEFAULT_SLA = {
    "CRITICAL": 300.0,
    "VERY_HIGH": 1800.0,
    "HIGH": 1800.0,
    "NORMAL": 7200.0,
    "LOW": 86400.0,
    "VERY_LOW": 86400.0,
}
"""Seconds within which a task of each priority should start."""

DEFAULT_STARVATION = {"VERY_LOW": 86400.0, "LOW": 86400.0, "NORMAL": 14400.0}
"""Seconds of waiting after which a task of the priority is promoted: VERY_LOW and LOW to NORMAL, NORMAL to HIGH."""
STARVABLE_PRIORITIES = tuple(DEFAULT_STARVATION)

MAX_SWEEP_INTERVAL_SECONDS = 5.0
"""The longest interval between sweeps, in seconds. Only sweeps notice alerts, new schedules and messages between
shards."""

MAX_SHOWN_OPTION_CHARACTERS = 80

REPLY_RECORD_SECONDS = 120
"""The most seconds for which the server records replies, so that a repeated call gets the first reply."""
MAX_RETRY_TIMEOUT_SECONDS = 60
"""The most seconds for which a call may be repeated. The rest of `REPLY_RECORD_SECONDS` covers the time until a repeated call
arrives.
"""

logger = get_logger("django_fairque.conf")

PROBLEM_ERROR_TYPE = "fairque_problem"
"""The error type of a validator whose message is the whole explanation, with the expected and the actual value."""


def problem(text: str) -> PydanticCustomError:
    """Return the error for a field's validator to raise if ``text`` explains more than the field's description."""
    return PydanticCustomError(PROBLEM_ERROR_TYPE, "{text}", {"text": text})


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong with the configuration.

    ``kind`` is one of unknown (key), value, conflict (between keys), file, server (none is named), cache, timing (a
    schedule that is never due). ``problem`` is the text, ``suggestion`` the nearest valid key or value. ``key`` is the
    key in the form in which the user wrote it; if it is empty, ``path`` is shown.
    """

    kind: Literal["unknown", "value", "conflict", "file", "server", "cache", "timing"]
    path: tuple[str, ...]
    problem: str
    suggestion: str = ""
    key: str = ""

    def __str__(self) -> str:
        hint = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{short_text(self.key or '.'.join(self.path))}: {self.problem}{hint}"


class InvalidOptionsError(ConfigurationError):
    """The configuration is not valid. ``mistakes`` are all its mistakes."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        lines = [str(mistake) for mistake in self.mistakes]
        head = [] if len(lines) == 1 else [f"{len(lines)} mistakes in the configuration"]
        super().__init__("\n- ".join(head + lines))

    def __reduce__(self) -> tuple[type[InvalidOptionsError], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)


def unknown(path: tuple[str, ...], known: Collection[str], what: str = "key") -> Mistake:
    """Return the mistake for an unknown name: the last part of ``path``. ``known`` are the valid names."""
    suggestion = nearest(path[-1], known)
    choice = "" if suggestion else f"; expected one of {', '.join(known)}"
    name = "" if what == "key" else f" {short(path[-1])}"  # the mistake's path names the key already
    return Mistake("unknown", path, f"unknown {what}{name}{choice}", suggestion)


def show(value: object) -> str:
    """Return a value for an error message: short, without the credentials of a URL. A container is shown only by its type."""
    if isinstance(value, str):
        text = re.sub(r"(password=)[^&]*", r"\1***", re.sub(r"//.*@", "//***@", value))
        return repr(text if len(text) <= MAX_SHOWN_OPTION_CHARACTERS else f"{text[:MAX_SHOWN_OPTION_CHARACTERS]}...")
    if value is None or isinstance(value, (bool, int, float)):
        return short(value)
    kind = "mapping" if isinstance(value, Mapping) else type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, (Mapping, Sequence)) else f"a {kind}"


class Options(BaseModel):
    """A section of the configuration: frozen, no unknown keys, every mistake is explained."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Earlier names of options, which are still accepted, each with the current name. `EarlierName` adds to it."""
    rarely_needed: ClassVar[Collection[str]] = ()
    """Options of the public interface that hardly any project sets. These options take effect, but are not listed as settings."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        own = {name: value.current for name, value in vars(cls).items() if isinstance(value, EarlierName)}
        cls.renamed = {**cls.renamed, **own}

    @classmethod
    def option_names(cls) -> list[str]:
        """Return the names of the fields that can be set in the configuration. Only code can set the other fields, which
        are constants in a project.
        """
        return [name for name, field in cls.model_fields.items() if not field.exclude]

    @classmethod
    def with_current_names(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``options`` with current names in place of earlier names. Raises `InvalidOptionsError` if an option is
        given by both names.
        """
        made: dict[str, Any] = {}
        for name, value in options.items():
            current = cls.renamed.get(name, name)
            if current in made:
                earlier = ", ".join(old for old, new in cls.renamed.items() if new == current)
                text = f"expected once; got it by its earlier name as well ({earlier})"
                raise InvalidOptionsError([Mistake("conflict", (current,), text)])
            made[current] = value
        return made

    def contradictions(self) -> Iterator[Mistake]:
        """Yield a mistake for each combination of fields that contradict each other; ``path`` begins with the field's name."""
        yield from ()

    def validate(self) -> None:  # type: ignore[override]
        """Check all values again. Pydantic checks none in `model_construct` and `model_copy`.

        Raises `ConfigurationError` with all mistakes if values are wrong or contradict each other.
        """
        type(self).model_validate(_collect_given_values(self))

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _explain(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            section = handler(cls.with_current_names(data) if isinstance(data, Mapping) else data)
        except InvalidOptionsError as error:
            mistakes = list(error.mistakes)
        except pydantic.ValidationError as error:
            mistakes = [_mistake(cls, details) for details in error.errors(include_url=False)]
        else:
            mistakes = list(section.contradictions())
            if not mistakes:
                return section
        # Raised outside the except block, because pydantic's error holds the input with its secrets.
        raise InvalidOptionsError(replace(m, key=".".join((cls.__name__, *m.path))) for m in mistakes)


def _collect_given_values(value: Any) -> Any:
    """Convert a section, and the sections in it, to mappings of the values that were set explicitly."""
    if isinstance(value, Options):
        return {name: _collect_given_values(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, dict):
        return {name: _collect_given_values(nested) for name, nested in value.items()}
    return value


def _mistake(model: type[BaseModel], details: ErrorDetails) -> Mistake:
    path = tuple(str(part) for part in details["loc"])
    section, field, depth = _find_section(model, path)
    if details["type"] == "extra_forbidden":
        return unknown(path, section.option_names() if issubclass(section, Options) else section.model_fields)
    if path[-1:] == ("[key]",):
        return unknown(path[:-1], list(Priority.__members__), "priority")
    if details["type"] == PROBLEM_ERROR_TYPE:
        return Mistake("value", path, details["msg"])
    if field is None:
        return Mistake("value", path, f"expected a mapping of options; got {show(details['input'])}")
    words = field.description if depth == len(path) else field.title
    came = show(details["input"]) if field.repr else "a value that is not shown"
    return Mistake("value", path, f"expected {words}; got {'nothing' if details['type'] == 'missing' else came}")


def _find_section(model: type[BaseModel], path: tuple[str, ...]) -> tuple[type[BaseModel], FieldInfo | None, int]:
    """Return the innermost section and field on ``path``, and the number of names that lead there. Further names of the path are
    inside a value.
    """
    field, depth = None, 0
    for part in path:
        if part not in model.model_fields:
            break
        field, depth = model.model_fields[part], depth + 1
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        nested: list[Any] = [kind for kind in kinds if _is_model(kind)]
        if depth < len(path) and nested:
            model = nested[0]
    return model, field, depth


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, BaseModel)


def _plain_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a truth value is not a number")  # noqa: TRY004 - pydantic reports only ValueError
    return value.total_seconds() if isinstance(value, timedelta) else value


PriorityName = Annotated[str, Field(pattern=f"^({'|'.join(Priority.__members__)})$")]
Whole = Annotated[int, BeforeValidator(_plain_number)]
Number = Annotated[float, BeforeValidator(_plain_number), pydantic.AllowInfNan(allow_inf_nan=False)]


def whole(default: int, *, least: int, most: int, is_setting: bool = True) -> Any:
    """Return a field for a whole number. Only code can set the field unless ``is_setting``."""
    words = f"a whole number from {least} to {most}"
    return Field(default=default, ge=least, le=most, description=words, exclude=not is_setting or None)


def limit(unit: str, *, most: int, default: int = 0) -> Any:
    """Return a field for a limit: a whole number of ``unit``; 0, the usual default, means no limit."""
    return Field(default=default, ge=0, le=most, description=f"a whole number of {unit}, at least 0 (0: no limit)")


def seconds(default: float | None, *, least: float | None = None, is_setting: bool = True) -> Any:
    """Return a field for a number of seconds (float) or a timedelta: at least ``least``, or more than 0 if that is None.

    Only code can set the field unless ``is_setting``.
    """
    start = "greater than 0 and" if least is None else f"from {least:g} and"
    words = f"a number of seconds {start} at most {MAX_DURATION_SECONDS:.0f} (ten years)"
    above = 0 if least is None else None
    number = None if default is None else float(default)
    return Field(
        default=number, gt=above, ge=least, le=MAX_DURATION_SECONDS, description=words, exclude=not is_setting or None
    )


class EarlierName(property):
    """An earlier name of the option ``current``: an attribute of the section, and accepted as a key."""

    def __init__(self, current: str) -> None:
        super().__init__(lambda section: getattr(section, current), doc=f"The earlier name of `{current}`.")
        self.current = current


MAX_SHARDS = 256


def _share(default: float) -> Any:
    return Field(default=default, ge=0, le=1, description="a number from 0 to 1")


class LanesConfig(BaseModel):
    """``QUEUE["LANES"]``: the lanes of the tasks of all users. The urgent lane has the share that the other lanes
    leave.
    """

    model_config = Options.model_config

    normal: Number = _share(0.5)
    """The least share of the worker time of lane normal while it has queued tasks. Default: 0.5."""
    bulk: Number = _share(0.05)
    """The least share of the worker time of lane bulk while it has queued tasks. Default: 0.05."""
    urgent_priority: Literal["HIGH", "VERY_HIGH", "CRITICAL"] | None = Field(
        default=None, description="HIGH, VERY_HIGH or CRITICAL"
    )
    """The priority whose tasks are pushed to lane urgent; None (the default) for no priority."""
    bulk_priority: Literal["VERY_LOW", "LOW"] | None = Field(default=None, description="VERY_LOW or LOW")
    """The priority whose tasks are pushed to lane bulk; None (the default) for no priority."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _lower_names(cls, data: Any) -> Any:
        return {str(name).lower(): value for name, value in data.items()} if isinstance(data, Mapping) else data

    def lane_of(self, priority: Priority) -> Lane:
        """Return the lane of tasks of this ``priority`` that have no other lane."""
        name = priority.name
        return "urgent" if name == self.urgent_priority else "bulk" if name == self.bulk_priority else "normal"


class QueueConfig(Options):
    """The options of one queue. Durations are seconds; docs/reference/settings.md explains each field."""

    rarely_needed: ClassVar[Collection[str]] = split_names("""
        head_start_seconds max_retry_attempts max_deliveries pipeline_batch_size sweep_interval
    """)
    signing_key: ClassVar[SigningKey] = DEFAULT_KEY
    """The key that signs the tasks that queues push."""

    prefix: str = Field(
        default="fq", pattern=r"^[A-Za-z0-9_.-]{1,32}$", description='1 to 32 letters, digits, "_", "." or "-"'
    )
    """The beginning of every key: 1 to 32 letters, digits, "_", "." or "-". Default: "fq"."""
    shards: Whole = whole(1, least=1, most=MAX_SHARDS)
    """The number of shards, from 1 to 256. Default: 1."""
    fair_by: Literal["time", "tasks"] = Field(default="time", description='"time" or "tasks"')
    """The measure of a fair share: "time" (worker time) or "tasks" (number of tasks). Default: "time"."""
    head_start_seconds: Number = seconds(21600, least=0)
    """The time, in seconds, that is added to the waiting time of each task before the weight of its priority multiplies
    it. So a higher priority counts from the beginning. Default: 21,600."""
    default_task_timeout: Number | None = seconds(None)
    """The time limit of a task that sets no limit. Default: None, for the worker's ``task_timeout``."""
    default_max_retries: Whole = whole(3, least=0, most=1000)
    """The number of retries of a task that does not set it, from 0 to 1000. Default: 3."""
    max_retry_attempts: Whole = whole(100, least=0, most=1000)
    """The largest number of retries of a task, from 0 to 1000. Default: 100."""
    retry_base_seconds: Number = seconds(1, least=0)
    """The delay before the first retry; the delay doubles with each retry. Default: 1."""
    max_payload_bytes: Whole = whole(262144, least=1, most=MAX_PAYLOAD_BYTES)
    """The largest payload or result in bytes, at most 8,388,608. Default: 262,144."""
    max_deliveries: Whole = whole(5, least=1, most=1000)
    """The number of starts without an outcome after which a task becomes a dead letter, from 1 to 1000. Default: 5."""
    max_backlog: Whole = limit("tasks per user", most=10**12)
    """The largest number of waiting tasks of a user. Default: 0, for no limit."""
    max_backlog_bytes: Whole = limit("bytes per user", most=10**15)
    """The largest number of bytes of a user's tasks that have not ended. Each task counts as its payload and 500 bytes.
    Default: 0, for no limit.
    """
    max_result_bytes: Whole = limit("bytes per user", most=10**15, default=100_000_000)
    """The largest number of bytes of a user's results; results of at most 1,000 bytes do not count. Beyond this limit the
    user's oldest results are removed; their tasks stay. Default: 100,000,000; 0: no limit.
    """
    max_dead_letters: Whole = limit("dead letters per user", most=10**12, default=10_000)
    """The largest number of a user's complete dead letters. Further dead letters are kept in a short form, without a
    large payload. Default: 10,000; 0: no limit."""
    max_xcom_bytes: Whole = limit("bytes per user", most=10**15, default=10_000_000)
    """The largest number of bytes of a user's values in ``xcom()``. Each value counts with its key and 100 bytes. Beyond this
    limit the user's oldest values of ended runs are removed, and if that is not enough, new values are refused. If a queue has
    several shards, each shard has this limit. Default: 10,000,000; 0: no limit.
    """
    result_ttl: Number = seconds(86400, least=60)
    """The time for which finished and canceled tasks are kept, at least 60. Default: 86,400."""
    failed_ttl: Number = seconds(604800, least=60)
    """The time for which dead letters are kept, at least 60. Default: 604,800."""
    sla: dict[PriorityName, Annotated[Number, Field(gt=0, le=MAX_DURATION_SECONDS)]] = Field(
        default_factory=DEFAULT_SLA.copy,
        description="a mapping of priority names to numbers of seconds",
        title="a number of seconds greater than 0",
    )
    """The time within which a task should start, by the name of its priority."""
    starvation: dict[PriorityName, Annotated[Number, Field(ge=0, le=MAX_DURATION_SECONDS)]] = Field(
        default_factory=DEFAULT_STARVATION.copy,
        description="a mapping of VERY_LOW, LOW and NORMAL to numbers of seconds (0: never)",
        title="a number of seconds, at least 0",
    )
    """The waiting time after which a task is promoted, for VERY_LOW, LOW and NORMAL; 0: never."""
    lanes: LanesConfig = Field(
        default_factory=LanesConfig, description="a mapping with NORMAL, BULK, URGENT_PRIORITY and BULK_PRIORITY"
    )
    """The shares of the lanes, and the priorities that stand for lanes."""
    pipeline_batch_size: Whole = whole(300, least=1, most=1000)
    """Tasks of a bulk push in one script call, from 1 to 1000. Default: 300."""
    request_timeout: Number = seconds(10, least=0)
    """The time for which one call is repeated after lost connections before it fails, at most 60. Default: 10."""
    replicas_to_confirm: Whole = whole(0, least=0, most=10)
    """Replicas that must confirm each push, from 0 to 10. Default: 0."""
    sweep_interval: Number = seconds(1)
    """The pause between two sweeps of a worker, at most 5. Default: 1."""

    # Constants of a project; only code and tests can change them.
    lease_seconds: Number = seconds(30, is_setting=False)
    """The length of a lease. Default: 30."""
    retry_cap_seconds: Number = seconds(3600, least=0, is_setting=False)
    """The longest delay before a retry. Default: 3600."""
    retry_jitter: Number = Field(default=0.1, ge=0, le=1, description="a fraction from 0 to 1", exclude=True)
    """The fraction by which a delay is lengthened at random, from 0 to 1. Default: 0.1."""
    user_ttl: Number = seconds(3600, least=1, is_setting=False)
    """The time for which the record of an idle user is kept. Default: 3600."""
    sla_at_risk_seconds: Number = seconds(300, least=0, is_setting=False)
    """The time before its deadline from which on an SLA is at risk, at least 0. Default: 300."""
    replication_timeout: Number = seconds(1, is_setting=False)
    """The time for which a push waits for replicas. Default: 1."""
    sweep_batch_size: Whole = whole(100, least=1, most=1000, is_setting=False)
    """The largest number of tasks of each kind in one sweep, from 1 to 1000. Default: 100."""
    stats_minutes_ttl: Number = seconds(90000, least=60, is_setting=False)
    """The time for which the statistics of a minute are kept, at least 60. Default: 90,000."""

    _plans: Plans | None = PrivateAttr(default=None)
    _release: str | None = PrivateAttr(default=None)

    @property
    def plans(self) -> Plans | None:
        """The plans of users, which are the same for all queues of a project; None without plans."""
        # Each push reads this; pydantic's `__getattr__` would take 4 µs.
        plans: Plans | None = self.__pydantic_private__["_plans"]  # type: ignore[index]
        return plans

    def set_plans(self, plans: Plans | None) -> None:
        """Set the ``plans`` of users; None for no plans. The project's configuration, of which this is a part, calls
        it.
        """
        self._plans = plans

    @property
    def release(self) -> str | None:
        """The ``CODE_VERSION`` of this process; None if it is not set. Attempts are then not counted by release."""
        return self._release

    def set_release(self, code_version: str | None) -> None:
        """Set the release to ``code_version``, None for none. The configuration that this is a part of does it."""
        self._release = code_version

    pipeline_timeout = EarlierName("request_timeout")
    queue_cleanup_interval = EarlierName("sweep_interval")

    @field_validator("sweep_interval")
    @classmethod
    def _bound_sweep_interval(cls, value: float) -> float:
        if value > MAX_SWEEP_INTERVAL_SECONDS:
            logger.warning(
                "sweep_interval is reduced from %g to %g seconds, the largest value: alerts and new schedules are noticed "
                "by sweeps",
                *(value, MAX_SWEEP_INTERVAL_SECONDS),
            )
        return min(value, MAX_SWEEP_INTERVAL_SECONDS)

    @field_validator("sla", "starvation", mode="before")
    @classmethod
    def _complete(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        defaults = DEFAULT_SLA if info.field_name == "sla" else DEFAULT_STARVATION
        return {**defaults, **{str(name).upper(): duration for name, duration in value.items()}}

    @property
    def retry_delay_options(self) -> dict[str, float]:
        """The arguments for `durations.retry_delay` from the queue's settings."""
        return {"base": self.retry_base_seconds, "cap": self.retry_cap_seconds, "jitter": self.retry_jitter}

    def contradictions(self) -> Iterator[Mistake]:
        """Yield a mistake for each combination of fields that contradict each other."""
        if self.request_timeout > MAX_RETRY_TIMEOUT_SECONDS:
            yield Mistake(
                "value",
                ("request_timeout",),
                f"expected at most {MAX_RETRY_TIMEOUT_SECONDS} seconds; got {self.request_timeout:g}: replies are recorded for "
                f"{REPLY_RECORD_SECONDS} seconds, and a call that is repeated later than that would be carried out twice",
            )
        for name in self.starvation.keys() - DEFAULT_STARVATION.keys():
            yield Mistake(
                "value", ("starvation", name), "expected one of VERY_LOW, LOW, NORMAL: higher ones don't starve"
            )
        if self.lanes.normal + self.lanes.bulk > 1:
            shares = f"NORMAL {self.lanes.normal:g}, BULK {self.lanes.bulk:g}"
            yield Mistake("conflict", ("lanes",), f"expected least shares of at most 1 together; got {shares}")
        if self.retry_cap_seconds < self.retry_base_seconds:
            yield Mistake(
                "conflict",
                ("retry_base_seconds",),
                f"expected at most {self.retry_cap_seconds:g}, the longest pause before a retry; "
                f"got {self.retry_base_seconds:g}",
            )
        if self.default_max_retries > self.max_retry_attempts:
            yield Mistake(
                "conflict",
                ("default_max_retries",),
                f"expected at most max_retry_attempts ({self.max_retry_attempts}); got {self.default_max_retries}",
            )
