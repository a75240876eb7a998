"""The sections of the configuration for workers, plans, the monitor and schedules, and the options at the top level.
REDIS and QUEUE have modules of their own.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr, field_validator

from django_fairque.conf.redis import RedisConfig
from django_fairque.engine.model.durations import to_us
from django_fairque.engine.model.errors import ConfigurationError, TaskValidationError, short, suggestion
from django_fairque.engine.model.ids import MAX_ID_BYTES, MAX_LISTED_USERS, check_id, split_names
from django_fairque.engine.model.lanes import Lane, check_lane_and_priority
from django_fairque.engine.model.options import (
    EarlierName,
    Mistake,
    Number,
    Options,
    PriorityName,
    QueueConfig,
    Whole,
    limit,
    problem,
    seconds,
    show,
    unknown,
    whole,
)
from django_fairque.engine.model.plans import MAX_LIMIT_VALUES, PLAN_CACHE_SECONDS, Plans, plan_text, rate_fields
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.statistics.deployments import MAX_VERSION_CHARACTERS
from django_fairque.safely import Interruption, get_logger, get_message, is_a, type_name

logger = get_logger("django_fairque.tasks")

EVERYONE = "*"
RESERVING_LANES = ("urgent", "normal")
"""The lanes for which slots can be reserved."""
MAX_NAMED_USERS = 5
"""Maximum number of users that an error text names."""

QUEUE_NAME_PATTERN = r"^[a-z0-9_.-]{1,64}$"
QUEUE_NAME_WORDS = '1 to 64 lower-case letters, digits, "_", "." or "-"'


def split_list(value: Any) -> Any:
    """Convert a text to a list, for sources that can only contain texts: ``a,b``, or JSON if an item contains a
    comma.
    """
    if not isinstance(value, str):
        return list(value) if isinstance(value, (tuple, set, frozenset)) else value
    if value.lstrip().startswith("["):
        return json.loads(value)  # raises a ValueError, for which the message describes the field
    return [item.strip() for item in value.split(",") if item.strip()]


Users = Annotated[
    list[Annotated[str, AfterValidator(lambda value: check_id(value, "user id"))]], BeforeValidator(split_list)
]
QueueNames = Annotated[
    list[Annotated[str, Field(pattern=QUEUE_NAME_PATTERN)]], BeforeValidator(split_list), Field(min_length=1)
]


def _split_reserve(value: Any) -> Any:
    """Convert texts such as ``urgent=1,normal=2`` or a list of ``urgent=1`` to a mapping."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    texts = value.split(",") if isinstance(value, str) else value
    if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        pairs = [[part.strip() for part in text.partition("=")] for text in texts]
        value = {lane: int(number) if number.isdecimal() else number for lane, _, number in pairs}
    return value


def _users(default: list[str]) -> Any:
    return Field(
        default_factory=default.copy,
        description='a list of user ids, or "*" for everyone',
        title=f"a user id: a non-empty text of at most {MAX_ID_BYTES} bytes",
    )


def _plan_limit(name: str) -> Any:
    most = MAX_LIMIT_VALUES[name]
    return Field(default=None, ge=1, le=most, description=f"a whole number from 1 to {most}")


