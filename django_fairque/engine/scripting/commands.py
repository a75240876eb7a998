"""Calls of scripts on one shard: the shard's keys, the queue's options, and a call's arguments.

All keys of one shard have one hash tag, ``{queue:shard}``, so any script uses one slot. Ids are part of key names
without any change: the tag is the first pair of braces, and the bytes after it have no meaning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django_fairque.engine.model.durations import now_us, to_us
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.lanes import NO_SLA_SECONDS, URGENT_SLA_SECONDS, Lane
from django_fairque.engine.model.options import STARVABLE_PRIORITIES, QueueConfig
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.scripting.operations import ScriptCall
from django_fairque.engine.scripting.scripts import BASE_KEYS, load

MAX_RELEASE_BYTES = 100
"""The maximum number of stored bytes of a code version (also in ``lua/commands/heartbeat.lua``)."""
ORGANIZATION_PREFIX = b"\xff"
"""The prefix of an organization in the shard's ring; no user's id begins with it (``lua/lib/organizations.lua``)."""
LIMIT_PREFIX = b"\xfe"
"""The prefix of a limit among the held users (``lua/lib/limits.lua``)."""


class Keys:
    """Key names of one shard of one queue; ``str(keys)`` is their common prefix."""

    def __init__(self, prefix: str, queue: str, shard: int = 0) -> None:
        self.shard = shard
        self._prefix = f"{prefix}:{{{queue}:{shard}}}:"
        self.first = self._prefix + BASE_KEYS[0]

    def __str__(self) -> str:
        return self._prefix

    def __call__(self, name: str) -> str:
        """Return the key with this name, which contains no user or task, such as ``ring``."""
        return self._prefix + name

    def get_shard_keys(self, task_id: str) -> Keys:  # noqa: ARG002 - there is one shard here
        """Return the keys of the shard of a task."""
        return self

    def of_user(self, name: str) -> Keys:  # noqa: ARG002 - there is one shard here
        """Return the keys of the shard of a user, a run or a namespace."""
        return self

    def everywhere(self) -> Sequence[Keys]:
        """Return the keys of each shard."""
        return (self,)

    def task(self, task_id: str) -> str:
        return f"{self.get_shard_keys(task_id)}task:{task_id}"

    def payload(self, task_id: str) -> str:
        return f"{self.get_shard_keys(task_id)}payload:{task_id}"

    def of_task(self, task_id: str) -> tuple[str, str]:
        """Return the keys of a task's record and of its payload, which may have a head. A known task has at least one
        of them.
        """
        return self.task(task_id), self.payload(task_id)

    def history(self, task_id: str) -> str:
        return f"{self.get_shard_keys(task_id)}history:{task_id}"

    def logs(self, task_id: str) -> str:
        return f"{self.get_shard_keys(task_id)}logs:{task_id}"

    def user(self, user_id: str) -> str:
        return f"{self.of_user(user_id)}user:{user_id}"

    def periods(self, user_id: str) -> str:
        return f"{self.of_user(user_id)}periods:{user_id}"

    def organization(self, organization: str) -> str:
        return f"{self._prefix}group:{organization}"

    def members(self, organization: str) -> str:
        """Return the key of an organization's ring."""
        return f"{self._prefix}ring:{organization}"

    def lane(self, lane: Lane, organization: str | None = None) -> str:
        """Return the key of the sorted set of the users with a task of a lane that can be started: of the shard, or of
        an organization.
        """
        name = "ring" if lane == "normal" else lane
        return self._prefix + (name if organization is None else f"{name}:{organization}")

    def normal(self, user_id: str) -> str:
        return f"{self.of_user(user_id)}queue:user:{user_id}:normal"

    def critical(self, user_id: str) -> str:
        return f"{self.of_user(user_id)}queue:user:{user_id}:critical"

    def limit(self, limit_id: str) -> str:
        """Return the key of the record of a limit, which `limit_id_of` in model/limits.py names."""
        return f"{self._prefix}limit:{limit_id}"

    def limit_users(self, limit_id: str, lane: Lane) -> str:
        """Return the key of the sorted set of the users who wait at a limit with a task of this lane."""
        return f"{self._prefix}limit_users:{lane}:{limit_id}"

    def limit_queue(self, limit_id: str, user_id: str) -> str:
        """Return the key of the sorted set of a user's tasks that wait at a limit."""
        return f"{self._prefix}limit_queue:{len(user_id.encode())}:{user_id}:{limit_id}"

    def state(self, state: str) -> str:
        return f"{self._prefix}state:{state}"

    def worker(self, worker: str) -> str:
        return f"{self._prefix}worker:{worker}"

    def leases(self, worker: str) -> str:
        return f"{self._prefix}leases:{worker}"

    def revoked(self, worker: str) -> str:
        return f"{self._prefix}revoked:{worker}"

    def waiting(self, task_id: str) -> str:
        """Return the key of the tasks that wait for this task."""
        return f"{self._prefix}deps:waiting:{task_id}"

    def blocked(self, task_id: str) -> str:
        """Return the key of the tasks that this task waits for."""
        return f"{self.get_shard_keys(task_id)}deps:blocked:{task_id}"

    def run(self, run_id: str) -> str:
        return f"{self._prefix}run:{run_id}"

    def xcom(self, namespace: str) -> str:
        return f"{self.of_user(namespace)}xcom:{namespace}"

    def minute(self, minute: int) -> str:
        return f"{self._prefix}stats:{minute}"

    def reply(self, nonce: str) -> str:
        return f"{self._prefix}reply:{nonce}"


