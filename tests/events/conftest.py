from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import task
from django_fairque.conf import get_queue
from django_fairque.events import activation, field_tracker, rules
from django_fairque.tasks import registry
from django_fairque.tasks.transactions import after_commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work
    from tests.servers import Server


@pytest.fixture(autouse=True)
def own_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks and events declared by a test are gone when it ends."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    monkeypatch.setattr(field_tracker, "tracked", {})
    activation.ready()
    yield
    after_commit._unsent_counts.take()


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def work() -> Work:
    """A task that takes anything."""

    @task(name="work")
    def work(*args: Any, **kwargs: Any) -> None: ...

    return work


def arrived(queue: FairQueue) -> list[list[Any]]:
    """The arguments of the tasks that are there, which have run then."""
    leases = queue.pop_batch(1000, "w")
    for lease in leases:
        queue.finish(lease)
    return [lease.payload["args"] for lease in leases]


def users(queue: FairQueue) -> list[str]:
    return [lease.user_id for lease in queue.pop_batch(1000, "w")]
