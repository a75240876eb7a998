"""Tests that tasks run over every kind of connection, and that each obstacle has an error until it is removed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import Worker, get_queue, task
from django_fairque.conf import close_queues
from django_fairque.engine.model.errors import RedisConnectionError, ServerRefusedError, UntrustedServerError
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.acl import rules
from django_fairque.tasks import registry
from tests.tls import Authority, Front
from tests.topologies import free_port

from .conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_django import Settings
    from redis import Redis

    from tests.conftest import MakeServer
    from tests.servers import Server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_tasks", {})
    yield
    close_queues()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def one_task_runs(settings: Settings, **redis: Any) -> None:
    worker = {"POLL_INTERVAL": 0.2}
    settings.FAIRQUE = {"REDIS": {"SOCKET_TIMEOUT": 2.5, **redis}, "QUEUE": {"REQUEST_TIMEOUT": 0}, "WORKER": worker}
    ran = []

    @task(name="one")
    def one() -> None:
        ran.append(1)

    one.enqueue()
    Worker(concurrency=1, burst=True).run()
    assert ran == [1]
    assert get_queue().get_stats().states["finished"] == 1


def protect(server: Server) -> None:
    with server.client() as client:
        client.config_set("requirepass", "hunter2")


def tls(front: Front, authority: Authority, **more: Any) -> dict[str, Any]:
    return {"URL": f"rediss://localhost:{front.port}", "SSL_CA_CERTS": str(authority.file), **more}


def test_a_worker_connects_through_a_unix_socket(make_server: MakeServer, settings: Settings) -> None:
    one_task_runs(settings, URL=make_server().url)


def test_a_worker_connects_to_a_port_with_a_password(make_server: MakeServer, settings: Settings) -> None:
    port = free_port()
    protect(make_server("--port", str(port), "--bind", "127.0.0.1"))
    one_task_runs(settings, URL=f"redis://:hunter2@127.0.0.1:{port}/0")


def test_a_worker_connects_as_a_user_with_limited_rights(make_server: MakeServer, settings: Settings) -> None:
    server = make_server()
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "w", "on", ">secret", *rules("worker", "scripts"))
    one_task_runs(settings, URL=server.url, USERNAME="w", PASSWORD="secret")


def test_a_worker_connects_by_a_tls_proxy(make_server: MakeServer, settings: Settings, authority: Authority) -> None:
    with Front(make_server(), authority.issue()) as front:
        one_task_runs(settings, **tls(front, authority))


def test_a_worker_connects_to_a_tls_server(make_server: MakeServer, settings: Settings, authority: Authority) -> None:
    port, (certificate, key) = free_port(), authority.files()
    options = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no")
    try:
        make_server("--tls-port", str(port), "--tls-ca-cert-file", str(authority.file), *options)
    except RuntimeError:
        if "run-redis-server" in os.environ.get("FAIRQUE_TEST_SERVER_BIN", ""):
            raise
        pytest.skip("this server was built without TLS")
    one_task_runs(settings, URL=f"rediss://localhost:{port}", SSL_CA_CERTS=str(authority.file))


@pytest.mark.parametrize("why", ["another authority", "expired", "another name", "none is known"])
def test_an_untrusted_certificate_is_refused(
    server: Server, redis: Redis, settings: Settings, authority: Authority, tmp_path: Path, why: str
) -> None:
    issuer = Authority(tmp_path, "other") if why == "another authority" else authority
    context = issuer.issue("elsewhere" if why == "another name" else "localhost", expired=why == "expired")
    with Front(server, context) as front:
        more = {"SSL_CA_CERTS": None} if why == "none is known" else {}
        with pytest.raises(UntrustedServerError, match="SSL_CA_CERTS names the authority"):
            one_task_runs(settings, **tls(front, authority, **more))
        registry._tasks.clear()
        front.context = authority.issue()
        one_task_runs(settings, **tls(front, authority))


async def test_coroutines_refuse_expired_certificates(server: Server, settings: Settings, authority: Authority) -> None:
    from django_fairque.conf import aclose_queues, aget_queue

    with Front(server, authority.issue(expired=True)) as front:
        settings.FAIRQUE = {"REDIS": tls(front, authority)}
        with pytest.raises(UntrustedServerError, match="expired"):
            await (await aget_queue()).push(Task.create("u", 3, None))
        front.context = authority.issue()
        assert (await (await aget_queue()).push(Task.create("u", 3, None))).status == "accepted"
        await aclose_queues()


def test_verification_is_off_only_when_configured(
    server: Server, redis: Redis, settings: Settings, authority: Authority
) -> None:
    with Front(server, authority.issue(expired=True)) as front:
        one_task_runs(settings, **tls(front, authority, SSL_CERT_REQS="none"))


def test_a_server_without_tls_is_refused_if_tls_is_configured(
    make_server: MakeServer, settings: Settings, authority: Authority
) -> None:
    port = free_port()
    make_server("--port", str(port), "--bind", "127.0.0.1")
    with pytest.raises(RedisConnectionError, match="can't be reached"):
        one_task_runs(settings, URL=f"rediss://localhost:{port}", SSL_CA_CERTS=str(authority.file))


def test_a_wrong_password_is_refused_with_an_error(make_server: MakeServer, settings: Settings) -> None:
    server = make_server()
    protect(server)
    with pytest.raises(ServerRefusedError, match="refused the user name or password"):
        one_task_runs(settings, URL=server.url, PASSWORD="hunter3")


@pytest.mark.thorough
def test_a_worker_outlives_new_passwords_and_certificates(
    make_server: MakeServer, tmp_path: Path, authority: Authority
) -> None:
    server = make_server()
    with server.client() as client, Front(server, authority.issue()) as front:
        client.execute_command("ACL", "SETUSER", "w", "on", ">old", *rules("worker", "scripts"))
        environment = {
            "TEST_SERVER": f"rediss://localhost:{front.port}",
            "FAIRQUE_REDIS__SSL_CA_CERTS": str(authority.file),
            "FAIRQUE_REDIS__USERNAME": "w",
            "FAIRQUE_REDIS__PASSWORD": "old",
        }
        worker = WorkerProcess(server, tmp_path, **environment)
        queue = FairQueue(client)
        try:
            worker.wait_ready()
            runs(queue)
            client.execute_command("ACL", "SETUSER", "w", "resetpass", ">new")
            front.cut()
            eventually(lambda: "refused the user name or password" in worker.log)
            client.execute_command("ACL", "SETUSER", "w", ">old")
            runs(queue)
            front.context = authority.issue(expired=True)
            front.cut()
            eventually(lambda: "certificate is not trusted" in worker.log)
            front.context = authority.issue()
            runs(queue)
            assert "old" not in worker.log.replace("threshold", "")
            assert worker.stop() == 0
        finally:
            worker.close()


def runs(queue: FairQueue) -> None:
    added = queue.push(Task.create("ann", 3, {"args": [1, 1], "kwargs": {}}, name="add"))
    eventually(lambda: queue.get_task(added.task_id).state.value == "finished")
