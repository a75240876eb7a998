"""A queue's metrics for Prometheus: each figure's name, its help, its labels and where it comes from.

Nothing here is labeled by user, task or worker: every value of a label is a series that is kept for as long as the
metrics are, and those grow with the use of the queue. All values of the labels below are known beforehand, and each is
exported even while it is 0, so that the first event is an increase like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeAlias

from django_fairque.engine.model.options import STARVABLE_PRIORITIES
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import FailureType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.health import Health
    from django_fairque.engine.statistics.queue_stats import QueueStats
    from django_fairque.engine.statistics.timeline import Distribution

PREFIX = "fairque_"

Samples: TypeAlias = list[tuple[tuple[str, ...], float]]
"""Values of the labels (without the queue), and the number."""


@dataclass(frozen=True)
class Figures:
    """What one scrape reads of a queue, in a number of commands that does not depend on what it holds."""

    health: Health
    stats: QueueStats
    shards: int = 1

    @classmethod
    def read(cls, queue: FairQueue) -> Figures:
        return cls(queue.health(), queue.get_stats(minutes=0), queue.config.shards)


@dataclass(frozen=True)
class Family:
    """One metric of every queue. ``name`` is without prefix and, of a counter, without ``_total``."""

    kind: Literal["gauge", "counter"]
    name: str
    help: str
    samples: Callable[[Figures], Samples]
    labels: tuple[str, ...] = ()


def _one(kind: Literal["gauge", "counter"], name: str, value: Callable[[QueueStats], float], text: str) -> Family:
    return Family(kind, name, text, lambda figures: [((), value(figures.stats))])


def _each(name: str, label: str, values: Callable[[QueueStats], Mapping[str, int]], text: str) -> Family:
    return Family("gauge", name, text, lambda f: [((key,), n) for key, n in values(f.stats).items()], (label,))


def _total(name: str, key: str, text: str) -> Family:
    return _one("counter", name, lambda stats: stats.totals.get(key, 0), text)


def _totals(name: str, label: str, keys: Mapping[str, str], text: str) -> Family:
    """A counter by label; ``keys`` say where in the totals each value's is."""

    def samples(figures: Figures) -> Samples:
        return [((value,), figures.stats.totals.get(key, 0)) for value, key in keys.items()]

    return Family("counter", name, text, samples, (label,))


def _statuses(figures: Figures) -> Samples:
    return [((status,), figures.health.status == status) for status in ("good", "degraded", "down")]


def _shards(figures: Figures) -> Samples:
    missing = figures.stats.missing_shards
    return [((str(shard),), shard not in missing) for shard in range(figures.shards)]


FAMILIES = (
    _each("tasks", "state", lambda stats: stats.states, "Tasks in each state; ended ones until they are forgotten."),
    _each("ready_tasks", "priority", lambda stats: stats.depth, "Queued tasks by priority."),
    _each("dead_letters", "type", lambda stats: stats.dead, "Dead letters that lie there now."),
    _one(
        "gauge",
        "oldest_wait_seconds",
        lambda stats: stats.oldest_wait_seconds,
        "How long one that could start has waited.",
    ),
    _one(
        *("gauge", "held_back_wait_seconds", lambda stats: stats.held_back_wait_seconds),
        "How long one has waited whose user or organization is paused or at a limit.",
    ),
    _one("gauge", "users", lambda stats: stats.users, "Users that have a record."),
    _one("gauge", "users_with_work", lambda stats: stats.users_ready, "Users with a task that could start now."),
    _one("gauge", "workers", lambda stats: stats.workers, "Worker processes that live and serve the queue."),
    _one("gauge", "due", lambda stats: stats.due, "What waits for a worker's maintenance."),
    _one("gauge", "paused", lambda stats: stats.paused, "1 while the queue is paused."),
    _one("gauge", "dependency_edges", lambda stats: stats.dependencies.edges, "Dependencies that tasks wait for."),
    _one(
        "gauge",
        "resolving_tasks",
        lambda stats: stats.dependencies.resolving,
        "Ended tasks whose dependents must be notified.",
    ),
    Family("gauge", "queue_health", "1 for the status that fairque_health reports.", _statuses, ("status",)),
    Family(
        "gauge",
        "shard_up",
        "1 if the shard could be read; the other figures are without those that could not.",
        _shards,
        ("shard",),
    ),
    _total("tasks_pushed", "pushed", "Tasks accepted."),
    _total("tasks_started", "started", "Tasks handed to a worker, each time."),
    _total("tasks_finished", "finished", "Tasks finished."),
    _total("tasks_failed", "failed", "Attempts that failed, whatever followed."),
    _total("tasks_retried", "retried", "Attempts after which the task was to run again."),
    _total("tasks_canceled", "canceled", "Tasks canceled."),
    _total("dependents_released", "resolved", "Tasks released because their last dependency had ended."),
    _totals(
        *("tasks_dead", "type", {kind.value: f"dead:{kind.value}" for kind in FailureType}),
        "Tasks that became dead letters.",
    ),
    _totals(
        *("tasks_returned", "kind", {kind: f"returned:{kind}" for kind in ("released", "crashed", "lease_ended")}),
        "Tasks that came back from a worker without an outcome.",
    ),
    _totals(
        *("tasks_promoted", "priority", {name: f"promoted:{Priority[name].value}" for name in STARVABLE_PRIORITIES}),
        "Tasks that starvation moved up, by the priority they came from.",
    ),
    _total("dead_letters_requeued", "requeued", "Dead letters that were requeued."),
    _total("dead_letters_discarded", "discarded", "Dead letters that were given up."),
    _total("sla_at_risk", "sla_at_risk", "Start deadlines (SLA) that came at risk."),
    _total("sla_overdue", "sla_overdue", "Start deadlines (SLA) that passed while the task still waited."),
    _total("sla_violated", "sla_violated", "Start deadlines (SLA) that a late start missed."),
)


@dataclass(frozen=True)
class Histogram:
    """One histogram of every queue, since its first task."""

    name: str
    help: str
    value: Callable[[QueueStats], Distribution]


HISTOGRAMS = (
    Histogram("task_wait_seconds", "From when a task could start until it did, of each attempt.", lambda s: s.waits),
    Histogram("task_run_seconds", "How long each attempt ran.", lambda s: s.runs),
)

FIRST_BUCKET, LAST_BUCKET = 4 * 10, 4 * 37
"""The engine's buckets that are exported one by one: from 2^10 to 2^37 microseconds, a millisecond to a day and a half."""

BUCKET_BOUNDS = {
    bucket: repr(float(f"{2 ** (bucket / 4) / 1_000_000:.4g}")) for bucket in range(FIRST_BUCKET, LAST_BUCKET + 1)
}
"""Their lower bounds in seconds, rounded so that each machine writes the same: series are identified by this text."""


def cumulative(found: Distribution) -> list[tuple[str, float]]:
    """How many are not longer than each bound, then all. The same bounds always, or histograms could not be added."""
    shares = [sum(n for bucket, n in found.buckets.items() if bucket < FIRST_BUCKET)]
    shares += [found.buckets.get(bucket, 0) for bucket in range(FIRST_BUCKET, LAST_BUCKET)]
    counted = accumulate(shares)
    return [*zip(BUCKET_BOUNDS.values(), counted, strict=True), ("+Inf", float(sum(found.buckets.values())))]
