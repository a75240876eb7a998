"""Every reason why a queue is not well, each brought about on a real server that is good before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_fairque.conf import close_queues, get_queue
from django_fairque.engine.model.errors import ServerRefusedError
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.health import NO_WORKER_IS_READY
from django_fairque.engine.transport.server_checks import BLOCKING_FINDINGS, check_server_info
from tests.fixture_types import FairQueue, MakeServer, Server, Settings
from tests.leases import pop

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


def set_config(name: str, value: Any) -> Callable[[FairQueue, Server], None]:
    """Set an option of the server; a number is a share of the memory that is used."""

    def happen(queue: FairQueue, server: Server) -> None:
        with server.client() as client:
            memory = client.info("memory")["used_memory"]
            client.config_set(name, int(value * memory) if isinstance(value, float) else value)

    return happen


def push_late(queue: FairQueue, server: Server, **options: float) -> None:
    now = time.time() - 100
    push(queue, now, **{name: now + seconds for name, seconds in options.items()})


def end_last_worker(queue: FairQueue, server: Server) -> None:
    """Leave nobody to remove the record of the last worker."""
    queue.heartbeat("w", {}, ttl=60, now=time.time() - 1000)
    push_late(queue, server)


def end_lease(queue: FairQueue, server: Server) -> None:
    push_late(queue, server)
    pop(queue, lease=10, now=time.time() - 100)


def sweep_never(queue: FairQueue, server: Server) -> None:
    push_late(queue, server, execute_after=10)
    queue.heartbeat("w", {}, ttl=160, now=time.time() - 100)


def fail_task(queue: FairQueue, server: Server) -> None:
    push(queue, time.time())
    queue.fail(pop(queue), "x", retry=False)


def fail_snapshot(queue: FairQueue, server: Server) -> None:
    (server.directory / "dump.rdb").mkdir()  # the file can't take its name
    deadline = time.monotonic() + DEADLINE
    with server.client() as client:
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
            assert time.monotonic() < deadline, "the snapshot did not fail in time"
            time.sleep(0.01)


def become_replica(queue: FairQueue, server: Server) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)


fill_memory = set_config("maxmemory", 0.5)
WITHOUT_WORKERS = "tasks are waiting and no worker is running"


@pytest.mark.parametrize(
    ("happen", "status", "reason"),
    [
        (push_late, "degraded", WITHOUT_WORKERS),
        (end_last_worker, "degraded", WITHOUT_WORKERS),
        (partial(push_late, execute_after=10), "degraded", WITHOUT_WORKERS),
        (end_lease, "degraded", WITHOUT_WORKERS),
        (sweep_never, "degraded", "s late: no worker has swept the queue"),
        (fail_task, "degraded", "1 dead letter waits for someone"),
        (set_config("appendonly", "no"), "degraded", "the append-only file is off"),
        (set_config("maxmemory-policy", "volatile-lru"), "degraded", "is volatile-lru; it should be noeviction"),
        (fail_snapshot, "degraded", "could not write its last snapshot"),
        (set_config("maxmemory", 1.05), "degraded", "% full; new tasks will be refused"),
        (fill_memory, "down", "% of maxmemory): new tasks are refused, what waits drains"),
        (become_replica, "down", "read-only replica; connect to the primary"),
    ],
)
def test_each_fault_of_a_queue_or_its_server_is_reported(
    queue: FairQueue, durable: Server, happen: Callable[[FairQueue, Server], None], status: str, reason: str
) -> None:
    happen(queue, durable)
    health = queue.health()
    (found,) = set(health.reasons) - {NO_WORKER_IS_READY}
    assert (health.status, reason in found) == (status, True), found


def test_a_full_server_is_good_again_when_there_is_room(queue: FairQueue, durable: Server) -> None:
    fill_memory(queue, durable)
    with pytest.raises(ServerRefusedError, match="out of memory"):
        push(queue, time.time())
    assert queue.health().status == "down"
    with durable.client() as client:
        client.config_set("maxmemory", "1gb")
    push(queue, time.time())
    queue.pop("w")
    queue.heartbeat("w", {})
    assert queue.health().status == "good"


@pytest.mark.parametrize(
    ("info", "kinds"),
    [
        ({"redis_version": "7.0.15"}, ["unsupported"]),
        ({"redis_version": "7.2.4"}, ["version", "hole"]),
        ({"redis_version": "7.2.5"}, ["hole"]),
        ({"redis_version": "7.2.11"}, []),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.5"}, ["version", "hole"]),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.6"}, ["hole"]),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.4"}, []),
        ({"maxmemory": 100, "used_memory": 90}, []),
        ({"maxmemory": 100, "used_memory": 99}, ["memory"]),
        ({"maxmemory": 100, "used_memory": 100}, ["full"]),
        # Buffers of replicas and of the append-only file do not count: the server refuses nothing because of them.
        ({"maxmemory": 100, "used_memory": 130, "mem_not_counted_for_evict": 35}, ["memory"]),
        ({"maxmemory": 100, "used_memory": 135, "mem_not_counted_for_evict": 35}, ["full"]),
        ({"maxmemory": 0, "used_memory": 135}, []),
        ({"role": "slave", "redis_mode": "cluster"}, []),  # any node of a cluster may answer
        ({"role": "slave", "server_mode": "cluster"}, []),
    ],
)
def test_findings_about_a_server_follow_from_its_facts(info: dict[str, Any], kinds: list[str]) -> None:
    found = check_server_info({"aof_enabled": 1, "redis_version": "8.2.6", **info})
    assert [kind for kind, _ in found] == kinds


def test_a_full_disk_is_reported() -> None:
    ((kind, text),) = check_server_info({"aof_enabled": 1, "redis_version": "8.2.6", "aof_last_write_status": "err"})
    assert kind in BLOCKING_FINDINGS
    assert "could not write its append-only file" in text


def test_an_old_server_is_reported_with_the_version_to_upgrade_to() -> None:
    (_, floats), (_, hole) = check_server_info({"aof_enabled": 1, "redis_version": "7.2.4"})
    assert floats == "Redis 7.2.4 writes some integers as 3e+8 inside scripts; upgrade to 7.2.5 or newer"
    assert hole == "Redis 7.2.4 has holes that are known (CVE-2025-49844); upgrade to 7.2.11 or newer"


def test_the_command_reports_declared_queues_that_no_worker_serves(
    queue: FairQueue, durable: Server, settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}, "QUEUES": {"mail": {}}}
    queue.heartbeat("w", {})
    code, printed = command()
    reason = "no worker serves queue 'mail', which the settings declare; start one with manage.py fairque_worker --queue mail"
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", f"- {reason}"])
    get_queue("mail").heartbeat("w", {})
    assert command()[0] == 0


def command(*words: str) -> tuple[object, str]:
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", *words, stdout=out, no_color=True)
    return stop.value.code, out.getvalue()


def test_the_command_exits_by_the_status(queue: FairQueue, durable: Server) -> None:
    code, printed = command()
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", f"- {NO_WORKER_IS_READY}"])
    push_late(queue, durable)
    code, printed = command()
    advice = f"- {WITHOUT_WORKERS}; start one with manage.py fairque_worker"
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", advice])
    queue.heartbeat("w", {})
    code, printed = command()
    first, last = printed.splitlines()
    assert (code, first, last.startswith(("Valkey ", "Redis "))) == (0, "good", True)
    become_replica(queue, durable)
    code, printed = command("--json")
    health = json.loads(printed)
    assert (code, health["status"], len(health["reasons"])) == (2, "down", 1)


def test_an_exceeded_limit_makes_a_healthy_queue_degraded(
    queue: FairQueue, durable: Server, settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}, "MONITOR": {"LIMITS": {"DEPTH": 0}}}
    queue = get_queue()
    queue.heartbeat("w", {})
    assert command()[0] == 0
    push(queue, time.time())
    code, printed = command()
    assert (code, printed.splitlines()[:2]) == (1, ["degraded", "- queue default: ready tasks 1, over 0"])
    become_replica(queue, durable)
    assert command()[0] == 2


def test_a_mistake_in_the_limits_is_reported(durable: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": durable.url}, "MONITOR": {"LIMITS": {"DEPHT": 5}}}
    code, printed = command()
    assert code == 2
    assert "did you mean DEPTH?" in printed
