"""Model events in the admin: what is declared, how often it fired, and what is wrong."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission, User
from django.db import transaction
from django.urls import reverse

from django_fairque import task
from django_fairque.conf import get_queue
from django_fairque.events import changed, on_save
from tests.events.conftest import own_rules, work
from tests.shop.models import Order

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition

__all__ = ["own_rules", "work"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(client: Client) -> Client:
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_event"))
    client.force_login(user)
    return client


def page(client: Client) -> str:
    answer = client.get(reverse("admin:django_fairque_model_events"))
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def cells(text: str, event: str) -> list[str]:
    """What is in an event's row, without markup."""
    row = text[text.index(f'<th scope="row"><bdi>{event}</bdi>') :]
    row = row[: row.index("</tr>")]
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in row.split("<td")[1:]]


def test_each_event_with_what_is_known_of_it(operator: Client, queue: FairQueue, work: AnyDefinition) -> None:
    @task(name="letter", queue="mail")
    def letter(pk: int) -> None: ...

    on_save(Order, when=changed("status")).enqueue(work, "pk")
    on_save(Order, name="audit").enqueue(letter, "pk")
    with transaction.atomic():
        order = Order.objects.create()
        order.save()
    text = page(operator)
    assert "changed('status')" in text
    first, second = cells(text, "shop.Order:save:work"), cells(text, "audit")
    assert [each.partition(">")[2] for each in first[:6]] == ["shop.Order", "work", "default", "1", "0", "0"]
    assert [each.partition(">")[2] for each in second[:6]] == ["shop.Order", "letter", "mail", "2", "1", "0"]
    assert '<time datetime="20' in text


def test_none_is_declared(operator: Client, queue: FairQueue) -> None:
    assert "No model events are declared" in page(operator)


def test_one_with_a_mistake_is_told(operator: Client, queue: FairQueue, work: AnyDefinition) -> None:
    on_save(Order).enqueue(work, "pkk")
    text = page(operator)
    assert "One event is switched off because of a mistake." in text
    assert "Switched off: <bdi>argument 1: shop.Order has no field or attribute 'pkk'" in text


def test_the_last_error_is_told(operator: Client, queue: FairQueue) -> None:
    from django_fairque.engine.model.records import EventCount
    from django_fairque.tasks.transactions import after_commit

    @task(name="work")
    def work(pk: int) -> None: ...

    on_save(Order, name="audit").enqueue(work, "pk")
    after_commit.keep_event_counts("default", {"audit": EventCount(failed=3, error="the server said <no>")})
    Order.objects.create()
    text = page(operator)
    assert "Last error: <bdi>the server said <no></bdi>" in text
    assert cells(text, "audit")[5].endswith(">3")


def test_a_queue_that_can_not_be_asked_leaves_the_rest(operator: Client, queue: FairQueue, settings: Settings) -> None:
    @task(name="letter", queue="mail")
    def letter(pk: int) -> None: ...

    on_save(Order, name="audit").enqueue(letter, "pk")
    settings.FAIRQUE = {"REDIS": settings.FAIRQUE["REDIS"]}
    get_queue()
    text = page(operator)
    assert "The counts of queue mail are not known: " in text
    assert cells(text, "audit")[3].endswith(">0")
