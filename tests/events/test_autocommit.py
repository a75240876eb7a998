"""Databases whose autocommit is off, where nobody tells of a commit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from django.db import connection, transaction

from django_fairque.events import changed, on_delete, on_save
from django_fairque.models import OutboxEntry
from django_fairque.tasks import sending
from django_fairque.testing import capture_tasks
from tests.shop.models import Order

from .conftest import arrived

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sending, "_warned", set())
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", value=False)
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


def test_a_save_outside_of_a_transaction_sends_its_task_at_once(
    queue: FairQueue, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    on_save(Order, when=changed("total")).enqueue(work, "total")
    order = Order.objects.create(total=1)
    order.total = 2
    order.save()
    transaction.commit()
    assert arrived(queue) == [[1], [2]]
    assert Order.objects.get().total == 2
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "autocommit of database 'default' is off: what model events ask for is sent at once" in line.getMessage()


def test_deleting_an_object_outside_of_a_transaction_sends_its_task_at_once(queue: FairQueue, work: Work) -> None:
    on_delete(Order).enqueue(work, "total")
    Order.objects.create(total=1).delete()
    transaction.commit()
    assert arrived(queue) == [[1]]


def test_the_outbox_sends_a_task_after_the_implicit_commit(
    queue: FairQueue, work: Work, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
    on_save(Order).enqueue(work, "total")
    Order.objects.create(total=1)
    assert OutboxEntry.objects.count() == 1
    assert arrived(queue) == []
    transaction.rollback()
    assert OutboxEntry.objects.count() == 0
    assert not caplog.records


def test_captured_tests_see_the_task_of_a_save_outside_of_a_transaction(queue: FairQueue, work: Work) -> None:
    on_save(Order).enqueue(work, "total")
    with capture_tasks() as captured:
        Order.objects.create(total=1)
    assert [task.args for task in captured] == [[1]]
