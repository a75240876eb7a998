"""Model events in the admin: what is declared, how often it fired, and what is wrong."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.db import transaction

from django_fairque import task
from django_fairque.conf import get_queue
from django_fairque.events import changed, on_save
from django_fairque.tasks.definition import AnyDefinition
from tests.admin.page_reader import page_url, read
from tests.events.conftest import own_rules, work
from tests.fixture_types import Client, FairQueue, Settings
from tests.shop.models import Order

__all__ = ["own_rules", "work"]  # fixtures

pytestmark = pytest.mark.django_db(transaction=True)


def page(client: Client) -> str:
    return unescape(read(client, page_url("model_events")))


def cells(text: str, event: str) -> list[str]:
    """Return the text of the cells in an event's row, without markup."""
    row = text[text.index(f'<th scope="row"><bdi>{event}</bdi>') :]
    row = row[: row.index("</tr>")]
    return [re.sub(r"<[^>]*>", "", cell).strip() for cell in row.split("<td")[1:]]


def test_each_model_event_is_listed_with_counts(admin_client: Client, queue: FairQueue, work: AnyDefinition) -> None:
    @task(name="letter", queue="mail")
    def letter(pk: int) -> None: ...

    on_save(Order, when=changed("status")).enqueue(work, "pk")
    on_save(Order, name="audit").enqueue(letter, "pk")
    with transaction.atomic():
        order = Order.objects.create()
        order.save()
    text = page(admin_client)
    assert "changed('status')" in text
    first, second = cells(text, "shop.Order:save:work"), cells(text, "audit")
    assert [cell.partition(">")[2] for cell in first[:6]] == ["shop.Order", "work", "default", "1", "0", "0"]
    assert [cell.partition(">")[2] for cell in second[:6]] == ["shop.Order", "letter", "mail", "2", "1", "0"]
    assert '<time datetime="20' in text


def test_the_page_says_that_a_project_has_no_model_events(admin_client: Client, queue: FairQueue) -> None:
    assert "No model events are declared" in page(admin_client)


def test_a_model_event_with_a_mistake_is_reported(admin_client: Client, queue: FairQueue, work: AnyDefinition) -> None:
    on_save(Order).enqueue(work, "pkk")
    text = page(admin_client)
    assert "One event is switched off because of a mistake." in text
    assert "Switched off: <bdi>argument 1: shop.Order has no field or attribute 'pkk'" in text


def test_the_last_error_of_a_model_event_is_shown(admin_client: Client, queue: FairQueue) -> None:
    from django_fairque.engine.model.records import EventCount
    from django_fairque.tasks.transactions import after_commit

    @task(name="work")
    def work(pk: int) -> None: ...

    on_save(Order, name="audit").enqueue(work, "pk")
    after_commit.keep_event_counts("default", {"audit": EventCount(failed=3, error="the server answered <no>")})
    Order.objects.create()
    text = page(admin_client)
    assert "Last error: <bdi>the server answered <no></bdi>" in text
    assert cells(text, "audit")[5].endswith(">3")


def test_counts_of_an_undeclared_queue_are_unknown(admin_client: Client, queue: FairQueue, settings: Settings) -> None:
    @task(name="letter", queue="mail")
    def letter(pk: int) -> None: ...

    on_save(Order, name="audit").enqueue(letter, "pk")
    settings.FAIRQUE = {"REDIS": settings.FAIRQUE["REDIS"]}
    get_queue()
    text = page(admin_client)
    assert "The counts of queue mail are not known: " in text
    assert cells(text, "audit")[3].endswith(">0")
