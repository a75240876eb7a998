"""Enqueueing: what arrives, whose it is, when it is sent, and what is refused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from django_fairque import BacklogFullError, Priority, RedisConnectionError, TaskState, TaskValidationError, task
from django_fairque.conf import aclose_queues
from django_fairque.tasks.errors import TaskUsageError

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper
    from redis import Redis

    from django_fairque.engine.queue import FairQueue

INFINITY = float("inf")


def declare(**options: Any) -> Any:
    @task(name="work", **options)
    def work(customer: str, n: int = 0) -> None: ...

    return work


def test_a_call_arrives_byte_for_byte(queue: FairQueue) -> None:
    sent = declare(user="customer").enqueue("acme", n=3)
    lease = queue.pop("w")
    assert lease is not None
    assert (lease.task_id, lease.user_id, lease.name) == (sent.id, "acme", "work")
    assert lease.payload_bytes == b'{"args":["acme"],"kwargs":{"n":3}}'


def test_the_user_is_an_argument_a_function_of_them_or_given(queue: FairQueue) -> None:
    users = [
        declare().enqueue("acme"),
        declare(user="n").enqueue("acme", 5),
        declare(user="n").enqueue("acme"),
        declare(user=lambda customer, n=0: customer[:2]).enqueue("acme"),
        declare(user="customer").using(user_id="other").enqueue("acme"),
    ]
    assert [queue.get_task(result.id).user_id for result in users] == ["default", "5", "0", "ac", "other"]


def test_options_of_one_call_reach_the_queue(queue: FairQueue) -> None:
    result = declare().using(priority=Priority.CRITICAL, delay=60, max_retries=1, timeout=5, task_id="x").enqueue("a")
    sent = queue.get_task(result.id)
    assert (sent.task_id, sent.priority, sent.max_retries, sent.timeout) == ("x", Priority.CRITICAL, 1, 5.0)
    assert sent.state is TaskState.SCHEDULED


def test_many_calls_keep_their_order(queue: FairQueue) -> None:
    results = declare(user="customer").enqueue_many([(("acme", n), {}) for n in range(1000)])
    assert [lease.task_id for lease in queue.pop_batch(1000, "w")] == [result.id for result in results]


def test_unique_for_returns_the_task_that_is_there(queue: FairQueue) -> None:
    work = declare(user="customer", unique_for=60)
    first = work.enqueue("acme", 1)
    assert work.enqueue("acme", n=1).id == first.id
    assert work.enqueue("acme", 2).id != first.id
    assert work.using(unique_for=None).enqueue("acme", 1).id != first.id


def test_debounce_keeps_the_last(queue: FairQueue) -> None:
    work = declare(user="customer", debounce=60)
    assert work.enqueue("acme", 1).id == work.enqueue("acme", 1).id
    assert queue.get_queue_sizes("acme").scheduled == 1


async def test_the_coroutine_sends_as_well(queue: FairQueue) -> None:
    work = declare(user="customer")
    result = await work.aenqueue("acme", 1)
    many = await work.aenqueue_many([(("acme", n), {}) for n in range(3)])
    assert await result.astate() is TaskState.QUEUED
    assert len({result.id, *(one.id for one in many)}) == 4
    assert await result.acancel() is True
    assert await (await result.arefresh()).astate() is TaskState.CANCELED
    await aclose_queues()


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((), {}, "missing a required argument: 'customer'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"m": 1}, "unexpected keyword argument 'm'"),
        (("a", INFINITY), {}, "not JSON"),
        (("a", {1: 2}), {}, "strings"),
        (("a", object()), {}, "not JSON"),
        (("a", "\ud800"), {}, "not JSON"),
        (("x" * 257,), {}, "at most 256 bytes"),
        (("",), {}, "non-empty"),
        ((None,), {}, "text, an integer or a UUID"),
        (("a", "x" * 300_000), {}, "the limit is 262,144"),
    ],
)
def test_a_call_that_can_not_work_is_refused_where_it_is_made(
    queue: FairQueue, redis: Redis, args: tuple[Any, ...], kwargs: dict[str, Any], expected: str
) -> None:
    with pytest.raises(TaskValidationError, match=expected):
        declare(user="customer").enqueue(*args, **kwargs)
    assert redis.dbsize() == 0


def test_one_bad_call_of_many_sends_none(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(TaskUsageError):
        declare(user="customer").enqueue_many([(("a",), {}), ((), {})])
    assert redis.dbsize() == 0


def test_a_full_backlog_is_an_error(queue: FairQueue) -> None:
    queue.user("acme").set_max_backlog(1)
    work = declare(user="customer")
    work.enqueue("acme")
    with pytest.raises(BacklogFullError):
        work.enqueue("acme")


@pytest.mark.django_db(transaction=True)
def test_a_transaction_sends_when_it_commits(queue: FairQueue) -> None:
    with transaction.atomic():
        result = declare().enqueue("acme")
        assert result.state is None
    assert result.state is TaskState.QUEUED


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_no_trace(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        declare().enqueue("acme")
        raise ZeroDivisionError
    assert redis.dbsize() == 0


@pytest.mark.django_db(transaction=True)
def test_a_savepoint_that_is_rolled_back_takes_only_its_own(queue: FairQueue) -> None:
    work = declare(user="customer")
    with transaction.atomic():
        first = work.enqueue("acme", 1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            lost = work.enqueue("acme", 2)
            raise ZeroDivisionError
        with transaction.atomic():
            inner = work.enqueue("acme", 3)
        last = work.enqueue("acme", 4)
    assert [lease.payload["args"][1] for lease in queue.pop_batch(9, "w")] == [1, 3, 4]
    assert lost.state is None
    assert {first.state, inner.state, last.state} == {TaskState.STARTED}


@pytest.mark.django_db(transaction=True)
def test_a_transaction_makes_one_call(queue: FairQueue, redis: Redis) -> None:
    work = declare(user="customer")
    redis.config_resetstat()
    with transaction.atomic():
        for n in range(100):
            work.enqueue("acme", n)
    calls = sum(redis.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
    assert calls <= 2  # the second, when the server did not know the script
    assert queue.get_queue_sizes("acme").ready == 100


@pytest.mark.django_db(transaction=True)
def test_on_commit_can_be_turned_off(queue: FairQueue, settings: SettingsWrapper) -> None:
    with transaction.atomic():
        assert declare().using(on_commit=False).enqueue("acme").state is TaskState.QUEUED
        settings.FAIRQUE = {**settings.FAIRQUE, "ENQUEUE_ON_COMMIT": False}
        assert declare().enqueue("acme").state is TaskState.QUEUED
        assert declare().using(on_commit=True).enqueue("acme").state is None


@pytest.mark.django_db(transaction=True)
def test_what_waits_for_a_commit_can_be_canceled(queue: FairQueue, redis: Redis) -> None:
    with transaction.atomic():
        result = declare().enqueue("acme")
        kept = declare().enqueue("acme")
        assert result.cancel() is True
    assert result.state is None
    assert kept.state is TaskState.QUEUED


@pytest.mark.django_db(transaction=True)
def test_a_server_that_is_gone_at_commit_is_an_error_with_the_ids(
    queue: FairQueue, settings: SettingsWrapper, caplog: pytest.LogCaptureFixture
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "unix:///nonexistent/s.sock"}, "QUEUE": {"PIPELINE_TIMEOUT": 0}}
    with pytest.raises(RedisConnectionError), transaction.atomic():
        result = declare().enqueue("acme")
    assert result.id in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_coroutine_inside_a_transaction_waits_for_its_commit(queue: FairQueue) -> None:
    from asgiref.sync import async_to_sync

    async def send() -> Any:
        result = await declare().aenqueue("acme")
        await aclose_queues()
        return result

    with transaction.atomic():
        result = async_to_sync(send)()
        assert result.state is None
    assert result.state is TaskState.QUEUED
    assert asyncio.run(_state(result)) is TaskState.QUEUED


async def _state(result: Any) -> Any:
    state = await (await result.arefresh()).astate()
    await aclose_queues()
    return state