class WorkerConfig(Options):
    """The options of one worker. Durations are seconds; docs/reference/settings.md explains each field."""

    id: str | None = Field(default=None, pattern=r"^[^\s,]{1,128}$", description="a name without spaces and commas")
    """The worker's name; by default made from the host's name and the process id."""
    users: Users = _users([EVERYONE])
    """The users that the worker serves first: at most 3,000 ids, or "*" (the default) for all."""
    steal: Users = _users([])
    """The users that the worker serves when the users in ``users`` have no tasks: at most 3,000 ids, none by
    default."""
    queues: QueueNames = Field(
        default_factory=lambda: ["default"],
        description="a list of at least one queue's name",
        title=f"a queue's name: {QUEUE_NAME_WORDS}",
    )
    """The queues that the worker serves. Default: "default"."""
    poll_interval: Number = seconds(5)
    """The maximum sleep between two checks for tasks. Default: 5."""
    task_timeout: Number = seconds(300)
    """The time limit of a task if neither the task nor its queue sets one. Default: 300."""
    hard_timeout_grace: Number = seconds(5, least=0)
    """The time between the exception that interrupts an overdue task and the end of its process. Default: 5."""
    concurrency: Whole = whole(8, least=1, most=1000)
    """The number of tasks that run at once in each process, from 1 to 1000. Default: 8."""
    reserve: Annotated[dict[str, Annotated[Whole, Field(ge=0)]], BeforeValidator(_split_reserve)] = Field(
        default_factory=dict,
        description="a mapping of urgent and normal to numbers of slots",
        title="a whole number of slots, at least 0",
    )
    """The number of slots of each process that tasks of lower lanes never use, by lane ("urgent" and "normal"); none by
    default."""
    shutdown_timeout: Number = seconds(30, least=0)
    """The time that running tasks have to end after a stop signal. Default: 30."""
    lease_seconds: Number = seconds(30)
    """The length of a lease: if a worker does not renew a task's lease for this time, the task is taken from the
    worker. Default: 30."""
    processes: Whole = whole(1, least=1, most=256)
    """The number of child processes, from 1 to 256. Default: 1."""
    start_method: Literal["auto", "spawn", "forkserver"] = Field(
        default="auto", description='"auto", "spawn" or "forkserver"'
    )
    """The way in which child processes are started: "auto" (the default), "spawn" or "forkserver"."""
    handler: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description='the dotted path of a callable, such as "shop.tasks.handle"',
    )
    """The dotted path of a callable that handles tasks without a name (bare payloads); None for none."""
    alert_email: list[str] = Field(
        default_factory=list, description="a list of e-mail addresses", title="an e-mail address"
    )
    """The e-mail addresses to which alerts are sent; none by default."""
    max_tasks: Whole = limit("tasks", most=10**12)
    """The number of tasks after which a process is replaced; 0 (the default) for no limit."""
    max_memory_mb: Whole = limit("megabytes", most=10**9)
    """The memory in megabytes above which a process is replaced; 0 (the default) for no limit."""
    close_database_connections: bool = Field(default=False, description="true or false")
    """Whether a task's database connections are closed when it ends. Default: False."""

    assigned_users = EarlierName("users")
    steal_targets = EarlierName("steal")
    poll_interval_seconds = EarlierName("poll_interval")
    task_timeout_seconds = EarlierName("task_timeout")
    max_concurrent_tasks = EarlierName("concurrency")
    graceful_shutdown_timeout = EarlierName("shutdown_timeout")

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between fields that are valid separately."""
        for name in ("users", "steal"):
            users = getattr(self, name)
            if EVERYONE in users and len(users) > 1:
                yield Mistake("conflict", (name,), f'expected "*" alone or user ids; got "*" and {len(users) - 1} more')
            if (count := len(set(users))) > MAX_LISTED_USERS:
                text = f'expected at most {MAX_LISTED_USERS:,} user ids, or "*" for everyone; got {count:,}'
                yield Mistake("value", (name,), text)
        yield from self._contradictions_of_reserve()
        if EVERYONE in self.users and self.steal:
            yield Mistake(
                "conflict",
                ("steal",),
                f'expected nothing here, because users is "*" and leaves nobody to steal from; got {_format_users(self.steal)}',
            )
        elif both := [user for user in self.steal if user in set(self.users)]:
            are = "is" if len(both) == 1 else "are"
            text = f"expected users that are not in users; got {_format_users(both)}, who {are} in both"
            yield Mistake("conflict", ("steal",), text)

    def _contradictions_of_reserve(self) -> Iterator[Mistake]:
        for lane in self.reserve:
            if lane == "bulk":
                text = "expected urgent or normal: no lane is lower than bulk, which could be kept from its slots"
                yield Mistake("value", ("reserve", lane), text)
            elif lane not in RESERVING_LANES:
                yield unknown(("reserve", lane), RESERVING_LANES, "lane")
        if (total := sum(self.reserve.values())) >= self.concurrency and total:
            yield Mistake(
                "conflict",
                ("reserve",),
                f"expected fewer slots than concurrency ({self.concurrency}), so that each lane can use one; got {total}",
            )


def _format_users(users: list[str]) -> str:
    more = len(users) - MAX_NAMED_USERS
    return ", ".join(map(repr, users[:MAX_NAMED_USERS])) + (f" and {more} more" if more > 0 else "")


def _convert_switch(value: Any) -> Any:
    """Convert true and false to on and off, because YAML reads ``on`` and ``off`` without quotation marks as true and
    false.
    """
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class TopLevelOptions(Options):
    """The options at the top level of the configuration, outside all sections."""

    enqueue_on_commit: bool = Field(default=True, description="true or false")
    """Whether ``enqueue()`` inside a transaction sends the task at the commit. Default: True."""
    outbox: bool = Field(default=False, description="true or false")
    """Whether ``enqueue()`` inside a transaction stores the task in the transaction's database. Default: False."""
    capture_in_tests: bool = Field(default=True, description="true or false")
    """Whether tasks are captured in a test run. With False, tests may use the configured server. Default: True."""
    request_user: str | None = Field(default=None, description="the dotted path of a callable")
    """The dotted path of a function that gets a request and returns the id of its user; None for none."""
    plan_of: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description='the dotted path of a function, such as "shop.plans.plan_of"',
    )
    """The dotted path of a function that gets a user's id and returns the name of the user's plan in ``PLANS``; None
    for none."""
    middleware: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$")]], BeforeValidator(split_list)
    ] = Field(
        default_factory=list,
        description="a list of dotted paths",
        title='the dotted path of a subclass of TaskMiddleware, such as "shop.middleware.Language"',
    )
    """The dotted paths of the middleware around sending and running tasks, the outermost first; none by default."""
    tracing: bool = Field(default=False, description="true or false")
    """Whether spans and metrics of OpenTelemetry are made. Default: False."""
    signing: Annotated[Literal["on", "off", "verify-only"], BeforeValidator(_convert_switch)] = Field(
        default="on", description='"on", "off" or "verify-only"'
    )
    """Whether tasks are signed: "on" (the default), "off" or "verify-only"."""
    redact: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(split_list)] = Field(
        default_factory=lambda: [
            *("password", "passwd", "pwd", "passphrase", "token", "secret", "key", "authorization"),
            *("cookie", "session", "credential"),
        ],
        description="a list of words",
        title="a word that is not empty",
    )
    """A list of words. The admin and the commands hide values whose key contains one of these words."""
    users_label: str | None = Field(
        default=None, min_length=1, max_length=40, description="a text of 1 to 40 characters"
    )
    """The word for users of queues in the admin, such as "Customers"; by default "Users", translated."""
    code_version: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_VERSION_CHARACTERS,
        description=f"a text of 1 to {MAX_VERSION_CHARACTERS} characters",
    )
    """The version of the project's code that workers report, such as a commit; by default a digest of the modules that
    declare tasks."""

    @field_validator("tracing")
    @classmethod
    def _can_trace(cls, tracing: bool) -> bool:
        with suppress(ModuleNotFoundError):  # raised if the package opentelemetry is not installed
            if not tracing or find_spec("opentelemetry.trace"):
                return tracing
        raise problem(
            "expected false while opentelemetry-api is not installed (django-fairque[opentelemetry] has it); got true"
        )


