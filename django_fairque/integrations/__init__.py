"""Integrations with other packages and services. The core does not import integrations: they register themselves in
hooks of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque import hooks

if TYPE_CHECKING:
    from django_fairque.hooks import AlertSender


def register() -> None:
    """Register the integrations that settings switch on. A project adds the integrations for Sentry and structlog
    itself.
    """
    from django_fairque.integrations import opentelemetry

    hooks.tracing = opentelemetry
    if _webhook_sender not in hooks.alert_senders:
        hooks.alert_senders.append(_webhook_sender)


def _webhook_sender() -> AlertSender:
    from django_fairque.integrations.webhook import WebhookSender

    return WebhookSender()
