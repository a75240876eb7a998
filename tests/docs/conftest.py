from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.signature import DEFAULT_KEY
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks declared by an example are gone when its test ends."""
    monkeypatch.setattr(registry, "_tasks", {})
    # One that shows `sign_with` must not sign for all that follow.
    monkeypatch.setattr(DEFAULT_KEY, "read", DEFAULT_KEY.read)


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The default queue of this test's settings, on an empty server."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()
