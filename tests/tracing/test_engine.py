"""A task's trace goes where the task goes, and costs a task without one nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import FairQueue, Task, TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.scripting.commands import Keys
from tests.stored_tasks import stored_record

from .test_format import PARENT, SPAN_ID, TRACE_ID

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

NOW = 2_000_000_000.0
OTHER = f"00-{TRACE_ID[::-1]}-{SPAN_ID}-00"


@pytest.fixture
def queue(redis: Redis) -> Iterator[FairQueue]:
    queue = FairQueue(redis, "default", QueueConfig(retry_base_seconds=1, retry_jitter=0))
    yield queue
    assert queue.check_invariants() == []


def made(**options: Any) -> Task:
    return Task.create("u", 3, None, **options)


def traced(**options: Any) -> Task:
    return made(traceparent=PARENT, tracestate="a=1,b=x y", **options)


def test_a_task_keeps_its_trace_until_its_end(queue: FairQueue) -> None:
    task_id = queue.push(traced(), now=NOW).task_id
    lease = queue.pop("w", now=NOW)
    assert lease is not None
    assert lease.trace == lease.task.trace == (PARENT, "a=1,b=x y")
    queue.fail(lease, "no", now=NOW)
    lease = queue.pop("w", now=NOW + 60)
    assert lease is not None
    assert lease.trace.parent == PARENT
    queue.finish(lease, now=NOW + 60)
    task = queue.get_task(task_id)
    assert (task.traceparent, task.tracestate) == (PARENT, "a=1,b=x y")
    assert Task.from_redis_dict(task.to_redis_dict()).trace == task.trace


def test_a_dead_letter_keeps_its_trace(queue: FairQueue) -> None:
    queue.push(traced(max_retries=0), now=NOW)
    lease = queue.pop("w", now=NOW)
    assert lease is not None
    queue.fail(lease, "no", now=NOW)
    (entry,) = queue.dlq.list(now=NOW).items
    assert entry.original_task.traceparent == PARENT
    queue.dlq.requeue(entry.entry_id, now=NOW)
    lease = queue.pop("w", now=NOW)
    assert lease is not None
    assert lease.trace.parent == PARENT


def test_each_task_of_a_bulk_push_has_its_own_trace(queue: FairQueue) -> None:
    tasks = [made(), traced(), made(), made(traceparent=OTHER), made()]
    queue.push_batch(tasks, now=NOW)
    found = {lease.task_id: lease.trace.parent for lease in queue.pop_batch(9, "w", now=NOW)}
    assert found == {task.task_id: task.traceparent for task in tasks}
    assert sorted(found.values()) == sorted(["", PARENT, "", OTHER, ""])


def test_tasks_of_a_graph_keep_their_traces(queue: FairQueue) -> None:
    first = traced(run_id="r")
    second = made(run_id="r", depends_on=[first.task_id], on_dependency_failure="run")
    third = made(run_id="r", depends_on=[first.task_id, second.task_id], traceparent=OTHER)
    results = queue.push_batch([first, second, third, made()], now=NOW)
    assert [queue.get_task(result.task_id).traceparent for result in results] == [PARENT, "", OTHER, ""]


def test_a_refused_graph_stores_no_trace(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(TaskNotFoundError):
        queue.push_batch([traced(depends_on=["missing"])], now=NOW)
    assert queue.get_stats().states["queued"] == 0


def test_a_duplicate_keeps_the_first_task_s_trace(queue: FairQueue) -> None:
    queue.push(made(task_id="chosen", traceparent=OTHER), now=NOW)
    assert queue.push(traced(task_id="chosen"), now=NOW).duplicate
    assert queue.get_task("chosen").traceparent == OTHER
    first = queue.push(made(traceparent=OTHER, unique_key="k", unique_for=9), now=NOW)
    queue.push_batch([traced(unique_key="k", unique_for=9)], now=NOW)
    assert queue.get_task(first.task_id).traceparent == OTHER


@pytest.mark.parametrize("at_once", [True, False])
def test_a_debounced_task_has_the_trace_of_the_last_call(queue: FairQueue, at_once: bool) -> None:
    tasks = [
        made(traceparent=OTHER, unique_key="k", debounce=5),
        traced(unique_key="k", debounce=5),
        made(traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00", unique_key="k", debounce=5),
    ]
    results = queue.push_batch(tasks, now=NOW) if at_once else [queue.push(task, now=NOW) for task in tasks]
    assert len({result.task_id for result in results}) == 1
    assert queue.get_task(results[0].task_id).traceparent == f"00-{TRACE_ID}-{SPAN_ID}-00"


def test_a_task_without_a_trace_stores_and_sends_no_trace_field(queue: FairQueue, redis: Redis) -> None:
    without, with_one = queue.push_batch([made(), traced()], now=NOW)
    assert b"trace" not in stored_record(redis, without.task_id)
    assert stored_record(redis, with_one.task_id)[b"trace"] == f"{PARENT} a=1,b=x y".encode()
    assert PARENT not in map(str, made().to_lua_args())


def test_a_trace_costs_no_server_command(queue: FairQueue, redis: Redis) -> None:
    def calls(task: Task) -> int:
        redis.config_resetstat()
        queue.push(task, now=NOW)
        lease = queue.pop("w", now=NOW)
        assert lease is not None
        queue.finish(lease, now=NOW)
        stats = redis.info("commandstats")
        return sum(command["calls"] for name, command in stats.items() if "config" not in name and "info" not in name)

    calls(made())  # the scripts are loaded, the user is known
    assert calls(traced()) == calls(made())


def test_a_damaged_trace_record_is_ignored(queue: FairQueue, redis: Redis) -> None:
    task_id = queue.push(traced(), now=NOW).task_id
    redis.hset(Keys("fq", "default").task(task_id), "trace", b"\xff\x00 nonsense")
    lease = queue.pop("w", now=NOW)
    assert lease is not None
    assert lease.trace == lease.task.trace == ("", "")


@pytest.mark.parametrize("wrong", ["x", "", None, 5, b"00"])
def test_an_invalid_traceparent_is_refused(wrong: Any) -> None:
    with pytest.raises(TaskValidationError, match=r"traceparent must be 00-.*; leave it out"):
        made(traceparent=wrong, tracestate="a=1")
