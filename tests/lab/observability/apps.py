from __future__ import annotations

import os
from pathlib import Path

from django.apps import AppConfig
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

NEVER_MILLISECONDS = 3_600_000


class Observed(AppConfig):
    """Each process writes its spans and metrics into files when it ends, as it would send them to a collector."""

    name = "tests.lab.observability"
    label = "observed_project"

    def ready(self) -> None:
        from . import tasks  # noqa: F401 - declares them

        directory = Path(os.environ["TEST_TELEMETRY"])
        spans = (directory / f"spans-{os.getpid()}").open("a")
        figures = (directory / f"metrics-{os.getpid()}").open("a")
        provider = TracerProvider()
        exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=NEVER_MILLISECONDS))
        trace.set_tracer_provider(provider)
        reader = PeriodicExportingMetricReader(
            ConsoleMetricExporter(out=figures, formatter=lambda data: data.to_json(indent=None) + "\n"),
            export_interval_millis=NEVER_MILLISECONDS,
        )
        metrics.set_meter_provider(MeterProvider([reader]))
