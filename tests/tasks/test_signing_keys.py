"""A worker with another signing key costs nothing, and a forged task becomes a dead letter."""

from __future__ import annotations

import threading
from io import StringIO
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command

from django_fairque import FailureType, FairQueue, Task, TaskState, Worker, task
from django_fairque.conf import close_queues, get_queue
from django_fairque.engine.model import signature as signatures
from django_fairque.engine.queue.used_keys import replace_used_keys, used_keys
from django_fairque.tasks import signing
from django_fairque.tasks.execution import Services
from tests.fixture_types import Redis, Server, Settings
from tests.stored_tasks import replace_payload, stored_payload, stored_record
from tests.topologies import wait_for

from .helpers import run_next

OLD, NEW = "the old key of the project, long enough", "the new key of the project, long enough"
ran: list[str] = []


@pytest.fixture(autouse=True)
def charge(server: Server, redis: Redis, settings: Settings) -> Any:
    ran.clear()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    use_keys(settings, NEW)

    @task(name="charge", user="user")
    def charge(user: str) -> None:
        ran.append(user)
        django_settings.SECRET_KEY = "a key that a task has assigned"

    return charge


def use_keys(settings: Settings, key: str, *fallbacks: str) -> FairQueue:
    """Go on as another process, with these keys."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, list(fallbacks)
    close_queues()
    return get_queue()


def services(queue: FairQueue) -> Services:
    return Services(queue.name, queue.config, queue.set_progress)


def test_a_worker_with_another_key_gives_back_a_few_tasks_and_stops_fetching(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    payload = {"args": ["u"], "kwargs": {}}
    get_queue().push_batch([Task.create(f"u{number % 50}", 3, payload, name="charge") for number in range(4000)])
    queue = use_keys(settings, "the key of another project, long enough")
    worker = Worker(concurrency=4)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_for(lambda: "this worker stops fetching" in caplog.text and not queue.get_stats().states["started"])
        states = queue.get_stats().states
        assert (states["failed"], states["finished"], ran) == (0, 0, [])
        assert states["queued"] > 3900
        health = queue.health()
        assert health.status == "degraded"
        assert any("1 of 1 workers" in reason and "give them the SECRET_KEY" in reason for reason in health.reasons)
    finally:
        worker.stop()
        thread.join()
    assert queue.get_stats().states["failed"] == 0


def test_a_worker_keeps_the_key_with_which_it_began(charge: Any) -> None:
    queue = get_queue()
    worker = services(queue)
    for user in ("a", "b"):
        charge.enqueue(user)
    signing_key = django_settings.SECRET_KEY
    assert [run_next(queue, worker) for _ in range(2)] == ["finished", "finished"]
    assert signing_key != django_settings.SECRET_KEY
    assert ran == ["a", "b"]


def test_keys_are_rolled_without_losing_a_task(charge: Any, settings: Settings, redis: Redis) -> None:
    old_worker = services(use_keys(settings, OLD))
    charge.enqueue("signed with the old key")
    queue = use_keys(settings, NEW, OLD)
    new_worker = services(queue)
    assert run_next(queue, new_worker) == "finished"
    use_keys(settings, NEW, OLD)
    charge.enqueue("signed with the new key")
    assert run_next(queue, old_worker) == "released"
    (waiting,) = queue.tasks(TaskState.SCHEDULED).items
    assert stored_record(redis, waiting.task_id)[b"deliveries"] == b"0"
    queue.run_now(waiting.task_id)
    assert run_next(queue, new_worker) == "finished"
    out = StringIO()
    call_command("fairque_keys", "list", stdout=out)
    assert "SECRET_KEY_FALLBACKS" in out.getvalue()
    use_keys(settings, NEW)
    call_command("fairque_keys", "replace", stdout=out)
    assert used_keys(get_queue()) == {signatures.fingerprint(NEW)}


@pytest.mark.parametrize("has_known_keys", [True, False])
def test_a_forged_task_is_a_dead_letter(charge: Any, redis: Redis, has_known_keys: bool) -> None:
    queue = get_queue()
    task_id = charge.enqueue("a").id
    replace_payload(redis, task_id, stored_payload(redis, task_id).replace(b'"a"', b'"b"'))
    if not has_known_keys:  # nothing is known of producers
        replace_used_keys(queue, [])
    assert run_next(queue, services(queue)) == "dead"
    (letter,) = queue.dlq.list().items
    assert letter.failure_type is FailureType.POISONED
    assert ran == []


def test_the_fingerprint_is_written_once(charge: Any, redis: Redis) -> None:
    charge.enqueue("a")
    redis.delete("fq:{default:0}:signing_keys")
    charge.enqueue("a")
    assert used_keys(get_queue()) == set()


def test_a_key_of_another_producer_does_not_stop_workers(charge: Any, settings: Settings) -> None:
    charge.enqueue("good")
    queue = use_keys(settings, "the key of a wrong deployment, long enough")
    for number in range(9):
        charge.enqueue(f"bad {number}")
    queue = use_keys(settings, NEW)
    worker = services(queue)
    results = [run_next(queue, worker) for _ in range(10)]
    assert sorted(results) == ["finished"] + 9 * ["released"]
    assert not worker.key_watch.is_paused
    assert signing.MISMATCHES_BEFORE_PAUSE < 9