PLAN_NAME_WORDS = '1 to 64 letters, digits, "_", "." or "-"'


class PlanConfig(Options):
    """One plan of ``PLANS``: limits for the users that have the plan. If the plan does not set a limit, the queue's
    limit applies, or none.
    """

    weight: Number = Field(default=1.0, ge=0.001, le=1000, description="a number from 0.001 to 1000")
    """The weight of a user, which determines its share of worker time: a user of weight 2 gets twice the share of a
    user of weight 1. Default: 1."""
    max_running: Whole | None = _plan_limit("max_running")
    """The maximum number of a user's tasks that run at once; None for no limit."""
    rate: str | None = Field(default=None, description='a text such as "100/m" or "5/10s"')
    """The number of a user's tasks that may start per s, m, h or d, such as "10/m"; None for no limit."""
    burst: Whole | None = _plan_limit("burst")
    """The number of tasks that may start at once in addition to ``rate``; None for 1."""
    max_backlog: Whole | None = _plan_limit("max_backlog")
    """The maximum number of a user's waiting tasks; None for the queue's limit."""
    max_backlog_bytes: Whole | None = _plan_limit("max_backlog_bytes")
    """The maximum bytes of a user's tasks that have not ended; None for the queue's limit."""
    sla: Number | None = seconds(None)
    """The time within which a user's tasks should start; None for the SLA of their priority."""

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between fields that are valid separately."""
        try:
            rate_fields(self.rate, 1)
        except TaskValidationError as error:
            yield Mistake("value", ("rate",), str(error))
        if self.burst is not None and self.rate is None:
            yield Mistake("conflict", ("burst",), f"expected a RATE, to which it belongs; got {self.burst}")

    def to_text(self, name: str) -> str:
        """Return the plan as text, in the form in which it is sent with tasks. ``name`` is the plan's name."""
        fields = {
            "weight": self.weight,
            "cap": self.max_running,
            **rate_fields(self.rate, self.burst or 1),
            "backlog": self.max_backlog,
            "max_bytes": self.max_backlog_bytes,
            "sla": None if self.sla is None else to_us(self.sla),
        }
        return plan_text(name, fields)


