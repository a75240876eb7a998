"""Values passed between tasks: kept by key in a namespace, for a time."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.dependencies.dependencies import MAX_XCOM_KEYS
from django_fairque.engine.model.errors import TaskSerializationError, TaskValidationError
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW
from tests.engine.leasing.test_fairness import HOSTILE


def test_passed_values_are_read_back_unchanged(queue: FairQueue) -> None:
    xcom = queue.xcom("run 1")
    xcom.push("a", {"n": [1, 2.5, None, "ü"]})
    xcom.push_many({"b": 1, "a": 2})
    assert (xcom.pull("a"), xcom.pull("b"), xcom.pull("c", 9)) == (2, 1, 9)
    assert xcom.keys() == ["a", "b"]
    assert xcom.items() == {"a": 2, "b": 1}
    with pytest.raises(KeyError):
        xcom.pull("c")


def test_passed_values_of_two_namespaces_are_separate(queue: FairQueue) -> None:
    queue.xcom("one").push("k", 1)
    assert queue.xcom("two").pull("k", None) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_passed_values_are_accepted(queue: FairQueue, name: str) -> None:
    queue.xcom(name).push(name, name)
    assert queue.xcom(name).items() == {name: name}


def test_a_namespace_lasts_until_the_last_value_expires(queue: FairQueue, redis: Redis) -> None:
    key = queue._shards.home.keys.xcom("n")
    queue.xcom("n").push("a", 1, ttl=100)
    queue.xcom("n").push("b", 1, ttl=10)
    assert 99_000 < redis.pttl(key) <= 100_000
    queue.xcom("n").push("b", 1, ttl=1000)
    assert redis.pttl(key) > 900_000


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("", 1, TaskValidationError),
        ("k" * 300, 1, TaskValidationError),
        ("k", "x" * 300_000, TaskSerializationError),
        ("k", {1, 2}, TaskSerializationError),
    ],
)
def test_a_value_that_is_no_json_is_refused(queue: FairQueue, redis: Redis, key: str, value: Any, error: type) -> None:
    with pytest.raises(error):
        queue.xcom("n").push_many({"good": 1, key: value}, now=NOW)
    assert not redis.keys("*xcom*")


def test_a_namespace_holds_at_most_1000_keys(queue: FairQueue) -> None:
    xcom = queue.xcom("n")
    xcom.push_many({str(i): i for i in range(MAX_XCOM_KEYS)})
    xcom.push("0", "again")
    with pytest.raises(TaskValidationError, match="at most 1000 keys"):
        xcom.push_many({"0": 0, "one more": 1})
    assert xcom.pull("0") == "again"
