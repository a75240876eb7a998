"""Noticing that a server has lost data: it came back empty, or does not know the leases it gave last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.model.priority import Priority
from django_fairque.engine.statistics.alerts import Alert
from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from django_fairque.engine.leasing.lease_ops import Heartbeat
    from django_fairque.engine.statistics.alerts import Kind


class ServerEpochs:
    """What each queue's heartbeats said last. For one thread."""

    def __init__(self) -> None:
        self._last_epochs: dict[str, tuple[float, int]] = {}
        self._servers: dict[str, str] = {}

    def has_changed_server(self, queue: str, heartbeat: Heartbeat) -> bool:
        """Whether another server, or the same one after a restart, answers since the last heartbeat. It may lack what the last
        one acknowledged: leases that were settled there would be renewed for ever, as the worker's own."""
        before, self._servers[queue] = self._servers.get(queue, heartbeat.server), heartbeat.server
        return before != heartbeat.server

    def find_loss(self, queue: str, heartbeat: Heartbeat) -> Alert | None:
        """What has been lost since the last heartbeat; None, nearly always, for nothing."""
        (epoch, token), now = self._last_epochs.get(queue, (heartbeat.epoch, 0)), (heartbeat.epoch, heartbeat.token)
        self._last_epochs[queue] = now
        if heartbeat.epoch == epoch and heartbeat.token >= token:
            return None
        kind: Kind = "emptied" if heartbeat.epoch != epoch else "went_back"
        lost = token - heartbeat.token if kind == "went_back" else 0
        alert = Alert(kind, heartbeat.at, queue, "", "", "", Priority.NORMAL, leases=lost)
        logger.critical("queue %s: %s", queue, alert)
        return alert
