from __future__ import annotations

import pytest

from django_fairque.conf import get_queue
from django_fairque.tasks import registry
from django_fairque.tasks.execution import Services
from tests.fixture_types import FairQueue, Redis, Server, Settings


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks declared by a test are gone when it ends."""
    monkeypatch.setattr(registry, "_tasks", {})


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The default queue of this test's settings, on an empty server."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def services(queue: FairQueue) -> Services:
    return Services(queue.name, queue.config, queue.set_progress)
