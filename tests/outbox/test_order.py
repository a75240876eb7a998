"""Each user's tasks arrive in the order in which they were written, also when one has to wait."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import transaction
from django.utils import timezone

from django_fairque import chain, get_queue, task
from django_fairque.models import OutboxEntry
from django_fairque.outbox.relay import relay_rows

from . import test_outbox
from .conftest import arrived, enqueue, rows

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db(transaction=True)
left_behind = test_outbox.TestRelay.left_behind


def relay_later() -> None:
    """When what was refused is tried again."""
    retry_at = rows()[0].retry_at
    assert retry_at is not None
    relay_rows("default", now=retry_at + timedelta(seconds=1))


def tries() -> list[int]:
    return [row.attempts for row in rows()]


def test_a_task_waits_for_a_refused_pipeline(queue: FairQueue, settings: Settings) -> None:
    @task(name="step", user="customer")
    def step(customer: str, n: str) -> None: ...

    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 2}}
    with transaction.atomic():
        enqueue(1)
        chain(step.s("acme", "a"), step.s("acme", "b")).enqueue()
        enqueue(2)
        enqueue("else", customer="other")
    assert tries() == [1, 0]
    assert sorted(arrived(get_queue()), key=str) == [1, "else"]
    relay_later()
    assert arrived(get_queue()) == ["a"]
    assert arrived(get_queue()) == ["b"]
    relay_later()
    assert arrived(get_queue()) == [2]


def test_a_pipeline_waits_for_a_refused_task(queue: FairQueue, settings: Settings) -> None:
    @task(name="free", user="customer", queue="free")
    def free(customer: str, n: str) -> None: ...

    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"default": {"MAX_BACKLOG": 1}, "free": {}}}
    with transaction.atomic():
        enqueue(1)
        enqueue(2)
        chain(free.s("acme", "a"), free.s("acme", "b")).enqueue()
    assert tries() == [1, 0]
    assert arrived(get_queue("free")) == []


def test_a_task_for_another_queue_waits_for_a_refused_task_of_its_user(queue: FairQueue, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUES": {"default": {"MAX_BACKLOG": 1}, "free": {}}}
    with transaction.atomic():
        enqueue(1)
        enqueue(2)
        enqueue(3, queue="free")
        enqueue("else", customer="other", queue="free")
        enqueue(4)
    assert tries() == [1, 0, 0]
    assert (arrived(get_queue()), arrived(get_queue("free"))) == ([1], ["else"])
    relay_later()
    assert (arrived(get_queue()), arrived(get_queue("free"))) == ([2], [3])
    relay_later()
    assert arrived(get_queue()) == [4]


def test_a_relay_does_not_pass_a_refused_task_of_the_same_user(queue: FairQueue, settings: Settings) -> None:
    left_behind(1, 2)
    left_behind("x" * 5000, customer="other")
    left_behind(3)
    settings.FAIRQUE = {**settings.FAIRQUE, "QUEUE": {"MAX_BACKLOG": 1, "MAX_PAYLOAD_BYTES": 2000}}
    assert relay_rows("default").refused == 2
    assert [(row.user_id, row.attempts, row.is_stuck) for row in rows()] == [
        ("acme", 1, False),
        ("other", 1, True),
        ("acme", 0, False),
    ]


def test_tasks_wait_for_a_refused_task_of_their_user_among_very_many_waiting_users(queue: FairQueue) -> None:
    users = [f"user {n}" for n in range(600)]
    for user in users:
        left_behind(1, customer=user)
    OutboxEntry.objects.update(retry_at=timezone.now() + timedelta(hours=1))
    left_behind(2, customer=users[-1])
    left_behind("else", customer="other")
    assert relay_rows("default").tasks == 1
    assert arrived(queue) == ["else"]
