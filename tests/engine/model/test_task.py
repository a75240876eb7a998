"""A `Task` computes its retries and readiness, and the server stores exactly the fields that it sends."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.lease import LEASE_FIELDS
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task
from tests.stored_tasks import stored_record

ALL: dict[str, Any] = {
    "name": "mail",
    "max_retries": 7,
    "expires_at": NOW + 900,
    "timeout": 30.5,
    "sla": 12.0,
    "execute_after": NOW + 60,
}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DIFFERENT: dict[str, dict[str, Any]] = {
    "nothing": {},
    **{name: {name: value} for name, value in ALL.items()},
    "all of it": ALL,
    "a key": {"unique_key": "k", "unique_for": 60.0},
    "a debounced key": {"unique_key": "d", "debounce": 5.0},
    "a chosen id": {"task_id": "mine"},
    "a trace": {"traceparent": PARENT},
    "the name again": {"name": "mail"},
    "nothing again": {},
}


def record(redis: Redis, task_id: str) -> dict[bytes, bytes]:
    """Without the moment of its push, which is its own."""
    return {name: value for name, value in stored_record(redis, task_id).items() if name not in (b"created", b"ready")}


def kept(queue: FairQueue, redis: Redis, given: Task) -> tuple[Any, ...] | None:
    """Return the stored record and payload; None if another task with the same key stands for this one."""
    found = record(redis, given.task_id)
    return (found, queue.get_task(given.task_id).payload) if found else None


@pytest.mark.parametrize("order", [1, -1])
def test_a_task_pushed_with_others_is_stored_as_if_pushed_alone(queue: FairQueue, redis: Redis, order: int) -> None:
    """Common values are sent once for all tasks: no value of one task may reach another."""
    # Three of each, so that what one leaves in the form that it shares would be seen in the next.
    offered = [
        (name, Task.create(user, priority, {"n": name}, **options))
        for name, options in list(DIFFERENT.items())[::order]
        for user, priority in (("ann", 3), ("bob", 6), ("ann", 3))
        if not (name.startswith("a ") and user == "bob")
    ]
    queue.push_batch([different for _, different in offered], now=NOW)
    together = [kept(queue, redis, different) for _, different in offered]
    redis.flushall()
    for _, different in offered:
        queue.push(different, now=NOW)
    alone = [kept(queue, redis, different) for _, different in offered]
    assert together == alone
    assert sum(fields is not None for fields in alone) > 2 * len(DIFFERENT)


def test_tasks_pushed_together_send_their_common_fields_once(queue: FairQueue, redis: Redis) -> None:
    def received() -> int:
        return int(redis.info("stats")["total_net_input_bytes"])

    def sent(tasks: list[Task]) -> int:
        before = received()
        queue.push_batch(tasks, now=NOW)
        return received() - before

    sent([task("ann")])
    few, many = (sent([task("ann", **ALL) for _ in range(count)]) for count in (100, 300))
    # An id, a user, a payload and the form's number, each with its length, are 82; what this form says would be 123 more.
    assert (many - few) / 200 < 90


def test_the_arguments_of_a_task_push_it_without_the_shared_form(queue: FairQueue, redis: Redis) -> None:
    given = task("ann", **ALL)
    home = queue._shards.home
    reply = queue._transport.send(home.call("push", [0, "", 0, 1, 1, *given.to_lua_args()], NOW, reply="n"))
    assert reply[1] == b"1"
    kept = record(redis, given.task_id)
    redis.flushall()
    queue.push(given, now=NOW)
    assert record(redis, given.task_id) == kept


MORE: dict[str, dict[str, Any]] = {
    "dependencies": {"depends_on": ["a", "b:c"], "on_dependency_failure": "run", "run_id": "r"},
    "a payload": {"payload": {"n": [1.5, None, "é"]}},
    "parts of a microsecond": {"timeout": 1 / 3, "sla": 2 / 3, "execute_after": NOW + 1 / 3, "expires_at": NOW + 2 / 3},
    "a time from now": {"execute_after": timedelta(seconds=1 / 3)},
}


@pytest.mark.parametrize("options", [*DIFFERENT.values(), *MORE.values()], ids=[*DIFFERENT, *MORE])
def test_a_task_can_be_read_from_its_record(options: dict[str, Any]) -> None:
    given = task("ann", **options)
    again = Task.from_redis_dict(given.to_redis_dict())
    assert again == given
    assert (again.push_template, again.has_chosen_id) == (given.push_template, given.has_chosen_id)
    texts = {
        name: value.decode() if isinstance(value, bytes) else value for name, value in given.to_redis_dict().items()
    }
    assert Task.from_redis_dict(texts) == given


def test_a_task_read_from_the_queue_can_be_stored_again(queue: FairQueue, redis: Redis) -> None:
    dependency, ended = task("ann"), task("ann", **ALL | {"execute_after": None})
    waits = task("ann", depends_on=[dependency.task_id], on_dependency_failure="cancel")
    queue.push_graph([dependency, ended, waits], "r", now=NOW)
    for lease in queue.pop_batch(2, "w", now=NOW + 1):
        queue.finish(lease, {"of": lease.task_id}, now=NOW + 2)
    found = [queue.get_task(pushed.task_id) for pushed in (dependency, ended, waits)]
    assert found[1].result == {"of": ended.task_id}
    assert (found[2].depends_on, found[2].on_dependency_failure) == ((dependency.task_id,), "cancel")
    for read in found:
        assert Task.from_redis_dict(read.to_redis_dict()) == read


def test_a_task_can_be_read_from_a_pop() -> None:
    fields = {"id": b"i", "user": b"ann", "name": b"mail", "priority": b"6", "payload": b'{"a":1}', "token": b"3"}
    found = Task.from_lua_result([fields.get(name, b"") for name in LEASE_FIELDS])
    assert (found.task_id, found.user_id, found.payload, found.state) == ("i", "ann", {"a": 1}, TaskState.STARTED)


def test_each_retry_lowers_the_number_that_is_left() -> None:
    first = task("ann", max_retries=2)
    second = first.increment_retry()
    last = second.increment_retry()
    assert [attempt.can_retry() for attempt in (first, second, last)] == [True, True, False]
    assert [attempt.get_retry_delay() for attempt in (first, second, last)] == [1.0, 2.0, 4.0]
    assert first.retry_count == 0


def test_retries_follow_the_options_of_the_queue() -> None:
    config = QueueConfig(retry_base_seconds=5, max_retry_attempts=4)
    given = task("ann", max_retries=9)
    delays = []
    while given.can_retry(config):
        assert given.get_retry_delay(config, jitter=0) == 5 * 2**given.retry_count
        delays.append(given.get_retry_delay(config))
        given = given.increment_retry(config, now=NOW)
    assert given.retry_count == 4
    assert given.can_retry(), "by its own limit"
    assert all(5 * 2**number <= delay <= 5.5 * 2**number for number, delay in enumerate(delays))
    assert given.get_retry_delay(config, base=1, cap=2, jitter=0) == 2


def test_a_retry_is_due_after_its_delay(queue: FairQueue) -> None:
    given = task("ann").increment_retry(now=NOW).increment_retry(now=NOW + 10)
    assert (given.retry_count, given.execute_after) == (2, NOW + 12)
    assert [given.is_ready_to_execute(NOW + seconds) for seconds in (11, 12)] == [False, True]
    queue.push(given, now=NOW)
    found = queue.get_task(given.task_id)
    assert (found.execute_after, found.retry_count, found.state) == (NOW + 12, 2, TaskState.SCHEDULED)
    queue.sweep(now=NOW + 12)
    (lease,) = queue.pop_batch(1, "w", now=NOW + 12)
    assert lease.task.retry_count == 2


def test_a_task_without_retries_sends_no_retry_fields() -> None:
    fresh, retried = task("ann", task_id="one"), task("ann", task_id="one").increment_retry()
    assert len(fresh.to_lua_args()[4]) < len(retried.model_copy(update={"execute_after": None}).to_lua_args()[4])
    assert Task.from_lua_result(list(retried.to_lua_args())).retry_count == 1


def test_only_queued_and_scheduled_tasks_can_be_ready() -> None:
    ready = {state for state in TaskState if task("ann").model_copy(update={"state": state}).is_ready_to_execute(NOW)}
    assert ready == {TaskState.QUEUED, TaskState.SCHEDULED}


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("own_limit", [None, 1])
def test_the_arguments_of_a_push_make_an_equal_task(queue: FairQueue, retries: int, own_limit: int | None) -> None:
    given = Task.create(
        "ann", 3, {"a": 1}, name="mail", max_retries=7, max_deliveries=own_limit, execute_after=NOW, timeout=2.5
    ).model_copy(update={"retry_count": retries})
    found = Task.from_lua_result(given.to_lua_args())
    assert (found, found.payload_bytes) == (given, given.payload_bytes)
    queue.push(given, now=NOW - 1)
    stored = queue.get_task(given.task_id)
    assert (stored.retry_count, stored.max_deliveries) == (retries, own_limit or 0)


def test_a_task_is_ready_from_its_due_time_until_it_expires() -> None:
    given = task("ann", execute_after=NOW, expires_at=NOW + 10)
    assert [given.is_ready_to_execute(NOW + seconds) for seconds in (-1, 0, 9, 10)] == [False, True, True, False]


def test_changing_a_copy_of_a_task_leaves_the_original_unchanged() -> None:
    first, second = task("ann"), task("bob")
    changed = first.model_copy(update={"name": "other"}).set_payload_bytes(b"[]")
    assert (changed.name, changed.payload_bytes) == ("other", b"[]")
    assert (first.name, first.payload_bytes) == (second.name, second.payload_bytes)
    assert first.model_fields_set == second.model_fields_set == set(Task.model_fields)


def test_a_task_that_is_made_without_create_was_created_now(queue: FairQueue) -> None:
    before = time.time()
    made = Task(task_id="t", user_id="u", priority=Priority.HIGH, payload={"n": 1})
    assert before - 0.001 <= made.created_at <= time.time() + 0.001
    assert [queue.push(made).status for _ in range(2)] == ["accepted", "duplicate"]
    assert queue.get_task("t").payload == {"n": 1}
    assert Task(task_id="t", user_id="u", priority=Priority.HIGH, created_at=5.0).created_at == 5.0
