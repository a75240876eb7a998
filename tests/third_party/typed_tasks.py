"""Tasks as a typed project declares and sends them. mypy checks this file with all others, `test_typing.py` with pyright.

A comment ``type: ignore`` stands where a type checker must find a mistake: both complain if there is none.
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from typing_extensions import assert_type

from django_fairque import BatchResult, TaskResult, task


@task
def price(product: UUID, day: date | None = None) -> Decimal:
    return Decimal(product.int % 100)


@task(queue="mail", user="customer", max_retries=2)
def notify(customer: str, *orders: int) -> None: ...


@task
async def download(url: str) -> bytes:
    return url.encode()


@task(timeout=5)
async def count() -> int:
    return 1


@task(batch=10)
def index(items: list[UUID]) -> BatchResult:
    return BatchResult(items)


@task
def anything(value: int) -> Any:
    return value


def results(key: UUID) -> None:
    assert_type(price.enqueue(key), TaskResult[Decimal])
    assert_type(price.enqueue(key, day=date.today()).wait(5), Decimal)  # noqa: DTZ011 - nothing runs
    assert_type(price.using(delay=3).enqueue(product=key).result(), Decimal)
    assert_type(price.enqueue_many([((key,), {})]), list[TaskResult[Decimal]])
    assert_type(notify.enqueue("acme", 1, 2), TaskResult[None])
    assert_type(download.enqueue("x").wait(), bytes)
    assert_type(count.enqueue_many([((), {})])[0].result(), int)
    assert_type(index.enqueue(key), TaskResult[Any])
    assert_type(anything.enqueue(1), TaskResult[Any])
    untyped: TaskResult = TaskResult("id")
    assert_type(untyped.result(), Any)


async def coroutines(key: UUID) -> None:
    assert_type(await price.aenqueue(key), TaskResult[Decimal])
    assert_type(await (await download.aenqueue("x")).await_(), bytes)
    assert_type(await (await price.aenqueue(key)).aresult(), Decimal)
    assert_type(await price.aenqueue_many([]), list[TaskResult[Decimal]])
    assert_type(await count.aenqueue_many([]), list[TaskResult[int]])


def plain_calls(key: UUID) -> None:
    assert_type(price(key), Decimal)
    assert_type(index([key]), BatchResult)


def mistakes(key: UUID) -> None:
    price.enqueue("no key")  # type: ignore[arg-type]
    price.enqueue(key, today=None)  # type: ignore[call-arg]
    price.enqueue()  # type: ignore[call-arg]
    notify.enqueue("acme", "1")  # type: ignore[arg-type]
    download.enqueue(1)  # type: ignore[call-overload]
    index.enqueue("no key")  # type: ignore[call-overload]
    anything.enqueue("1")  # type: ignore[call-overload]
    price.using(countdown=5)  # type: ignore[call-arg]
    price.using(delay="5")  # type: ignore[arg-type]
    price.delay(key)  # type: ignore[attr-defined]
    price.enqueue(key).get()  # type: ignore[attr-defined]
    word: str = price.enqueue(key).result()  # type: ignore[assignment]
    del word


@task(user_id="x")  # type: ignore[call-overload, untyped-decorator]
def declared_with_an_option_of_one_call() -> None: ...


@task(batch=10)  # type: ignore[arg-type]
def of_no_list(items: int) -> None: ...
