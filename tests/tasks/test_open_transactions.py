"""Coroutines ask the thread of synchronous code for its transaction only if a transaction is open in this process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from django.db import connection, transaction

from django_fairque import get_queue, signals, task
from django_fairque.conf import aclose_queues
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.transactions import open_transactions


@task(name="watched")
def watched() -> None: ...


@pytest.fixture(autouse=True)
def collect_connections() -> None:
    """Connections of ended threads, which other tests have left in a transaction, are known until they are collected."""
    gc.collect()


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions that coroutines have called in the thread of synchronous code; without receivers of other tests."""
    monkeypatch.setattr(signals, "task_pushed", signals.NamedSignal())
    found: list[Any] = []
    original = SyncToAsync.__call__

    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(self.func)
        return await original(self, *args, **kwargs)

    monkeypatch.setattr(SyncToAsync, "__call__", call)
    return found


async def send() -> None:
    await watched.aenqueue()
    await aclose_queues()


@pytest.mark.django_db(transaction=True)
def test_without_a_transaction_a_coroutine_sends_in_its_own_thread(queue: FairQueue, hops: list[Any]) -> None:
    connection.ensure_connection()
    asyncio.run(send())
    assert hops == []
    assert queue.get_stats().states["queued"] == 1


@pytest.mark.django_db(transaction=True)
def test_a_transaction_of_any_thread_is_noticed() -> None:
    opened, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            opened.set()
            done.wait(10)
        connection.close()

    assert not open_transactions.may_be_open()
    thread = threading.Thread(target=hold)
    thread.start()
    assert opened.wait(10)
    assert open_transactions.may_be_open()
    done.set()
    thread.join()
    assert not open_transactions.may_be_open()


@pytest.mark.django_db(transaction=True)
def test_a_connection_without_autocommit_counts_as_an_open_transaction() -> None:
    transaction.set_autocommit(False)
    try:
        assert open_transactions.may_be_open()
    finally:
        transaction.set_autocommit(True)
    assert not open_transactions.may_be_open()


def test_connections_opened_before_the_import_may_be_in_a_transaction() -> None:
    code = "from django_fairque.tasks.transactions import open_transactions; print(open_transactions.may_be_open())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(("name", "expected"), [("another", []), ("watched", ["watched"]), (None, ["watched"])])
def test_a_receiver_is_called_in_another_thread_only_for_tasks_of_its_name(
    queue: FairQueue, hops: list[Any], name: str | None, expected: list[str]
) -> None:
    seen: list[str] = []

    def receiver(sender: str, **_: Any) -> None:
        seen.append(sender)

    connect: Callable[..., None] = signals.task_pushed.connect
    connect(receiver, sender=name)
    asyncio.run(send())
    assert seen == expected
    assert len(hops) == len(expected)
    assert get_queue().get_stats().states["queued"] == 1
