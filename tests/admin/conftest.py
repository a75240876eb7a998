from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.admin.status_line import status_probe
from django_fairque.conf import get_queue

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The default queue, empty."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"default": {}, "mail": {}}}
    return get_queue()


@pytest.fixture(autouse=True)
def status_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page reads the health of the queues, so that a page shows what its test has just changed."""
    monkeypatch.setattr(status_probe, "keep_seconds", 0.0)
