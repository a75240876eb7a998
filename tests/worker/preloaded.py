"""Worker commands as copies of a process that has imported what they import: such a start takes a fifth of the processor time.

``python -m tests.worker.preloaded FD`` answers requests, lines of JSON on an inherited socket: to copy itself, or to report the
exit code of a copy. A copy then runs ``python -m django`` as if it had just started.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
WARNINGS = {"PYTHONWARNINGS": "always::ResourceWarning"}
"""Files and connections that a worker leaves open are reported without Python's development mode."""
MODULES = (
    *("redis.asyncio", "pydantic", "django.db.models", "django.urls", "django_fairque.events"),
    *("django_fairque.checks.configuration", "django_fairque.checks.server"),
    *("django_fairque.management.commands.fairque_worker", "django_fairque.worker.supervisor.child_main"),
)


class Copies:
    """The process that is copied, from the side of the tests."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tests.worker.preloaded", str(theirs.fileno())]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), **WARNINGS}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._socket, self._replies, self._lock = ours, ours.makefile("r"), threading.Lock()

    def request(self, **request: Any) -> int | None:
        with self._lock:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            reply: int | None = json.loads(self._replies.readline())
            return reply

    def close(self) -> None:
        self._replies.close()
        self._socket.close()
        self._process.wait()


class Copy:
    """A copy, with the methods of `subprocess.Popen` that tests of workers use."""

    def __init__(self, copies: Copies, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._copies = copies
        self.pid = copies.request(arguments=arguments, environment=environment, log=str(log)) or 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._copies.request(poll=self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fairque_worker", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def serve(connection: socket.socket) -> dict[str, Any]:
    """Answer requests until the tests end. Return in each copy, with its request."""
    with connection, connection.makefile("r") as requests:
        for line in requests:
            request: dict[str, Any] = json.loads(line)
            if "poll" in request:
                pid, status = os.waitpid(request["poll"], os.WNOHANG)
                reply = os.waitstatus_to_exitcode(status) if pid else None
            else:
                reply = os.fork()
                if reply == 0:
                    return request
            connection.sendall(json.dumps(reply).encode() + b"\n")
    sys.exit()


def main() -> None:
    for module in MODULES:
        importlib.import_module(module)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]
    runpy.run_module("django", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
