"""Every reason why a queue is not well, each brought about on a real server that is good before."""

from __future__ import annotations

import json
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_fairque.conf import close_queues, get_queue
from django_fairque.engine.model.errors import ServerRefusedError
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.health import NO_WORKER_IS_READY
from django_fairque.engine.transport.server_checks import BLOCKING_FINDINGS, check_server_info

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer
    from tests.servers import Server

DEADLINE = 60.0


@pytest.fixture
def durable(make_server: MakeServer) -> Server:
    return make_server("--appendonly", "yes")


@pytest.fixture
def queue(durable: Server, settings: Settings) -> Iterator[FairQueue]:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}}
    queue = get_queue()
    assert (queue.health().status, queue.health().reasons) == ("degraded", [NO_WORKER_IS_READY])
    yield queue
    close_queues()


def push(queue: FairQueue, now: float, **options: Any) -> None:
    queue.push(Task.create("u", 3, None, **options), now=now)


def work_waits(queue: FairQueue, server: Server) -> None:
    push(queue, time.time())


def all_workers_have_died(queue: FairQueue, server: Server) -> None:
    """Nobody is left to remove the record of the last one."""
    now = time.time() - 100
    queue.heartbeat("w", {}, ttl=60, now=now)
    push(queue, now)


def a_task_is_due_and_nobody_moves_it(queue: FairQueue, server: Server) -> None:
    now = time.time() - 100
    push(queue, now, execute_after=now + 10)


def a_lease_has_ended_and_nobody_takes_it_back(queue: FairQueue, server: Server) -> None:
    now = time.time() - 100
    push(queue, now)
    assert queue.pop("w", lease=10, now=now) is not None


def nobody_sweeps(queue: FairQueue, server: Server) -> None:
    now = time.time() - 100
    push(queue, now, execute_after=now + 10)
    queue.heartbeat("w", {}, ttl=160, now=now)


def a_task_died(queue: FairQueue, server: Server) -> None:
    now = time.time()
    push(queue, now)
    lease = queue.pop("w", now=now)
    assert lease is not None
    queue.fail(lease, "x", retry=False, now=now)


def nothing_is_kept(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.config_set("appendonly", "no")


def tasks_may_be_thrown_away(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "volatile-lru")


def memory_is_short(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.config_set("maxmemory", int(1.05 * client.info("memory")["used_memory"]))


def memory_is_full(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)


def a_snapshot_fails(queue: FairQueue, server: Server) -> None:
    (server.directory / "dump.rdb").mkdir()  # the file can't take its name
    deadline = time.monotonic() + DEADLINE
    with server.client() as client:
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
            assert time.monotonic() < deadline, "the snapshot did not fail in time"
            time.sleep(0.01)


def it_is_a_replica(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)


@pytest.mark.parametrize(
    ("happens", "status", "reason"),
    [
        (work_waits, "degraded", "tasks are waiting and no worker is running"),
        (all_workers_have_died, "degraded", "tasks are waiting and no worker is running"),
        (a_task_is_due_and_nobody_moves_it, "degraded", "tasks are waiting and no worker is running"),
        (a_lease_has_ended_and_nobody_takes_it_back, "degraded", "tasks are waiting and no worker is running"),
        (nobody_sweeps, "degraded", "s late: no worker has swept the queue"),
        (a_task_died, "degraded", "1 dead letter waits for someone"),
        (nothing_is_kept, "degraded", "the append-only file is off"),
        (tasks_may_be_thrown_away, "degraded", "maxmemory-policy is volatile-lru; it should be noeviction"),
        (a_snapshot_fails, "degraded", "could not write its last snapshot"),
        (memory_is_short, "degraded", "% full; new tasks will be refused"),
        (memory_is_full, "down", "% of maxmemory): new tasks are refused, what waits drains"),
        (it_is_a_replica, "down", "read-only replica; connect to the primary"),
    ],
)
def test_reasons(
    queue: FairQueue, durable: Server, happens: Callable[[FairQueue, Server], None], status: str, reason: str
) -> None:
    happens(queue, durable)
    health = queue.health()
    (found,) = set(health.reasons) - {NO_WORKER_IS_READY}
    assert (health.status, reason in found) == (status, True), found


def test_a_full_server_is_good_again_when_there_is_room(queue: FairQueue, durable: Server) -> None:
    memory_is_full(queue, durable)
    with pytest.raises(ServerRefusedError, match="out of memory"):
        push(queue, time.time())
    assert queue.health().status == "down"
    with durable.client() as client:
        client.config_set("maxmemory", "1gb")
    push(queue, time.time())
    queue.pop("w")
    queue.heartbeat("w", {})
    assert queue.health().status == "good"


def full_at(limit: int, **figures: int) -> list[str]:
    info = {"aof_enabled": 1, "redis_version": "8.2.6", "maxmemory": limit, **figures}
    return [kind for kind, _ in check_server_info(info)]


def test_what_the_server_does_not_count_fills_no_memory() -> None:
    """Buffers of its replicas and of its append-only file: it refuses nothing because of them."""
    assert full_at(100, used_memory=90) == []
    assert full_at(100, used_memory=99) == ["memory"]
    assert full_at(100, used_memory=100) == ["full"]
    assert full_at(100, used_memory=130, mem_not_counted_for_evict=35) == ["memory"]
    assert full_at(100, used_memory=135, mem_not_counted_for_evict=35) == ["full"]
    assert full_at(0, used_memory=135) == []


def test_a_disk_that_is_full() -> None:
    """Which a test can't bring about: from what the server would tell."""
    assert [kind for kind, _ in check_server_info({"aof_enabled": 1, "redis_version": "8.2.6"})] == []
    ((kind, text),) = check_server_info({"aof_enabled": 1, "redis_version": "8.2.6", "aof_last_write_status": "err"})
    assert (kind in BLOCKING_FINDINGS, "could not write its append-only file" in text) == (True, True)


@pytest.mark.parametrize(
    ("versions", "kinds"),
    [
        ({"redis_version": "7.0.15"}, ["unsupported"]),
        ({"redis_version": "7.2.4"}, ["version", "hole"]),
        ({"redis_version": "7.2.5"}, ["hole"]),
        ({"redis_version": "7.2.11"}, []),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, ["version", "hole"]),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.6"}, ["hole"]),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.4"}, []),
    ],
)
def test_the_age_of_a_server(versions: dict[str, str], kinds: list[str]) -> None:
    assert [kind for kind, _ in check_server_info({"aof_enabled": 1, **versions})] == kinds


