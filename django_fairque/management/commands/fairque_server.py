"""``manage.py fairque_server``: starts, stops and shows the embedded development server."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.template.defaultfilters import filesizeformat

from django_fairque.conf import get_config
from django_fairque.conf.redis import embedded_directories
from django_fairque.conf.urls import separate_urls
from django_fairque.embedded import AofStatus, EmbeddedServer, ServerStatus, is_embedded_url
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.management.base import PrintingCommand

# The exit code with which service managers report a service that is not running.
NOT_RUNNING = 3


class Command(PrintingCommand):
    help = (
        "Start, stop, restart or look at the embedded server, which embedded:// in FAIRQUE['REDIS']['URL'] names. "
        "Starting it by hand is never necessary: whatever needs it starts it. It goes on running until it is stopped; "
        "a worker that still runs starts it again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", choices=("start", "stop", "restart", "status"), help="start, stop or restart it, or say how it is"
        )
        parser.add_argument("--dir", type=Path, help="the server's directory (default: what the settings say)")

    def handle(self, *, action: str, **options: Any) -> None:
        directories = [options["dir"]] if options["dir"] else _configured_directories()
        failures = []
        for directory in directories:
            try:
                getattr(self, f"_{action}")(EmbeddedServer(directory))
            except (CommandError, FairQueueError) as error:  # noqa: PERF203 - each of several servers is tried
                failures.append(error)
        if failures:
            for failure in failures[:-1]:
                self.stderr.write(str(failure))
            raise failures[-1]

    def _start(self, server: EmbeddedServer) -> None:
        self.write_lines(f"{'started' if server.start() else 'was running already'}, listening on {server.socket}")

    def _stop(self, server: EmbeddedServer) -> None:
        self.write_lines("stopped" if server.stop() else f"was not running in {server.directory}")

    def _restart(self, server: EmbeddedServer) -> None:
        server.restart()
        self.write_lines(f"restarted, listening on {server.socket}")

    def _status(self, server: EmbeddedServer) -> None:
        status = server.status()
        if not status.running:
            raise CommandError(f"no server is running in {status.directory}", returncode=NOT_RUNNING)
        for name, value in _rows(status):
            self.write_lines(f"{name:<12} {value}")
        if not status.answers:
            raise CommandError("the server does not answer: see the note")


def _configured_directories() -> list[Path]:
    url = get_config().redis.url
    if not url or not is_embedded_url(url):
        # The URL is not printed, because it may contain a password.
        raise CommandError(
            "FAIRQUE['REDIS'] names another server, expected embedded:// or embedded:///absolute/dir: "
            "manage that server with its own tools, or name an embedded server's directory with --dir"
        )
    return [directory for server_url in separate_urls(url) for directory in embedded_directories(server_url)]


def _rows(status: ServerStatus) -> list[tuple[str, str]]:
    rows = [("running", f"yes, as process {status.pid or 'unknown'}"), ("directory", str(status.directory))]
    if status.answers:
        rows += [
            ("server", f"{status.server} {status.version}, {status.binary}"),
            ("socket", str(status.socket)),
            ("up for", str(timedelta(seconds=status.uptime or 0))),
            ("clients", str(status.clients)),
            ("memory", _size(status.memory or 0)),
        ]
    if status.aof:
        rows.append(("file", _aof(status.aof)))
    return rows + [("note", note) for note in status.notes]


def _aof(aof: AofStatus) -> str:
    parts = [
        f"{_size(aof.size)}, {_size(aof.base_size)} when last rewritten",
        f"synced {'at every write' if aof.appendfsync == 'always' else 'every second'}",
        "" if aof.last_write_ok else "THE LAST WRITE FAILED",
        "being rewritten now" if aof.rewriting else "",
        f"{aof.delayed_fsyncs} slow syncs" if aof.delayed_fsyncs else "",
    ]
    return ", ".join(filter(None, parts))


def _size(size: int) -> str:
    # Replace Django's no-break space, which can't be printed in every locale.
    return str(filesizeformat(size)).replace("\xa0", " ")
