"""Fields of a task that never change are stored in front of its payload. This saves memory for a waiting task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.head import MAX_HEAD_BYTES, head_size, split_head
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, pop, push_many, task
from tests.stored_tasks import PREFIX, stored_record

TRACE = f"00-{1:032x}-{2:016x}-01"


def has_record(redis: Redis, task_id: str) -> bool:
    return bool(redis.exists(f"{PREFIX}task:{task_id}"))


def test_a_waiting_task_is_a_single_key_until_it_changes(queue: FairQueue, redis: Redis) -> None:
    (task_id,) = push_many(queue, "u", 1, name="n", max_retries=7)
    assert not has_record(redis, task_id)
    pop(queue)
    record: Any = redis.hgetall(f"{PREFIX}task:{task_id}")
    assert record[b"state"] == b"started"
    assert not {b"user", b"created", b"priority", b"name", b"max_retries"} & record.keys()
    assert stored_record(redis, task_id)[b"user"] == b"u"


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 6},
        {"execute_after": NOW + 60},
        {"expires_at": NOW + 60},
        {"sla": 5},
        {"depends_on": ["first"]},
        {"unique_key": "k", "debounce": 5},
        {"name": "n\x1f"},
        {"name": "n\x1d"},
        {"user": "u\x1f"},
        {"user": "u" * 256, "name": "ä" * 150},
    ],
    ids=str,
)
def test_tasks_with_special_options_have_early_records(queue: FairQueue, redis: Redis, options: dict[str, Any]) -> None:
    queue.push(task("other", task_id="first"), now=NOW)
    made = task(task_id="it", **options)
    if made.depends_on:
        queue.push_graph([made], now=NOW)
    else:
        queue.push(made, now=NOW)
    assert has_record(redis, "it")
    stored: Any = redis.get(f"{PREFIX}payload:it")
    assert head_size(stored) == 0
    found = queue.get_task("it")
    assert (found.user_id, found.name, found.priority) == (made.user_id, made.name, made.priority)


def test_tasks_of_runs_and_with_a_limit_on_bytes_have_records_from_the_start(queue: FairQueue, redis: Redis) -> None:
    queue.push_graph([task(task_id="a")], "run", now=NOW)
    queue.user("b").set_max_backlog_bytes(10_000, now=NOW)
    queue.push(task("b", task_id="b"), now=NOW)
    assert [has_record(redis, user_id) for user_id in ("a", "b")] == [True, True]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    user=TEXTS.filter(lambda text: 0 < len(text.encode()) <= 256),
    name=TEXTS,
    payload=st.one_of(TEXTS, st.binary(max_size=1500).map(lambda raw: raw.hex()), st.integers()),
    trace=st.sampled_from(["", TRACE]),
    more=st.fixed_dictionaries(
        {},
        optional={
            "max_retries": st.integers(1, 20),
            "timeout": st.integers(1, 1000),
            "max_deliveries": st.integers(1, 9),
            "priority": st.integers(1, 5),
        },
    ),
)
def test_a_task_is_read_and_leased_with_the_fields_that_were_pushed(
    queue: FairQueue, redis: Redis, user: str, name: str, payload: Any, trace: str, more: dict[str, Any]
) -> None:
    redis.flushdb()
    made = Task.create(user, more.pop("priority", 3), payload, name=name, traceparent=trace, **more)
    queue.push(made, now=NOW)
    same = ("task_id", "user_id", "name", "priority", "payload", "traceparent", *more)
    wanted = [getattr(made, field) for field in same]

    def read() -> list[Any]:
        return [getattr(queue.get_task(made.task_id), field) for field in same]

    assert read() == wanted
    listed = queue.find(Search(TaskState.QUEUED, payload_bytes=5000)).tasks[0]
    assert (listed.user_id, listed.name, listed.payload) == (user, name, payload)
    lease = pop(queue, NOW + 1)
    leased = [field for field in same if field != "max_deliveries"]  # the server alone counts deliveries
    assert [getattr(lease.task, field) for field in leased] == [getattr(made, field) for field in leased]
    queue.fail(lease, "no", delay=5, now=NOW + 2)
    assert read() == wanted
    queue.sweep(now=NOW + 9)
    again = pop(queue, NOW + 9)
    assert (again.user_id, again.name, again.payload) == (user, name, payload)
    queue.finish(again, now=NOW + 10)
    assert read() == wanted
    assert queue.check_invariants() == []


@pytest.mark.parametrize("size", [0, 1, 900, *range(970, 1030, 5), 1100, 5000, 200_000])
def test_a_payload_of_any_size_is_leased_whole(queue: FairQueue, size: int) -> None:
    queue.push(task(payload="x" * size), now=NOW)
    lease = pop(queue)
    assert lease.payload == "x" * size
    queue.release(lease, now=NOW)
    moved = queue.take_over(pop(queue).key, "v", now=NOW)
    assert moved is not None
    assert moved.payload == "x" * size


def test_a_new_payload_of_a_dead_letter_keeps_the_head_of_its_record(queue: FairQueue, redis: Redis) -> None:
    (task_id,) = push_many(queue, "u", 1, name="n", payload="old")
    queue.fail(pop(queue), "no", retry=False, now=NOW)
    queue.dlq.requeue(f"{task_id}~1", "new", now=NOW)
    stored: Any = redis.get(f"{PREFIX}payload:{task_id}")
    assert head_size(stored) > 0
    lease = pop(queue)
    assert (lease.user_id, lease.name, lease.payload) == ("u", "n", "new")


def test_a_record_of_a_reused_id_replaces_the_earlier_one(queue: FairQueue, redis: Redis) -> None:
    """All tasks of an id but the first have records from the start, which replace that of the one before."""
    for payload, options in ((1, {"name": "a"}), (2, {"name": "b", "priority": 6}), (3, {})):
        queue.push(task(task_id="same", payload=payload, **options), now=NOW)
        found = queue.get_task("same")
        assert (found.payload, found.name, found.state) == (payload, options.get("name", ""), TaskState.QUEUED)
        assert has_record(redis, "same") == (payload > 1)
        lease = pop(queue)
        assert (lease.payload, lease.name) == (payload, options.get("name", ""))
        queue.finish(lease, now=NOW)


def test_the_last_payload_counts_also_if_only_the_second_push_is_debounced(queue: FairQueue) -> None:
    first = task(payload=1, task_id="it", unique_key="k", unique_for=60)
    queue.push_batch([first, task(payload=2, unique_key="k", debounce=5, expires_at=NOW + 9)], now=NOW)
    found = queue.get_task("it")
    assert (found.payload, found.expires_at) == (2, NOW + 9)


@pytest.mark.parametrize(
    "rest", [{"state": "finished"}, {"state": "started", "token": "1"}, {"priority": "3", "promoted": "1"}]
)
def test_leftover_fields_of_a_damaged_record_are_ignored(queue: FairQueue, redis: Redis, rest: dict[Any, Any]) -> None:
    redis.hset(f"{PREFIX}task:it", mapping=rest)
    queue.push(task(priority=5, task_id="it"), now=NOW)
    found = queue.get_task("it")
    assert (found.state, found.priority) == (TaskState.QUEUED, 5)
    assert pop(queue).task_id == "it"


def remove_payload(redis: Redis, task_id: str) -> None:
    redis.delete(f"{PREFIX}payload:{task_id}")


def remove_record(redis: Redis, task_id: str) -> None:
    redis.delete(f"{PREFIX}task:{task_id}")


@pytest.mark.parametrize("state", ["queued", "started", "scheduled", "finished", "failed"])
@pytest.mark.parametrize("damage", [remove_payload, remove_record])
def test_a_repair_removes_tasks_of_which_a_key_is_lost(
    queue: FairQueue, redis: Redis, state: str, damage: Callable[[Redis, str], None]
) -> None:
    """Nobody knows whose it was, or whether it had ended. One that has not ended is known by its head. Other tasks go on."""
    queue.push_batch([task("u", task_id="it"), task("v", task_id="other")], now=NOW)
    if state != "queued":
        lease = pop(queue, users=["u"])
        if state == "scheduled":
            queue.fail(lease, "no", delay=60, now=NOW)
        elif state == "finished":
            queue.finish(lease, now=NOW)
        elif state == "failed":
            queue.fail(lease, "no", retry=False, now=NOW)
    damage(redis, "it")
    while queue.repair(now=NOW):
        pass
    assert queue.check_invariants() == []
    leases = queue.pop_batch(5, "w", now=NOW + 1)
    is_whole = state in ("queued", "started", "scheduled") and damage is remove_record
    assert sorted(lease.task_id for lease in leases) == ["it", "other"][not is_whole :]


def test_a_changed_priority_of_a_waiting_task_counts(queue: FairQueue) -> None:
    """Here its priority, as it is starving."""
    (task_id,) = push_many(queue, "u", 1, priority=1, name="n")
    queue.sweep(now=NOW + 40 * 86_400)
    found = queue.get_task(task_id)
    assert (found.priority, found.name, found.state) == (3, "n", TaskState.QUEUED)
    assert pop(queue, NOW + 40 * 86_400).name == "n"


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"\x1f", b"\x1fu\x1f1", b"\x1fu\x1f1\x1f\x1f3", b"x\x1fu\x1f1\x1f\x1f3\x1f"]
)
def test_strings_without_the_separators_of_a_head_have_no_head(text: bytes) -> None:
    assert split_head(text) == ({}, text)
    assert head_size(text) == 0


def test_a_head_is_split_into_its_fields() -> None:
    text = b"\x1fu\x1f1\x1f\x1f3\x1d\x1dname\x1f" + b"\x1f{}"
    fields = {b"state": b"queued", b"user": b"u", b"created": b"1", b"priority": b"3", b"name": b"name"}
    assert split_head(text) == (fields, b"\x1f{}")
    assert head_size(text) <= MAX_HEAD_BYTES
