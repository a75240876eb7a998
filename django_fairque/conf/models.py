"""`FairQueueConfig`: the whole configuration, made of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator, model_validator

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.options import (
    InvalidOptionsError,
    Mistake,
    Options,
    QueueConfig,
    nearest,
    problem,
    shown,
    unknown,
)

from .monitor import MonitorConfig
from .redis import RedisConfig
from .schedule import ScheduleConfig
from .worker import QUEUE_NAME_PATTERN, QUEUE_NAME_WORDS, WorkerConfig, split_list

if TYPE_CHECKING:
    import os

    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster
    from typing_extensions import Self

READ_MARGIN = 2.0
"""Seconds by which a connection must outlast the longest wait for an answer, or it is cut while it waits."""

AnyOptions = TypeVar("AnyOptions", bound=Options)


def _switched(value: Any) -> Any:
    """YAML reads on and off, without quotation marks, as true and false."""
    return {True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value


class TopLevelOptions(Options):
    """What stands at the top, in no section."""

    enqueue_on_commit: bool = Field(default=True, description="true or false")
    outbox: bool = Field(default=False, description="true or false")
    request_user: str | None = Field(default=None, description="the dotted path of a callable")
    tracing: bool = Field(default=False, description="true or false")
    signing: Annotated[Literal["on", "off", "verify-only"], BeforeValidator(_switched)] = Field(
        default="on", description='"on", "off" or "verify-only"'
    )
    redact: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(split_list)] = Field(
        default_factory=lambda: ["password", "token", "secret", "key", "authorization"],
        description="a list of words",
        title="a word that is not empty",
    )

    @field_validator("tracing")
    @classmethod
    def _can_trace(cls, tracing: bool) -> bool:
        if tracing and not _has_opentelemetry():
            raise problem(
                "expected false while opentelemetry-api is not installed (django-fairque[opentelemetry] has it); got true"
            )
        return tracing


def _has_opentelemetry() -> bool:
    try:
        return find_spec("opentelemetry.trace") is not None
    except ModuleNotFoundError:
        return False


class FairQueueConfig(TopLevelOptions):
    """Everything that can be configured. Made from settings, files and the environment by `get_config`.

    ``queues`` are the declared queues, each with ``queue`` as its defaults; "default" is always among them.
    ``worker`` is the chosen one of ``workers``, or what a worker without a section of its own does.
    """

    redis: RedisConfig = Field(default_factory=RedisConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)
    workers: dict[str, WorkerConfig] = Field(default_factory=dict)
    queue: QueueConfig = Field(default_factory=QueueConfig)
    queues: dict[str, QueueConfig] = Field(default_factory=dict)
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)

    @model_validator(mode="before")
    @classmethod
    def _build(cls, data: Any) -> Any:
        return _Builder(cls.model_fields).build(data) if isinstance(data, Mapping) else data

    def contradictions(self) -> Iterator[Mistake]:
        for name, schedule in self.schedules.items():
            if schedule.queue is not None and schedule.queue not in self.queues:
                mistake = unknown((schedule.queue,), self.queues, "queue")
                yield replace(mistake, path=("schedules", name, "queue"))
        named = [(("worker",), self.worker), *((("workers", name), each) for name, each in self.workers.items())]
        for path, worker in named:
            for name in worker.queues:
                if name not in self.queues:
                    yield replace(unknown((name,), self.queues, "queue"), path=(*path, "queues"))
            least = worker.poll_interval + READ_MARGIN
            if self.redis.socket_timeout < least:
                yield self._timeout_conflict(path, worker, least)

    def _timeout_conflict(self, path: tuple[str, ...], worker: WorkerConfig, least: float) -> Mistake:
        if "socket_timeout" in self.redis.model_fields_set:
            text = f"expected at least {least:g}, which is the worker's poll_interval plus {READ_MARGIN:g}"
            return Mistake("conflict", ("redis", "socket_timeout"), f"{text}; got {self.redis.socket_timeout:g}")
        most = self.redis.socket_timeout - READ_MARGIN
        text = f"expected at most {most:g}, which is redis.socket_timeout minus {READ_MARGIN:g}"
        return Mistake("conflict", (*path, "poll_interval"), f"{text}; got {worker.poll_interval:g}")

    def validate_all(self) -> None:
        """Check all sections again, and that they fit together. See `validate`.

        Raises:
            ConfigurationError: Values are wrong or contradict each other. The error has the mistakes of all sections.
        """
        self.validate()

    def queue_config(self, name: str = "default") -> QueueConfig:
        """The options of a declared queue; `ConfigurationError` with the nearest match for another name."""
        try:
            return self.queues[name]
        except (KeyError, TypeError):
            raise _not_declared("queue", name, self.queues) from None

    def worker_config(self, name: str) -> WorkerConfig:
        """The worker of that id among ``workers``; `ConfigurationError` with the nearest match for another id."""
        try:
            return self.workers[name]
        except (KeyError, TypeError):
            raise _not_declared("worker", name, self.workers) from None

    @classmethod
    def from_settings(cls) -> Self:
        """What settings, the configuration file they name, and the environment say now.

        Raises:
            ConfigurationError: every mistake in them.
        """
        from .sources import load

        return load(cls)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        """What a file says by itself, neither settings nor environment considered.

        Raises:
            ConfigurationError: the file can't be read, or every mistake in it.
        """
        from .assembly import assemble
        from .files import file_layer

        return assemble(cls, [file_layer(path)])

    def to_yaml(self, path: str | os.PathLike[str]) -> None:
        """Write a file from which `from_yaml` makes an equal configuration. It holds the passwords: owner-only."""
        from .files import write_file

        write_file(self, path)

    def create_redis_client(self, *, decode_responses: bool = False) -> Redis | RedisCluster:
        """See `RedisConfig.create_redis_client`."""
        return self.redis.create_redis_client(decode_responses=decode_responses)

    def create_async_redis_client(self, *, decode_responses: bool = False) -> AsyncRedis | AsyncRedisCluster:
        """See `RedisConfig.create_async_redis_client`."""
        return self.redis.create_async_redis_client(decode_responses=decode_responses)


def _not_declared(what: str, name: object, known: Mapping[str, object]) -> ConfigurationError:
    suggestion = nearest(name[:200], known) if isinstance(name, str) else ""
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    expected = f"one of {', '.join(map(repr, known))}" if known else f"none, because no {what}s are declared"
    return ConfigurationError(f"{what} {shown(name)} is not declared in {what.upper()}S: expected {expected}{hint}")


class _Builder:
    """Makes all sections, and finds the mistakes of all of them before it complains."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields
        self._mistakes: list[Mistake] = []

    def build(self, data: Mapping[str, Any]) -> dict[str, Any]:
        self._mistakes += [unknown((str(name),), self._fields) for name in data if name not in self._fields]
        switches = self._make(
            TopLevelOptions, (), {name: data[name] for name in TopLevelOptions.model_fields if name in data}
        )
        built = {
            **(switches.model_dump() if switches else {}),
            "redis": self._make(RedisConfig, ("redis",), data.get("redis")),
            "worker": self._make(WorkerConfig, ("worker",), data.get("worker")),
            "workers": self._workers(data.get("workers") or {}),
            "queue": self._make(QueueConfig, ("queue",), data.get("queue")),
            "monitor": self._make(MonitorConfig, ("monitor",), data.get("monitor")),
        }
        built["queues"] = self._queues(built["queue"], data.get("queues") or {})
        built["schedules"] = {
            str(name): self._make(ScheduleConfig, ("schedules", str(name)), schedule)
            for name, schedule in (data.get("schedules") or {}).items()
        }
        if self._mistakes:
            raise InvalidOptionsError(self._mistakes)
        return built

    def _make(self, kind: type[AnyOptions], path: tuple[str, ...], data: Any) -> AnyOptions | None:
        if isinstance(data, kind):
            return data
        try:
            return kind.model_validate({} if data is None else data)
        except InvalidOptionsError as error:
            self._mistakes += [replace(mistake, path=(*path, *mistake.path), key="") for mistake in error.mistakes]
            return None

    def _workers(self, workers: Mapping[str, Any]) -> dict[str, WorkerConfig | None]:
        made = {}
        for name, worker in workers.items():
            options = {**worker, "id": name} if isinstance(worker, Mapping) else worker
            made[name] = self._make(WorkerConfig, ("workers", name), options)
        return made

    def _queues(self, defaults: QueueConfig | None, queues: Mapping[str, Any]) -> dict[str, QueueConfig | None]:
        made = {}
        for name, queue in {"default": None, **queues}.items():
            if not re.fullmatch(QUEUE_NAME_PATTERN, str(name)):
                text = f"expected a queue's name: {QUEUE_NAME_WORDS}; got {shown(name)}"
                self._mistakes.append(Mistake("value", ("queues", str(name)), text))
            made[name] = self._make(QueueConfig, ("queues", str(name)), _over(defaults, {} if queue is None else queue))
        return made


def _over(defaults: QueueConfig | None, options: Any) -> Any:
    """A queue's options over those of all queues (none when those have mistakes of their own)."""
    if defaults is None or not isinstance(options, Mapping):
        return options
    merged = {
        **dict(defaults),
        **{QueueConfig.renamed.get(name, name): value for name, value in options.items()},
    }
    for field, known in (("sla", defaults.sla), ("starvation", defaults.starvation)):
        if isinstance(options.get(field), Mapping):
            merged[field] = {**known, **{str(name).upper(): value for name, value in options[field].items()}}
    return merged
