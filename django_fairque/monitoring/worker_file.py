"""What a worker's health file says, judged for probes: they know exit codes, not JSON and its age."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from django_fairque.engine.statistics.health import Health

if TYPE_CHECKING:
    from pathlib import Path

MAX_AGE = 10.0
"""Seconds; a worker writes its file once a second, so that an older one is that of a worker which hangs or is gone."""


def worker_health(path: Path) -> Health:
    """Good when the worker is healthy, degraded when it lives and is not, down when it does not write its file.

    The server is not asked: this says how one worker is.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written, status, reasons = float(content["time"]), str(content["status"]), list(map(str, content["reasons"]))
    except OSError as error:
        return _down(f"{path} can't be read: {error.strerror or error}; is a worker running with --health-file {path}?")
    except (ValueError, TypeError, KeyError):
        return _down(f"{path} is not the health file of a worker")
    age = time.time() - written
    if age > MAX_AGE:
        return _down(f"the worker has not written {path} for {age:.0f} s: it hangs, or was killed")
    if status == "starting":
        reasons = ["the worker is starting"]
    return Health("good" if status == "healthy" else "degraded", reasons, _facts(content))


def _facts(content: dict[str, Any]) -> dict[str, Any]:
    return {"worker": {name: value for name, value in content.items() if name not in {"status", "reasons"}}}


def _down(reason: str) -> Health:
    return Health("down", [reason], {})
