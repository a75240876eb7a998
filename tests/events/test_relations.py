"""Many-to-many relations, from both sides, with a through model of Django's or of one's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core import serializers
from django.core.management import call_command
from django.core.serializers.base import DeserializedObject
from django.db import transaction
from django.db.models.signals import m2m_changed

from django_fairque.events import Event, on_m2m, on_signal, suppress_events
from django_fairque.events.activation import RECEIVER_ID
from django_fairque.tasks.errors import TaskUsageError
from tests.shop.models import (
    Album,
    Customer,
    Employee,
    GiftOrder,
    Help,
    Labelled,
    Letter,
    Order,
    Person,
    RushOrder,
    Signed,
    Tag,
)

from .conftest import arrived

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


def describe_change(event: Event) -> list[Any]:
    return [event.action, event.pk, sorted(event.pks)]


@pytest.fixture
def tags(work: Work) -> list[Tag]:
    on_m2m("shop.Order", "tags").enqueue(work, describe_change)
    return [Tag.objects.create(pk=pk, name=f"t{pk}") for pk in (11, 12, 13)]


@pytest.fixture
def order(queue: FairQueue) -> Order:
    order: Order = Order.objects.create(pk=1)
    return order


class TestPlain:
    def test_a_relation_changed_on_its_side_fires(self, queue: FairQueue, order: Order, tags: list[Tag]) -> None:
        order.tags.add(*tags[:2])
        assert arrived(queue) == [[["add", 1, [11, 12]]]]
        order.tags.add(*tags[:2])
        assert arrived(queue) == [], "the order had these tags already"
        order.tags.remove(tags[0])
        assert arrived(queue) == [[["remove", 1, [11]]]]
        order.tags.clear()
        assert arrived(queue) == [[["clear", 1, [12]]]]
        order.tags.clear()
        assert arrived(queue) == [], "there was nothing to clear"

    def test_a_change_from_the_other_side_fires_events(self, queue: FairQueue, order: Order, tags: list[Tag]) -> None:
        other = Order.objects.create(pk=2)
        tags[0].orders.add(order, other)
        assert arrived(queue) == [[["add", 1, [11]]], [["add", 2, [11]]]]
        tags[0].orders.remove(other)
        assert arrived(queue) == [[["remove", 2, [11]]]]
        tags[0].orders.clear()
        assert arrived(queue) == [[["clear", 1, [11]]]]

    def test_setting_a_relation_fires_for_both_changes(self, queue: FairQueue, order: Order, tags: list[Tag]) -> None:
        order.tags.set(tags[:2])
        order.tags.set(tags[1:])
        assert arrived(queue) == [[["add", 1, [11, 12]]], [["remove", 1, [11]]], [["add", 1, [13]]]]

    def test_a_relation_change_that_is_rolled_back_sends_no_task(
        self, queue: FairQueue, order: Order, tags: list[Tag], redis: Redis
    ) -> None:
        redis.flushdb()
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            order.tags.add(tags[0])
            raise ZeroDivisionError
        assert redis.dbsize() == 0

    @pytest.mark.parametrize("model", [RushOrder, GiftOrder])
    def test_a_relation_of_a_proxy_or_child_fires(self, queue: FairQueue, tags: list[Tag], model: type[Order]) -> None:
        order = model.objects.create(pk=5)
        order.tags.add(tags[0])
        assert arrived(queue) == [[["add", 5, [11]]]]

    def test_a_relation_event_can_be_limited_to_some_actions(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_m2m(Order, "tags", actions="remove").enqueue(work, describe_change)
        tag = Tag.objects.create(pk=11)
        order.tags.add(tag)
        order.tags.remove(tag)
        assert arrived(queue) == [[["remove", 1, [11]]]]

    def test_a_relation_event_has_the_object_from_either_side(self, queue: FairQueue, work: Work, order: Order) -> None:
        on_m2m(Order, "tags", user="status", when=lambda e: e.instance.total == 0).enqueue(work, "pk", "status")
        tag = Tag.objects.create(pk=11)
        order.tags.add(tag)
        order.tags.clear()
        tag.orders.add(order)
        assert arrived(queue) == [[1, "new"]] * 3


class TestFixtures:
    @pytest.fixture
    def fixture(self, tmp_path: Path) -> Path:
        """An order that has the tags 12 and 13."""
        file = tmp_path / "orders.json"
        file.write_text(json.dumps([{"model": "shop.order", "pk": 1, "fields": {"tags": [12, 13]}}]))
        return file

    def test_loading_a_fixture_fires_no_relation_event(
        self, queue: FairQueue, work: Work, order: Order, tags: list[Tag], fixture: Path
    ) -> None:
        with suppress_events():
            order.tags.add(*tags[:2])
        call_command("loaddata", fixture, verbosity=0)
        assert sorted(order.tags.values_list("pk", flat=True)) == [12, 13]
        assert arrived(queue) == []

    def test_loading_a_fixture_fires_no_event_on_the_signal_itself(
        self, queue: FairQueue, work: Work, tags: list[Tag], fixture: Path
    ) -> None:
        on_signal(m2m_changed, sender=Order.tags.through, name="any change").enqueue(work, "pk")
        try:
            call_command("loaddata", fixture, verbosity=0)
            assert arrived(queue) == []
        finally:
            m2m_changed.disconnect(sender=Order.tags.through, dispatch_uid=f"{RECEIVER_ID}:any change")

    def test_an_object_loaded_from_a_fixture_fires_relation_events_later(
        self, queue: FairQueue, tags: list[Tag], fixture: Path
    ) -> None:
        loaded: Any = next(serializers.deserialize("json", fixture.read_text()))
        loaded.save()
        loaded.object.tags.add(tags[0])
        assert arrived(queue) == [[["add", 1, [11]]]]

    def test_an_object_that_failed_to_load_from_a_fixture_fires_relation_events_later(
        self, queue: FairQueue, tags: list[Tag]
    ) -> None:
        loaded = DeserializedObject(Order(pk=1), {"tags": [tags[1], "no key"]})
        with pytest.raises(ValueError, match="no key"):
            loaded.save()
        loaded.object.tags.add(tags[0])  # type: ignore[attr-defined] # the object is an order
        assert arrived(queue) == [[["add", 1, [11]]]]


class TestOwnThrough:
    @pytest.fixture(autouse=True)
    def _rule(self, work: Work) -> None:
        on_m2m(Order, "helpers").enqueue(work, describe_change)

    def test_a_relation_with_a_through_model_fires_through_its_manager(self, queue: FairQueue, order: Order) -> None:
        ann, bob = (Customer.objects.create(pk=pk) for pk in (21, 22))
        order.helpers.add(ann, bob, through_defaults={"hours": 2})
        assert arrived(queue) == [[["add", 1, [21, 22]]]]
        order.helpers.remove(ann)
        assert arrived(queue) == [[["remove", 1, [21]]]]
        order.helpers.clear()
        assert arrived(queue) == [[["remove", 1, [22]]]]
        bob.helped.add(order)
        bob.helped.clear()
        assert arrived(queue) == [[["add", 1, [22]]], [["remove", 1, [22]]]]

    def test_rows_of_a_through_model_fire_relation_events(self, queue: FairQueue, order: Order) -> None:
        row = Help.objects.create(order=order, customer=Customer.objects.create(pk=21))
        assert arrived(queue) == [[["add", 1, [21]]]]
        row.hours = 9
        row.save()
        assert arrived(queue) == []
        row.delete()
        assert arrived(queue) == [[["remove", 1, [21]]]]


class TestSymmetrical:
    @pytest.fixture
    def people(self, queue: FairQueue, work: Work) -> list[Person]:
        return [Person.objects.create(pk=pk) for pk in (1, 2, 3)]

    @pytest.mark.parametrize(("name", "clear"), [("friends", "clear"), ("partners", "remove")])
    def test_a_symmetrical_relation_fires_for_both_sides(
        self, queue: FairQueue, work: Work, people: list[Person], name: str, clear: str
    ) -> None:
        on_m2m(Person, name).enqueue(work, describe_change)
        one, two, three = people
        others = getattr(one, name)
        others.add(two, three)
        assert arrived(queue) == [[["add", 1, [2, 3]]], [["add", 2, [1]]], [["add", 3, [1]]]]
        others.remove(three)
        assert arrived(queue) == [[["remove", 1, [3]]], [["remove", 3, [1]]]]
        others.set([three])
        assert arrived(queue) == [[["remove", 1, [2]]], [["remove", 2, [1]]], [["add", 1, [3]]], [["add", 3, [1]]]]
        others.clear()
        assert arrived(queue) == [[[clear, 1, [3]]], [[clear, 3, [1]]]]

    def test_an_object_related_to_itself_fires_once(self, queue: FairQueue, work: Work, people: list[Person]) -> None:
        on_m2m(Person, "friends").enqueue(work, describe_change)
        one, two, _ = people
        one.friends.add(one, two)
        one.friends.clear()
        assert queue.event_counts()["shop.Person:m2m.friends:work"].fired == 4
        assert arrived(queue) == [[["add", 1, [1, 2]]], [["add", 2, [1]]], [["clear", 1, [1, 2]]], [["clear", 2, [1]]]]

    def test_a_symmetrical_relation_of_a_child_with_another_primary_key_fires_events(
        self, queue: FairQueue, work: Work, people: list[Person]
    ) -> None:
        on_m2m(Employee, "friends").enqueue(work, describe_change)
        boss = Employee.objects.create(staff_id=90, person_id=9)
        boss.friends.add(people[0], boss.person)
        people[1].friends.add(boss.person)
        people[2].friends.add(people[1])
        assert arrived(queue) == [[["add", 90, [1, 9]]], [["add", 90, [2]]]]


class TestInheritance:
    @pytest.fixture
    def tag(self, queue: FairQueue) -> Tag:
        tag: Tag = Tag.objects.create(pk=11)
        return tag

    @pytest.mark.parametrize("actions", [("add", "remove", "clear"), "clear"])
    def test_a_relation_event_on_an_abstract_model_covers_its_children(
        self, queue: FairQueue, work: Work, tag: Tag, actions: Any
    ) -> None:
        on_m2m(Labelled, "labels", actions=actions).enqueue(work, describe_change)
        album = Album.objects.create(pk=3)
        album.labels.add(tag)
        tag.albums.clear()
        assert arrived(queue) == [[[action, 3, [11]]] for action in ("add", "clear") if action in actions]

    def test_a_relation_changed_from_the_other_side_fires_only_for_the_child_model(
        self, queue: FairQueue, work: Work, tag: Tag
    ) -> None:
        on_m2m(GiftOrder, "tags").enqueue(work, describe_change, "card")
        plain, gift = Order.objects.create(pk=1), GiftOrder.objects.create(pk=2, card="red")
        tag.orders.add(plain)
        assert arrived(queue) == []
        tag.orders.add(gift)
        tag.orders.clear()
        assert arrived(queue) == [[["add", 2, [11]], "red"], [["clear", 2, [11]], "red"]]

    def test_a_through_row_fires_only_for_objects_of_the_child_model(self, queue: FairQueue, work: Work) -> None:
        on_m2m(GiftOrder, "helpers").enqueue(work, describe_change, "card")
        ann = Customer.objects.create(pk=21)
        Help.objects.create(order=Order.objects.create(pk=1), customer=ann)
        row = Help.objects.create(order=GiftOrder.objects.create(pk=2, card="red"), customer=ann)
        row.delete()
        assert arrived(queue) == [[["add", 2, [21]], "red"], [["remove", 2, [21]], "red"]]

    def test_a_relation_of_one_of_several_parents_uses_its_key(self, queue: FairQueue, work: Work, tag: Tag) -> None:
        on_m2m(Letter, "signers").enqueue(work, describe_change)
        for key in (5, 7):
            Signed.objects.create(signed_id=key).signers.add(tag)
        letter = Letter.objects.create(printed_id=5, signed_id=9)
        tag.signed.add(letter.signed_ptr)
        tag.signed.remove(letter.signed_ptr)
        letter.signers.add(tag)
        letter.signers.clear()
        assert arrived(queue) == [[[action, 5, [11]]] for action in ("add", "remove", "add", "clear")]

    def test_a_relation_change_fires_once_for_each_rule(self, queue: FairQueue, work: Work, tag: Tag) -> None:
        for model in (Order, GiftOrder):
            on_m2m(model, "tags").enqueue(work, describe_change)
        GiftOrder.objects.create(pk=2).tags.add(tag)
        assert {name: item.fired for name, item in queue.event_counts().items()} == {
            "shop.Order:m2m.tags:work": 1,
            "shop.GiftOrder:m2m.tags:work": 1,
        }

    def test_a_proxy_is_the_same_object(self, queue: FairQueue, work: Work, tag: Tag) -> None:
        on_m2m(RushOrder, "tags").enqueue(work, describe_change)
        tag.orders.add(Order.objects.create(pk=1))
        assert arrived(queue) == [[["add", 1, [11]]]]


@pytest.mark.parametrize("actions", ["", "added", ["add", "drop"], []])
def test_unknown_actions_of_a_relation_event_are_refused(actions: Any) -> None:
    with pytest.raises(TaskUsageError, match="actions must be some of add, remove, clear"):
        on_m2m(Order, "tags", actions=actions)
