"""An interruption meets the task it is meant for, and nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from django_fairque.tasks.errors import SoftTimeLimitExceeded
from django_fairque.worker.common.limits import Guard, TimeLimitThread, run_guarded

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hasty() -> Iterator[None]:
    """Let threads take turns after every few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def busy(guard: Guard, steps: int) -> str:
    """Run a task like a slot: the task is interrupted, or ends before the interruption."""

    def body() -> str:
        try:
            for _ in range(steps):
                pass
        except SoftTimeLimitExceeded:
            return "interrupted"
        return "done"

    return run_guarded(guard, time.monotonic(), 1e6, body, lambda _: "beside")


def test_an_interruption_stays_inside_its_task(hasty: None) -> None:
    guard, ended, escaped = Guard(), threading.Event(), []
    counts = {"interrupted": 0, "done": 0, "beside": 0}

    def slot() -> None:
        try:
            while not ended.is_set():
                counts[busy(guard, random.randrange(40))] += 1
        except BaseException as error:  # noqa: BLE001 - any is one too many
            escaped.append(error)

    thread = threading.Thread(target=slot)
    thread.start()
    deadline = time.monotonic() + 20
    while counts["interrupted"] < 30 and thread.is_alive() and time.monotonic() < deadline:
        guard.interrupt(SoftTimeLimitExceeded, started=guard.started)
    ended.set()
    thread.join()
    assert escaped == []
    assert counts["interrupted"] >= 30
    assert counts["done"] > 0


TRACED_AFTER_AN_INTERRUPTION = """
import sys, time
from django.conf import settings
settings.configure()
from django_fairque.tasks.errors import SoftTimeLimitExceeded
from django_fairque.worker.common.limits import Guard, run_guarded

guard = Guard()

def body():
    guard.interrupt(SoftTimeLimitExceeded, started=guard.started)
    while True:
        pass

def traced():
    return "traced"

print(run_guarded(guard, time.monotonic(), 1e6, body, lambda _: "interrupted"))
sys.settrace(lambda *_: None)
print(traced())
"""


def test_functions_can_be_traced_after_an_interruption() -> None:
    """On Python 3.11 they never began, because the interpreter still expected an exception."""
    command = [sys.executable, "-c", TRACED_AFTER_AN_INTERRUPTION]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["interrupted", "traced"]


def test_an_interruption_reaches_only_its_own_task() -> None:
    guard = Guard()
    assert not guard.interrupt(SoftTimeLimitExceeded, started=guard.started)
    guard.arm(10.0, 5.0)
    assert not guard.interrupt(SoftTimeLimitExceeded, started=9.0)
    guard.disarm()
    assert not guard.interrupt(SoftTimeLimitExceeded, started=10.0)


def test_a_task_is_interrupted_only_once() -> None:
    guard, interrupted = Guard(), []

    def body() -> str:
        for _ in range(3):
            try:
                interrupted.append(guard.interrupt(SoftTimeLimitExceeded, started=guard.started))
            except SoftTimeLimitExceeded:  # noqa: PERF203 - it is what is counted
                interrupted.append(True)
        return "ended in its own time"

    assert run_guarded(guard, 1.0, 5.0, body, lambda _: "beside") == "ended in its own time"
    assert interrupted == [True, False, False]


def test_tasks_beyond_their_limit_are_interrupted() -> None:
    guards = [Guard(), Guard()]
    time_limits = TimeLimitThread(guards, lambda: None)
    time_limits.start()
    try:

        def endless() -> str:
            try:
                while True:
                    time.sleep(0.001)
            except SoftTimeLimitExceeded:
                return "interrupted"

        started = time.monotonic()
        time_limits.begin()
        assert run_guarded(guards[1], started, 0.1, endless, lambda _: "beside") == "interrupted"
        assert time.monotonic() - started >= 0.1
    finally:
        time_limits.end()
        time_limits.join()
