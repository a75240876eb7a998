"""Data migrations, which have classes of their own for the models."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core.management.sql import emit_post_migrate_signal, emit_pre_migrate_signal
from django.db.migrations.state import ProjectState

from django_fairque.events import changed, on_m2m, on_save, on_update
from tests.shop.models import Order

from .conftest import arrived
from .test_relations import describe_change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def migrating() -> Iterator[None]:
    emit_pre_migrate_signal(0, interactive=False, db="default")
    try:
        yield
    finally:
        emit_post_migrate_signal(0, interactive=False, db="default")


@pytest.fixture
def state() -> ProjectState:
    return ProjectState.from_apps(apps)


@pytest.fixture
def historical(state: ProjectState) -> Any:
    return state.apps.get_model("shop", "Order")


def test_objects_saved_by_a_migration_fire_events_until_it_ends(queue: FairQueue, work: Work, historical: Any) -> None:
    on_save(Order, user="status", when=changed("total")).enqueue(work, "total")
    with migrating():
        historical(total=4, token=uuid.uuid4()).save()
    historical(total=5).save()
    assert arrived(queue) == [[4]]


def test_a_migration_fires_only_for_fields_that_it_changes(queue: FairQueue, work: Work, historical: Any) -> None:
    Order.objects.bulk_create([Order(pk=pk, total=pk) for pk in (1, 2, 3)])
    on_update(Order, when=changed("total", was=2)).enqueue(work, "pk", "total")
    on_update(Order, when=changed("status")).enqueue(work, lambda _: "no")
    with migrating():
        for order in historical.objects.all():
            order.total = 7
            order.save()
            order.save(update_fields=["total", "status"])
    assert arrived(queue) == [[2, 7]]


def test_objects_that_a_migration_reads_again_have_not_changed(queue: FairQueue, work: Work, historical: Any) -> None:
    Order.objects.bulk_create([Order(pk=1)])
    on_update(Order, when=changed("status")).enqueue(work, lambda _: "no")
    with migrating():
        order = historical.objects.get()
        with_deferred = historical.objects.defer("status").get()
        historical.objects.update(status="paid")
        order.refresh_from_db()
        order.save()
        assert with_deferred.status == "paid"
        with_deferred.save()
    assert arrived(queue) == []


def test_a_field_that_a_migration_lacks_has_not_changed(queue: FairQueue, work: Work, state: ProjectState) -> None:
    Order.objects.bulk_create([Order(pk=1)])
    on_save(Order, when=changed("total") | changed("status")).enqueue(work, "status")
    state.remove_field("shop", "order", "total")
    with migrating():
        order: Any = state.apps.get_model("shop", "Order").objects.get()
        order.save(update_fields=["status"])
        order.status = "paid"
        order.save()
    assert arrived(queue) == [["paid"]]


@pytest.mark.parametrize("name", ["tags", "helpers"])
def test_relations_changed_by_a_migration_fire_events(queue: FairQueue, work: Work, historical: Any, name: str) -> None:
    on_m2m(Order, name).enqueue(work, describe_change, "status")
    Order.objects.create(pk=1)
    order = historical.objects.get()
    field = getattr(order, name)
    with migrating():
        other = field.model.objects.create(pk=11)
        field.add(other)
        field.remove(other)
        getattr(other, "orders" if name == "tags" else "helped").add(order)
        field.clear()
    field.add(other)
    last = "clear" if name == "tags" else "remove"
    assert arrived(queue) == [[[action, 1, [11]], "new"] for action in ("add", "remove", "add", last)]
