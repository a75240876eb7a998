"""Counts the tasks of a peer inside its process; the last one writes how long all of them took, or how long each waited."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TASKS = int(os.environ.get("BENCH_TASKS", "0"))
SOCKET = os.environ.get("BENCH_SOCKET", "")
PAYLOAD = "x" * 180
_lock = threading.Lock()
_state = {"count": 0, "started": 0.0}
_waits: list[float] = []
APART = 0.05


def count() -> None:
    with _lock:
        _state["count"] += 1
        if _state["count"] == 1:
            _state["started"] = time.perf_counter()
        if _state["count"] == TASKS:
            Path(os.environ["BENCH_RESULT"]).write_text(str(time.perf_counter() - _state["started"]))


def stamp(sent: float) -> None:
    """A task that was sent then has started."""
    _waits.append(time.time() - sent)
    if len(_waits) == TASKS:
        Path(os.environ["BENCH_RESULT"]).write_text(json.dumps(_waits))


def send(one: Any, stamped: Any) -> None:
    """All tasks at once; or, with ``stamp`` in the command, one each 50 ms that says when it was sent."""
    for _ in range(TASKS):
        if "stamp" in sys.argv:
            time.sleep(APART)
            stamped(time.time())
        else:
            one(PAYLOAD)
