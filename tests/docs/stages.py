"""Prepare what the examples of a page need: names that the reader defines, and data that must exist before."""

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
