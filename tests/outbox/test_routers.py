"""A database in which a router keeps this package's tables from being made has no outbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import transaction

from django_fairque import TaskState, task
from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.events import on_save
from tests.events.conftest import own_rules  # noqa: F401 - a fixture that every test here uses
from tests.shop.models import Order

from .conftest import arrived, enqueue, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.usefixtures("routed"),
]


class OnlyInDefault:
    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool:
        return db == "default" or app_label != "django_fairque"


@pytest.fixture
def routed(queue: FairQueue, settings: Settings, transactional_db: None) -> Iterator[None]:
    """The other database has no table of ours."""
    call_command("migrate", "django_fairque", "zero", database="other", verbosity=0)
    settings.DATABASE_ROUTERS = [OnlyInDefault()]
    yield
    settings.DATABASE_ROUTERS = []
    call_command("migrate", "django_fairque", database="other", verbosity=0)


def test_a_task_for_a_database_without_an_outbox_is_sent_after_its_commit(queue: FairQueue) -> None:
    with transaction.atomic(using="other"):
        result = enqueue(1, database="other")
        assert result.state is None
    assert result.state is TaskState.QUEUED
    assert arrived(queue) == [1]


def test_a_task_for_a_database_without_an_outbox_can_be_canceled_before_the_commit(queue: FairQueue) -> None:
    with transaction.atomic(using="other"):
        assert enqueue(1, database="other").cancel() is True
    assert arrived(queue) == []


def test_a_commit_of_a_database_without_an_outbox_raises_server_errors(settings: Settings) -> None:
    settings.FAIRQUE = {
        **settings.FAIRQUE,
        "REDIS": {"URL": "unix:///nowhere/at/all.sock"},
        "QUEUE": {"REQUEST_TIMEOUT": 0.05},
    }
    with pytest.raises(RedisConnectionError), transaction.atomic(using="other"):
        enqueue(1, database="other")


@pytest.mark.parametrize("in_transaction", [True, False])
def test_model_events_of_a_database_without_an_outbox_log_server_errors(queue: FairQueue, in_transaction: bool) -> None:
    @task(name="saved", user="customer")
    def saved(customer: str, total: int) -> None: ...

    on_save(Order).enqueue(saved, "status", "total")
    if in_transaction:
        with transaction.atomic(using="other"):
            Order(total=7).save(using="other")
    else:
        Order(total=7).save(using="other")
    assert arrived(queue) == [7]
    (count,) = queue.event_counts().values()
    assert (count.fired, count.failed) == (1, 0)


def test_databases_with_the_table_use_the_outbox(queue: FairQueue) -> None:
    with transaction.atomic():
        enqueue(1)
        assert len(rows()) == 1
    assert arrived(queue) == [1]
