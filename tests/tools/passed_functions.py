"""Counts the files and functions of the package that an enqueue, a pop, a run and a finish pass, and prints them as JSON.

`test_conventions.py` runs this program in a separate process: while it counts, the interpreter calls a function at each
call, and nothing else should happen in that process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PACKAGE = Path(__file__).parents[2] / "django_fairque"


def passed_by(call: Callable[[], Any]) -> dict[str, int]:
    """Run ``call`` and count what of the package it passes in this thread: files, functions, and the most functions that
    were active at the same time."""
    files: set[str] = set()
    functions: set[tuple[str, int, str]] = set()
    active: list[FrameType] = []
    depth = 0
    root = str(PACKAGE)

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(root):
            return
        if event == "call":
            active.append(frame)
            files.add(code.co_filename)
            functions.add((code.co_filename, code.co_firstlineno, code.co_name))
            depth = max(depth, len(active))
        elif event == "return" and active and active[-1] is frame:
            active.pop()

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return {"files": len(files), "functions": len(functions), "depth": depth}


def main() -> None:
    django.setup()
    from django_fairque import task
    from django_fairque.conf import get_queue
    from django_fairque.tasks.execution import Run, Services, execute, prepare

    @task(name="conventions.noop", user="user")
    def noop(user: str) -> None:
        """Nothing."""

    # Each is counted the second time.
    for _ in range(2):
        noop.enqueue("ann")
    found = {"enqueue": passed_by(lambda: noop.enqueue("ann"))}
    queue = get_queue()
    first = queue.pop("w")
    assert first is not None
    queue.finish(first)
    found["pop"] = passed_by(lambda: queue.pop("w"))
    second = queue.pop("w")
    assert second is not None
    services = Services(queue.name, queue.config, queue.set_progress)

    def run() -> None:
        prepared = prepare(second, services)
        assert isinstance(prepared, Run)
        execute(prepared)

    run()
    found["run"] = passed_by(run)
    found["finish"] = passed_by(lambda: queue.finish(second))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
