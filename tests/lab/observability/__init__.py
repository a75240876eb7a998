"""Twelve checks of what Sentry, OpenTelemetry and structlog are given by real processes: `python -m tests.lab.observability`."""
