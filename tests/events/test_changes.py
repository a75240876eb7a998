"""What `changed` knows of a field, and of saves that were rolled back."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from django.core.files.base import ContentFile
from django.db import connection, transaction
from django.db.models import F

from django_fairque.events import changed, field_is, on_create, on_save, on_update
from tests.shop.models import City, Country, Customer, Document, GiftOrder, Order

from .conftest import arrived

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.events import Condition
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def order(queue: FairQueue) -> Order:
    """One that is new in the database."""
    order: Order = Order.objects.create(pk=1)
    return order


@pytest.fixture
def media(settings: Settings, tmp_path: Path) -> None:
    """Where files are stored."""
    settings.MEDIA_ROOT = tmp_path


def fires(queue: FairQueue) -> int:
    return len(arrived(queue))


class TestChanged:
    def test_a_changed_condition_fires_if_the_field_changed(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "status")
        order = Order.objects.get()
        order.save()
        order.total = 5
        order.save()
        assert arrived(queue) == []
        order.status = "paid"
        order.save()
        order.save()
        order.status = "sent"
        order.save()
        assert arrived(queue) == [["paid"], ["sent"]]

    @pytest.mark.parametrize(
        ("condition", "path", "expected"),
        [
            (changed("status", to="paid"), ["paid", "sent", "paid"], 2),
            (changed("status", was="new"), ["paid", "sent"], 1),
            (changed("status", was="paid", to="sent"), ["paid", "sent", "new", "sent"], 1),
            (changed("status", to="new"), ["new"], 0),
        ],
    )
    def test_a_changed_condition_can_require_the_old_and_the_new_value(
        self, queue: FairQueue, work: Work, order: Order, condition: Condition, path: list[str], expected: int
    ) -> None:
        on_update(Order, when=condition).enqueue(work, "pk")
        order = Order.objects.get()
        for status in path:
            order.status = status
            order.save()
        assert fires(queue) == expected

    def test_creating_an_object_changes_all_its_fields(self, queue: FairQueue, work: Work) -> None:
        on_save(Order, when=changed("status", to="paid")).enqueue(work, lambda _: "to")
        on_save(Order, when=changed("status", was="new", to="paid")).enqueue(work, lambda _: "was")
        on_create(Order, when=changed("status")).enqueue(work, lambda _: "any")
        Order.objects.create(status="paid")
        Order.objects.create()
        assert sorted(arrived(queue)) == [["any"], ["any"], ["to"]]

    def test_a_changed_foreign_key_can_be_named_by_object_or_key(
        self, queue: FairQueue, work: Work, order: Order
    ) -> None:
        acme = Customer.objects.create(slug="acme")
        for to in (acme, acme.pk):
            on_update(Order, when=changed("customer", was=None, to=to)).enqueue(work, "pk")
        on_update(Order, when=changed("customer_id")).enqueue(work, "pk")
        order = Order.objects.get()
        order.customer = acme
        order.save()
        assert fires(queue) == 3

    def test_a_foreign_key_to_another_field_than_the_primary_key_is_compared(
        self, queue: FairQueue, work: Work
    ) -> None:
        france, spain = (Country.objects.create(code=code) for code in ("fr", "es"))
        on_update(City, when=changed("country", was=france, to=spain)).enqueue(work, lambda _: "objects")
        on_update(City, when=changed("country", was="fr", to="es")).enqueue(work, lambda _: "keys")
        city = City.objects.create(country=france)
        city.country = spain
        city.save()
        assert arrived(queue) == [["objects"], ["keys"]]

    def test_changed_values_are_compared_after_conversion(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("total")).enqueue(work, "pk")
        on_update(Order, when=changed("token")).enqueue(work, "pk")
        order = Order.objects.get()
        order.total = "0"  # a form may assign text
        order.token = str(order.token)
        order.save()
        assert fires(queue) == 0

    def test_a_change_inside_a_json_field_is_noticed(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("data")).enqueue(work, "data")
        order = Order.objects.get()
        order.data["a"] = 1
        order.save()
        order.save()
        assert arrived(queue) == [[{"a": 1}]]

    def test_a_file_that_is_saved_or_deleted_by_its_field_has_changed(
        self, queue: FairQueue, work: Work, media: None
    ) -> None:
        on_update(Document, when=changed("file")).enqueue(work, "file__name")
        Document.objects.create(pk=1, file="documents/a.txt")
        document = Document.objects.get()
        for name in ("b.txt", "c.txt"):
            document.file.save(name, ContentFile(b"text"))
        document.save()
        assert arrived(queue) == [["documents/b.txt"], ["documents/c.txt"]]
        document.file.delete()
        document.save()
        document.file = ""
        document.save()
        assert arrived(queue) == [[None]]

    def test_a_file_is_known_by_its_name(self, queue: FairQueue, work: Work, media: None) -> None:
        on_update(Document, when=changed("file", was="documents/a.txt")).enqueue(work, lambda _: "was")
        for nothing in ("", None):
            on_update(Document, when=changed("file", to=nothing)).enqueue(work, lambda _: "to nothing")
        document = Document.objects.create(file="documents/a.txt")
        document.file.save("b.txt", ContentFile(b"text"))
        assert arrived(queue) == [["was"]]
        document.file.delete()
        assert arrived(queue) == [["to nothing"]] * 2

    def test_a_field_set_to_an_expression_is_unknown(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("total")).enqueue(work, lambda _: "any")
        on_update(Order, when=changed("total", to=1)).enqueue(work, lambda _: "to")
        order = Order.objects.get()
        order.total = F("total") + 1
        order.save()
        assert ["any"] in arrived(queue)

    def test_a_changed_field_of_a_child_model_is_noticed(self, queue: FairQueue, work: Work) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "pk")
        gift = GiftOrder.objects.create()
        gift = GiftOrder.objects.get()
        gift.card = "hello"
        gift.save()
        assert fires(queue) == 0
        gift.status = "paid"
        gift.save()
        assert fires(queue) == 1


class TestUpdateFields:
    def test_a_changed_field_that_is_not_saved_fires_no_event(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "pk")
        order = Order.objects.get()
        order.status = "paid"
        order.save(update_fields=["total"])
        assert fires(queue) == 0
        order.save(update_fields=["status"])
        assert fires(queue) == 1
        order.save()
        assert fires(queue) == 0

    def test_a_foreign_key_is_known_by_both_of_its_names(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("customer")).enqueue(work, "pk")
        order = Order.objects.get()
        for name in ("customer", "customer_id"):
            order.customer = Customer.objects.create(slug=name)
            order.save(update_fields=[name])
        assert fires(queue) == 2


class TestDeferred:
    def test_a_deferred_field_is_not_loaded_to_evaluate_a_condition(
        self, queue: FairQueue, work: Work, order: Order, django_assert_num_queries: Any
    ) -> None:
        on_update(Order, when=changed("note")).enqueue(work, "pk")
        order = Order.objects.defer("note").get()
        with django_assert_num_queries(1, connection=connection):
            order.save()
        assert "note" in order.get_deferred_fields()
        assert fires(queue) == 0

    def test_a_deferred_field_never_loaded_counts_as_changed(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("note")).enqueue(work, lambda _: "any")
        on_update(Order, when=changed("note", was="")).enqueue(work, lambda _: "was")
        order = Order.objects.defer("note").get()
        order.note = ""
        order.save()
        assert arrived(queue) == [["any"]]

    def test_a_deferred_field_loaded_later_has_an_old_value(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("note", was="")).enqueue(work, "pk")
        order = Order.objects.defer("note").get()
        order.note = order.note + "!"
        order.save()
        assert fires(queue) == 1


class TestMemory:
    def test_refreshing_an_object_is_no_change(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "pk")
        order = Order.objects.get()
        with connection.cursor() as cursor:
            cursor.execute("UPDATE shop_order SET status = 'paid'")
        order.refresh_from_db()
        order.save()
        assert fires(queue) == 0
        order.status = "new"
        order.save()
        assert fires(queue) == 1

    def test_refreshing_some_fields_keeps_changes_of_others(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "pk")
        order = Order.objects.get()
        order.status = "paid"
        order.refresh_from_db(fields=["total"])
        order.save()
        assert fires(queue) == 1

    def test_a_change_that_was_rolled_back_can_fire_again(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status", to="paid")).enqueue(work, "status")
        order = Order.objects.get()
        order.status = "paid"
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            order.save()
            raise ZeroDivisionError
        assert arrived(queue) == []
        order.save()
        order.save()
        assert arrived(queue) == [["paid"]]

    def test_a_change_undone_by_a_savepoint_can_fire_again(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "status")
        order = Order.objects.get()
        with transaction.atomic():
            order.status = "a"
            order.save()
            with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
                order.status = "b"
                order.save()
                raise ZeroDivisionError
            order.status = "a"
            order.save()  # the database has this value already
            order.status = "c"
            order.save()
        assert arrived(queue) == [["a"], ["c"]]

    def test_committed_values_are_old_values_of_the_next_save(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "status")
        order = Order.objects.get()
        for status in ("a", "b"):
            with transaction.atomic():
                order.status = status
                order.save()
                order.save()
        order.save()
        assert arrived(queue) == [["a"], ["b"]]

    def test_an_object_that_was_not_loaded_has_no_old_values(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "status")
        Order(pk=order.pk, status="paid").save()
        assert arrived(queue) == [["paid"]]

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda order: pickle.loads(pickle.dumps(order))])
    def test_copied_objects_have_own_old_values(self, queue: FairQueue, work: Work, order: Order, copied: Any) -> None:
        on_update(Order, when=changed("status")).enqueue(work, "status")
        order = Order.objects.get()
        with transaction.atomic():
            order.status = "a"
            order.save()
            other = copied(order)
            order.status = "b"
            order.save()
            other.status = "c"
            other.save()
            other.save()
        assert arrived(queue) == [["a"], ["b"], ["c"]]


class TestCombined:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            (changed("status") & field_is("total", 3), [False, True]),
            (changed("status") | field_is("total", 3), [True, True]),
            (~changed("status"), [False, False]),
            (changed("status") & ~field_is("total", 3), [True, False]),
            (changed("status") & (lambda e: e.instance.total == 3), [False, True]),
            ((lambda e: e.instance.total == 3) & changed("status"), [False, True]),
            ((lambda e: e.instance.total == 3) | changed("status", to="x"), [False, True]),
            (field_is("customer__slug", "acme"), [True, True]),
            (field_is("customer__slug", "other"), [False, False]),
        ],
    )
    def test_conditions_can_be_combined_with_and_or_and_not(
        self, queue: FairQueue, work: Work, condition: Condition, expected: list[bool]
    ) -> None:
        on_update(Order, when=condition).enqueue(work, "pk")
        order = Order.objects.create(customer=Customer.objects.create(slug="acme"))
        found = []
        for status, total in (("paid", 0), ("sent", 3)):
            order.status, order.total = status, total
            order.save()
            found.append(bool(fires(queue)))
        assert found == expected

    def test_a_condition_on_a_relation_may_name_an_object_or_none(self, queue: FairQueue, work: Work) -> None:
        acme = Customer.objects.create(slug="acme")
        on_create(Order, when=field_is("customer__slug", None)).enqueue(work, lambda _: "nobody")
        on_create(Order, when=field_is("customer", acme)).enqueue(work, lambda _: "acme")
        on_create(Order, when=field_is("customer_id", acme)).enqueue(work, lambda _: "its key")
        Order.objects.create()
        assert arrived(queue) == [["nobody"]]
        Order.objects.create(customer=acme)
        assert sorted(arrived(queue)) == [["acme"], ["its key"]]

    def test_an_object_is_compared_with_its_stored_key(self, queue: FairQueue, work: Work) -> None:
        spain = Country.objects.create(pk=5, code="es")
        for path in ("country", "country_id", "country__id"):
            on_create(City, when=field_is(path, spain)).enqueue(work, path=path)
        City.objects.create(country=spain)
        leases = queue.pop_batch(10, "w")
        assert [lease.payload["kwargs"]["path"] for lease in leases] == [5, "es", 5]

    def test_a_combined_condition_has_a_readable_repr(self) -> None:
        def big(event: Any) -> bool:
            return True

        condition = (changed("status", was=1, to="paid") | ~changed("a")) & field_is("total", 3) & big
        assert repr(condition).startswith(
            "(((changed('status', was=1, to='paid') | ~changed('a')) & field_is('total', 3)) & "
        )

    def test_a_value_that_is_no_condition_is_refused(self) -> None:
        with pytest.raises(TypeError, match="a condition is"):
            on_create(Order, when="status")  # type: ignore[arg-type]
