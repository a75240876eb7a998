"""Of which transaction a pipeline waits for the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_fairque import TaskUsageError, task
from django_fairque.conf import aclose_queues

if TYPE_CHECKING:
    from redis import Redis

    from django_fairque import Step
    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def step(**options: Any) -> Step:
    @task(name="work")
    def work() -> None: ...

    return work.using(**options).s()


@pytest.mark.parametrize("which", [0, 1])
def test_of_the_database_that_a_step_names(queue: FairQueue, which: int) -> None:
    named: list[dict[str, Any]] = [{}, {}]
    named[which] = {"database": "other"}
    with transaction.atomic():
        with transaction.atomic(using="other"):
            (step(**named[0]) >> step(**named[1])).enqueue()
            assert queue.pop("w") is None
        assert queue.pop("w") is not None


def test_also_from_a_coroutine(queue: FairQueue) -> None:
    async def send() -> None:
        await (step() >> step(on_commit=False)).aenqueue()
        await aclose_queues()

    with transaction.atomic():
        async_to_sync(send)()
        assert queue.pop("w") is not None


def test_what_the_call_says_counts_more(queue: FairQueue) -> None:
    with transaction.atomic(using="other"):
        pipeline = step(database="default", on_commit=False) >> step(database="other", on_commit=True)
        pipeline.enqueue(database="other", on_commit=True)
        assert queue.pop("w") is None
    assert queue.pop("w") is not None


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"database": "default"}, {"database": "other"}, "name 'default', 'other' as database"),
        ({"on_commit": True}, {"on_commit": False}, "name False, True as on_commit"),
    ],
)
def test_steps_that_contradict_each_other_are_refused(
    queue: FairQueue, redis: Redis, one: dict[str, Any], other: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskUsageError, match=f"{message}: .* enqueue"):
        (step(**one) >> step(**other)).enqueue()
    assert redis.dbsize() == 0
