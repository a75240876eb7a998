"""Tests of the checks that try the abilities and the durability of a server, on real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from django_fairque.conf import RedisConfig, close_queues, get_queue
from django_fairque.engine.model.errors import RedisConnectionError, UnsupportedServerError
from django_fairque.engine.transport.server_checks import (
    APPEND_ONLY_FILE_IS_OFF,
    check_server,
    check_server_info,
    find_vulnerabilities,
)
from django_fairque.monitoring.health import durable_log, examine_health, judge_health
from django_fairque.monitoring.server_probe import probe_server
from tests.fixture_types import MakeServer, Redis, Server, Settings
from tests.topologies import free_port, make_cluster, make_replica

KEY = "fq:{default:0}:probe"


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close_queues()


def doctor(settings: Settings, redis: dict[str, Any], **sections: Any) -> tuple[int, dict[str, Any]]:
    """The exit code of the command, and what it says."""
    settings.FAIRQUE = {"REDIS": redis, **sections}
    out = StringIO()
    with pytest.raises(SystemExit) as stop:
        call_command("fairque_health", "--json", stdout=out)
    assert isinstance(stop.value.code, int)
    return stop.value.code, json.loads(out.getvalue())


@pytest.mark.parametrize("confirmed", [{}, {"QUEUE": {"REPLICAS_TO_CONFIRM": 1}}])
@pytest.mark.parametrize("options", [(), ("--appendonly", "yes")])
def test_a_full_server_is_down_and_described(
    make_server: MakeServer, settings: Settings, options: tuple[str, ...], confirmed: dict[str, Any]
) -> None:
    """The checks that write to the server have no result when its memory is full."""
    server = make_server(*options)
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
    code, found = doctor(settings, {"URL": server.url}, **confirmed)
    assert (code, found["status"]) == (2, "down")
    assert "new tasks are refused, what waits drains" in found["reasons"][0]
    assert found["server"]["durability"] == ("unknown" if options else "memory")


@pytest.mark.parametrize(
    ("options", "durability"),
    [
        ((), "memory"),
        (("--appendonly", "yes"), "aof-everysec"),
        (("--appendonly", "yes", "--appendfsync", "always"), "aof-always"),
        (("--appendonly", "yes", "--appendfsync", "no"), "aof-no"),
    ],
)
def test_the_durability_of_a_server_is_examined(
    make_server: MakeServer, options: tuple[str, ...], durability: str
) -> None:
    with make_server(*options).client() as client:
        found = probe_server(client, KEY)
        assert found.durability == durability
        assert (found.functions, found.scripts, found.undeclared_keys, found.refusals) == ("yes", "yes", "yes", [])
        assert client.keys() == ([KEY.encode()] if options else [])
        assert client.pttl(KEY) <= 10_000
        assert client.ttl(KEY) != -1


def test_replicas_that_confirm_writes_are_counted(make_server: MakeServer, settings: Settings) -> None:
    primary = make_server("--appendonly", "yes", "--port", str(free_port()), "--bind", "127.0.0.1")
    wants = {"QUEUE": {"REPLICAS_TO_CONFIRM": 1}}
    code, found = doctor(settings, {"URL": primary.url}, **wants)
    assert code == 2
    assert found["reasons"][0].startswith("0 of the 1 replicas")
    with primary.client() as client:
        replica = make_replica(make_server, primary)
        assert probe_server(client, KEY, replicas=1).durability == "replicated(1)"
    assert doctor(settings, {"URL": primary.url}, **wants)[1]["server"]["durability"] == "replicated(1)"
    code, found = doctor(settings, {"URL": replica.url})
    assert (code, found["server"]["role"]) == (2, "replica")
    assert "read-only replica; connect to the primary" in found["reasons"][0]


@pytest.mark.parametrize(
    ("rules", "expected", "refuses"),
    [
        (["-eval", "-evalsha"], ("yes", "not permitted", "not permitted"), False),
        (["-fcall"], ("not permitted", "yes", "yes"), False),
        (["-fcall", "-eval", "-evalsha"], ("not permitted", "not permitted", "not permitted"), True),
    ],
)
def test_permissions_for_functions_and_scripts_are_examined(
    server: Server, redis: Redis, rules: list[str], expected: tuple[str, ...], refuses: bool
) -> None:
    redis.execute_command("ACL", "SETUSER", "patient", "on", "nopass", "~*", "+@all", *rules)
    try:
        with server.client(username="patient", password="x") as client:
            found = probe_server(client, KEY)
    finally:
        redis.acl_deluser("patient")
    assert (found.functions, found.scripts, found.undeclared_keys) == expected
    assert any("neither functions (not permitted) nor scripts" in refusal for refusal in found.refusals) == refuses


def test_a_cluster_is_examined(make_server: MakeServer, settings: Settings) -> None:
    ((port, _),) = make_cluster(make_server, 1, "--appendonly", "yes")
    code, found = doctor(settings, {"URL": f"redis://127.0.0.1:{port}", "CLUSTER": True})
    server = found["server"]
    assert code < 2
    assert (server["mode"], server["durability"], server["undeclared_keys"]) == ("cluster", "aof-everysec", "yes")


def test_the_server_is_described_in_one_line(make_server: MakeServer, settings: Settings) -> None:
    server = make_server("--appendonly", "yes")
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("fairque_health", stdout=out, no_color=True)
    line = out.getvalue().splitlines()[-1]
    for words in (
        "standalone (primary, 0 replicas)",
        "eviction noeviction",
        "durability aof-everysec",
        "functions yes",
    ):
        assert words in line


@pytest.mark.thorough
def test_a_server_that_is_gone_can_not_be_reached() -> None:
    import redis

    with (
        redis.Redis(unix_socket_path="/nonexistent/s.sock") as client,
        pytest.raises(RedisConnectionError, match="can't be reached"),
    ):
        probe_server(client, KEY)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.21"}, "Dragonfly (df-v1.21) is not supported"),
        ({"redis_version": "6.3.4", "executable": "/data/keydb-server"}, "KeyDB (6.3.4) has no functions"),
    ],
)
def test_an_unsupported_server_is_refused(info: dict[str, Any], words: str) -> None:
    """From what they say of themselves: none of them is to be had as a test's server."""
    with pytest.raises(UnsupportedServerError) as refused:
        check_server(info)
    assert str(refused.value).startswith(words)
    assert ("unsupported", str(refused.value)) in list(check_server_info({"aof_enabled": 1, **info}))


