"""What the examples of a page take for granted: names that are the reader's own, and what must be there before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque import Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue

    Stage = Callable[[FairQueue, Path], dict[str, Any]]


def dead_letters(queue: FairQueue, folder: Path) -> dict[str, Any]:
    for number in range(3):
        queue.push(Task.create("acme", 3, {"number": number}, max_retries=0))
    for lease in queue.pop_batch(3, "w"):
        queue.fail(lease, "OSError: the disk is full")
    return {}


def embedded(queue: FairQueue, folder: Path) -> dict[str, Any]:
    return {"BASE_DIR": folder}


def security(queue: FairQueue, folder: Path) -> dict[str, Any]:
    from django.conf import settings

    return {"key": settings.SECRET_KEY}


STAGES: dict[str, Stage] = {
    "dead-letters.md": dead_letters,
    "embedded.md": embedded,
    "security.md": security,
}
