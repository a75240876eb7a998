"""Wrong values are refused early with an error that names them, and nothing is partly written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.model.errors import (
    RedisConnectionError,
    ServerRefusedError,
    TaskSerializationError,
    TaskValidationError,
    UnsupportedServerError,
)
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.transport.server_checks import check_server
from tests.conftest import MakeServer
from tests.engine.conftest import NOW, pop, push_many, task
from tests.servers import Server

DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]
IMPATIENT = QueueConfig(request_timeout=0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"user_id": ""}, "user_id must be a non-empty string of at most 256 bytes, got 0 bytes"),
        ({"user_id": "x" * 257}, "got 257 bytes"),
        ({"user_id": "\U0001f600" * 65}, "got 260 bytes"),
        ({"user_id": 7}, "got int 7"),
        ({"user_id": None}, "got NoneType"),
        ({"user_id": "\ud800"}, "UTF-8"),
        ({"task_id": ""}, "task_id"),
        ({"priority": 0}, r"from 1 \(VERY_LOW\) to 6 \(CRITICAL\), got 0"),
        ({"priority": 7}, "got 7"),
        ({"priority": "HIGH"}, "got 'HIGH'"),
        ({"max_retries": -1}, "from 0 to 1000, got -1"),
        ({"execute_after": -1}, "seconds since the epoch"),
        ({"execute_after": timedelta(seconds=-1)}, "from 0 to"),
        ({"execute_after": datetime(2030, 1, 1)}, "aware datetime"),  # noqa: DTZ001
        ({"execute_after": float("nan")}, "got nan"),
        ({"execute_after": float("inf")}, "got inf"),
        ({"timeout": -5}, "timeout must be a number of seconds"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"depends_on": 5}, "depends_on must be a sequence of task ids, got int 5"),
        ({"sla": "soon"}, "sla must be"),
        ({"unique_for": 5}, "need a unique_key"),
        ({"unique_key": "k", "unique_for": 5, "debounce": 5}, "only one of them"),
        ({"name": "x" * 201}, "at most 200"),
    ],
)
def test_an_invalid_task_is_refused_when_it_is_created(values: dict[str, Any], expected: str) -> None:
    arguments = {"user_id": "u", "priority": 3, "payload": None, **values}
    with pytest.raises(TaskValidationError, match=expected):
        Task.create(**arguments)


@pytest.mark.parametrize(
    "payload",
    [float("nan"), float("inf"), {1: 2}, {"a": [{2: 3}]}, object(), {1, 2}, b"bytes", "\ud800", DEEP, 10**5000, 1j],
    ids=lambda value: type(value).__name__,
)
def test_a_payload_that_is_not_json_is_refused(payload: Any) -> None:
    with pytest.raises(TaskSerializationError):
        Task.create("u", 3, payload)


@pytest.mark.parametrize("payload", [None, True, 0, 2**53 + 1, 1.5, "", "\0", [], {}, {"a": []}, "\u2028", 10**400])
def test_any_json_payload_arrives_unchanged(queue: FairQueue, payload: Any) -> None:
    made = task("u", payload=payload)
    queue.push(made, now=NOW)
    lease = pop(queue)
    assert lease.payload_bytes == made.payload_bytes
    assert lease.payload == payload


TOO_LARGE = "x" * 262_144
PUSHES: dict[str, Callable[[Any], Any]] = {
    "push": lambda queue: queue.push(task("u", payload=TOO_LARGE)),
    "push of one that waits": lambda queue: queue.push(task("u", payload=TOO_LARGE, depends_on=["other"])),
    "push_batch": lambda queue: queue.push_batch([task("u"), task("u", payload=TOO_LARGE)]),
    "push_batch in slices": lambda queue: queue.push_batch([task("u")] * 3000 + [task("u", payload=TOO_LARGE)]),
    "push_graph": lambda queue: queue.push_graph([task("u"), task("u", payload=TOO_LARGE)]),
    "deliver": lambda queue: queue.deliver([task("u", payload=TOO_LARGE)]),
}


@pytest.mark.parametrize("way", PUSHES)
def test_a_payload_that_is_too_large_raises_one_error_in_every_push(queue: FairQueue, redis: Redis, way: str) -> None:
    """The one that a result or a value that is too large is."""
    with pytest.raises(TaskSerializationError, match=r"the limit \(max_payload_bytes\) is 262,144"):
        PUSHES[way](queue)
    assert redis.dbsize() == 0


PUSHES_OF_ONE_TASK: dict[str, Callable[[Any, Task], Any]] = {
    "push": lambda queue, made: queue.push(made),
    "push_batch": lambda queue, made: queue.push_batch([made]),
    "push_batch in slices": lambda queue, made: queue.push_batch([made] + [task("v")] * 3000),
    "push_graph": lambda queue, made: queue.push_graph([made]),
    "deliver": lambda queue, made: queue.deliver([made]),
}


@pytest.mark.parametrize("way", PUSHES_OF_ONE_TASK)
def test_retries_above_the_limit_of_the_queue_are_capped_with_one_warning(
    queue: FairQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("django_fairque.engine.pushing.push._names_with_capped_retries", set())
    for task_id in ("a", "b"):
        PUSHES_OF_ONE_TASK[way](queue, task("u", name="app.report", task_id=task_id, max_retries=101))
        assert queue.get_task(task_id).max_retries == 100
    (line,) = caplog.messages
    assert "'app.report' of queue default have max_retries 101, which is reduced" in line


def test_a_wrong_list_of_users_or_worker_name_is_refused(queue: FairQueue) -> None:
    with pytest.raises(TaskValidationError, match=r"did you mean \['acme'\]"):
        queue.pop("w", "acme")
    with pytest.raises(TaskValidationError, match="at most 3000"):
        queue.pop("w", [str(n) for n in range(3001)])
    with pytest.raises(TaskValidationError, match="worker must be a non-empty"):
        queue.pop("")


def test_a_missing_server_raises_a_connection_error() -> None:
    import redis

    with (
        redis.Redis(unix_socket_path="/nonexistent/s.sock") as client,
        pytest.raises(RedisConnectionError, match="can't be reached"),
    ):
        FairQueue(client, config=IMPATIENT).push(task())


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"redis_version": "7.0.15"}, "Redis 7.2 or newer is needed, this server is Redis 7.0.15"),
        ({"redis_version": "6.2.0"}, "Redis 6.2.0"),
        ({"redis_version": "7.2.4", "maxmemory_policy": "allkeys-lru", "maxmemory": 10}, "must be noeviction"),
    ],
)
def test_unsupported_servers_fail_the_check(info: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedServerError, match=expected):
        check_server(info)


def test_supported_servers_pass_the_check() -> None:
    check_server({"redis_version": "7.2.4", "valkey_version": "9.1.2", "maxmemory_policy": "noeviction"})
    check_server({"redis_version": "7.2.5", "maxmemory_policy": "allkeys-lru", "maxmemory": 0})


def test_a_server_that_evicts_is_refused_before_the_first_task(make_server: MakeServer) -> None:
    server = make_server("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with server.client() as client:
        with pytest.raises(UnsupportedServerError, match="allkeys-lru"):
            FairQueue(client).push(task())
        assert client.dbsize() == 0


def test_a_full_server_refuses_pushes_whole_and_drains(make_server: MakeServer) -> None:
    server = make_server("--maxmemory", "12mb", "--maxmemory-policy", "noeviction")
    with server.client() as client:
        queue = FairQueue(client, config=QueueConfig(max_payload_bytes=200_000))
        pushed = 0
        with pytest.raises(ServerRefusedError, match="out of memory"):  # noqa: PT012
            while True:
                pushed += len(queue.push_batch([task("u", payload="x" * 20_000) for _ in range(10)]))
        assert queue.check_invariants() == []
        drained = 0
        while leases := queue.pop_batch(7, "w"):
            for lease in leases:
                queue.finish(lease)
            drained += len(leases)
        assert drained >= pushed > 0
        assert queue.check_invariants() == []


def test_a_client_that_decodes_replies_works_too(server: Server, redis: Redis) -> None:
    with server.client(decode_responses=True) as client:
        queue = FairQueue(client)
        queue.push(task("\u00fc", payload={"n": "\u00fc"}), now=NOW)
        lease = pop(queue)
        assert lease.payload == {"n": "\u00fc"}
        queue.finish(lease, now=NOW)
        assert queue.get_stats().totals["finished"] == 1
        assert queue.check_invariants() == []
        assert queue.users().items == ["\u00fc"]


def test_a_damaged_record_does_not_stop_other_tasks(queue: FairQueue, redis: Redis) -> None:
    ids = push_many(queue, "a", 3)
    redis.delete(f"fq:{{default:0}}:task:{ids[0]}", f"fq:{{default:0}}:payload:{ids[0]}")
    assert [lease.task_id for lease in queue.pop_batch(9, "w", now=NOW)] == ids[1:]


LEASED = object()
"""Stands for the lease of a task that runs."""


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("push", [{"user": "u"}], r"only a Task can be pushed, got dict .*Task.create\(\)"),
        ("push", [None], "only a Task can be pushed, got NoneType None"),
        ("push_batch", [["x"]], "only a Task can be pushed, got str 'x'"),
        ("push_batch", ["xy"], "expected a sequence of tasks, got str 'xy'"),
        ("push_batch", [None], "expected a sequence of tasks, got NoneType"),
        ("push_graph", [["x"]], "only a Task can be pushed"),
        ("deliver", [["x"]], "only a Task can be pushed"),
        ("pop", ["w", None], r"users must be '\*' or a sequence of user ids, got None"),
        ("pop", ["w", "*", 5], r"steal must be '\*' or a sequence"),
        ("pop_batch", [1, "w", 5], r"users must be '\*' or a sequence"),
        ("finish", [None], r"expected a Lease, as pop\(\) returns it, got None"),
        ("fail", [None, "x"], "expected a Lease"),
        ("release", ["t"], "expected a Lease"),
        ("set_progress", [None, 1, 2], "expected a Lease"),
        ("set_progress", [LEASED, "x", 1], "current of a task's progress must be a number, got 'x'"),
        ("set_progress", [LEASED, 1, None], "total of a task's progress must be a number, got None"),
        ("set_progress", [LEASED, 1, 2, 3], "message of a task's progress must be a string, got 3"),
        ("fail", [LEASED, None], "an error must be an exception or a string, got None"),
        ("fail", [LEASED, b"x"], "an error must be an exception or a string, got b'x'"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_refused(
    queue: FairQueue, redis: Redis, call: str, arguments: list[Any], expected: str
) -> None:
    push_many(queue, "a", 1)
    lease = queue.pop("w", now=NOW)
    before = queue.get_stats(0).totals
    with pytest.raises(TaskValidationError, match=expected):
        getattr(queue, call)(*[lease if argument is LEASED else argument for argument in arguments], now=NOW)
    assert queue.get_stats(0).totals == before


@pytest.mark.parametrize("took", [1e12, -5, float("nan"), float("inf"), "x", True])
@pytest.mark.parametrize("call", ["finish", "fail"])
def test_an_invalid_duration_of_a_run_is_refused(queue: FairQueue, redis: Redis, call: str, took: Any) -> None:
    """The script could not write it, with half of the outcome written before."""
    push_many(queue, "a", 1)
    lease = pop(queue)
    with pytest.raises(TaskValidationError, match="took must be a number of seconds from 0 to"):
        getattr(queue, call)(lease, *(["broken"] if call == "fail" else []), took=took, now=NOW)
    assert queue.get_queue_sizes("a").running == 1
    queue.finish(lease, took=2, now=NOW)
    assert queue.get_queue_sizes("a").total == 0


def test_an_outcome_that_delays_a_task_needs_a_delay(queue: FairQueue) -> None:
    push_many(queue, "a", 1)
    lease = pop(queue)
    with pytest.raises(TaskValidationError, match="delay must be a number of seconds, got None"):
        Outcome(lease, "later")


@pytest.mark.parametrize("now", [1e18, -1, float("nan"), "today", True])
def test_an_impossible_current_time_is_refused(queue: FairQueue, now: Any) -> None:
    with pytest.raises(TaskValidationError, match="now must be seconds since the epoch"):
        queue.push(task("a"), now=now)
    queue.push(task("a"), now=NOW)
    assert queue.pop("w", now=NOW) is not None


@pytest.mark.parametrize("length", [0, 0.0000001, timedelta(0)])
def test_a_lease_of_no_or_negative_length_is_refused(queue: FairQueue, length: Any) -> None:
    push_many(queue, "a", 1)
    lease = pop(queue)
    calls: list[Callable[[], object]] = [
        lambda: queue.pop("w", lease=length, now=NOW),
        lambda: queue.renew([lease], lease=length, now=NOW),
        lambda: queue.heartbeat("w", {}, lease=length, now=NOW),
    ]
    for call in calls:
        with pytest.raises(TaskValidationError, match="lease must be more than 0 seconds"):
            call()
    for call in (lambda: queue.xcom("n").push("k", 1, ttl=0), lambda: queue.heartbeat("w", {}, ttl=0)):
        with pytest.raises(TaskValidationError, match="ttl must be more than 0 seconds"):
            call()


@pytest.mark.parametrize("age", [None, "old", -1, float("nan")])
def test_a_cleanup_of_dead_letters_needs_an_age(queue: FairQueue, age: Any) -> None:
    """None would be no filter: every dead letter would be forgotten."""
    push_many(queue, "a", 1, max_retries=0)
    queue.fail(pop(queue), "broken", now=NOW)
    with pytest.raises(TaskValidationError, match="older_than must be a number of seconds"):
        queue.dlq.cleanup(age, now=NOW + 10)
    assert queue.dlq.count() == 1
