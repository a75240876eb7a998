from __future__ import annotations

import os
from pathlib import Path

from django.apps import AppConfig
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter


class Project(AppConfig):
    """Each process writes its spans into a file, as it would send them to a collector: now and then, and when it ends."""

    name = "tests.tracing.project"
    label = "traced_project"

    def ready(self) -> None:
        out = Path(os.environ["TEST_SPANS"], str(os.getpid())).open("a")  # noqa: SIM115 - open until the process ends
        provider = TracerProvider()
        exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        trace.set_tracer_provider(provider)
