"""The rules of least privilege: each role can do its work, and no more than that."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from redis import Redis

from django_fairque import engine
from django_fairque.engine.model.errors import NotPermittedError, ServerRefusedError
from django_fairque.engine.model.lanes import LANES, LaneLimits
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.plans import Plans
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.acl import (
    CONFIRM_COMMANDS,
    READ_COMMANDS,
    ROLES,
    WORK_COMMANDS,
    WRITE_COMMANDS,
    CallMode,
    rules,
)
from tests.engine.conftest import NOW, pop, task
from tests.servers import Server

Become = Any
"""``become(role, mode)``: a client of a user with the rules of that role."""


@pytest.fixture
def become(server: Server, redis: Redis) -> Iterator[Callable[..., Redis]]:
    clients: list[Redis] = []

    def one(role: str, mode: CallMode = "functions") -> Redis:
        redis.execute_command("ACL", "SETUSER", f"a-{role}", "reset", "on", ">secret", *rules(role, mode))
        clients.append(server.client(username=f"a-{role}", password="secret"))
        return clients[-1]

    redis.function_flush("SYNC")
    redis.script_flush("SYNC")
    redis.execute_command("ACL", "LOG", "RESET")
    yield one
    for client in clients:
        client.close()
    redis.acl_deluser(*(f"a-{role}" for role in ROLES))


def load_functions(client: Redis) -> None:
    client.function_load(scripts.functions(), replace=True)


def denied(redis: Redis) -> list[str]:
    """Return the commands and keys that the server has refused, from its own log."""
    return [str(entry["object"]) for entry in redis.acl_log()]


def content(redis: Redis) -> dict[str, Any]:
    """Everything but the counters."""
    keys: Any = redis.scan_iter("fq:*")
    return {key: redis.dump(key) for key in keys if not key.endswith(b":stats")}


def run_through(producer: FairQueue, worker: FairQueue) -> None:
    first = producer.push(task(task_id="a"), now=NOW)
    producer.push_graph([task(task_id="b", depends_on=["a"]), task(task_id="c", execute_after=NOW + 9)], "run", now=NOW)
    assert producer.get_task(first.task_id).task_id == "a"
    producer.cancel("c", now=NOW)
    producer.xcom("n").push("k", 1, now=NOW)
    assert worker.xcom("n").pull("k") == 1
    lease = pop(worker)
    worker.heartbeat("w", {}, now=NOW)
    worker.finish(lease, now=NOW)
    worker.sweep(now=NOW)
    assert worker.release_worker("w", forget=True, now=NOW) == 0
    assert worker.check_invariants() == []


@pytest.mark.parametrize("mode", ["functions", "scripts"])
def test_producers_and_workers_can_do_their_work(redis: Redis, become: Become, mode: CallMode) -> None:
    if mode == "functions":
        load_functions(become("deployer"))
    run_through(FairQueue(become("producer", mode)), FairQueue(become("worker", mode)))
    assert set(denied(redis)) <= ({"fcall"} if mode == "scripts" else set())  # the client tries FCALL first


def test_a_producer_pushes_tasks_of_each_lane_while_a_worker_has_reserved_slots(redis: Redis, become: Become) -> None:
    load_functions(redis)
    producer, worker = FairQueue(become("producer")), FairQueue(become("worker"))
    FairQueue(redis).user("member").set_organization("o", now=NOW)
    worker.settle([], 1, worker="w", lane_limits=LaneLimits(0, 0), now=NOW)
    producer.push_batch([task(user, lane=lane) for lane in LANES for user in ("member", "alone")], now=NOW)
    assert len(worker.pop_batch(6, "w", now=NOW)) == 6
    assert denied(redis) == []


def test_a_producer_sends_the_plan_of_a_user(redis: Redis, become: Become) -> None:
    load_functions(redis)
    config = QueueConfig()
    config.set_plans(Plans({}, lambda: "v1", lambda user: "pro cap=2"))
    FairQueue(redis).heartbeat("w", {"code_version": "v1"}, now=NOW)
    FairQueue(become("producer"), config=config).push(task("u"), now=NOW)
    assert FairQueue(redis).user("u").stats(now=NOW).max_running == 2
    assert denied(redis) == []


def test_a_producer_can_not_fetch_tasks_and_leaves_no_change(redis: Redis, become: Become) -> None:
    load_functions(redis)
    producer = FairQueue(become("producer"))
    producer.push(task(task_id="t"), now=NOW)
    before = content(redis)
    for attempt in (
        lambda: producer.pop("w", now=NOW),
        lambda: producer.settle([], 1, worker="w", now=NOW),
        lambda: producer.heartbeat("w", {}, now=NOW),
        lambda: producer.release_worker("w", now=NOW),
        lambda: producer.sweep(now=NOW),
    ):
        with pytest.raises(NotPermittedError, match="fairque_acl"):
            attempt()
    assert content(redis) == before
    assert FairQueue(redis).check_invariants() == []


def test_a_producer_can_not_cancel_a_running_task(redis: Redis, become: Become) -> None:
    load_functions(redis)
    FairQueue(redis).push(task(task_id="t"), now=NOW)
    lease = FairQueue(redis).pop("w", now=NOW)
    with pytest.raises(NotPermittedError):
        FairQueue(become("producer")).cancel("t", now=NOW)
    assert FairQueue(redis).check_invariants() == []
    assert lease is not None
    FairQueue(redis).finish(lease, now=NOW)


def test_a_viewer_can_read_everything_and_change_nothing(redis: Redis, become: Become) -> None:
    FairQueue(redis).push(task(task_id="t"), now=NOW)
    viewer = FairQueue(become("viewer"))
    assert viewer.get_stats().states["queued"] == 1
    assert viewer.get_task("t").task_id == "t"
    assert viewer.health().server["name"]
    assert viewer.wait_reason("t").position == 0
    assert [task.task_id for task in viewer.tasks("queued").items] == ["t"]
    assert viewer.dlq.count() == 0
    viewer.get_activity()
    viewer.longest_waits()
    viewer.busiest_users()
    viewer.fairness()
    assert denied(redis) == []
    with pytest.raises(NotPermittedError, match="does not permit this user to run") as refused:
        viewer.push(task(), now=NOW)
    assert refused.value.command in ("FCALL", "EVALSHA", "EVAL")
    assert isinstance(refused.value, ServerRefusedError)
    with pytest.raises(redis_py.exceptions.NoPermissionError):
        viewer.client.execute_command("DEL", "fq:{default:0}:task:t")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_can_use_keys_or_commands_outside_of_its_queues(redis: Redis, become: Become, role: str) -> None:
    client = become(role)
    redis.set("session:1", "secret")
    for command in (
        ("GET", "session:1"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*"), ("ACL", "LIST"), ("SHUTDOWN",),
        ("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH"), ("EVAL", "return 1", 0), ("MONITOR",),
    ):  # fmt: skip
        with pytest.raises(redis_py.exceptions.NoPermissionError):
            client.execute_command(*command)


def test_missing_functions_are_looked_for_until_they_are_loaded(redis: Redis, become: Become) -> None:
    worker = FairQueue(become("worker"))
    with pytest.raises(NotPermittedError, match=r"manage\.py fairque_functions must have loaded") as refused:
        worker.push(task(), now=NOW)
    assert refused.value.command == "EVALSHA"
    load_functions(redis)
    assert worker.push(task(), now=NOW).status == "accepted"


def test_a_right_that_is_missing_inside_a_script_is_named(redis: Redis, become: Become) -> None:
    load_functions(redis)
    producer = FairQueue(become("producer"))
    redis.execute_command("ACL", "SETUSER", "a-producer", "-zadd")
    with pytest.raises(NotPermittedError) as refused:
        producer.push(task(), now=NOW)
    assert refused.value.command == "ZADD"


def used_by_scripts() -> set[str]:
    text = "".join(file.read_text() for file in sorted((Path(engine.__file__).parent / "lua").rglob("*.lua")))
    found = re.findall(
        r"(?:redis\.call|attempt)\(\s*(?:[a-z_]+ and )?'([A-Z]+)'(?: or '([A-Z]+)')?|flush_kind\(\w+, '([A-Z]+)'\)",
        text,
    )
    return {name.lower() for names in found for name in names if name}


def used_by_reads() -> set[str]:
    text = "".join(file.read_text() for file in sorted(Path(engine.__file__).parent.rglob("*.py")))
    return {name.lower() for name in re.findall(r"\(\s*\"([A-Z]{3,})\",", text)}


def test_no_role_has_rights_that_it_does_not_use() -> None:
    used = used_by_scripts() | used_by_reads()
    assert {*READ_COMMANDS, *WRITE_COMMANDS, *WORK_COMMANDS} <= used
    assert set(WRITE_COMMANDS) <= used_by_scripts()


def test_a_worker_has_the_rights_that_it_uses() -> None:
    others = {"time", "fcall", "eval", "evalsha", "info", "loading", "limit", "rev", "keys", *CONFIRM_COMMANDS}
    assert (used_by_scripts() | used_by_reads()) - others == {*READ_COMMANDS, *WRITE_COMMANDS, *WORK_COMMANDS}


def test_commands_of_a_viewer_only_read(redis: Redis) -> None:
    """By the server's own account of its commands."""
    writing = {name.decode() for name in redis.execute_command("ACL", "CAT", "write")}
    reading = {name.decode() for name in redis.execute_command("ACL", "CAT", "read")}
    assert set(READ_COMMANDS) <= reading - writing
    assert {*WRITE_COMMANDS, "bzpopmin"} <= writing
