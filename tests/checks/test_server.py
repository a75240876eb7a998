"""The checks query real servers, and servers that do not answer."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from django_fairque import FairQueue, Task
from django_fairque.checks.server import DEADLINE, _findings
from django_fairque.conf import RedisConfig
from django_fairque.engine.transport.server_checks import check_server_info
from tests.topologies import make_cluster

from .conftest import ids

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.conftest import MakeServer
    from tests.servers import Server

    from .conftest import Check

SOON = 3.0


def at(server: Server, **redis: Any) -> dict[str, Any]:
    return {"REDIS": {"URL": server.url, **redis}}


def test_a_well_configured_server_passes_the_check(check: Check, fit: Server) -> None:
    assert check(at(fit), deploy=True) == []


@pytest.mark.parametrize(
    ("option", "value", "number"),
    [
        ("maxmemory-policy", "allkeys-lru", "E013"),
        ("maxmemory-policy", "volatile-ttl", "E013"),
        ("appendonly", "no", "W004"),
        ("maxmemory", "0", "W051"),
    ],
)
def test_the_deployment_check_reports_options_of_the_server_that_can_lose_tasks(
    check: Check, fit: Server, option: str, value: str, number: str
) -> None:
    with fit.client() as client:
        client.config_set(option, value)
    (message,) = check(at(fit), deploy=True)
    assert ids([message]) == [number]
    assert message.msg.startswith(f"unix://{fit.socket}?db=0: ")
    assert check(at(fit)) == []  # a check without --deploy asks no server


def test_an_unknown_signing_key_of_producers_is_reported(check: Check, fit: Server, settings: Settings) -> None:
    with fit.client() as client:
        FairQueue(client).push(Task.create("u", 3, {}))
        assert check(at(fit), deploy=True) == []
        settings.SECRET_KEY = "another key of the project, which is long enough to be one, 0123456789"
        (message,) = check(at(fit), deploy=True)
        client.delete("fq:{default:0}:signing_keys")
    assert ids([message]) == ["W055"]


def test_a_declared_queue_without_a_worker_is_reported_while_other_queues_have_one(check: Check, fit: Server) -> None:
    configuration = at(fit) | {"QUEUES": {"mail": {}}}
    assert check(configuration, deploy=True) == []
    with fit.client() as client:
        FairQueue(client).heartbeat("w", {})
        (message,) = check(configuration, deploy=True)
        FairQueue(client, "mail").heartbeat("w", {})
        assert check(configuration, deploy=True) == []
        client.flushall()
    assert ids([message]) == ["W056"]
    assert "start one with manage.py fairque_worker --queue mail" in message.msg


def test_a_declared_managed_log_replaces_the_append_only_file(check: Check, fit: Server) -> None:
    with fit.client() as client:
        client.config_set("appendonly", "no")
    assert check(at(fit, DURABILITY="managed-log"), deploy=True) == []


def test_elasticache_may_keep_writes_in_a_log() -> None:
    info = {"valkey_version": "9.0.4", "aof_enabled": 0, "maxmemory": 1, "maxmemory_policy": "noeviction"}
    redis = RedisConfig(host="clustercfg.mail.abc123.euc1.cache.amazonaws.com", cluster=True)
    (message,) = _findings(redis, {"node": info})
    assert ids([message]) == ["W004"]
    assert "set DURABILITY in REDIS to managed-log (synchronous writes)" in str(message.hint)


def test_a_read_only_replica_fails_the_deployment_check(check: Check, fit: Server) -> None:
    with fit.client() as client:
        client.replicaof("127.0.0.1", 1)
    (message,) = check(at(fit), deploy=True)
    assert ids([message]) == ["E015"]
    assert "read-only replica" in message.msg


@pytest.mark.parametrize(
    ("rules", "redis", "found"),
    [
        ([">hunter2"], {"PASSWORD": "hunter2"}, []),
        ([">hunter2"], {"PASSWORD": "hunter3"}, ["E015"]),
        ([">hunter2"], {}, ["E015"]),
        (["nopass", "-info"], {}, ["E015"]),
    ],
)
def test_the_deployment_check_reports_wrong_credentials_and_missing_rights(
    check: Check, fit: Server, rules: list[str], redis: dict[str, str], found: list[str]
) -> None:
    with fit.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "resetpass", *rules)
    messages = check(at(fit, **redis), deploy=True)
    assert ids(messages) == found
    assert "hunter" not in str(messages)


def test_a_database_number_that_the_server_does_not_have_fails_the_check(check: Check, fit: Server) -> None:
    (message,) = check(at(fit, DB=99), deploy=True)
    assert ids([message]) == ["E015"]
    assert "DB index is out of range" in message.msg


@pytest.mark.parametrize(
    ("version", "found"), [(b"7.1.9", ["E014"]), (b"7.2.4", ["W005", "W010"]), (b"7.2.9", ["W010"])]
)
def test_an_old_server_fails_the_deployment_check(check: Check, fit: Server, version: bytes, found: list[str]) -> None:
    """Old servers are not to be had: a proxy changes only the version in what a current one says."""
    with Aged(fit, version) as url:
        messages = check({"REDIS": {"URL": url}}, deploy=True)
    assert ids(messages) == found
    assert all(f" {version.decode()} " in message.msg for message in messages)


@pytest.mark.thorough
def test_deployment_checks_examine_every_primary(
    check: Check, make_server: MakeServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_fairque.checks.server.DEADLINE", 60)  # on a busy machine two servers may take long
    (port, first), (_, second) = make_cluster(make_server, 2, "--appendonly", "yes", "--maxmemory", "1gb")
    configuration = {"REDIS": {"URL": f"redis://127.0.0.1:{port}", "CLUSTER": True}}
    assert check(configuration, deploy=True) == []
    with second.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    (message,) = check(configuration, deploy=True)
    assert ids([message]) == ["E013"]
    with first.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    (message,) = check(configuration, deploy=True)
    assert " and 1 more): maxmemory-policy is allkeys-lru" in message.msg


class TestSilence:
    """A server that is down or slow: one message, soon."""

    @staticmethod
    def only_message(check: Check, url: str, **redis: Any) -> str:
        started = time.monotonic()
        (message,) = check({"REDIS": {"URL": url, **redis}}, deploy=True)
        assert time.monotonic() - started < SOON
        assert ids([message]) == ["W006"]
        return message.msg

    def test_the_check_reports_a_server_that_is_down_only_once(self, check: Check, fit: Server) -> None:
        fit.kill()
        assert "was not checked: the server can't be reached" in self.only_message(check, fit.url)

    def test_the_check_reports_a_suspended_server_only_once(self, check: Check, fit: Server) -> None:
        os.kill(fit.pid, signal.SIGSTOP)
        assert "was not checked: " in self.only_message(check, fit.url)

    def test_the_check_reports_a_silent_server_only_once(self, check: Check) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.only_message(check, f"redis://127.0.0.1:{silent.getsockname()[1]}")

    def test_the_check_reports_a_silent_cluster_only_once(self, check: Check) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            text = self.only_message(check, f"redis://127.0.0.1:{silent.getsockname()[1]}", CLUSTER=True)
        assert "was not checked: " in text

    def test_a_slow_name_lookup_is_a_message_of_the_check(self, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
        """The one thing that no time-out of a socket bounds."""
        answer = time.monotonic() + DEADLINE + 0.2

        def slow(*args: Any, **options: Any) -> Any:
            while time.monotonic() < answer:
                time.sleep(0.01)
            raise socket.gaierror("no such name")

        monkeypatch.setattr(socket, "getaddrinfo", slow)
        assert self.only_message(check, "redis://localhost").endswith("it gave no answer within 2.5 s")

    def test_the_check_command_prints_one_message_about_a_dead_server(self, settings: Settings, fit: Server) -> None:
        fit.kill()
        settings.FAIRQUE = at(fit)
        printed = StringIO()
        call_command("check", "--deploy", "--tag", "fairque", stderr=printed, stdout=printed)
        assert printed.getvalue().count("(fairque.") == 1
        with pytest.raises(CommandError, match=r"fairque\.W006"):
            call_command("check", "--deploy", "--tag", "fairque", "--fail-level", "WARNING", stderr=StringIO())


def test_health_gives_the_same_reasons_as_the_check(fit: Server, settings: Settings) -> None:
    """What `check` says of a server once, `fairque_health` says all the time."""
    settings.FAIRQUE = at(fit)
    with fit.client() as client:
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "volatile-lru")
        texts = [text for _, text in check_server_info(client.info("everything"))]
    printed = StringIO()
    with pytest.raises(SystemExit):
        call_command("fairque_health", stdout=printed)
    assert len(texts) == 2
    assert all(f"- {text}\n" in printed.getvalue() for text in texts)


class Aged:
    """A proxy of one connection, in front of a server that is to say another version of the same length."""

    def __init__(self, server: Server, version: bytes) -> None:
        assert len(version) == len(server.version)
        own = server.version.encode()
        self._words = [(name + own, name + version) for name in (b"valkey_version:", b"redis_version:")]
        self._far = server.socket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._relay)

    def __enter__(self) -> str:
        self._thread.start()
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self._thread.join()
        self._listener.close()

    def _relay(self) -> None:
        with self._listener.accept()[0] as near, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._far)
            while True:
                ready, _, _ = select.select([near, far], [], [], SOON)
                chunk = ready[0].recv(1 << 20) if ready else b""
                if not chunk:
                    return
                for old, new in self._words:
                    chunk = chunk.replace(old, new)
                (far if ready[0] is near else near).sendall(chunk)
