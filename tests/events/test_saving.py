"""Objects are created, updated and deleted, and tasks are there after the commit."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core import serializers
from django.db import IntegrityError, connection, transaction
from django.db.models import Value

from django_fairque import Concurrency, TaskSerializationError, TaskValidationError, current_task, lane, task
from django_fairque.conf import aclose_queues
from django_fairque.events import Event, changed, on_create, on_delete, on_save, on_signal, on_update, suppress_events
from django_fairque.tasks.errors import TaskUsageError
from django_fairque.testing import capture_tasks, run_tasks
from tests.shop.models import Customer, Dated, GiftOrder, Order, RushOrder

from .conftest import arrived, users

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def _word_and_key(word: str) -> Callable[[Event], Any]:
    return lambda event: (word, event.pk)


class TestLanes:
    def test_the_task_of_an_event_has_the_lane_of_the_block_or_of_its_declaration(
        self, queue: FairQueue, work: Work
    ) -> None:
        @task(name="declared", lane="urgent")
        def declared(pk: int) -> None: ...

        on_create(Order).enqueue(work, "pk")
        on_create(Order).enqueue(declared, "pk")
        with lane("bulk"), transaction.atomic():
            Order.objects.create()
        Order.objects.create()
        found = sorted((lease.name, lease.lane) for lease in queue.pop_batch(10, "w"))
        assert found == [("declared", "urgent"), ("declared", "urgent"), ("work", "bulk"), ("work", "normal")]

    def test_an_event_may_have_another_lane_than_its_task(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work.using(lane="bulk"), "pk")
        Order.objects.create()
        assert [lease.lane for lease in queue.pop_batch(10, "w")] == ["bulk"]

    def test_objects_that_a_bulk_task_saves_send_bulk_tasks(self, queue: FairQueue, work: Work) -> None:
        @task(name="importing", lane="bulk")
        def importing() -> None:
            Order.objects.create()

        on_create(Order).enqueue(work, "pk")
        with capture_tasks() as captured:
            importing.enqueue()
            captured.run()
        assert [task.lane for task in captured.of(work)] == ["bulk"]


class TestLimits:
    def test_the_task_of_an_event_waits_for_a_place_at_its_limits(self, queue: FairQueue) -> None:
        @task(name="limited", limits=[Concurrency("order:{pk}", 1), Concurrency("all", 1)])
        def limited(pk: int) -> None: ...

        on_create(Order).enqueue(limited, "pk")
        for _ in range(2):
            Order.objects.create()
        (lease,) = queue.pop_batch(10, "w")
        assert queue.limit("all").stats().waiting == 1
        queue.finish(lease)
        assert len(queue.pop_batch(10, "w")) == 1


class TestKinds:
    def test_create_update_save_and_delete_events_fire_at_their_time(self, queue: FairQueue, work: Work) -> None:
        for declare in (on_create, on_update, on_save, on_delete):
            declare(Order, args=_word_and_key(declare.__name__[3:]))(work)
        order = Order.objects.create()
        pk = order.pk
        assert sorted(arrived(queue)) == [["create", pk], ["save", pk]]
        order.save()
        assert sorted(arrived(queue)) == [["save", pk], ["update", pk]]
        order.delete()
        assert arrived(queue) == [["delete", pk]]

    def test_a_decorated_task_gets_the_primary_key(self, queue: FairQueue) -> None:
        @on_create("shop.Order", user=lambda event: event.instance.customer.slug)
        @task
        def analyse(pk: int) -> None: ...

        order = Order.objects.create(customer=Customer.objects.create(slug="acme"))
        lease = queue.pop("w")
        assert lease is not None
        assert (lease.user_id, lease.name, lease.payload["args"]) == ("acme", analyse.name, [order.pk])

    def test_an_event_can_name_its_task(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue("work", "pk")
        order = Order.objects.create()
        assert arrived(queue) == [[order.pk]]

    def test_any_django_signal_can_enqueue_a_task(self, queue: FairQueue, work: Work) -> None:
        from django.dispatch import Signal

        paid = Signal()
        on_signal(paid, sender="shop", user="customer__slug").enqueue(
            work, "pk", lambda event: event.arguments["amount"]
        )
        order = Order.objects.create(customer=Customer.objects.create(slug="acme"))
        paid.send(sender="shop", instance=order, amount=5)
        paid.send(sender="elsewhere", instance=order, amount=6)
        (lease,) = queue.pop_batch(9, "w")
        assert (lease.user_id, lease.payload["args"]) == ("acme", [order.pk, 5])


class TestArguments:
    def test_arguments_can_be_fields_paths_callables_or_constants(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(
            work, "customer", "customer__slug", "token", lambda event: event.kind, 7, None, x="total"
        )
        customer = Customer.objects.create(slug="acme")
        order = Order.objects.create(customer=customer, total=3)
        lease = queue.pop("w")
        assert lease is not None
        assert lease.payload["args"] == [customer.pk, "acme", str(order.token), "create", 7, None]
        assert lease.payload["kwargs"] == {"x": 3}

    @pytest.mark.parametrize("given", [lambda e: (e.pk, 1), lambda e: [e.pk, 1]])
    def test_one_callable_can_return_all_arguments(self, queue: FairQueue, work: Work, given: Any) -> None:
        on_create(Order, args=given)(work)
        order = Order.objects.create()
        assert arrived(queue) == [[order.pk, 1]]

    def test_a_single_argument_path_may_be_given_without_a_list(self, queue: FairQueue, work: Work) -> None:
        """The path was once read as a list of letters: the fields "t", "o", "t"…"""
        on_create(Order, args="total")(work)
        Order.objects.create(total=3)
        assert arrived(queue) == [[3]]

    def test_an_argument_text_without_a_field_is_a_value(self, queue: FairQueue, work: Work) -> None:
        on_create(Order, user=Value("acme")).enqueue(work, "total", Value("total"), kind=Value(uuid.UUID(int=1)))
        on_create(Order, args=Value("one"))(work)
        on_create(Order, args=["pk", Value(None)])(work)
        order = Order.objects.create(total=3)
        leases = queue.pop_batch(3, "w")
        found = {(lease.user_id, *lease.payload["args"]): lease.payload["kwargs"] for lease in leases}
        assert found == {
            ("acme", 3, "total"): {"kind": str(uuid.UUID(int=1))},
            ("default", "one"): {},
            ("default", order.pk, None): {},
        }

    def test_an_argument_that_is_no_path_is_refused(self) -> None:
        with pytest.raises(TaskUsageError, match=r"Order:create: args must be a field path, Value.* got 7"):
            on_create(Order, args=7)  # type: ignore[arg-type]

    def test_arguments_of_any_name_can_be_given_by_name(self, queue: FairQueue, work: Work) -> None:
        @task(name="named")
        def named(task: int, self: str) -> None: ...

        on_create(Order).enqueue(named, task="pk", self="status")
        on_create(Order, args=lambda event: {"pk": event.pk})(work)
        order = Order.objects.create()
        found = [lease.payload["kwargs"] for lease in queue.pop_batch(2, "w")]
        assert found == [{"task": order.pk, "self": "new"}, {"pk": order.pk}]

    def test_arguments_are_read_when_the_event_happens(self, queue: FairQueue, work: Work) -> None:
        on_save(Order).enqueue(work, "status", "data")
        with transaction.atomic():
            order = Order.objects.create(status="a", data={"n": [1]})
            order.status = "b"
            order.data["n"].append(2)
        assert arrived(queue) == [["a", {"n": [1]}]]

    def test_arguments_of_a_deleted_object_are_read_before_it_is_gone(self, queue: FairQueue, work: Work) -> None:
        on_delete(Order, user="customer__slug").enqueue(work, "pk", "customer__slug")
        customer = Customer.objects.create(slug="acme")
        order = Order.objects.create(customer=customer)
        pk = order.pk
        customer.delete()  # the database cascade deletes the order
        (lease,) = queue.pop_batch(9, "w")
        assert (lease.user_id, lease.payload["args"]) == ("acme", [pk, "acme"])

    def test_an_argument_that_is_no_json_fails_the_save(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_create(Order).enqueue(work, lambda _: {1, 2})
        with pytest.raises(TaskSerializationError, match=r"work\.enqueue\(\): argument 'args' is not JSON"):
            Order.objects.create()
        assert redis.dbsize() == 0


class TestUser:
    def test_the_user_of_an_event_can_be_a_path_or_a_callable(self, queue: FairQueue, work: Work) -> None:
        on_create(Order, user="customer").enqueue(work, "pk")
        on_create(Order, user=lambda event: f"c{event.instance.customer_id}").enqueue(work, "pk")
        customer = Customer.objects.create(slug="acme")
        Order.objects.create(customer=customer)
        assert sorted(users(queue)) == [str(customer.pk), f"c{customer.pk}"]

    def test_an_event_without_a_user_uses_the_user_of_the_task(self, queue: FairQueue) -> None:
        @task(name="mine", user="who")
        def mine(who: str) -> None: ...

        on_create(Order, user="customer__slug").enqueue(mine, "status")
        Order.objects.create(status="declared")
        assert users(queue) == ["declared"]

    def test_an_invalid_user_of_an_event_is_refused(self, queue: FairQueue, work: Work) -> None:
        on_create(Order, user="data").enqueue(work, "pk")
        with pytest.raises(TaskValidationError, match=r"the user of <event shop\.Order:create:work> must be text"):
            Order.objects.create()


class TestSilentChanges:
    def test_loading_a_fixture_fires_no_save_event(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_save(Order, when=changed("status")).enqueue(work, "pk")
        (loaded,) = serializers.deserialize("json", '[{"model": "shop.order", "pk": 9, "fields": {"status": "paid"}}]')
        loaded.save()
        assert Order.objects.get().pk == 9
        assert redis.dbsize() == 0

    def test_suppressed_models_fire_no_events(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work, lambda _: "order")
        on_create(Customer).enqueue(work, lambda _: "customer")
        with suppress_events("shop.Order"):
            Order.objects.create()
            Customer.objects.create()
            with suppress_events():
                Customer.objects.create()
        Order.objects.create()
        assert arrived(queue) == [["customer"], ["order"]]

    @pytest.mark.parametrize("given", ["shop.Ordre", "shop", "", 5, None, int])
    def test_suppressing_events_of_an_unknown_model_is_refused(self, given: Any) -> None:
        with pytest.raises(TaskUsageError, match="suppress_events: there is no model"), suppress_events(given):
            pass

    def test_suppressed_events_of_one_coroutine_do_not_affect_others(self, queue: FairQueue, work: Work) -> None:
        on_create(Order).enqueue(work, "total")

        async def quiet(entered: asyncio.Event, left: asyncio.Event) -> None:
            with suppress_events():
                entered.set()
                await left.wait()

        async def both() -> None:
            entered, left = asyncio.Event(), asyncio.Event()
            other = asyncio.create_task(quiet(entered, left))
            await entered.wait()
            await Order.objects.acreate(total=1)
            left.set()
            await other
            await aclose_queues()

        async_to_sync(both)()
        assert arrived(queue) == [[1]]

    @pytest.mark.parametrize("middleware", [[], ["tests.tasks.test_middleware.Language"]])
    def test_a_task_that_saves_its_own_object_does_not_enqueue_itself_again(
        self, queue: FairQueue, settings: Settings, middleware: list[str]
    ) -> None:
        """Also if it has headers."""
        settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": middleware}
        ran: list[tuple[str, int]] = []

        @on_save(Order)
        @task(name="touch")
        def touch(pk: int) -> None:
            ran.append((current_task().name, pk))
            Order.objects.get(pk=pk).save()
            if pk < 3:  # saving another object enqueues the task again
                Order(pk=pk + 1).save()

        with capture_tasks() as captured:
            Order.objects.create(pk=1)
            captured.run()
        assert ran == [("touch", 1), ("touch", 2), ("touch", 3)]

    def test_a_reentrant_event_enqueues_its_task_again(self, queue: FairQueue) -> None:
        runs: list[int] = []

        @on_update(Order, reentrant=True)
        @task(name="touch")
        def touch(pk: int) -> None:
            runs.append(pk)
            if len(runs) < 3:
                Order.objects.get(pk=pk).save()

        with capture_tasks() as captured:
            Order.objects.create(pk=1).save()
            captured.run()
        assert runs == [1, 1, 1]

    def test_a_batch_task_that_saves_its_own_objects_does_not_enqueue_itself_again(self, queue: FairQueue) -> None:
        saved: list[int] = []

        @on_save(Order)
        @task(name="touch", batch=10)
        def touch(pks: list[int]) -> None:
            saved.extend(pks)
            for pk in pks:
                Order.objects.get(pk=pk).save()

        for pk in (1, 2, 3):
            Order.objects.create(pk=pk)
        run_tasks()
        assert sorted(saved) == [1, 2, 3]

    def test_a_failed_delete_fires_no_event(self, queue: FairQueue, work: Work, redis: Redis) -> None:
        on_delete(Order).enqueue(work, "pk")
        order = Order.objects.create()
        with pytest.raises(IntegrityError), transaction.atomic():  # noqa: PT012
            order.delete()
            raise IntegrityError
        assert redis.dbsize() == 0


class TestClasses:
    def test_objects_of_proxy_and_child_models_fire_events_of_their_parent(self, queue: FairQueue, work: Work) -> None:
        on_save(Order).enqueue(work, lambda event: event.model.__name__)
        for model in (Order, RushOrder, GiftOrder):
            model.objects.create()
        assert arrived(queue) == [["Order"], ["RushOrder"], ["GiftOrder"]]

    @pytest.mark.parametrize("model", [RushOrder, GiftOrder])
    def test_objects_of_a_parent_model_fire_no_events_of_its_children(
        self, queue: FairQueue, work: Work, model: type[Order]
    ) -> None:
        on_save(model).enqueue(work, lambda event: event.model.__name__)
        Order.objects.create()
        model.objects.create()
        assert arrived(queue) == [[model.__name__]]

    def test_an_event_on_an_abstract_model_covers_its_children(self, queue: FairQueue, work: Work) -> None:
        on_save(Dated).enqueue(work, lambda event: event.model.__name__)
        Order.objects.create()
        Customer.objects.create()
        assert arrived(queue) == [["Order"]]

    def test_deleting_a_child_object_fires_one_event(self, queue: FairQueue, work: Work) -> None:
        on_delete(Order).enqueue(work, "pk")
        order = GiftOrder.objects.create()
        pk = order.pk
        order.delete()
        assert arrived(queue) == [[pk]], "its parent's row is no other object"


def test_an_event_takes_the_options_of_a_task(queue: FairQueue, work: Work) -> None:
    on_save(Order, priority=6, debounce=60, max_retries=1).enqueue(work, "pk")
    order = Order.objects.create()
    order.save()
    (found,) = queue.tasks(state="scheduled").items
    assert (int(found.priority), found.max_retries) == (6, 1)


def test_a_condition_is_called_with_the_event(queue: FairQueue, work: Work) -> None:
    events: list[Event] = []

    def is_big(event: Event) -> bool:
        events.append(event)
        return bool(event.instance.total > 1)

    on_save(Order, when=is_big).enqueue(work, "total")
    Order.objects.create(total=1)
    Order.objects.create(total=2)
    assert arrived(queue) == [[2]]
    assert [(event.kind, event.using, event.model) for event in events] == [("create", "default", Order)] * 2


def test_a_saved_event_needs_no_more_queries(queue: FairQueue, work: Work, django_assert_num_queries: Any) -> None:
    on_save(Order, when=changed("status")).enqueue(work, "pk")
    with django_assert_num_queries(1, connection=connection):
        order = Order.objects.create()
    with django_assert_num_queries(1, connection=connection):
        order.save(update_fields=["status"])
