"""Run a command of this project in a separate process, which ends when its ``with`` block does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, ClassVar

from django.conf import settings

from .errors import WorkerFailedError
from .interruption import raise_if_interrupted

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

START_TIMEOUT = 60.0
STOP_TIMEOUT = 40.0
"""Seconds; what has not stopped by then (a worker gives its tasks 30) is killed."""
POLL = 0.05
LOG_TAIL = 2_000
"""Characters of a failed process's log that are shown."""


class Child:
    """Start the process in a new session, so that Ctrl-C reaches only the process with the ``with`` block."""

    what: ClassVar[str]

    def arguments(self, directory: Path) -> list[str]:
        """What ``manage.py`` is given; the directory is this process's own, and is gone with it."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Environment variables that it has in addition to this process's."""
        return {}

    def is_ready(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="fairque-demo-")))
            self._log = directory / "log"
            log = stack.enter_context(self._log.open("wb"))
            self._process = subprocess.Popen(  # noqa: S603 - this project's own command
                [sys.executable, str(settings.BASE_DIR / "manage.py"), *self.arguments(directory)],
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
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
        give_up = time.monotonic() + START_TIMEOUT
        while not self.is_ready():
            self.check()
            if time.monotonic() > give_up:
                raise WorkerFailedError(f"{self.what} was not ready within {START_TIMEOUT:.0f} s; {self._last_words()}")
            time.sleep(POLL)

    def check(self) -> None:
        """Raise `WorkerFailedError` if it has ended, and `KeyboardInterrupt` if somebody interrupts."""
        raise_if_interrupted()
        code = self._process.poll()
        if code is not None:
            raise WorkerFailedError(f"{self.what} ended with exit code {code}; {self._last_words()}")

    def _last_words(self) -> str:
        return f"its log ends with:\n{self._log.read_text(errors='replace')[-LOG_TAIL:]}"
