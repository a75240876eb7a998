"""The health file, for probes that can only look at files."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from django_fairque.engine.model.errors import ConfigurationError

HEALTH_WRITE_SECONDS = 1.0
"""Seconds between two writings. A file older than ten of these is that of a worker that hangs."""
MAX_HEALTH_FILE_BYTES = 10_000_000
"""Bytes that are read of a file to see whether a worker wrote it."""


class HealthFile:
    """A JSON object with ``status`` ("healthy" or "unhealthy") and ``reasons``, replaced whole each second.

    At once when there is news: other reasons, or another process that is ready. Who waits for a worker to begin, as a deploy does
    in many places, would wait for half a second longer on average.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._due = 0.0
        self._last_content: object = None

    def check(self) -> None:
        """Raise `ConfigurationError` now if it can't be written, or is a file of something else."""
        if self._path is None:
            return
        if self._path.exists() and not self._path.is_dir() and self._read() is None:
            raise ConfigurationError(
                f"--health-file {self._path} exists and is not a worker's health file, so it is not overwritten: delete it, or "
                "name another path"
            )
        try:
            self._write({"status": "starting", "reasons": []})
        except FileNotFoundError:
            directory = self._path.parent
            raise ConfigurationError(
                f"--health-file {self._path}: the directory {directory} is missing; make it, or name another path"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"--health-file {self._path} can't be written: {error.strerror or error}"
            ) from error

    def update(self, now: float, reasons: list[str], facts: dict[str, Any]) -> None:
        """Write it if its time has come, or there is news."""
        content = reasons, [each["pid"] for each in facts.get("processes", ()) if each["ready"]]
        if self._path is None or (now < self._due and content == self._last_content):
            return
        self._due, self._last_content = now + HEALTH_WRITE_SECONDS, content
        with contextlib.suppress(OSError):  # a full disk makes the file old, and that is what it should be then
            self._write({"status": "unhealthy" if reasons else "healthy", "reasons": reasons, **facts})

    def remove(self) -> None:
        """Delete it, unless another worker has replaced it meanwhile."""
        if self._path is not None and (self._read() or {}).get("pid") == os.getpid():
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any] | None:
        """What a worker wrote there, ``{}`` of an empty file; None if it is anything else, or can't be read."""
        assert self._path is not None  # noqa: S101 - the callers looked
        try:
            if not self._path.is_file():
                return None  # a device, or a pipe that would have to be waited for
            with self._path.open("rb") as file:
                text = file.read(MAX_HEALTH_FILE_BYTES)
            content = json.loads(text) if text else {}
        except (OSError, ValueError):
            return None
        is_ours = isinstance(content, dict) and (not content or {"time", "pid", "status", "reasons"} <= content.keys())
        return content if is_ours else None

    def _write(self, content: dict[str, Any]) -> None:
        assert self._path is not None  # noqa: S101 - the callers looked
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)  # of a worker that was killed
        # In a directory that others may write to, a link of this name must not lead to another file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o666), "w", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "pid": os.getpid(), **content}))
        try:
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
