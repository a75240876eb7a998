from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk import metrics as metrics_sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_fairque import current_task, task
from django_fairque.conf import close_queues
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

MIDDLEWARE = "django_fairque.middleware.CurrentUserMiddleware"


@pytest.fixture
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.01}}
    settings.ROOT_URLCONF = "tests.attribution.urls"
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
    monkeypatch.setattr(registry, "_tasks", {})
    yield
    close_queues()


@pytest.fixture
def note(project: None) -> Any:
    """A task that returns its trace."""

    @task(name="note")
    def note(*args: Any) -> str:
        return current_task().traceparent

    return note


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """OpenTelemetry as a project sets it up: once in a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="session")
def reader() -> InMemoryMetricReader:
    """The metrics of a project, set up as above. Each collection has what was recorded since the last one."""
    deltas: Any = dict.fromkeys((metrics_sdk.Counter, metrics_sdk.Histogram), AggregationTemporality.DELTA)
    reader = InMemoryMetricReader(preferred_temporality=deltas)
    metrics.set_meter_provider(MeterProvider([reader], shutdown_on_exit=False))
    return reader


class Metrics:
    """The metrics that were recorded since this object was made."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader
        reader.collect()
        reader.get_metrics_data()
        self._points: dict[str, list[Any]] = {}
        self.instruments: dict[str, Any] = {}

    def __call__(self, name: str) -> list[Any]:
        """The data points of an instrument."""
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self.instruments[metric.name] = metric
                    self._points.setdefault(metric.name, []).extend(metric.data.data_points)
        return self._points.get(name, [])

    def one(self, name: str) -> Any:
        (point,) = self(name)
        return point


@pytest.fixture
def recorded(reader: InMemoryMetricReader, project: None, settings: Settings) -> Metrics:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": True}
    return Metrics(reader)


class Spans:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def __call__(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if not name or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self(name)
        return span


@pytest.fixture
def spans(exporter: InMemorySpanExporter, project: None, settings: Settings) -> Iterator[Spans]:
    settings.FAIRQUE = {**settings.FAIRQUE, "TRACING": True}
    exporter.clear()
    yield Spans(exporter)
    exporter.clear()


def traceparent_of(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