def test_an_old_server_is_told_what_to_become() -> None:
    (_, floats), (_, hole) = check_server_info({"aof_enabled": 1, "redis_version": "7.2.4"})
    assert floats == "Redis 7.2.4 writes some integers as 3e+8 inside scripts; upgrade to 7.2.5 or newer"
    assert hole == "Redis 7.2.4 has holes that are known (CVE-2025-49844); upgrade to 7.2.11 or newer"


@pytest.mark.parametrize("name", ["redis_mode", "server_mode"])
def test_any_node_of_a_cluster_may_answer(name: str) -> None:
    assert list(check_server_info({"aof_enabled": 1, "redis_version": "8.2.6", "role": "slave", name: "cluster"})) == []


def test_a_worker_that_lives_is_enough(queue: FairQueue) -> None:
    queue.push(Task.create("u", 3, None))
    queue.heartbeat("w", {})
    assert queue.health().reasons == []


def command(*words: str) -> tuple[object, str]:
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", *words, stdout=out, no_color=True)
    return stop.value.code, out.getvalue()


def test_the_command_exits_by_the_status(queue: FairQueue, durable: Server) -> None:
    code, printed = command()
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", f"- {NO_WORKER_IS_READY}"])
    work_waits(queue, durable)
    code, printed = command()
    assert (code, printed.splitlines()[:2]) == (
        1,
        ["degraded", "- tasks are waiting and no worker is running; start one with manage.py fairque_worker"],
    )
    queue.heartbeat("w", {})
    code, printed = command()
    first, last = printed.splitlines()
    assert (code, first, last.startswith(("Valkey ", "Redis "))) == (0, "good", True)
    it_is_a_replica(queue, durable)
    code, printed = command("--json")
    health = json.loads(printed)
    assert (code, health["status"], len(health["reasons"])) == (2, "down", 1)


def test_what_is_over_its_limit_makes_it_degraded_and_not_better_than_down(
    queue: FairQueue, durable: Server, settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}, "MONITOR": {"LIMITS": {"DEPTH": 0}}}
    queue = get_queue()
    queue.heartbeat("w", {})
    assert command()[0] == 0
    push(queue, time.time())
    code, printed = command()
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", "- queue default: ready tasks 1, over 0"])
    it_is_a_replica(queue, durable)
    assert command()[0] == 2


def test_a_mistake_in_the_limits_is_told(durable: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}, "MONITOR": {"LIMITS": {"DEPHT": 5}}}
    code, printed = command()
    assert code == 2
    assert "did you mean DEPTH?" in printed
