"""Exports the figures of all declared queues to Prometheus; needs the package prometheus-client.

Each scrape reads the figures from the server. No figures are kept in the process, so any process can answer a scrape.

No metric has a user or a worker as a label, because every value of a label creates a series that Prometheus keeps, and
the number of users and workers has no limit. A few metrics have the task's name as a label, with at most 100 values (of
each shard). The values of all other labels are known beforehand, and all of them are exported even with the count 0, so
that the first event is visible as an increase.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from django_fairque.engine.inspection.worker_activity import short_name
from django_fairque.engine.model.lanes import CLASS_NAMES, LANES
from django_fairque.engine.model.options import STARVABLE_PRIORITIES
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics.releases import compare_releases
from django_fairque.monitoring.probe import Probe, ProbeResult
from django_fairque.monitoring.report import longest_wait

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.health import Health
    from django_fairque.engine.statistics.queue_stats import Distribution, LaneStats, QueueStats
    from django_fairque.engine.statistics.releases import ReleaseComparison
    from django_fairque.engine.statistics.task_names import AttemptTotals, NameFigures
    from django_fairque.engine.users.fairness import Fairness

MetricFamily = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
PREFIX = "fairque_"
USERS_EXAMINED_PER_SCRAPE = 200
"""Maximum number of users whose tasks are compared in one scrape: about a thousand commands, which take 3 ms of the
server's time."""
OTHER_NAMES = "other"
"""The label that stands for all other task names together."""
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Figures:
    """The figures of one queue that a scrape reads with a limited number of commands."""

    health: Health
    stats: QueueStats
    fairness: Fairness
    shards: int = 1
    names: list[NameFigures] = field(default_factory=list)
    """Figures of the last hour, by task name."""
    attempts: dict[str, AttemptTotals] = field(default_factory=dict)
    """Total numbers of attempts since the queue's first task, by task name."""
    releases: list[ReleaseComparison] = field(default_factory=list)
    """The comparisons of releases; none without the setting ``CODE_VERSION``."""

    @classmethod
    def read(cls, queue: FairQueue) -> Figures:
        fairness = queue.fairness(USERS_EXAMINED_PER_SCRAPE)
        names, attempts = queue.task_names(), queue.attempt_totals()
        releases = read_in_lockstep([(queue, compare_releases)])[0] if queue.config.release else []
        return cls(queue.health(), queue.get_stats(minutes=0), fairness, queue.config.shards, names, attempts, releases)


probe = Probe(Figures.read)


@dataclass(frozen=True)
class Family:
    """One metric that every queue has. ``name`` has no prefix, and no ``_total`` at the end for a counter.

    ``values`` returns the numbers, or the distributions of a histogram, by the value of ``label``. If the queue is the
    only label, there is a single one under "".
    """

    kind: type[MetricFamily]
    name: str
    help: str
    values: Callable[[Figures], Mapping[str, Any]]
    label: str = ""

    def metric(self, result: ProbeResult[Figures]) -> Metric:
        labels = ["queue", self.label] if self.label else ["queue"]
        metric = self.kind(PREFIX + self.name, self.help, labels=labels)
        for queue, figures in result.readings.items():
            for value, found in self.values(figures).items():
                is_histogram = self.kind is HistogramMetricFamily
                sample = (cumulative(found), found.sum_seconds) if is_histogram else (float(found),)
                metric.add_metric([queue, value][: len(labels)], *sample)
        return metric


def _one(name: str, value: Callable[[QueueStats], float], text: str) -> Family:
    return Family(GaugeMetricFamily, name, text, lambda figures: {"": value(figures.stats)})


def _of_users(name: str, value: Callable[[Fairness], float], text: str) -> Family:
    return Family(GaugeMetricFamily, name, text, lambda figures: {"": value(figures.fairness)})


def _by_task_name(
    name: str,
    value: Callable[[NameFigures], float],
    text: str,
    together: Callable[[float, float], float] = operator.add,
) -> Family:
    """Define a gauge by task name. If several task names share one series, ``together`` combines their values."""

    def values(figures: Figures) -> Mapping[str, float]:
        labels = _label_by_name(figures)
        found = dict.fromkeys(labels.values(), 0.0)
        for row in figures.names:
            label = labels.get(row.name, OTHER_NAMES)
            found[label] = together(found[label], value(row))
        return found

    return Family(GaugeMetricFamily, name, text, values, "task")


