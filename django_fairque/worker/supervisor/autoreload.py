"""Notices changes of the project's code, by Django's own autoreloader.

The supervisor runs none of that code, so it stays: only its children are replaced, gracefully. (A change of the
worker's own options needs a restart.)
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from django.utils import autoreload

from django_fairque.worker.reporting.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike


class _ChangeReporter(autoreload.StatReloader):
    """Tells of a change instead of ending the process. Django's receivers (templates, translations) come first."""

    def __init__(self, on_change: Callable[[Path], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def notify_file_changed(self, path: str | PathLike[str]) -> None:
        results = autoreload.file_changed.send(sender=self, file_path=path)
        if not any(result for _, result in results):
            self._on_change(Path(path))


class Reloader(threading.Thread):
    """Calls ``wake`` when something has changed; `take` then says so once."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__(name="fairque-reloader", daemon=True)
        self._wake = wake
        self._changed = False

    def take_change(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def run(self) -> None:
        watching = _ChangeReporter(self._on_change)
        autoreload.autoreload_started.send(sender=watching)
        logger.info("watching the code for changes")
        for _ in watching.tick():  # once a second
            pass

    def _on_change(self, path: Path) -> None:
        logger.info("%s changed", path)
        self._changed = True
        self._wake()