@pytest.mark.parametrize(
    ("name", "version", "found"),
    [
        ("Redis", "7.2.4", {"CVE-2025-49844": "7.2.11"}),
        ("Redis", "7.4.5", {"CVE-2025-49844": "7.4.6", "CVE-2026-23479": "7.4.9"}),
        ("Redis", "8.2.6", {}),
        ("Redis", "9.0.0", {}),
        ("Valkey", "8.1.3", {"CVE-2025-49844": "8.1.4", "CVE-2026-23479": "8.1.7"}),
        ("Valkey", "9.0.0", {"CVE-2026-23479": "9.0.4"}),
        ("Valkey", "9.1.0", {}),
    ],
)
def test_known_vulnerabilities_are_found_by_version(name: str, version: str, found: dict[str, str]) -> None:
    assert dict(find_vulnerabilities(name, version)) == found


def test_the_log_of_a_managed_server_is_known_by_its_host() -> None:
    elasticache = "clustercfg.mail.abc123.euc1.cache.amazonaws.com"
    assert durable_log(RedisConfig(host="clustercfg.mail.abc123.memorydb.eu-central-1.amazonaws.com")) == "managed-log"
    assert durable_log(RedisConfig(host=elasticache)) is None
    assert durable_log(RedisConfig(host=elasticache, durability="managed-log-async")) == "managed-log-async"
    assert durable_log(RedisConfig(host="x.memorydb.example.org")) is None


@pytest.mark.parametrize("durability", ["managed-log", "managed-log-async"])
def test_a_declared_log_replaces_the_append_only_file(
    make_server: MakeServer, settings: Settings, durability: str
) -> None:
    """Servers of ElastiCache have no append-only file."""
    settings.FAIRQUE = {"REDIS": {"URL": make_server("--appendonly", "no").url}}
    assert APPEND_ONLY_FILE_IS_OFF in judge_health(get_queue()).reasons
    settings.FAIRQUE = {"REDIS": {**settings.FAIRQUE["REDIS"], "DURABILITY": durability}}
    # An old server has other reasons.
    assert APPEND_ONLY_FILE_IS_OFF not in judge_health(get_queue()).reasons
    found = examine_health(get_queue())
    assert APPEND_ONLY_FILE_IS_OFF not in found.reasons
    assert found.server["durability"] == durability
