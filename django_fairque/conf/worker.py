"""`WorkerConfig`: whom a worker serves, with how many hands, and how long it waits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.ids import MAX_BYTES, MAX_USERS, check_id
from django_fairque.engine.model.options import Mistake, Number, Options, Whole, earlier_name, seconds, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYONE = "*"
MAX_NAMED_USERS = 5
"""So many users are named in an error."""

QUEUE_NAME_PATTERN = r"^[a-z0-9_.-]{1,64}$"
QUEUE_NAME_WORDS = '1 to 64 lower-case letters, digits, "_", "." or "-"'


def split_list(value: Any) -> Any:
    """A list written as text, where nothing else can be written: ``a,b``, or JSON if an item holds a comma."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, (tuple, set, frozenset)) else value
    if value.lstrip().startswith("["):
        return json.loads(value)  # its error is a ValueError, so the field's own words follow
    return [item.strip() for item in value.split(",") if item.strip()]


def _user_id(value: str) -> str:
    try:
        return check_id(value, "user id")
    except TaskValidationError as error:
        raise ValueError(str(error)) from error


Users = Annotated[list[Annotated[str, AfterValidator(_user_id)]], BeforeValidator(split_list)]
QueueNames = Annotated[
    list[Annotated[str, Field(pattern=QUEUE_NAME_PATTERN)]], BeforeValidator(split_list), Field(min_length=1)
]


def _users(default: list[str]) -> Any:
    return Field(
        default_factory=default.copy,
        description='a list of user ids, or "*" for everyone',
        title=f"a user id: a non-empty text of at most {MAX_BYTES} bytes",
    )


class WorkerConfig(Options):
    """One worker. Durations are seconds; docs/configuration.md explains each field."""

    renamed: ClassVar[Mapping[str, str]] = {
        "assigned_users": "users",
        "steal_targets": "steal",
        "poll_interval_seconds": "poll_interval",
        "task_timeout_seconds": "task_timeout",
        "max_concurrent_tasks": "concurrency",
        "graceful_shutdown_timeout": "shutdown_timeout",
    }

    id: str | None = Field(default=None, pattern=r"^[^\s,]{1,128}$", description="a name without spaces and commas")
    users: Users = _users([EVERYONE])
    steal: Users = _users([])
    queues: QueueNames = Field(
        default_factory=lambda: ["default"],
        description="a list of at least one queue's name",
        title=f"a queue's name: {QUEUE_NAME_WORDS}",
    )
    poll_interval: Number = seconds(5)
    task_timeout: Number = seconds(300)
    hard_timeout_grace: Number = seconds(5, least=0)
    concurrency: Whole = whole(8, least=1, most=1000)
    shutdown_timeout: Number = seconds(30, least=0)
    lease_seconds: Number = seconds(30)
    processes: Whole = whole(1, least=1, most=256)
    start_method: Literal["auto", "spawn", "forkserver"] = Field(
        default="auto", description='"auto", "spawn" or "forkserver"'
    )
    handler: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
        description='the dotted path of a callable, such as "shop.tasks.handle"',
    )
    alert_email: list[str] = Field(
        default_factory=list, description="a list of e-mail addresses", title="an e-mail address"
    )
    max_tasks: Whole = Field(
        default=0, ge=0, le=10**12, description="a whole number of tasks, at least 0 (0: no limit)"
    )
    max_memory_mb: Whole = Field(
        default=0, ge=0, le=10**9, description="a whole number of megabytes, at least 0 (0: no limit)"
    )
    close_database_connections: bool = Field(default=False, description="true or false")

    assigned_users = earlier_name("users")
    steal_targets = earlier_name("steal")
    poll_interval_seconds = earlier_name("poll_interval")
    task_timeout_seconds = earlier_name("task_timeout")
    max_concurrent_tasks = earlier_name("concurrency")
    graceful_shutdown_timeout = earlier_name("shutdown_timeout")

    def contradictions(self) -> Iterator[Mistake]:
        for name in ("users", "steal"):
            users = getattr(self, name)
            if EVERYONE in users and len(users) > 1:
                yield Mistake(
                    "conflict", (name,), f'expected "*" alone or user ids; got "*" beside {len(users) - 1} more'
                )
            if (count := len(set(users))) > MAX_USERS:
                text = f'expected at most {MAX_USERS:,} user ids, or "*" for everyone; got {count:,}'
                yield Mistake("value", (name,), text)
        if EVERYONE in self.users and self.steal:
            yield Mistake(
                "conflict",
                ("steal",),
                f'expected nothing here, because users is "*" and leaves nobody to steal from; got {_format_users(self.steal)}',
            )
        elif both := [user for user in self.steal if user in set(self.users)]:
            yield Mistake(
                "conflict",
                ("steal",),
                f"expected users that are not in users; got {_format_users(both)}, who {_are(both)} in both",
            )


def _format_users(users: list[str]) -> str:
    more = len(users) - MAX_NAMED_USERS
    return ", ".join(map(repr, users[:MAX_NAMED_USERS])) + (f" and {more} more" if more > 0 else "")


def _are(users: list[str]) -> str:
    return "is" if len(users) == 1 else "are"