def _attempts_by_task_name(name: str, value: Callable[[AttemptTotals], float], text: str) -> Family:
    def values(figures: Figures) -> Mapping[str, float]:
        labels = _label_by_name(figures)
        found = dict.fromkeys(labels.values(), 0.0)
        for task_name, totals in figures.attempts.items():
            found[labels[task_name]] += value(totals)
        return found

    return Family(CounterMetricFamily, name, text, values, "task")


def _by_release(name: str, usual: float, value: Callable[[ReleaseComparison], float], text: str) -> Family:
    def values(figures: Figures) -> Mapping[str, float]:
        labels = _label_by_name(figures)
        worse = {labels.get(one.name, OTHER_NAMES): value(one) for one in figures.releases if one.is_worse}
        return {**dict.fromkeys(labels.values(), usual), **worse}

    return Family(GaugeMetricFamily, name, text, values, "task")


def _label_by_name(figures: Figures) -> Mapping[str, str]:
    """Return the label of each task name that has counters. A label stays the same while the server has the
    counters.
    """
    return {"": OTHER_NAMES, **{name: short_name(name) for name in figures.attempts if name}}


def _family(name: str, label: str, values: Callable[[QueueStats], Mapping[str, int]], text: str) -> Family:
    return Family(GaugeMetricFamily, name, text, lambda figures: values(figures.stats), label)


def _total(name: str, key: str, text: str) -> Family:
    return _totals(name, "", {"": key}, text)


def _totals(name: str, label: str, keys: Mapping[str, str], text: str) -> Family:
    """Define a counter by label. ``keys`` maps each value of the label to its key in the queue's totals."""

    def values(figures: Figures) -> Mapping[str, float]:
        return {value: figures.stats.totals.get(key, 0) for value, key in keys.items()}

    return Family(CounterMetricFamily, name, text, values, label)


def _by_priority(key: str) -> Mapping[str, str]:
    return {name: f"{key}:{number}" for number, name in CLASS_NAMES.items()}


def _by_lane(kind: type[MetricFamily], name: str, value: Callable[[LaneStats], Any], text: str) -> Family:
    def values(figures: Figures) -> Mapping[str, Any]:
        return {lane: value(lane_figures) for lane, lane_figures in figures.stats.lanes.items()}

    return Family(kind, name, text, values, "lane")


def _ready_by_priority(stats: QueueStats) -> Mapping[str, int]:
    return {name: stats.depth.get(name, 0) for name in CLASS_NAMES.values()}


def _statuses(figures: Figures) -> Mapping[str, float]:
    return {status: figures.health.status == status for status in ("good", "degraded", "down")}


def _shards(figures: Figures) -> Mapping[str, float]:
    missing = figures.stats.missing_shards
    return {str(shard): shard not in missing for shard in range(figures.shards)}


