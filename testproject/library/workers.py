"""A `fairque_worker` of one's own, which ends when its ``with`` block does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from django.conf import settings

from .errors import WorkerFailedError

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

START_TIMEOUT = 60.0
STOP_TIMEOUT = 40.0
"""Seconds; a worker that has not stopped by then (it gives its tasks 30) is killed."""
POLL = 0.05
LOG_TAIL = 2_000
"""Characters of a failed worker's log that are shown."""


class Worker:
    """`processes` processes that run one task at a time each.

    It has a session of its own, so that Ctrl-C reaches only whoever runs the ``with`` block.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="fairque-demo-")))
            self._health = directory / "health.json"
            self._log = directory / "log"
            arguments = ["--processes", str(self._processes), "--concurrency", "1", "--health-file", str(self._health)]
            self._process = subprocess.Popen(  # noqa: S603 - this project's own command
                [sys.executable, str(settings.BASE_DIR / "manage.py"), "fairque_worker", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context(self._log.open("wb")),
                start_new_session=True,
            )
            self._files = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._files:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def wait_until_ready(self) -> None:
        """Until each of its processes can take tasks."""
        give_up = time.monotonic() + START_TIMEOUT
        while not self._is_ready():
            self.check()
            if time.monotonic() > give_up:
                raise WorkerFailedError(f"the worker was not ready within {START_TIMEOUT:.0f} s; {self._last_words()}")
            time.sleep(POLL)

    def check(self) -> None:
        """Raise `WorkerFailedError` if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise WorkerFailedError(f"the worker ended with exit code {code}; {self._last_words()}")

    def _is_ready(self) -> bool:
        if not self._health.exists():
            return False
        processes = json.loads(self._health.read_text()).get("processes", [])
        return len([process for process in processes if process["ready"]]) == self._processes

    def _last_words(self) -> str:
        return f"its log ends with:\n{self._log.read_text(errors='replace')[-LOG_TAIL:]}"
