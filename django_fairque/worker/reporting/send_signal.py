"""Sending a signal, whatever its receivers do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from django.dispatch import Signal


def send_signal(signal: Signal, sender: str, **arguments: Any) -> None:
    """Send a signal; a receiver that fails is logged."""
    for receiver, answer in signal.send_robust(sender=sender, **arguments):
        if isinstance(answer, Exception):
            logger.error("the receiver %r failed", receiver, exc_info=answer)
