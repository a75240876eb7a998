"""Twelve checks of the data that Sentry, OpenTelemetry and structlog receive: ``python -m tests.lab.observability``."""
