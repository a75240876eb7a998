"""Ids and keys of one user's tasks never reach another user's task."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from django_fairque import FairQueueError
from django_fairque.engine.model.errors import (
    BacklogFullError,
    ConfigurationError,
    TaskIdConflictError,
    TaskValidationError,
)
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, task

ENDS = ("waits", "runs", "finished", "failed", "canceled")


@pytest.fixture(params=[1, 4])
def anywhere(redis: Redis, request: pytest.FixtureRequest) -> FairQueue:
    return FairQueue(redis, config=QueueConfig(shards=request.param))


def bring(queue: FairQueue, task_id: str, end: str) -> None:
    if end == "waits":
        return
    if end == "canceled":
        queue.cancel(task_id, now=NOW)
        return
    lease = pop(queue)
    if end == "finished":
        queue.finish(lease, "result", now=NOW)
    elif end == "failed":
        queue.fail(lease, "broken", retry=False, now=NOW)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("other", ["b", "c", "d"])
def test_a_chosen_id_of_another_user_is_refused(anywhere: FairQueue, end: str, other: str) -> None:
    queue = anywhere
    queue.push(task("a", payload="mine", task_id="x"), now=NOW)
    bring(queue, "x", end)
    before = queue.get_task("x")
    with pytest.raises(TaskIdConflictError, match="'x'") as refusal:
        queue.push(task(other, payload="theirs", task_id="x"), now=NOW)
    assert refusal.value.refused == ("x",)
    after = queue.get_task("x")
    assert (after.user_id, after.payload, after.state) == ("a", "mine", before.state)
    assert queue.get_queue_sizes(other).total == 0
    again = queue.push(task("a", payload="anew", task_id="x"), now=NOW)
    assert again.accepted == before.state.is_ended
    assert queue.check_invariants() == []


def test_a_refused_id_does_not_refuse_the_rest_of_a_bulk_push(anywhere: FairQueue) -> None:
    queue = anywhere
    queue.push(task("a", task_id="x"), now=NOW)
    made = [task("b", task_id="y"), task("b", task_id="x"), task("c"), task("c", task_id="y"), task("b", task_id="y")]
    with pytest.raises(TaskIdConflictError, match="2 of 5 tasks") as refusal:
        queue.push_batch(made, now=NOW)
    statuses = [result.status for result in refusal.value.results]  # type: ignore[attr-defined]
    assert statuses == ["accepted", "id_conflict", "accepted", "id_conflict", "duplicate"]
    assert refusal.value.refused == ("x", "y")
    assert queue.get_task("y").user_id == "b"
    assert queue.check_invariants() == []


def test_a_graph_with_an_id_of_another_user_is_refused_as_a_whole(anywhere: FairQueue) -> None:
    queue = anywhere
    queue.push(task("a", task_id="x"), now=NOW)
    graph = [task("b", task_id="first"), task("b", task_id="x", depends_on=["first"])]
    with pytest.raises(TaskIdConflictError, match="2 of 2 tasks"):
        queue.push_batch(graph, now=NOW)
    assert queue.get_queue_sizes("b").total == 0
    queue.push(task("b", task_id="first"), now=NOW)
    with pytest.raises(TaskIdConflictError):
        queue.push(task("b", task_id="x", depends_on=["first"]), now=NOW)


def test_a_full_backlog_is_not_reported_as_an_id_conflict(queue: FairQueue) -> None:
    queue.user("b").set_max_backlog(1, now=NOW)
    queue.push(task("a", task_id="x"), now=NOW)
    with pytest.raises(BacklogFullError):
        queue.push_batch([task("b"), task("b")], now=NOW)
    with pytest.raises(TaskIdConflictError) as refusal:
        queue.push_batch([task("b"), task("b", task_id="x")], now=NOW)
    assert [result.status for result in refusal.value.results] == ["backlog_full", "id_conflict"]  # type: ignore[attr-defined]
    assert isinstance(refusal.value, FairQueueError)


@pytest.mark.parametrize("kind", [{"unique_for": 60}, {"debounce": 60}])
def test_unique_keys_of_different_users_do_not_conflict(anywhere: FairQueue, kind: dict[str, Any]) -> None:
    queue = anywhere
    users = ["a", "b", "1:a", "a:k", "\x00"]
    for user in users:
        assert queue.push(task(user, payload=user, unique_key="k", **kind), now=NOW).accepted
    made = [task(user, payload=f"{user} again", unique_key="k", **kind) for user in users]
    assert {result.status for result in queue.push_batch(made, now=NOW + 1)} == {"duplicate"}
    assert queue.push(task("a:1", unique_key=":k", **kind), now=NOW).accepted
    queue.sweep(now=NOW + 61)
    last = "" if "unique_for" in kind else " again"
    payloads = {
        lease.user_id: lease.payload for lease in queue.pop_batch(9, "w", now=NOW + 61) if lease.user_id in users
    }
    assert payloads == {user: f"{user}{last}" for user in users}
    assert queue.check_invariants() == []


@pytest.mark.parametrize(
    ("given", "longest"), [({}, 100), ({"debounce_max_wait": 25}, 25), ({"debounce_max_wait": 10}, 10)]
)
def test_calls_put_a_task_off_until_the_maximum_wait_at_most(
    queue: FairQueue, given: dict[str, Any], longest: int
) -> None:
    ids = [
        queue.push(task("a", payload=second, unique_key="k", debounce=10, **given), now=NOW + second).task_id
        for second in range(0, longest, 5)
    ]
    assert len(set(ids)) == 1
    assert queue.get_task(ids[0]).execute_after == pytest.approx(NOW + longest)
    assert queue.pop("w", now=NOW + longest - 0.1) is None
    assert pop(queue, NOW + longest).payload == longest - 5
    following = queue.push(task("a", unique_key="k", debounce=10, **given), now=NOW + longest)
    assert following.accepted
    assert following.task_id != ids[0]
    assert queue.get_task(following.task_id).state is TaskState.SCHEDULED


@pytest.mark.parametrize(
    "given",
    [{"debounce_max_wait": 9}, {"debounce": 10, "debounce_max_wait": 9.9}, {"debounce": 1, "debounce_max_wait": "x"}],
)
def test_an_invalid_maximum_wait_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TaskValidationError, match="debounce_max_wait"):
        task("a", unique_key="k", **given)


@pytest.mark.parametrize("seconds", [60.1, 119, 120, 300])
def test_calls_are_repeated_no_longer_than_replies_are_recorded(redis: Redis, seconds: float) -> None:
    with pytest.raises(
        ConfigurationError, match=r"request_timeout: expected at most 60 seconds.*recorded for 120 seconds"
    ):
        QueueConfig(request_timeout=seconds)
    with pytest.raises(TaskValidationError, match=r"at most 60 seconds.*120 seconds"):
        FairQueue(redis).with_retry_timeout(seconds)