def make_plans(plans: Mapping[str, PlanConfig], plan_of: str | None, code_version: str | None) -> Plans | None:
    """Return the plans of these settings; None if no plans are declared."""
    if not plans:
        return None
    texts = {name: plan.to_text(name) for name, plan in plans.items()}
    find = None if plan_of is None else _PlanFinder(plan_of, texts)
    return Plans(texts, lambda: code_version or digest_of_code(texts), find, _run_in_thread)


def _run_in_thread(function: Callable[[], Any]) -> Awaitable[Any]:
    from asgiref.sync import sync_to_async

    return sync_to_async(function)()


def import_named(path: str, option: str, expected: str) -> Any:
    """Return the object that an ``option`` names by its dotted path. Raise `ConfigurationError` if it can't be imported."""
    from django.utils.module_loading import import_string

    try:
        return import_string(path)
    except ImportError as error:
        raise ConfigurationError(
            f"{option}: expected the dotted path of {expected}, got {short(path)}: {error}"
        ) from error


def import_plain_function(path: str, option: str, expected: str, argument: str) -> Callable[[Any], Any]:
    """Return the function that an ``option`` names. Raise `ConfigurationError` if it can't be called with the argument."""
    found: Callable[[Any], Any] = import_named(path, option, expected)
    if not callable(found) or iscoroutinefunction(found):
        kind = "a coroutine function" if callable(found) else f"a {type(found).__name__}"
        raise ConfigurationError(f"{option}: expected a plain function that takes {argument}, {path!r} is {kind}")
    return found


def import_plan_of(path: str) -> Callable[[str], str | None]:
    return import_plain_function(path, "PLAN_OF", "a function", "a user's id")


class _PlanFinder:
    """Calls ``PLAN_OF``. If the function raises an error, the task is sent nevertheless: the error is logged at most
    once a minute, and the user keeps its limits.
    """

    def __init__(self, path: str, texts: dict[str, str]) -> None:
        self._path, self._texts = path, texts
        self._silent_until = 0.0

    def __call__(self, user_id: str) -> str | None:
        from django.db import close_old_connections

        try:
            name = import_plan_of(self._path)(user_id)
        except Exception as error:
            if is_a(error, Interruption):
                raise
            # Close a broken database connection: in a thread that does not do this itself, all later calls would fail.
            with suppress(Exception):
                close_old_connections()
            if self._may_log():
                logger.warning(
                    "PLAN_OF (%s) raised %s: %s; tasks of user %r are sent without its plan, and its limits stay as they are",
                    *(self._path, type_name(error), get_message(error), user_id),
                )
            return None
        if name is None:
            return ""
        if not isinstance(name, str) or name not in self._texts:
            hint = suggestion(name, self._texts) if isinstance(name, str) else "expected the name of a plan, or None"
            if self._may_log():
                logger.error(
                    "PLAN_OF (%s) returned %s for user %r, and PLANS has no such plan (%s); the user's limits stay as they are",
                    *(self._path, short(name), user_id, hint),
                )
            return None
        return self._texts[name]

    def _may_log(self) -> bool:
        may_log = monotonic() >= self._silent_until
        if may_log:
            self._silent_until = monotonic() + PLAN_CACHE_SECONDS
        return may_log


