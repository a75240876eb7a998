"""`MetricsServer` serves the figures and the liveness of a process that has no other web pages: a worker's
supervisor.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Any

from django_fairque.conf import get_config
from django_fairque.conf.urls import is_loopback
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.safely import get_logger
from django_fairque.web import metrics as access

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

logger = get_logger("django_fairque.monitoring")

STOP_POLL_SECONDS = 0.1
"""Seconds between two checks whether the server must stop."""


class MetricsServer:
    """Answers ``/metrics`` and ``/live`` in separate threads, as a context manager.

    The operator who opens the port must control the access to it: without a configured token, the server requires none.

    Args:
        port: the port to listen on; 0 for any free port, which the log then names.
        worker: returns the worker's figures, see `django_fairque.monitoring.prometheus.WORKER_FAMILIES`; called from
            any thread.

    Raises:
        ConfigurationError: prometheus-client is not installed, or the port can't be opened.
    """

    def __init__(
        self, port: int, host: str = "127.0.0.1", worker: Callable[[], Mapping[str, float]] | None = None
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigurationError(f"the port for metrics must be from 0 (any free one) to 65535, got {port}")
        access.require_prometheus()
        kind = _ThreadingServerIPv6 if ":" in host else _ThreadingServer
        try:
            self._server = kind((host, port), partial(_Handler, worker))
        except OSError as error:
            raise ConfigurationError(
                f"metrics can't be served on port {port} of {host}: {error.strerror or error}; "
                "choose others with --metrics-port and --metrics-host"
            ) from error
        self.host = host
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(
            target=self._server.serve_forever, args=(STOP_POLL_SECONDS,), name="fairque-metrics", daemon=True
        ).start()
        shown = f"[{self.host}]" if ":" in self.host else self.host
        logger.info("metrics at http://%s:%d/metrics", shown, self.port)
        if not (get_config().monitor.token or is_loopback(self.host)):
            logger.warning("metrics are open to everyone who reaches %s; MONITOR's TOKEN would close them", shown)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _ThreadingServer(ThreadingTCPServer):
    # http.server's own server class is not used, because it asks a name server for this machine's name before it listens.
    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as it is called
        # an OSError means that the client has closed the connection
        level = logging.DEBUG if isinstance(sys.exc_info()[1], OSError) else logging.ERROR
        logger.log(level, "a request for metrics could not be answered", exc_info=True)


class _ThreadingServerIPv6(_ThreadingServer):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    server_version = "fairque"
    sys_version = ""
    timeout = 5.0
    """Seconds to wait for data from a client."""

    def __init__(self, worker: Callable[[], Mapping[str, float]] | None, *args: Any) -> None:
        self._worker = worker
        super().__init__(*args)

    def do_GET(self) -> None:
        answer = self._answer()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    do_HEAD = do_GET  # noqa: N815 - the name it is called with

    def _answer(self) -> access.MetricsResponse:
        path = self.path.partition("?")[0].rstrip("/")
        if path == "/live":
            return access.MetricsResponse(
                200, json.dumps({"status": "live"}).encode(), {"Content-Type": "application/json"}
            )
        if path != "/metrics":
            return access.NOT_FOUND
        accept = ",".join(self.headers.get_all("Accept", []))
        return access.metrics(self.headers.get("Authorization", ""), accept, is_open=True, worker=self._worker)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it is called with
        logger.debug(format, *args)
