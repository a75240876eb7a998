"""A server that takes what sentry-sdk sends, and what became of it."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from sentry_sdk.envelope import Envelope

if TYPE_CHECKING:
    from typing_extensions import Self


class Collector:
    """Stands for Sentry. ``dsn`` is what a project is given."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.transactions: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(Envelope.deserialize(body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.dsn = f"http://key@127.0.0.1:{self._server.server_port}/1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, envelope: Envelope) -> None:
        with self._lock:
            for item in envelope.items:
                if item.headers.get("type") == "event":
                    self.events.append(_content(item))
                elif item.headers.get("type") == "transaction":
                    self.transactions.append(_content(item))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _content(item: Any) -> dict[str, Any]:
    content: dict[str, Any] = item.payload.json
    return content
