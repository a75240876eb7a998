"""Models whose primary key has several parts."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.events import on_delete, on_save, on_update
from tests.shop.models import Seat

from .conftest import arrived

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)

HALL = uuid.UUID(int=7)
KEY = [str(HALL), 3]


def test_the_parts_of_a_composite_key_are_sent_as_text_and_numbers(queue: FairQueue, work: Work) -> None:
    on_save(Seat).enqueue(work, "pk")
    Seat.objects.create(hall=HALL, number=3)
    ((key,),) = arrived(queue)
    assert key == KEY
    assert Seat.objects.get(pk=key).hall == HALL


def test_a_deleted_object_with_a_composite_key_fires_its_event(queue: FairQueue, work: Work) -> None:
    on_delete(Seat).enqueue(work, "pk")
    Seat.objects.create(hall=HALL, number=3).delete()
    assert arrived(queue) == [[KEY]]


@pytest.mark.parametrize("how", ["update", "bulk_update"])
def test_a_bulk_update_of_objects_with_composite_keys_fires_events(queue: FairQueue, work: Work, how: str) -> None:
    on_update(Seat).enqueue(work, "pk", "guest")
    seat: Any = Seat.objects.create(hall=HALL, number=3)
    seat.guest = "Ann"
    if how == "update":
        Seat.objects.update(guest="Ann")
    else:
        Seat.objects.bulk_update([seat], ["guest"])
    assert arrived(queue) == [[KEY, "Ann"]]
