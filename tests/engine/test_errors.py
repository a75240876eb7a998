"""What can't work is refused early, by name, with nothing half-written."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.errors import (
    LuaScriptError,
    RedisConnectionError,
    ServerRefusedError,
    TaskSerializationError,
    TaskValidationError,
    UnsupportedServerError,
)
from django_fairque.engine.models import Task
from django_fairque.engine.options import QueueConfig
from django_fairque.engine.queue import FairQueue
from django_fairque.engine.servers import check_server

from .conftest import NOW, push_many, task

if TYPE_CHECKING:
    from redis import Redis

    from tests.conftest import MakeServer
    from tests.servers import Server

DEEP: Any = []
for _ in range(100_000):
    DEEP = [DEEP]
IMPATIENT = QueueConfig(pipeline_timeout=0)


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
        ({"sla": "soon"}, "sla must be"),
        ({"unique_for": 5}, "need a unique_key"),
        ({"unique_key": "k", "unique_for": 5, "debounce": 5}, "only one of them"),
        ({"name": "x" * 201}, "at most 200"),
    ],
)
def test_a_task_that_can_not_be_is_refused_when_it_is_made(values: dict[str, Any], expected: str) -> None:
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
def test_json_arrives_as_it_was(queue: FairQueue, payload: Any) -> None:
    made = task("u", payload=payload)
    queue.push(made, now=NOW)
    lease = queue.pop("w", now=NOW)
    assert lease is not None
    assert lease.payload_bytes == made.payload_bytes
    assert lease.payload == payload


def test_limits_of_the_queue_are_checked_before_anything_is_sent(queue: FairQueue, redis: Redis) -> None:
    with pytest.raises(TaskValidationError, match=r"the limit \(max_payload_bytes\) is 262,144"):
        queue.push(task("u", payload="x" * 262_144))
    with pytest.raises(TaskValidationError, match="max_retry_attempts"):
        queue.push(task("u", max_retries=101))
    assert redis.dbsize() == 0


@pytest.mark.parametrize("n", [0, -1, 1001, 1.5, True])
def test_a_batch_has_a_size(queue: FairQueue, n: Any) -> None:
    if n == 0:
        assert queue.pop_batch(0, "w") == []
        return
    with pytest.raises(ValueError, match="1 to 1000" if n is not True else "got True"):
        queue.pop_batch(n, "w")


def test_a_list_of_users_is_a_list(queue: FairQueue) -> None:
    with pytest.raises(TaskValidationError, match=r"did you mean \['acme'\]"):
        queue.pop("w", "acme")
    with pytest.raises(TaskValidationError, match="at most 3000"):
        queue.pop("w", [str(n) for n in range(3001)])
    with pytest.raises(TaskValidationError, match="worker must be a non-empty"):
        queue.pop("")


@pytest.mark.parametrize(("rate", "value"), [("x", "x"), ("0/s", "0/s"), ("5/y", "5/y"), (5, "5")])
def test_a_rate_is_written_in_one_way(queue: FairQueue, rate: Any, value: str) -> None:
    with pytest.raises(TaskValidationError, match="such as '100/m'"):
        queue.user("a").set_rate(rate)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "5"])
def test_limits_are_positive_integers(queue: FairQueue, number: Any) -> None:
    with pytest.raises(TaskValidationError, match="or None for no limit"):
        queue.user("a").set_max_running(number)
    with pytest.raises(TaskValidationError, match="or None for no limit"):
        queue.user("a").set_max_backlog(number)


def test_a_server_that_is_not_there() -> None:
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
def test_a_server_that_can_not_be_trusted(info: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedServerError, match=expected):
        check_server(info)


def test_servers_that_can() -> None:
    check_server({"redis_version": "7.2.4", "valkey_version": "9.1.2", "maxmemory_policy": "noeviction"})
    check_server({"redis_version": "7.2.5", "maxmemory_policy": "allkeys-lru", "maxmemory": 0})


def test_a_server_that_evicts_is_refused_before_the_first_task(make_server: MakeServer) -> None:
    server = make_server("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    with server.client() as client:
        with pytest.raises(UnsupportedServerError, match="allkeys-lru"):
            FairQueue(client).push(task())
        assert client.dbsize() == 0


def test_a_read_only_replica(server: Server, redis: Redis, make_server: MakeServer) -> None:
    replica = make_server("--replicaof", "127.0.0.1 1")
    with replica.client() as client, pytest.raises(ServerRefusedError, match="read-only replica"):
        FairQueue(client, config=IMPATIENT).push(task())


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


@pytest.mark.parametrize("key", ["stats", "ring", "state:queued", "user:a", "queue:user:a:normal", "task:x"])
def test_a_key_of_another_type_is_a_loud_error_and_nothing_is_written(server: Server, redis: Redis, key: str) -> None:
    queue = FairQueue(redis)
    redis.set(f"fq:{{default:0}}:{key}", "squatter")
    with pytest.raises(LuaScriptError, match=r"script 'push' failed: .*WRONGTYPE"):
        queue.push(task("a", task_id="x"), now=NOW)
    if key not in ("ring", "state:queued", "queue:user:a:normal"):
        assert redis.dbsize() == 1


def test_a_client_that_decodes_replies_works_too(server: Server, redis: Redis) -> None:
    with server.client(decode_responses=True) as client:
        queue = FairQueue(client)
        queue.push(task("\u00fc", payload={"n": "\u00fc"}), now=NOW)
        lease = queue.pop("w", now=NOW)
        assert lease is not None
        assert lease.payload == {"n": "\u00fc"}
        queue.finish(lease, now=NOW)
        assert queue.get_stats().totals["finished"] == 1
        assert queue.check_invariants() == []
        assert queue.users().items == ["\u00fc"]


def test_a_damaged_record_does_not_stop_the_others(queue: FairQueue, redis: Redis) -> None:
    ids = push_many(queue, "a", 3)
    redis.delete(f"fq:{{default:0}}:task:{ids[0]}", f"fq:{{default:0}}:payload:{ids[0]}")
    assert [lease.task_id for lease in queue.pop_batch(9, "w", now=NOW)] == ids[1:]
