"""Bulk operations send no signals; a queryset of ours fires events all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F

from django_fairque.events import changed, on_create, on_delete, on_save, on_update, suppress_events
from tests.shop.models import Customer, Help, Order

from .conftest import arrived

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def orders(queue: FairQueue) -> list[Order]:
    return [Order.objects.create(pk=pk, total=pk) for pk in (1, 2, 3)]


def calls(redis: Redis) -> int:
    return int(redis.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"])


class TestCreate:
    def test_a_bulk_create_fires_an_event_for_each_new_object(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_create(Order).enqueue(work, "pk", "total")
        on_update(Order).enqueue(work, lambda _: "no")
        Order.objects.create(pk=99)
        arrived(queue)
        redis.config_resetstat()
        made = Order.objects.bulk_create([Order(total=n) for n in range(5)])
        assert calls(redis) == 1
        assert arrived(queue) == [[order.pk, order.total] for order in made]

    def test_a_rollback_of_a_bulk_create_sends_no_task(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_create(Order).enqueue(work, "pk")
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            Order.objects.bulk_create([Order()])
            raise ZeroDivisionError
        assert redis.dbsize() == 0

    def test_bulk_create_ignoring_conflicts_is_silent(self, queue: FairQueue, work: Work, orders: list[Order]) -> None:
        on_create(Order).enqueue(work, lambda _: "create")
        on_save(Order).enqueue(work, lambda event: [event.kind, event.pk])
        Order.objects.bulk_create([Order(pk=1), Order(pk=4)], ignore_conflicts=True)
        Order.objects.bulk_create([Order(pk=1), Order(pk=4)], None, True)  # noqa: FBT003 - as Django has them
        assert arrived(queue) == []
        Order.objects.bulk_create([Order(pk=1)], None, False, True, ["total"], ["id"])  # noqa: FBT003
        assert arrived(queue) == [[["save", 1]]]
        Order.objects.bulk_create(
            [Order(pk=1), Order(pk=5)], update_conflicts=True, unique_fields=["id"], update_fields=["total"]
        )
        assert arrived(queue) == [[["save", 1]], [["save", 5]]]


class TestUpdate:
    def test_a_queryset_update_fires_an_event_for_each_updated_object(
        self, queue: FairQueue, work: Work, orders: list[Order]
    ) -> None:
        on_update(Order).enqueue(work, "pk", "status")
        assert Order.objects.filter(total__gt=1).update(status="paid", total=0) == 2
        assert arrived(queue) == [[2, "paid"], [3, "paid"]]

    def test_a_queryset_update_fires_only_for_objects_whose_condition_matches(
        self, queue: FairQueue, work: Work, orders: list[Order]
    ) -> None:
        on_update(Order, when=changed("total", was=2, to=3)).enqueue(work, "pk")
        on_update(Order, when=changed("status")).enqueue(work, lambda _: "no")
        Order.objects.update(total=F("total") + 1)
        assert arrived(queue) == [[2]]

    def test_updates_without_an_event_take_one_query(
        self, queue: FairQueue, work: Work, orders: list[Order], django_assert_num_queries: Any
    ) -> None:
        on_create(Order).enqueue(work, "pk")
        with django_assert_num_queries(1, connection=connection):
            Order.objects.update(status="paid")
        with suppress_events(Order), django_assert_num_queries(1, connection=connection):
            Order.objects.update(status="sent")

    def test_bulk_update_fires_for_changed_objects(self, queue: FairQueue, work: Work, orders: list[Order]) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "pk", "status")
        loaded = list(Order.objects.order_by("pk"))
        loaded[0].status = "paid"
        loaded[2].status = "sent"
        assert Order.objects.bulk_update(loaded, ["status"]) == 3
        assert arrived(queue) == [[1, "paid"], [3, "sent"]]
        loaded[1].total = 100
        Order.objects.bulk_update(loaded, ["total"])
        assert arrived(queue) == []

    def test_an_async_queryset_update_fires_events(self, queue: FairQueue, work: Work, orders: list[Order]) -> None:
        on_update(Order).enqueue(work, "pk")
        assert async_to_sync(Order.objects.filter(pk=2).aupdate)(status="paid") == 1
        assert arrived(queue) == [[2]]


def test_a_queryset_delete_fires_events(queue: FairQueue, work: Work, orders: list[Order]) -> None:
    on_delete(Order).enqueue(work, "pk")
    Order.objects.filter(total__gt=1).delete()
    assert sorted(arrived(queue)) == [[2], [3]]


class TestRelatedManager:
    """Django adds by an update of the base manager, and removes by one of the model's own."""

    @pytest.fixture
    def customer(self, orders: list[Order]) -> Customer:
        customer: Customer = Customer.objects.create(pk=7)
        return customer

    def test_a_related_manager_fires_for_objects_that_it_adds_or_removes(
        self, queue: FairQueue, work: Work, orders: list[Order], customer: Customer
    ) -> None:
        on_update(Order, when=changed("customer")).enqueue(work, "pk", "customer")
        customer.order_set.add(*orders[:2])
        assert arrived(queue) == [[1, 7], [2, 7]]
        customer.order_set.set(orders[1:])
        assert sorted(arrived(queue)) == [[1, None], [3, 7]]
        customer.order_set.remove(orders[1])
        customer.order_set.clear()
        assert arrived(queue) == [[2, None], [3, None]]

    def test_saving_an_object_fires_one_update_event(self, queue: FairQueue, work: Work, orders: list[Order]) -> None:
        on_update(Order).enqueue(work, "pk")
        orders[0].save()
        assert arrived(queue) == [[1]]
        assert queue.event_counts()["shop.Order:update:work"].fired == 1

    def test_a_manager_without_event_support_fires_no_events(self, queue: FairQueue, work: Work) -> None:
        on_update(Help).enqueue(work, "pk")
        order, customer = Order.objects.create(), Customer.objects.create()
        help_ = Help.objects.create(order=order, customer=Customer.objects.create())
        customer.help_set.add(help_)
        assert arrived(queue) == []