def digest_of_code(plan_texts: Mapping[str, str]) -> str:
    """Return a digest of 7 digits of the modules that declare this process's tasks, together with the plans."""
    digest = _digest_of_tasks()
    return hashlib.sha256(f"{digest} {sorted(plan_texts.values())}".encode()).hexdigest()[:7] if plan_texts else digest


@cache
def _digest_of_tasks() -> str:
    """Return the digest of the modules. The digest is cached, because the process keeps the code with which it
    started.
    """
    from django.utils.module_loading import import_string

    # Imported by its path, because this module must not import the tasks, which are an upper layer.
    digest, names = hashlib.sha256(), import_string("django_fairque.tasks.registry.modules")()
    for name in names:
        digest.update(name.encode())
        # If a module has no file, or its file can't be read, only its name is included.
        with suppress(OSError, TypeError, ValueError):
            digest.update(Path(getattr(sys.modules.get(name), "__file__", "")).read_bytes())
    return digest.hexdigest()[:7] if names else ""


MIN_TOKEN_CHARACTERS = 16
TOKEN_WORDS = f"at least {MIN_TOKEN_CHARACTERS} letters, digits and marks of ASCII, without spaces"


LIMIT_NAMES = split_names("depth oldest_wait wait_p95 run_p95 failure_share dead deferred sla_violated idle_backlog")
"""The figures that ``LIMITS`` can name. `django_fairque.monitoring.monitor.METRICS` defines these figures."""


def _token_list(value: Any) -> Any:
    """Return a list of tokens from one token, from several tokens (the old and the new one during a change), or from a
    JSON list in a text.
    """
    if isinstance(value, str):
        return json.loads(value) if value.startswith("[") else [value]
    if isinstance(value, SecretStr):
        return [value]
    return [] if value is None else value


def _token(value: SecretStr) -> SecretStr:
    if not re.fullmatch(rf"[!-~]{{{MIN_TOKEN_CHARACTERS},}}", value.get_secret_value()):
        raise ValueError(f"expected {TOKEN_WORDS}")
    return value


WEBHOOK_URL_WORDS = "an http:// or https:// URL with a host, and without user name, password, fragment and spaces"


def _webhook_url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    try:
        url = urlsplit(text)
        is_right = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # the port is invalid, or the brackets of an IPv6 address don't match
        is_right = False
    if not (is_right and re.fullmatch(r"[!-~]+", text)) or "@" in url.netloc or url.fragment:
        raise ValueError(f"expected {WEBHOOK_URL_WORDS}")
    return value


class WebhookConfig(BaseModel):
    """``MONITOR["WEBHOOK"]``: the address to which alerts are posted."""

    model_config = Options.model_config

    url: Annotated[SecretStr, AfterValidator(_webhook_url)] = Field(repr=False, description=WEBHOOK_URL_WORDS)
    """The URL to which alerts are posted. The URL is a secret."""
    format: Literal["slack", "json"] = Field(default="json", description='"slack" or "json"')
    """The format of the messages: "json" (the default), or "slack" for Slack and services with the same format."""


