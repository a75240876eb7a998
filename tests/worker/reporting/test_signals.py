"""Lifecycle signals: each at its moment, with its task; a failing receiver harms nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import AsyncWorker, Discard, Retry, Worker, get_queue, signals, task
from django_fairque.conf import close_queues
from django_fairque.tasks import registry
from django_fairque.worker.leases.lease_renewal import LeaseRenewal
from tests.worker.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = [name for name in signals.__all__ if not name.startswith("sla_") and name not in ("task_promoted", "data_lost")]


@pytest.fixture(autouse=True)
def project(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.01}}
    monkeypatch.setattr(registry, "_tasks", {})


@pytest.fixture
def received() -> Iterator[list[tuple[str, str, dict[str, Any]]]]:
    """Collect ``(signal, task's name, other arguments)`` in the order of arrival; connect a broken receiver as well."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    receivers = {}

    def broken(**_: Any) -> None:
        raise RuntimeError("this receiver is broken")

    for name in NAMES:

        def receiver(sender: Any, signal: Any, name: str = name, **about: Any) -> None:
            found.append((name, sender, about))

        receivers[name] = receiver
        getattr(signals, name).connect(broken)
        getattr(signals, name).connect(receiver)
    yield found
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)
        getattr(signals, name).disconnect(broken)


@pytest.fixture
def tasks() -> dict[str, Any]:
    @task(name="good")
    def good() -> int:
        return 1

    @task(name="bad", max_retries=1)
    def bad() -> None:
        raise ValueError("no")

    @task(name="later")
    def later() -> None:
        if not get_queue().client.execute_command("INCR", "tests:later") > 1:
            raise Retry(0.01)

    @task(name="discarded")
    def discarded() -> None:
        raise Discard("not wanted")

    @task(name="awaited")
    async def awaited() -> int:
        return 2

    @task(name="batch", batch=10)
    def batch(items: list[int]) -> None: ...

    return {"good": good, "bad": bad, "later": later, "discarded": discarded, "awaited": awaited, "batch": batch}


EXPECTED = {
    "good": ["pushed", "started", "finished"],
    "bad": ["pushed", "started", "failed", "retried", "started", "failed", "dead"],
    "later": ["pushed", "started", "retried", "started", "finished"],
    "discarded": ["pushed", "started", "canceled"],
    "awaited": ["pushed", "started", "finished"],
    "batch": ["pushed", "started", "finished"],
}


def of(received: list[tuple[str, str, dict[str, Any]]], name: str) -> list[str]:
    return sorted(signal.removeprefix("task_") for signal, sender, _ in received if sender == name)


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_signals_are_sent_for_each_step_of_a_task(
    received: list[tuple[str, str, dict[str, Any]]], tasks: dict[str, Any], kind: str
) -> None:
    for name, one_task in tasks.items():
        one_task.using(user_id="acme").enqueue(*([1] if name == "batch" else []))
    queue = get_queue()

    def is_done() -> bool:
        return sum(queue.get_stats().states[state] for state in ("finished", "failed", "canceled")) == len(tasks)

    if kind == "threads":
        while not is_done():
            Worker([queue], burst=True, concurrency=2).run()
    else:
        while not is_done():
            asyncio.run(run_on_a_loop(queue.name))
    eventually(lambda: all(of(received, name) == sorted(expected) for name, expected in EXPECTED.items()))
    (finished,) = [about for signal, sender, about in received if (signal, sender) == ("task_finished", "good")]
    assert (finished["task"].user_id, finished["queue"]) == ("acme", "default")
    assert finished["took"] >= 0
    (dead,) = [about for signal, sender, about in received if (signal, sender) == ("task_dead", "bad")]
    assert dead["error"] == "ValueError: no"
    (retried,) = [about for signal, sender, about in received if (signal, sender) == ("task_retried", "bad")]
    assert retried["delay"] == pytest.approx(0.01, rel=0.1)
    (discarded,) = [about for signal, sender, about in received if (signal, sender) == ("task_canceled", "discarded")]
    assert discarded["task_id"] == discarded["task"].task_id
    assert {signal for signal, _, _ in received} >= {"worker_started", "worker_stopped"}
    close_queues()


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_an_expired_task_sends_a_dead_letter_signal(
    received: list[tuple[str, str, dict[str, Any]]], tasks: dict[str, Any], kind: str
) -> None:
    """An expired task has no failed attempt, but it is a dead letter."""
    tasks["good"].using(user_id="acme", expires_at=time.time() + 0.001).enqueue()
    queue = get_queue()

    def is_dead_received() -> bool:
        if kind == "threads":
            Worker([queue], burst=True, concurrency=2).run()
        else:
            asyncio.run(run_on_a_loop(queue.name))
        return "dead" in of(received, "good")

    eventually(is_dead_received)
    assert of(received, "good") == ["dead", "pushed"]
    (dead,) = [about for signal, _, about in received if signal == "task_dead"]
    assert (dead["task"].user_id, dead["queue"], dead["error"]) == ("acme", "default", "not started in time")
    assert dead["took"] == 0
    close_queues()


def test_alerts_fetched_at_the_end_are_sent(
    received: list[tuple[str, str, dict[str, Any]]], tasks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = LeaseRenewal.finish

    def sweep_once_more(lease_renewal: LeaseRenewal, seconds: float) -> bool:
        tasks["good"].using(user_id="acme", expires_at=time.time() + 0.001).enqueue()
        eventually(lambda: get_queue().sweep().alerts)
        lease_renewal._sweep("default")
        return finish(lease_renewal, seconds)

    monkeypatch.setattr(LeaseRenewal, "finish", sweep_once_more)
    tasks["bad"].using(user_id="acme").enqueue()  # so that a signal was sent before
    Worker([get_queue()], burst=True, concurrency=2).run()
    assert of(received, "good") == ["dead", "pushed"]
    close_queues()


async def run_on_a_loop(name: str) -> None:
    await AsyncWorker([name], burst=True, concurrency=2).run()


def test_a_canceled_task_sends_a_signal(received: list[tuple[str, str, dict[str, Any]]], tasks: dict[str, Any]) -> None:
    result = tasks["good"].enqueue()
    assert result.cancel()
    assert not result.cancel()
    recorded = [about for signal, _, about in received if signal == "task_canceled"]
    assert [(about["task_id"], about["queue"]) for about in recorded] == [(result.id, "default")]


def test_duplicates_send_no_signal(received: list[tuple[str, str, dict[str, Any]]], tasks: dict[str, Any]) -> None:
    for _ in range(2):
        tasks["good"].using(task_id="once").enqueue()
    assert of(received, "good") == ["pushed"]
