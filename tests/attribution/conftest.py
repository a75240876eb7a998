from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import task
from django_fairque.conf import close_queues, get_queue
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque import FairQueue
    from tests.servers import Server

MIDDLEWARE = "django_fairque.middleware.CurrentUserMiddleware"


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.01}}
    settings.ROOT_URLCONF = "tests.attribution.urls"
    settings.MIDDLEWARE = [MIDDLEWARE, *settings.MIDDLEWARE]
    monkeypatch.setattr(registry, "_tasks", {})
    yield
    close_queues()


@pytest.fixture
def queue() -> FairQueue:
    return get_queue()


@pytest.fixture
def note() -> Any:
    """A task that names no user."""

    @task(name="note")
    def note(*args: Any) -> None:
        """Nothing."""

    return note


@pytest.fixture
def note_for() -> Any:
    """A task that does."""

    @task(name="note_for", user="whom")
    def note_for(whom: str) -> None:
        """Nothing."""

    return note_for


def users(queue: FairQueue) -> list[str]:
    """Whose the tasks of the queue are, as they were enqueued."""
    tasks = sorted(queue.tasks("queued").items, key=lambda task: task.created_at)
    return [task.user_id for task in tasks]
