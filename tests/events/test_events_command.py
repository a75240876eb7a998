"""``manage.py fairque_events``."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from django.db import transaction

from django_fairque.events import changed, on_save
from tests.shop.models import Order

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.definition import AnyDefinition as Work

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str, fails: bool = False) -> str:
    out, err = StringIO(), StringIO()
    if fails:
        with pytest.raises(SystemExit):
            call_command("fairque_events", *arguments, stdout=out, stderr=err)
    else:
        call_command("fairque_events", *arguments, stdout=out, stderr=err)
    return out.getvalue() + err.getvalue()


def test_the_events_command_lists_events_with_the_time_of_their_last_firing(queue: FairQueue, work: Work) -> None:
    on_save(Order, when=changed("status")).enqueue(work, "pk")
    on_save(Order, name="audit").enqueue(work, "pk")
    with transaction.atomic():
        order = Order.objects.create()
        order.save()
    text = run()
    assert re.search(
        r"^shop\.Order:save:work +work +1 +0 +0 +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$", text, re.MULTILINE
    )
    assert re.search(r"^audit +work +2 +1 +0 +20", text, re.MULTILINE)
    assert "shop.Order:save:work: condition: changed('status')" in text
    (first, second) = map(json.loads, run("--json").splitlines())
    assert (first["model"], first["queue"], first["fired"], second["coalesced"]) == ("shop.Order", "default", 1, 1)


def test_the_events_command_says_that_no_event_is_declared(queue: FairQueue) -> None:
    assert "No model events are declared" in run()


def test_the_events_command_shows_mistakes(queue: FairQueue, work: Work) -> None:
    on_save(Order).enqueue(work, "pkk")
    assert "switched off: argument 1: shop.Order has no field or attribute 'pkk'" in run(fails=True)


def test_the_events_command_lists_events_and_reports_a_server_that_is_down(settings: Settings, work: Work) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nowhere/at/all.sock"}, "QUEUE": {"REQUEST_TIMEOUT": 0.05}}
    on_save(Order).enqueue(work, "pk")
    text = run(fails=True)
    assert re.search(r"^shop\.Order:save:work +work +0 +0 +0 +-$", text, re.MULTILINE)
    assert "queue default: its counts are not known: the server can't be reached" in text
