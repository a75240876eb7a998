"""The port of a process that serves no other pages."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.web.metrics_server import MetricsServer
from tests.fixture_types import Redis, Server, Settings

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(autouse=True)
def configured(server: Server, redis: Redis, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}


def ask(
    port: int, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_server_answers_metrics_and_liveness_only() -> None:
    with MetricsServer(0) as metrics:
        for path in ("/metrics", "/metrics/", "/metrics?x=1"):
            status, headers, content = ask(metrics.port, path)
            names = {family.name for family in text_string_to_metric_families(content.decode())}
            assert (status, headers["Cache-Control"], "fairque_tasks" in names) == (200, "no-store", True)
            assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        status, headers, content = ask(metrics.port, "/live/")
        assert (status, headers["Cache-Control"], json.loads(content)) == (200, "no-store", {"status": "live"})
        status, headers, content = ask(metrics.port, "/metrics", "HEAD")
        assert (status, int(headers["Content-Length"]) > 1000, content) == (200, True, b"")
        assert [ask(metrics.port, path)[0] for path in ("/", "/metrics/x", "/etc/passwd")] == [404] * 3
        assert ask(metrics.port, "/metrics", "POST")[0] == 501
        assert "Python" not in headers["Server"]


def test_metrics_need_the_configured_token(settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"TOKEN": TOKEN}}
    with MetricsServer(0) as metrics:
        assert ask(metrics.port, "/metrics")[0] == 401
        assert ask(metrics.port, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert ask(metrics.port, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(metrics.port, "/live")[0] == 200


def test_the_port_is_free_again_after_the_server_ends() -> None:
    with MetricsServer(0) as first:
        assert ask(first.port, "/live")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        ask(first.port, "/live")
    with MetricsServer(first.port) as second:
        assert ask(second.port, "/live")[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/live", 200), ("/metrics", 200)])
def test_a_silent_client_does_not_block_others(path: str, status: int) -> None:
    with MetricsServer(0) as metrics, socket.create_connection(("127.0.0.1", metrics.port)):
        assert ask(metrics.port, path)[0] == status


@pytest.mark.parametrize(("host", "is_told"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_a_port_open_to_everyone_is_logged(caplog: pytest.LogCaptureFixture, host: str, *, is_told: bool) -> None:
    caplog.set_level(logging.INFO, "django_fairque.monitoring")
    with MetricsServer(0, host) as metrics:
        assert f"metrics at http://{host}:{metrics.port}/metrics" in caplog.text
    assert ("open to everyone who reaches" in caplog.text) == is_told


def test_metrics_are_served_on_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with MetricsServer(0, "::1") as metrics:
        assert ask(metrics.port, "/live", host="::1")[0] == 200


def test_a_port_that_can_not_be_used_is_an_error() -> None:
    with (
        MetricsServer(0) as metrics,
        pytest.raises(ConfigurationError, match=rf"port {metrics.port} of 127.0.0.1: .*in use; c"),
    ):
        MetricsServer(metrics.port)
    with pytest.raises(ConfigurationError, match=r"from 0 .* to 65535, got 65536"):
        MetricsServer(65536)
    with pytest.raises(ConfigurationError, match=r"on port 0 of 192\.0\.2\.1: "):
        MetricsServer(0, "192.0.2.1")


def test_a_missing_package_is_an_error_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'django-fairque\[prometheus\]'"):
        MetricsServer(0)
