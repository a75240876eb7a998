"""Delays and expiries are counted by the server, whatever the clock of the process that sends."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_fairque import Task, TaskState, TaskUsageError, get_queue, task
from django_fairque.events import activation, field_tracker, on_create, rules
from django_fairque.models import OutboxEntry
from django_fairque.outbox.relay import relay_rows
from django_fairque.tasks.execution import Services
from tests.fixture_types import FairQueue, Redis, Settings
from tests.shop.models import Order
from tests.stored_tasks import replace_payload, stored_payload

from .helpers import awaited, run_next

pytestmark = pytest.mark.django_db(transaction=True)


def work(**options: Any) -> Any:
    @task(name="work", **{"delay": 60, "expires": 300, **options})
    def work(*args: Any) -> None: ...

    return work


def by_event(queue: FairQueue) -> str:
    on_create(Order)(work())
    Order.objects.create()
    (found,) = queue.tasks().items
    return found.task_id


def in_outbox(queue: FairQueue) -> str:
    with transaction.atomic():
        return str(work().enqueue(1).id)


SPANS: dict[str, Any] = {"execute_after": timedelta(minutes=1), "expires_at": timedelta(minutes=5)}
WAYS: dict[str, Callable[[FairQueue], str]] = {
    "enqueue": lambda _: work().enqueue(1).id,
    "enqueue from a coroutine": lambda _: awaited(work().aenqueue, 1).id,
    "many": lambda _: work().enqueue_many([((n,), {}) for n in range(5)])[-1].id,
    "using": lambda _: work(delay=None, expires=None).using(**SPANS).enqueue(1).id,
    "a pipeline": lambda _: (work().s(1) >> work(delay=None).s(2)).enqueue().results[0].id,
    "unique": lambda _: work(unique_for=60).enqueue(1).id,
    "debounce": lambda _: [work(delay=None, debounce=60).enqueue(1).id for _ in range(2)][-1],
    "the outbox": in_outbox,
    "a model event": by_event,
    "push": lambda queue: queue.push(Task.create("ann", 3, 1, delay=60, expires=timedelta(minutes=5))).task_id,
    "push of a timedelta": lambda queue: queue.push(Task.create("ann", 3, 1, **SPANS)).task_id,
}


@pytest.mark.parametrize("way", WAYS)
def test_times_do_not_depend_on_the_clock_of_the_sender(
    queue: FairQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    monkeypatch.setattr(field_tracker, "tracked", {})
    activation.ready()
    settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": way == "the outbox"}
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 600)
    stored = get_queue().get_task(WAYS[way](get_queue()))
    assert stored.state is TaskState.SCHEDULED
    assert stored.execute_after == pytest.approx(stored.created_at + 60, abs=0.5)
    assert stored.expires_at == pytest.approx(stored.created_at + 300, abs=0.5)


def test_given_moments_do_not_depend_on_the_clock(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    stored = queue.get_task(work().using(execute_after=4e9, expires_at=4.1e9).enqueue(1).id)
    assert (stored.execute_after, stored.expires_at) == (4e9, 4.1e9)


def test_a_repeated_call_does_not_start_the_times_again(queue: FairQueue) -> None:
    now = 2e9
    made = Task.create("ann", 3, 1, delay=60, expires=300)  # the id is not chosen: the same call whose reply was lost
    chosen = Task.create("ann", 3, 1, task_id="mine", delay=60, expires=300)
    for later in (0, 30):
        queue.push(made, now=now + later)
        queue.push(chosen, now=now + later)
    for task_id in (made.task_id, "mine"):
        stored = queue.get_task(task_id)
        assert (stored.execute_after, stored.expires_at, stored.delay) == (now + 60, now + 300, 60)


def test_a_debounced_expiry_counts_from_the_last_call(queue: FairQueue) -> None:
    now = 2e9
    options: dict[str, Any] = {"unique_key": "k", "debounce": 60, "expires": 300}
    queue.push_batch([Task.create("ann", 3, n, **options) for n in range(2)], now=now)
    task_id = queue.push(Task.create("ann", 3, 3, **options), now=now + 30).task_id
    stored = queue.get_task(task_id)
    assert (stored.payload, stored.execute_after, stored.expires_at) == (3, now + 90, now + 330)
    queue.push(Task.create("ann", 3, 4, unique_key="k", debounce=60.0), now=now + 40)
    assert queue.get_task(task_id).expires_at is None


def test_one_debounced_call_of_a_batch_has_no_expiry(queue: FairQueue) -> None:
    first, last = (Task.create("ann", 3, n, unique_key="k", debounce=60, expires=300 if n else None) for n in (1, 0))
    task_id = queue.push_batch([first, last], now=2e9)[0].task_id
    assert queue.get_task(task_id).expires_at is None


def test_a_length_of_time_that_is_over_before_it_begins_is_refused(queue: FairQueue) -> None:
    with pytest.raises(TaskUsageError, match=r"would expire .* before it may start"):
        work(expires=None).using(expires_at=timedelta(seconds=30)).enqueue(1)
    with pytest.raises(ValueError, match="delay and execute_after say the same thing in two ways"):
        Task.create("ann", 3, 1, delay=1, execute_after=4e9)


def test_lengths_of_time_are_signed(queue: FairQueue, services: Services, redis: Redis) -> None:
    """Also where the server has counted the moments: a worker checks what the application sent."""
    declared = work(delay=None)
    changed = declared.enqueue(1)
    payload, _, signature = stored_payload(redis, changed.id).rpartition(b"\x1e")
    assert signature[23:] == b",300000000"
    replace_payload(redis, changed.id, payload + b"\x1e" + signature[:23] + b",900000000")
    assert run_next(queue, services) == "dead"
    declared.enqueue(1)
    assert run_next(queue, services) == "finished"


class TestOutbox:
    @pytest.fixture
    def queue(self, queue: FairQueue, settings: Settings) -> FairQueue:
        settings.FAIRQUE = {**settings.FAIRQUE, "OUTBOX": True}
        return get_queue()

    @staticmethod
    def left(seconds: float) -> OutboxEntry:
        """Pretend that the row was written some time before."""
        row: OutboxEntry = OutboxEntry.objects.get()
        written = float(row.tasks.partition('"written":')[2].partition(",")[0])
        row.tasks = row.tasks.replace(f'"written":{written}', f'"written":{written - seconds}')
        row.save()
        return row

    def test_time_in_the_outbox_shortens_the_delay(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = work().enqueue(1)
            transaction.get_connection().run_on_commit.clear()
        self.left(45)
        assert relay_rows("default").tasks == 1
        stored = queue.get_task(result.id)
        assert stored.execute_after == pytest.approx(stored.created_at + 15, abs=0.5)
        assert stored.expires_at == pytest.approx(stored.created_at + 255, abs=0.5)

    def test_a_task_that_expired_in_the_outbox_is_a_dead_letter(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = work().enqueue(1)
            transaction.get_connection().run_on_commit.clear()
        self.left(3600)
        relay_rows("default")
        assert queue.pop("w") is None
        assert queue.get_task(result.id).state is TaskState.FAILED

    def test_time_in_a_transaction_does_not_shorten_the_delay(self, queue: FairQueue) -> None:
        with transaction.atomic():
            result = work().enqueue(1)
            self.left(45)
        stored = queue.get_task(result.id)
        assert stored.execute_after == pytest.approx(stored.created_at + 60, abs=0.5)