FAMILIES = (
    _family("tasks", "state", lambda stats: stats.states, "Tasks in each state; ended ones until they are forgotten."),
    _family("ready_tasks", "priority", _ready_by_priority, "Queued tasks by priority; URGENT and BULK are lanes."),
    _by_lane(GaugeMetricFamily, "lane_ready_tasks", lambda lane: lane.ready, "Queued tasks by lane."),
    _by_lane(GaugeMetricFamily, "lane_running_tasks", lambda lane: lane.running, "Running tasks by lane."),
    _by_lane(
        *(CounterMetricFamily, "lane_tasks_started", lambda lane: lane.started),
        "Tasks handed to a worker, each time, by lane.",
    ),
    _family("dead_letters", "type", lambda stats: stats.dead, "Dead letters that lie there now."),
    Family(
        *(GaugeMetricFamily, "oldest_wait_seconds", "How long one that could start, and is no bulk task, has waited."),
        lambda figures: {"": longest_wait(figures.stats, figures.fairness.examined)},
    ),
    _one(
        "held_back_wait_seconds",
        lambda stats: stats.held_back_wait_seconds,
        "How long one has waited whose user or organization is paused or at a limit.",
    ),
    _one(
        *("limit_waiting_tasks", lambda stats: stats.waiting_at_limits),
        "Queued tasks that wait for a place at a limit by key.",
    ),
    _one("users", lambda stats: stats.users, "Users that have a record."),
    _one("users_with_work", lambda stats: stats.users_ready, "Users with a task that could start now."),
    _of_users(
        "active_users", lambda fairness: fairness.active_users, "Users with a task that could start or that runs."
    ),
    _of_users(
        *("noisy_users", lambda fairness: len(fairness.noisy_users)),
        "Users with far more waiting tasks than half of the others.",
    ),
    _of_users(
        *("quiet_users_oldest_wait_seconds", lambda fairness: fairness.oldest_quiet_wait_seconds),
        "How long a task has waited whose user is not noisy.",
    ),
    _of_users(
        "fairness_index",
        lambda fairness: math.nan if fairness.jain_index is None else fairness.jain_index,
        "Jain's index of the worker time of users who wait, by weight; 1 is fair. NaN while fewer than two wait.",
    ),
    _one("workers", lambda stats: stats.workers, "Worker processes that live and serve the queue."),
    _one("due", lambda stats: stats.due, "What waits for a worker's maintenance."),
    _one("paused", lambda stats: stats.paused, "1 while the queue is paused."),
    _one("dependency_edges", lambda stats: stats.dependencies.edges, "Dependencies that tasks wait for."),
    _one(
        *("resolving_tasks", lambda stats: stats.dependencies.resolving),
        "Ended tasks whose dependents must be notified.",
    ),
    _attempts_by_task_name(
        "task_attempts", lambda totals: totals.attempts, "Attempts that ended, whatever followed, by task name."
    ),
    _attempts_by_task_name("task_failures", lambda totals: totals.failed, "Attempts that failed, by task name."),
    _by_task_name("task_retrying", lambda row: row.retrying, "Tasks that wait for a retry, by task name."),
    _by_task_name(
        *(
            "task_run_p95_seconds",
            lambda row: row.run.p95,
            "95 % of the attempts of this hour and the one before ran no longer.",
            max,
        )
    ),
    _by_release(
        *("task_release_slowdown", 1.0, lambda one: one.ratio if one.is_slower else 1.0),
        "Median run time of the release that runs / that of the latest better one; 1 unless slower.",
    ),
    _by_release(
        *(
            "task_release_failures",
            0.0,
            lambda one: one.now.failed_share - one.before.failed_share if one.fails_more else 0.0,
        ),
        "By how much more of the attempts fail than under the latest better release; 0 unless more.",
    ),
    Family(GaugeMetricFamily, "queue_health", "1 for the status that fairque_health reports.", _statuses, "status"),
    Family(
        *(GaugeMetricFamily, "shard_up"),
        "1 if the shard could be read; the other figures are without those that could not.",
        *(_shards, "shard"),
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
    _total("dead_letters_shortened", "dead_letters_shortened", "Dead letters kept in a short form (max_dead_letters)."),
    _total("results_removed", "results_removed", "Results removed because of max_result_bytes."),
    _total("xcom_removed", "xcom_removed", "Ended runs whose xcom values were removed because of max_xcom_bytes."),
    _totals("sla_at_risk", "priority", _by_priority("sla_at_risk"), "Start deadlines (SLA) that came at risk."),
    _totals(
        "sla_overdue",
        "priority",
        _by_priority("sla_overdue"),
        "Start deadlines (SLA) that passed while the task still waited.",
    ),
    _totals(
        "sla_violated", "priority", _by_priority("sla_violated"), "Start deadlines (SLA) that a late start missed."
    ),
    _totals(
        *("sla_kept_tasks", "lane", {str(lane): f"sla_kept:{lane}" for lane in LANES}),
        "Tasks whose first start was within their SLA.",
    ),
    _totals(
        *("sla_missed_tasks", "lane", {str(lane): f"sla_missed:{lane}" for lane in LANES}),
        "Tasks whose first start was later than their SLA, or that ended without a start after it.",
    ),
    # these histograms cover the time since each queue's first task
    Family(
        *(HistogramMetricFamily, "task_wait_seconds"),
        "From when a task could start until it did, of each attempt.",
        lambda figures: {"": figures.stats.waits},
    ),
    _by_lane(
        *(HistogramMetricFamily, "lane_wait_seconds", lambda lane: lane.waits),
        "From when a task could start until it did, of each attempt, by lane.",
    ),
    Family(
        *(HistogramMetricFamily, "task_run_seconds", "How long each attempt ran."),
        lambda figures: {"": figures.stats.runs},
    ),
)

BUCKETS_PER_OCTAVE = 4
"""Number of buckets of the engine's histograms between two powers of two."""
FIRST_BOUND, LAST_BOUND = 11, 34
"""The first and the last exported bound of histograms, as powers of two in microseconds: from 2 ms to 4.8 hours. There
is a bound at each power of two in between."""

BUCKET_BOUNDS = {
    BUCKETS_PER_OCTAVE * power: repr(float(f"{2**power / 1_000_000:.4g}"))
    for power in range(FIRST_BOUND, LAST_BOUND + 1)
}
"""The text of each exported bound in seconds, by the engine's bucket that begins at the bound. The numbers are rounded
so that each machine writes the same text, because the text identifies the series."""


def cumulative(found: Distribution) -> list[tuple[str, float]]:
    """Return the number of values up to each bound, and last the number of all values. The bounds are always the same,
    because otherwise histograms of several processes could not be added.
    """
    counted = [
        (text, float(sum(n for bucket, n in found.buckets.items() if bucket < bound)))
        for bound, text in BUCKET_BOUNDS.items()
    ]
    return [*counted, ("+Inf", float(sum(found.buckets.values())))]


class FairqueCollector(Collector):
    """Collects the figures of all queues. Register an instance in your registry to export them together with your own
    metrics.
    """

    def collect(self) -> Iterator[Metric]:
        began = monotonic()
        result = probe.read()
        yield from _of_queues(result)
        yield from _of_server(result)
        yield _gauge("scrape_duration_seconds", "How long reading all this took.", monotonic() - began)

    def describe(self) -> Iterator[Metric]:
        """Return the names of the metrics without a request to the server, because registering must not wait for the
        server.
        """
        yield from _of_queues(ProbeResult())
        yield from _of_server(ProbeResult())
        yield _gauge("scrape_duration_seconds", "", 0)


WORKER_FAMILIES = {
    "processes": "Processes of this worker that are ready for tasks.",
    "slots": "Tasks that they can run at once.",
    "slots_busy": "Tasks that they run now.",
    "memory_bytes": "Memory that they use.",
    "healthy": "1 while nothing is wrong with this worker.",
}


class WorkerCollector(Collector):
    """Collects the figures of a worker about itself, by name (`WORKER_FAMILIES`)."""

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        for name, text in WORKER_FAMILIES.items():
            yield _gauge(f"worker_{name}", text, figures[name])


def exposition(accept: str, worker: Callable[[], Mapping[str, float]] | None = None) -> tuple[bytes, str]:
    """Return the figures as text, and the content type: OpenMetrics if the client accepts it, otherwise the older text
    format.

    ``worker`` contains a worker's own figures; see `WorkerCollector`.
    """
    registry = CollectorRegistry()
    registry.register(FairqueCollector())
    if worker is not None:
        registry.register(WorkerCollector(worker))
    if "application/openmetrics-text" in accept:
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), TEXT_FORMAT


def _of_queues(result: ProbeResult[Figures]) -> Iterator[Metric]:
    for family in FAMILIES:
        yield family.metric(result)
    up = GaugeMetricFamily(f"{PREFIX}queue_up", "1 if the queue could be read.", labels=["queue"])
    for queue in (*result.readings, *result.troubles):
        up.add_metric([queue], queue in result.readings)
    yield up


def _of_server(result: ProbeResult[Figures]) -> Iterator[Metric]:
    yield _gauge("server_up", "1 if the server answered, in time or not.", bool(result.readings) or result.is_slow)
    yield _gauge("scrape_errors", "Queues that could not be read.", len(result.troubles))
    yield _gauge("scrape_timed_out", "1 if the server answered too slowly to read the queues.", result.is_slow)
    server = next((figures.health.server for figures in result.readings.values()), {})
    for name, key, text in (
        ("server_memory_used_bytes", "memory_used", "Memory that the server uses."),
        ("server_memory_limit_bytes", "memory_limit", "Memory beyond which it refuses tasks; 0: no limit."),
    ):
        metric = GaugeMetricFamily(PREFIX + name, text)
        if result.readings:
            metric.add_metric([], float(server.get(key) or 0))
        yield metric


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=float(value))
