from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import TaskResult, task
from django_fairque.conf import get_queue
from django_fairque.models import OutboxEntry
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The default queue of settings with an outbox."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "OUTBOX": True}
    return get_queue()


def enqueue(n: Any = 0, *, customer: str = "acme", **options: Any) -> TaskResult:
    @task(name="work", user="customer")
    def work(customer: str, n: Any) -> None: ...

    return work.using(**options).enqueue(customer, n)


def rows(database: str = "default") -> list[OutboxEntry]:
    return list(OutboxEntry.objects.using(database).order_by("id"))


def arrived(queue: FairQueue) -> list[Any]:
    """Run all tasks that have arrived, and return their arguments in the order of the runs."""
    leases = queue.pop_batch(1000, "w")
    for lease in leases:
        queue.finish(lease)
    return [lease.payload["args"][1] for lease in leases]
