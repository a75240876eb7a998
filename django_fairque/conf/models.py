"""`FairQueueConfig` is the whole configuration with all its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, model_validator

from django_fairque.conf.sections import (
    PLAN_NAME_WORDS,
    QUEUE_NAME_PATTERN,
    QUEUE_NAME_WORDS,
    SECTIONS,
    MonitorConfig,
    PlanConfig,
    ScheduleConfig,
    TopLevelOptions,
    WorkerConfig,
    make_plans,
)
from django_fairque.engine.model.errors import ConfigurationError, nearest
from django_fairque.engine.model.options import InvalidOptionsError, Mistake, Options, QueueConfig, show, unknown

from .redis import RedisConfig, resolve_cache
from .sources import Source, add_key, choose_worker, merge_sources, read_default_server, read_file, read_sources

if TYPE_CHECKING:
    import os

    from redis import Redis, RedisCluster
    from redis.asyncio import Redis as AsyncRedis
    from redis.asyncio import RedisCluster as AsyncRedisCluster

READ_MARGIN_SECONDS = 2.0
"""Seconds by which the socket timeout must exceed the longest wait for a reply. Otherwise the socket would be closed
during such a wait."""

AnyOptions = TypeVar("AnyOptions", bound=Options)


class FairQueueConfig(TopLevelOptions):
    """The whole configuration. `get_config` makes it from settings, a file and the environment.

    ``redis`` describes the server. ``queues`` are the declared queues, which take missing options from ``queue``;
    "default" is always among them. ``worker`` is the chosen worker of ``workers``, or the options of a worker without a
    section. ``plans`` are the plans of users and ``schedules`` the schedules by name, and ``monitor`` the limits of the
    monitoring.
    """

    redis: RedisConfig = Field(default_factory=RedisConfig)
    worker: WorkerConfig = Field(default_factory=WorkerConfig)
    workers: dict[str, WorkerConfig] = Field(default_factory=dict)
    queue: QueueConfig = Field(default_factory=QueueConfig)
    queues: dict[str, QueueConfig] = Field(default_factory=dict)
    plans: dict[str, PlanConfig] = Field(default_factory=dict)
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict)
    monitor: MonitorConfig = Field(default_factory=MonitorConfig)

    @model_validator(mode="before")
    @classmethod
    def _build(cls, data: Any) -> Any:
        return _build(cls, data) if isinstance(data, Mapping) else data

    def contradictions(self) -> Iterator[Mistake]:
        """Yield the mistakes between sections that are valid separately."""
        yield from self._mistakes_in_plans()
        for name, schedule in self.schedules.items():
            if schedule.queue is not None and schedule.queue not in self.queues:
                mistake = unknown((schedule.queue,), self.queues, "queue")
                yield replace(mistake, path=("schedules", name, "queue"))
        servers = self.redis.number_of_servers
        for name, queue in self.queues.items():
            if queue.shards > servers > 1:
                text = f"expected at most {servers}, because REDIS.URL names {servers} servers and each has one shard of a queue"
                yield Mistake("conflict", ("queues", name, "shards"), f"{text}; got {queue.shards}")
        named = [(("worker",), self.worker), *((("workers", name), worker) for name, worker in self.workers.items())]
        for path, worker in named:
            for name in worker.queues:
                if name not in self.queues:
                    yield replace(unknown((name,), self.queues, "queue"), path=(*path, "queues"))
            least, margin = worker.poll_interval + READ_MARGIN_SECONDS, f"{READ_MARGIN_SECONDS:g}"
            timeout = self.redis.socket_timeout
            if timeout < least and "socket_timeout" in self.redis.model_fields_set:
                text = (
                    f"expected at least {least:g}, which is the worker's poll_interval plus {margin}; got {timeout:g}"
                )
                yield Mistake("conflict", ("redis", "socket_timeout"), text)
            elif timeout < least:
                text = (
                    f"expected at most {timeout - READ_MARGIN_SECONDS:g}, which is redis.socket_timeout minus {margin}"
                )
                yield Mistake("conflict", (*path, "poll_interval"), f"{text}; got {worker.poll_interval:g}")

    def _mistakes_in_plans(self) -> Iterator[Mistake]:
        for name in self.plans:
            if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
                yield Mistake("value", ("plans", name), f"expected a plan's name: {PLAN_NAME_WORDS}; got {show(name)}")

    def validate_all(self) -> None:
        """Check each section again, and whether the sections fit together. See `validate`.

        Raises `ConfigurationError` with the mistakes of all sections.
        """
        self.validate()

    def queue_config(self, name: str = "default") -> QueueConfig:
        """Return the options of a declared queue.

        ``name`` is the queue's name, "default" by default. Raises `ConfigurationError`, which suggests the most similar
        name, if the queue is not declared.
        """
        try:
            return self.queues[name]
        except (KeyError, TypeError):
            suggestion = nearest(name[:200], self.queues) if isinstance(name, str) else ""
            hint = f"; did you mean {suggestion!r}?" if suggestion else ""
            expected = f"one of {', '.join(map(repr, self.queues))}"
            raise ConfigurationError(
                f"queue {show(name)} is not declared in QUEUES: expected {expected}{hint}"
            ) from None

    @classmethod
    def from_settings(cls) -> FairQueueConfig:
        """Return the configuration from settings, from the file that the settings name, and from the environment.

        Raises `ConfigurationError` with all mistakes of the sources.
        """
        return load()

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> FairQueueConfig:
        """Return the configuration from a file alone, without settings and environment.

        ``path`` is the path of the file. Raises `ConfigurationError` with all mistakes, or if the file can't be read.
        """
        return _assemble([read_file(path)])

    def create_redis_client(self, *, decode_responses: bool = False) -> Redis | RedisCluster:
        """Return a new client for the server of this configuration.

        ``decode_responses`` (False by default) and the errors are the same as for `RedisConfig.create_redis_client`.
        """
        return self.redis.create_redis_client(decode_responses=decode_responses)

    def create_async_redis_client(self, *, decode_responses: bool = False) -> AsyncRedis | AsyncRedisCluster:
        """Return a new client for coroutines, for the server of this configuration.

        ``decode_responses`` (False by default) and the errors are the same as for
        `RedisConfig.create_async_redis_client`.
        """
        return self.redis.create_async_redis_client(decode_responses=decode_responses)


def _build(whole: type[FairQueueConfig], data: Mapping[str, Any]) -> dict[str, Any]:
    """Make all sections. Raise one error with the mistakes of all sections."""
    mistakes = [unknown((str(name),), whole.model_fields) for name in data if name not in whole.model_fields]

    def make(kind: type[AnyOptions], path: tuple[str, ...], options: Any) -> AnyOptions | None:
        if isinstance(options, kind):
            return options
        try:
            return kind.model_validate({} if options is None else options)
        except InvalidOptionsError as error:
            mistakes.extend(replace(mistake, path=(*path, *mistake.path), key="") for mistake in error.mistakes)
            return None

    top = make(TopLevelOptions, (), {name: data[name] for name in TopLevelOptions.model_fields if name in data})
    built: dict[str, Any] = dict(top) if top else {}
    built |= {name: make(kind, (name,), data.get(name)) for name, kind in SECTIONS.items()}
    redis, queue = built["redis"], built["queue"]
    if redis and queue and redis.number_of_servers > 1 and "shards" not in queue.model_fields_set:
        built["queue"] = queue.model_copy(update={"shards": redis.number_of_servers})
    queues = {"default": None, **_by_name(data, "queues")}
    for name in queues:
        if not re.fullmatch(QUEUE_NAME_PATTERN, name):
            text = f"expected a queue's name: {QUEUE_NAME_WORDS}; got {show(name)}"
            mistakes.append(Mistake("value", ("queues", name), text))
    workers = {name: _with_id(name, options) for name, options in _by_name(data, "workers").items()}
    queues = {name: _merge_queue_options(built["queue"], options) for name, options in queues.items()}
    named: dict[str, tuple[type[Options], dict[str, Any]]] = {
        "workers": (WorkerConfig, workers),
        "queues": (QueueConfig, queues),
        "plans": (PlanConfig, _by_name(data, "plans")),
        "schedules": (ScheduleConfig, _by_name(data, "schedules")),
    }
    for section, (kind, entries) in named.items():
        built[section] = {name: make(kind, (section, name), options) for name, options in entries.items()}
    if mistakes:
        raise InvalidOptionsError(mistakes)
    plans = make_plans(built["plans"], built["plan_of"], built["code_version"])
    for queue in (built["queue"], *built["queues"].values()):
        queue.set_plans(plans)
        queue.set_release(built["code_version"])
    return built


def _by_name(data: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {str(name): options for name, options in (data.get(section) or {}).items()}


def _with_id(name: str, options: Any) -> Any:
    return {**options, "id": name} if isinstance(options, Mapping) else options


def _merge_queue_options(defaults: QueueConfig | None, options: Any) -> Any:
    """Return a queue's options, with missing options taken from the options of all queues (``defaults``) unless these
    have mistakes.
    """
    options = {} if options is None else options
    if defaults is None or not isinstance(options, Mapping):
        return options
    merged = dict(defaults) | {QueueConfig.renamed.get(name, name): value for name, value in options.items()}
    for field, known in (("sla", defaults.sla), ("starvation", defaults.starvation)):
        if isinstance(options.get(field), Mapping):
            merged[field] = {**known, **{str(name).upper(): value for name, value in options[field].items()}}
    if isinstance(lanes := options.get("lanes"), Mapping):
        merged["lanes"] = {**dict(defaults.lanes), **{str(name).lower(): value for name, value in lanes.items()}}
    return merged


def load(*overrides: Mapping[str, Any], needs_server: bool = True) -> FairQueueConfig:
    """Read the configuration from all sources. If several overrides set an option, the last one wins.

    Args:
        needs_server: whether a missing server is a mistake while DEBUG is false.

    Raises:
        ConfigurationError: with every mistake in the sources.
    """
    sources = read_sources(overrides)
    return _assemble([read_default_server(sources, needs_server=needs_server), *sources], checks_cache=True)


def _assemble(sources: Sequence[Source], *, checks_cache: bool = False) -> FairQueueConfig:
    """Make a configuration from its sources; later sources take precedence. Raise one error with the mistakes of all
    sources.
    """
    mistakes = [mistake for source in sources for mistake in source.mistakes]
    tree = merge_sources(sources)
    worker, found = choose_worker(sources, tree)
    try:
        config = FairQueueConfig.model_validate(tree)
        if checks_cache:
            resolve_cache(config.redis)
    except InvalidOptionsError as error:
        found += error.mistakes
    mistakes += [add_key(mistake, sources, worker) for mistake in found]
    if mistakes:
        # The chosen worker is checked twice, so the same mistake may be found twice.
        raise InvalidOptionsError({(mistake.key, mistake.problem): mistake for mistake in mistakes}.values())
    return config
