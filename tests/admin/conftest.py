from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
