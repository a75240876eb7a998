"""The options of one worker process: `WorkerConfig` with the changes from the command line, validated and ready to be sent to
the process."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import TypedDict

from django_fairque.engine.model.errors import ConfigurationError, short
from django_fairque.engine.model.options import InvalidOptionsError, Options, show

if TYPE_CHECKING:
    from django_fairque.conf.sections import WorkerConfig
    from django_fairque.engine.model.ids import Users
    from django_fairque.engine.model.lanes import Lane
    from django_fairque.engine.queue.queue import FairQueue

Q = TypeVar("Q", bound="str | FairQueue")

FENCE_MARGIN = 0.1
"""Fraction of a lease. A worker that can't renew a lease stops its tasks this much before the lease ends."""
UNHEALTHY_SECONDS = 4.0
"""Seconds that a worker's fetch loop may make no progress, in addition to its poll interval, before the worker is
unhealthy. With polls every 5 s a health check fails within 10 s."""
REPLACEMENT_SECONDS = 30.0
"""Seconds without progress of the fetch loop, in addition to `UNHEALTHY_SECONDS` and the poll interval, after which the
supervisor replaces an idle process."""


class WorkerArguments(TypedDict, total=False):
    """The arguments of `Worker` and `AsyncWorker`, in addition to their queues. Each argument overrides the option of
    `WorkerConfig` with the same name. ``id`` is another name of ``worker_id``, and earlier names of options are
    accepted.
    """

    worker_id: str | None
    id: str | None
    users: Users | None
    steal: Users | None
    concurrency: int | None
    reserve: Mapping[Lane, int] | None
    burst: bool
    max_tasks: int | None
    max_memory_mb: int | None
    lease_seconds: float | None
    poll_interval: float | None
    task_timeout: float | None
    shutdown_timeout: float | None
    handler: str | None
    assigned_users: Users | None
    steal_targets: Users | None
    poll_interval_seconds: float | None
    task_timeout_seconds: float | None
    max_concurrent_tasks: int | None
    graceful_shutdown_timeout: float | None


@dataclass(frozen=True)
class WorkerOptions:
    """The options of one worker process. Durations are seconds. ``concurrency`` is the number of tasks that run at once
    in the process.
    """

    worker_id: str
    queues: tuple[str, ...] = ("default",)
    users: Users = "*"
    steal: Users = ()
    concurrency: int = 8
    reserve: Mapping[Lane, int] = field(default_factory=dict)
    """The number of slots that tasks of lower lanes never use, by lane. Empty if no slots are reserved."""
    lease_seconds: float = 30.0
    poll_interval: float = 5.0
    task_timeout: float = 300.0
    hard_timeout_grace: float = 5.0
    shutdown_timeout: float = 30.0
    burst: bool = False
    max_tasks: int = 0
    max_memory_mb: int = 0
    close_database_connections: bool = False
    processes: int = 1
    start_method: str = "auto"
    handler: str | None = None
    alert_email: tuple[str, ...] = ()
    one_task: bool = False
    """Whether the process only runs one task, which another process has fetched, and then ends."""
    logs_tasks: bool = False
    """Whether each task that succeeded gets a log line."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Values of settings from the command line, which child processes apply to their configuration."""

    @classmethod
    def from_config(cls, config: WorkerConfig, **changes: Any) -> WorkerOptions:
        """Make options from the configuration. A value in ``changes`` takes precedence unless it is None."""
        names = {option.name for option in fields(cls)}
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config if name in names
        }
        options["worker_id"] = new_worker_id(config.id)
        for name in ("users", "steal"):
            options[name] = "*" if options[name] == ("*",) else options[name]
        options.update((name, value) for name, value in changes.items() if value is not None)
        if not (options["users"] or options["steal"]):
            raise ConfigurationError(
                'this worker would serve nobody: expected user ids, or "*" for everyone, in users or steal; '
                "got none in either"
            )
        return cls(**options)

    @classmethod
    def from_arguments(
        cls, config: WorkerConfig, queues: Sequence[str] | None, arguments: Mapping[str, Any]
    ) -> WorkerOptions:
        """Make options from the configuration and the arguments of a worker class, which take precedence."""
        if queues is not None and not queues:
            raise ConfigurationError(
                "queues must name at least one queue, got none; leave it out to serve the configured ones"
            )
        unknown = sorted(arguments.keys() - WorkerArguments.__annotations__.keys())
        if unknown:
            raise TypeError(f"a worker has no argument {short(unknown[0])}")
        given = _named_as_today({name: value for name, value in arguments.items() if value is not None})
        rest = {name: given.get(name) for name in ("worker_id", "burst")}
        return cls.from_config(_override_config(config, given), queues=queues and tuple(queues), **rest)

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", tuple(unique_queues(self.queues)))

    def for_child(self, worker_id: str, *, one_task: bool = False) -> WorkerOptions:
        """Make the options of a child process. With ``one_task``, the process runs one task."""
        if not one_task:
            return replace(self, worker_id=worker_id)
        return replace(
            self,
            worker_id=worker_id,
            one_task=True,
            concurrency=1,
            reserve={},
            burst=False,
            max_tasks=0,
            max_memory_mb=0,
        )

    @property
    def renewal_interval(self) -> float:
        return self.lease_seconds / 3

    @property
    def fence_after(self) -> float:
        """Return the seconds for which a process may go on running tasks after its last confirmed lease renewal."""
        return self.lease_seconds * (1 - FENCE_MARGIN)

    @property
    def unhealthy_after(self) -> float:
        """Return the seconds without progress of a fetch loop after which the worker is unhealthy."""
        return self.poll_interval + UNHEALTHY_SECONDS

    @property
    def replaced_after(self) -> float:
        """Return the seconds without progress of a fetch loop after which the supervisor replaces an idle process."""
        return self.unhealthy_after + REPLACEMENT_SECONDS


