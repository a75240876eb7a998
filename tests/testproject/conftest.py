from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque import get_queue

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque import FairQueue
    from tests.servers import Server


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The project's queue, empty, on the server that tests share."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()
