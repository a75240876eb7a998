"""What every operation on one shard of a queue is built from: its keys, its options, one script call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.durations import now_us, to_us
from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.options import STARVABLE_PRIORITIES
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.scripting.keys import Keys
from django_fairque.engine.scripting.operations import ScriptCall
from django_fairque.engine.scripting.scripts import BASE_KEYS, load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django_fairque.engine.model.options import QueueConfig

MAX_CALL_ITEMS = 1000
"""The most tasks, leases or outcomes in one script call."""

REPLICATED_SCRIPTS = ("push", "deliver")
"""Scripts that accept tasks: what they acknowledge may have to be confirmed by replicas."""

NEVER_MICROSECONDS = 9_000_000_000_000_000
"""The scripts' moment that does not come (``NEVER`` in lua/lib/base.lua)."""


class Commands:
    """One shard of a queue as the operations see it; does no I/O."""

    def __init__(self, name: str, config: QueueConfig, shard: int = 0) -> None:
        self.name = name
        self.config = config
        self.keys = Keys(config.prefix, name, shard)
        sla = [config.sla[priority.name] for priority in Priority]
        options: list[Any] = [
            config.fair_by,
            to_us(config.head_start_seconds),
            config.max_deliveries,
            to_us(config.result_ttl),
            to_us(config.failed_ttl),
            to_us(config.user_ttl),
            to_us(config.stats_minutes_ttl),
            config.sweep_batch_size,
            config.max_backlog,
            *(to_us(value) for value in sla),
            to_us(config.sla_at_risk_seconds),
            *(to_us(config.starvation.get(name, 0)) for name in STARVABLE_PRIORITIES),
            int(config.shards > 1),
            config.max_backlog_bytes,
            to_us(2 * config.request_timeout),
        ]
        self._options = " ".join(map(str, options))

    def call(self, script: str, args: Iterable[Any], now: float | None, **names: str) -> ScriptCall:
        """A script call with the options every script begins with; ``names`` are the keys with a variable part."""
        declared = load(script).keys
        base = self.keys.base if declared[: len(BASE_KEYS)] == BASE_KEYS else ()
        keys = [
            *base,
            *(
                getattr(self.keys, name)(names[name]) if name in names else self.keys(name)
                for name in declared[len(base) :]
            ),
        ]
        arguments = ["" if now is None else now_us(now), self._options, *args]
        if script in REPLICATED_SCRIPTS and self.config.replicas_to_confirm:
            return ScriptCall(script, keys, arguments, self.config.replicas_to_confirm, self.config.replication_timeout)
        return ScriptCall(script, keys, arguments)

    def unknown(self, task_id: str) -> TaskNotFoundError:
        return TaskNotFoundError(
            f"queue {self.name!r} knows no task {task_id!r}; finished ones are forgotten after result_ttl "
            f"({self.config.result_ttl:.0f} s)"
        )
