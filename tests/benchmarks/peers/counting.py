"""Counts the tasks of a peer inside its process, and writes how long all of them took, or how long each waited."""

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

TASKS = int(os.environ.get("BENCH_TASKS", "0"))
SOCKET = os.environ.get("BENCH_SOCKET", "")
URL = os.environ.get("BENCH_URL", "")
PAYLOADS = [f"{number:08}{'x' * 172}" for number in range(TASKS)]
APART = 0.05
_lock = threading.Lock()
_state = {"runs": 0, "started": 0.0, "seconds": 0.0}
_seen: set[str] = set()
_waits: list[float] = []


def count(payload: str) -> None:
    """A task has run. Writes the result when each has, and again for each that runs once more after that."""
    with _lock:
        _state["runs"] += 1
        _seen.add(payload)
        if _state["runs"] == 1:
            _state["started"] = time.perf_counter()
        if len(_seen) < TASKS:
            return
        _state["seconds"] = _state["seconds"] or time.perf_counter() - _state["started"]
        _write({"seconds": _state["seconds"], "runs": _state["runs"]})


def stamp(sent: float) -> None:
    """A task that was sent then has started."""
    with _lock:
        _waits.append(time.time() - sent)
        if len(_waits) == TASKS:
            _write(_waits)


def _write(result: Any) -> None:
    """In one step, so that a process that waits for the file reads all of it."""
    file = Path(os.environ["BENCH_RESULT"])
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(result))
    draft.replace(file)


def is_stamped() -> bool:
    """Whether tasks are sent one by one, each with the time when it was sent."""
    return "stamp" in sys.argv


def send(one: Any, stamped: Any) -> None:
    """All tasks, one call after the other; or, with ``stamp`` in the command, one each 50 ms with the time when it was sent."""
    for payload in PAYLOADS:
        if is_stamped():
            time.sleep(APART)
            stamped(time.time())
        else:
            one(payload)


async def asend(one: Any, stamped: Any) -> None:
    """As ``send``, with coroutine functions."""
    for payload in PAYLOADS:
        if is_stamped():
            await asyncio.sleep(APART)
            await stamped(time.time())
        else:
            await one(payload)
