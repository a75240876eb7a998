"""The figures of all declared queues for Prometheus; needs the package prometheus-client.

Each scrape reads them from the server. Nothing is kept in the process, so that it does not matter which of many answers.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from django_fairque.monitoring.probe import Probe, ProbeResult

from .figures import FAMILIES, HISTOGRAMS, PREFIX, Family, Figures, cumulative

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

FAMILY_CLASSES: dict[str, type[GaugeMetricFamily | CounterMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"

probe = Probe(Figures.read)


class FairqueCollector(Collector):
    """All queues' figures; register it in your registry to have them next to your own metrics."""

    def collect(self) -> Iterator[Metric]:
        began = monotonic()
        result = probe.read()
        yield from _of_queues(result)
        yield from _of_server(result)
        yield _gauge("scrape_duration_seconds", "How long reading all this took.", monotonic() - began)

    def describe(self) -> Iterator[Metric]:
        """The names, without asking the server: registering must not wait for it."""
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
    """What a worker reports about itself: numbers by name, those of `WORKER`."""

    def __init__(self, figures: Callable[[], Mapping[str, float]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures()
        for name, text in WORKER_FAMILIES.items():
            yield _gauge(f"worker_{name}", text, figures[name])


def exposition(accept: str, worker: Callable[[], Mapping[str, float]] | None = None) -> tuple[bytes, str]:
    """The figures as they are written, and the content type: OpenMetrics for those who ask, the older text for all else.

    ``worker``: see `WorkerCollector`.
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
        yield _family(family, result)
    for histogram in HISTOGRAMS:
        metric = HistogramMetricFamily(PREFIX + histogram.name, histogram.help, labels=["queue"])
        for queue, figures in result.readings.items():
            found = histogram.value(figures.stats)
            metric.add_metric([queue], cumulative(found), found.sum_seconds)
        yield metric
    up = GaugeMetricFamily(f"{PREFIX}queue_up", "1 if the queue could be read.", labels=["queue"])
    for queue in (*result.readings, *result.troubles):
        up.add_metric([queue], queue in result.readings)
    yield up


def _family(family: Family, result: ProbeResult[Figures]) -> Metric:
    metric = FAMILY_CLASSES[family.kind](PREFIX + family.name, family.help, labels=["queue", *family.labels])
    for queue, figures in result.readings.items():
        for values, number in family.samples(figures):
            metric.add_metric([queue, *values], float(number))
    return metric


def _of_server(result: ProbeResult[Figures]) -> Iterator[Metric]:
    yield _gauge("server_up", "1 if the server answered.", bool(result.readings))
    yield _gauge("scrape_errors", "Queues that could not be read.", len(result.troubles))
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
