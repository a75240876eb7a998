"""Tests that the setup of docs/guides/observability.md sends a worker's spans and metrics to an OTLP receiver."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import DOCS
from tests.docs.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis import Redis

    from tests.servers import Server

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
ROOT = DOCS.parent

SETTINGS = """
import os
SECRET_KEY = "otlp"
INSTALLED_APPS = ["django_fairque", "shop.apps.ShopConfig"]
FAIRQUE = {"REDIS": {"URL": os.environ["TEST_SERVER"]}, "TRACING": True}
"""
TASKS = """
from django_fairque import task

@task
def charge(customer):
    pass
"""
SEND = "import django; django.setup(); from shop.tasks import charge; charge.using(user_id='acme').enqueue('acme')"


class Receiver(BaseHTTPRequestHandler):
    """Keeps the path, the key and the body of each request."""

    received: list[tuple[str, str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.received.append((self.path, self.headers["api-key"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    class Own(Receiver):
        received: list[tuple[str, str | None, bytes]] = []  # noqa: RUF012 - one class for each test

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Own.received
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_and_metrics_reach_an_otlp_server(
    server: Server, redis: Redis, tmp_path: Path, receiver: tuple[str, list[tuple[str, str | None, bytes]]]
) -> None:
    url, received = receiver
    shop = tmp_path / "shop"
    shop.mkdir()
    (apps,) = [
        example for example in examples(DOCS / "guides" / "observability.md", "python") if "shop/apps.py" in example
    ]
    for name, text in {"__init__": "", "apps": apps, "settings": SETTINGS, "tasks": TASKS}.items():
        (shop / f"{name}.py").write_text(text)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "TEST_SERVER": server.url,
        "OTEL_SERVICE_NAME": "shop-worker",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=secret",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta",
    }
    for command in (["-c", SEND], ["-m", "django", "fairque_worker", "--burst"]):
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert {key for _, key, _ in received} == {"secret"}
    spans = b"".join(body for path, _, body in received if path == "/v1/traces")
    metrics = b"".join(body for path, _, body in received if path == "/v1/metrics")
    for word in (b"shop-worker", b"enqueue default", b"run default", b"shop.tasks.charge", b"fairque.user.id"):
        assert word in spans
    assert b"messaging.process.duration" in metrics
