"""What the examples of a page take for granted: names that are the reader's own, and what must be there before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from django_fairque.engine.queue.queue import FairQueue

    Stage = Callable[[FairQueue, Path], dict[str, Any]]


def embedded(queue: FairQueue, folder: Path) -> dict[str, Any]:
    return {"BASE_DIR": folder}


def security(queue: FairQueue, folder: Path) -> dict[str, Any]:
    from django.conf import settings

    return {"key": settings.SECRET_KEY}


STAGES: dict[str, Stage] = {
    "contributing/servers.md": embedded,
    "explanation/security.md": security,
}
