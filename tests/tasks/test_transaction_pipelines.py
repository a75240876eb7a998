"""Tests of the transaction for whose commit a pipeline waits."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from django_fairque import Step, TaskUsageError, task
from tests.fixture_types import FairQueue, Redis

from .helpers import awaited

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


def step(**options: Any) -> Step:
    @task(name="work")
    def work() -> None: ...

    return work.using(**options).s()


@pytest.mark.parametrize("which", [0, 1])
def test_a_pipeline_waits_for_the_database_that_a_step_names(queue: FairQueue, which: int) -> None:
    named: list[dict[str, Any]] = [{}, {}]
    named[which] = {"database": "other"}
    with transaction.atomic():
        with transaction.atomic(using="other"):
            (step(**named[0]) >> step(**named[1])).enqueue()
            assert queue.pop("w") is None
        assert queue.pop("w") is not None


def test_a_step_may_turn_off_the_wait_for_the_commit(queue: FairQueue) -> None:
    with transaction.atomic():
        awaited((step() >> step(on_commit=False)).aenqueue)
        assert queue.pop("w") is not None


def test_options_of_the_call_override_those_of_the_steps(queue: FairQueue) -> None:
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