def queue_of_key(key: str) -> str:
    """Return the name of the queue that a key belongs to."""
    return key.partition("{")[2].partition("}")[0].rpartition(":")[0]


MAX_CALL_ITEMS = 1000
"""The maximum number of tasks, leases or outcomes in one script call."""

REPLICATED_SCRIPTS = ("push", "deliver")
"""Scripts that accept tasks. Replicas may have to confirm their writes."""

NEVER_MICROSECONDS = 9_000_000_000_000_000
"""A moment that is never reached, in microseconds (``NEVER`` in lua/lib/clock.lua)."""


@dataclass
class SkippedTime:
    """The seconds that tests have skipped. Calls of this process then pass their time: this machine's time plus these
    seconds.
    """

    seconds: float = 0.0


skipped_time = SkippedTime()


Fields = Mapping[str, object]
"""Values by the names of fields of a record; an empty text for none."""


def list_fields(fields: Fields | None) -> list[object]:
    """Return the arguments of a script: the number of fields, then names and values. None gives no argument."""
    return [] if fields is None else [len(fields), *(value for pair in fields.items() for value in pair)]


class Commands:
    """One shard of a queue, for operations: its options, its keys, and calls of scripts. Does no I/O."""

    def __init__(self, name: str, config: QueueConfig, shard: int = 0) -> None:
        self.name = name
        self.has_written_fingerprint = False
        """Whether this process has written the fingerprint of its signing key to the shard."""
        self.config = config
        self.keys = Keys(config.prefix, name, shard)
        options: dict[str, Any] = {
            "fair_by": config.fair_by,
            "head_start": to_us(config.head_start_seconds),
            "max_deliveries": config.max_deliveries,
            "result_ttl": to_us(config.result_ttl),
            "failed_ttl": to_us(config.failed_ttl),
            "user_ttl": to_us(config.user_ttl),
            "minute_ttl": to_us(config.stats_minutes_ttl),
            "reply_ttl": to_us(2 * config.request_timeout),
            "sweep_limit": config.sweep_batch_size,
            "max_backlog": config.max_backlog,
            "max_backlog_bytes": config.max_backlog_bytes,
            "max_result_bytes": config.max_result_bytes,
            "max_dead_letters": config.max_dead_letters,
            "at_risk": to_us(config.sla_at_risk_seconds),
            "shards": config.shards,
            "least_normal": config.lanes.normal,
            "least_bulk": config.lanes.bulk,
            "sla:0": to_us(NO_SLA_SECONDS),
            "sla:7": to_us(URGENT_SLA_SECONDS),
            **{f"sla:{priority.value}": to_us(config.sla[priority.name]) for priority in Priority},
            **{
                f"starves_after:{Priority[name].value}": to_us(config.starvation.get(name, 0))
                for name in STARVABLE_PRIORITIES
            },
        }
        if config.release is not None:
            options["release"] = quote(config.release.encode()[:MAX_RELEASE_BYTES], safe="")
        self._options = " ".join(f"{name}={value}" for name, value in options.items())
        """The options of the queue by name, as ``lua/lib/options.lua`` reads them."""

    def call(self, script: str, args: Iterable[Any], now: float | None, **names: str) -> ScriptCall:
        """Return a call of a script, with the options with which every script begins. ``names`` are the keys whose
        names contain an id.
        """
        declared = load(script)
        keys = [self.keys.first] if len(declared.own_keys) < len(declared.keys) else []
        for name in declared.own_keys:
            keys.append(getattr(self.keys, name)(names[name]) if name in names else self.keys(name))
        if now is None and skipped_time.seconds:
            now = time.time() + skipped_time.seconds
        arguments = ["" if now is None else now_us(now), self._options, *args]
        if script in REPLICATED_SCRIPTS and self.config.replicas_to_confirm:
            return ScriptCall(script, keys, arguments, self.config.replicas_to_confirm, self.config.replication_timeout)
        return ScriptCall(script, keys, arguments)

    def unknown(self, task_id: str) -> TaskNotFoundError:
        return TaskNotFoundError(
            f"queue {self.name!r} knows no task {task_id!r}; finished ones are forgotten after result_ttl "
            f"({self.config.result_ttl:.0f} s)"
        )
