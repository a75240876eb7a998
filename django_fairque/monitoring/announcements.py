"""Messages about incidents from processes that are not workers, sent to the log, by e-mail and to the configured
webhook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.integrations.webhook import WebhookError, describe_change, send_alerts
from django_fairque.safely import get_logger
from django_fairque.worker.reporting.signal_thread import report_incidents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.statistics.incidents import IncidentChange

logger = get_logger("django_fairque.monitoring")


def report_changes(changes: Sequence[IncidentChange]) -> None:
    """Log and mail each change of an incident. Send all changes in one message to the webhook, so that a receiver that
    hangs delays the caller only once.
    """
    if not changes:
        return
    try:
        config = get_config()
    except ConfigurationError:  # a program that creates its queue itself needs no settings
        report_incidents(changes, ())
        return
    report_incidents(changes, config.worker.alert_email)
    if config.monitor.webhook is not None:
        try:
            send_alerts(list(map(describe_change, changes)))
        except WebhookError as error:
            logger.warning("messages about incidents were not sent: %s", error)