class MonitorConfig(Options):
    """``MONITOR``: the limits beyond which a queue has a problem, and the tokens that `django_fairque.urls` requires.
    Without a token, its views return no figures.
    """

    limits: dict[str, Annotated[Number, Field(ge=0)]] = Field(
        default_factory=dict, description="a mapping of figures to numbers", title="a number, at least 0"
    )
    """The limit of each figure, by the figure's name; none by default."""
    token: Annotated[list[Annotated[SecretStr, AfterValidator(_token)]], BeforeValidator(_token_list)] = Field(
        default_factory=list,
        repr=False,
        description="a token, or a list of tokens",
        title=f"a token: {TOKEN_WORDS}",
    )
    """The tokens with which a monitoring system may read the metrics and the health; none by default."""

    webhook: WebhookConfig | None = Field(default=None, repr=False, description="a mapping with URL and FORMAT")
    """The webhook that receives alerts; None (the default) for none."""

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between fields that are valid separately."""
        yield from (unknown(("limits", name), LIMIT_NAMES) for name in self.limits if name not in LIMIT_NAMES)
        if (share := self.limits.get("failure_share", 0)) > 1:
            yield Mistake("value", ("limits", "failure_share"), f"expected a fraction from 0 to 1; got {show(share)}")


class ScheduleConfig(Options):
    """One schedule of ``SCHEDULES``. Durations are seconds; docs/guides/schedules.md explains each field."""

    task: str = Field(min_length=1, max_length=200, description='the name of a task, such as "shop.tasks.report"')
    """The name of the task that the schedule pushes."""
    cron: str | None = Field(default=None, description='a cron expression of five fields, such as "0 3 * * *"')
    """A cron expression of five fields; give this or ``every``."""
    every: Number | None = Field(default=None, description="a number of seconds, at least 1")
    """Seconds between two run times, at least 1."""
    timezone: str | None = Field(default=None, description='the name of a time zone, such as "Europe/Berlin"')
    """The time zone of ``cron``; None for UTC."""
    user: str | None = Field(default=None, min_length=1, description="a user's id")
    """The user of the schedule's tasks; None for the user that the task's declaration determines."""
    args: list[Any] = Field(default_factory=list, description="a list of arguments")
    """Positional arguments of the schedule's tasks; none by default."""
    kwargs: dict[str, Any] = Field(default_factory=dict, description="a mapping of arguments")
    """Keyword arguments of the schedule's tasks; none by default."""
    priority: PriorityName | None = Field(default=None, description="the name of a priority, such as HIGH")
    """The priority of the schedule's tasks; None for the task's own priority."""
    lane: Lane | None = Field(default=None, description='"urgent", "normal" or "bulk"')
    """The lane of the schedule's tasks; None for the task's own lane."""
    queue: str | None = Field(
        default=None, pattern=QUEUE_NAME_PATTERN, description=f"a queue's name: {QUEUE_NAME_WORDS}"
    )
    """The queue of the schedule's tasks; None for the task's own queue."""
    missed: Literal["skip", "one", "all"] = Field(default="skip", description='"skip", "one" or "all"')
    """The treatment of run times that were missed: "skip" (the default), "one" or "all"."""
    catch_up: Number = seconds(60, least=0)
    """The maximum delay with which a run time does not count as missed. Default: 60."""
    overlap: Literal["allow", "skip", "queue"] = Field(default="allow", description='"allow", "skip" or "queue"')
    """The treatment of a run while the task of the previous run has not ended: "allow" (the default), "skip" or
    "queue"."""
    jitter: Number = seconds(0, least=0)
    """The maximum random time by which the task of a run starts later. Default: none."""
    expires: Number | None = seconds(None)
    """Time after a run time at which the run's task becomes a dead letter if it has not started; None for the task's
    own value."""
    enabled: bool = Field(default=True, description="true or false")
    """Whether the schedule is switched on. Default: True."""

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between fields that are valid separately."""
        from django_fairque.engine.schedules.due_times import Timing

        try:
            Timing.create(self.cron, self.every, self.timezone or "UTC", 0.0)
        except TaskValidationError as error:
            field = "timezone" if "time zone" in str(error) else "cron" if self.cron is not None else "every"
            yield Mistake("timing" if field == "cron" else "value", (field,), str(error))
        try:
            check_lane_and_priority(self.lane or "normal", Priority[self.priority or "NORMAL"])
        except TaskValidationError as error:
            yield Mistake("conflict", ("lane",), str(error))


SECTIONS: dict[str, type[Options]] = {
    "redis": RedisConfig,
    "worker": WorkerConfig,
    "queue": QueueConfig,
    "monitor": MonitorConfig,
}
"""The sections that exist only once, by their names in the configuration."""