def _named_as_today(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former names of options with the current ones."""
    from django_fairque.conf.sections import WorkerConfig

    names = {**WorkerConfig.renamed, "id": "worker_id"}
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        current = names.get(name, name)
        if current in found:
            raise ConfigurationError(f"{current}: given twice, under two names")
        found[current] = value
    return found


def _override_config(config: WorkerConfig, given: Mapping[str, Any]) -> WorkerConfig:
    """Override options with arguments. The rules of the options apply to the arguments."""
    changes = {("id" if name == "worker_id" else name): value for name, value in given.items() if name != "burst"}
    for name in ("users", "steal"):
        if name in given and given[name] != "*":
            changes[name] = _as_list(given[name], name, 'user ids, or "*" for everyone')
    try:
        # Types are checked strictly here, because Python code can pass an int. Only text files and environment
        # variables may write a number as 2.0 or "2".
        return type(config).model_validate({**dict(config), **changes}, strict=True)
    except InvalidOptionsError as error:
        mistakes = []
        for mistake in error.mistakes:  # name the argument in the mistake, not the option
            option, *inside = mistake.path
            key = ".".join(("worker_id" if option == "id" else option, *inside))
            mistakes.append(replace(mistake, key=key))
    raise InvalidOptionsError(mistakes)


def _as_list(value: Any, name: str, what: str) -> list[Any]:
    """Convert an argument to a list. Refuse a string, because its characters would become the entries of the list."""
    if isinstance(value, (str, bytes, Options, Mapping)) or not isinstance(value, Iterable):
        hint = f"; did you mean [{short(value)}]?" if isinstance(value, str) else ""
        if isinstance(value, Options):
            hint = "; a worker takes a WorkerConfig or a FairQueueConfig in place of queues, and single options by name"
        raise ConfigurationError(f"{name}: expected a list of {what}; got {show(value)}{hint}")
    return list(value)


def _is_queue(value: object) -> bool:
    from django_fairque.engine.queue.queue import FairQueue  # a check of names must not import redis

    return isinstance(value, FairQueue)


def unique_queues(queues: Sequence[Q]) -> list[Q]:
    """Return the queues without duplicates. A worker keeps its state of a queue by the queue's name.

    Raises:
        ConfigurationError: two different queues have the same name, or ``queues`` is not a list.
    """
    found: dict[str, Q] = {}
    for queue in _as_list(queues, "queues", "queues"):
        if not isinstance(queue, str) and not _is_queue(queue):
            raise ConfigurationError(f"queues: expected names of queues, or FairQueue objects; got {short(queue)}")
        name = queue if isinstance(queue, str) else queue.name
        first = found.setdefault(name, queue)
        if not (first is queue or first == queue):
            raise ConfigurationError(
                f"queues must have names of their own, got two that are called {name!r}: run a worker for each"
            )
    return list(found.values())


def new_worker_id(name: str | None = None) -> str:
    """Return a readable id that no other worker has: neither a worker on another machine nor an earlier worker with the
    same process id.
    """
    return f"{name or socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"


def describe_users(users: Users | Sequence[str]) -> str:
    """Return a readable text for a selection of users, for the log and for the worker's record."""
    if users == "*":
        return "*"
    some = ", ".join(users[:10])
    return some if len(users) <= 10 else f"{some} and {len(users) - 10} more"
