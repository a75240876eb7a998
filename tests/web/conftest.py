from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import get_queue

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> FairQueue:
    """The default one of two declared queues, on an empty server, with a token for those who look."""
    for name in ("ANSWER_TIMEOUT_SECONDS", "PROBE_TIMEOUT_SECONDS"):
        monkeypatch.setattr(f"django_fairque.monitoring.probe.{name}", 60.0)  # the machine may be busy
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}, "MONITOR": {"TOKEN": TOKEN}}
    return get_queue()
