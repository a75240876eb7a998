from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import psutil
import pytest

from django_fairque import get_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque import FairQueue
    from tests.servers import Server


ROOT = Path(__file__).parent.parent.parent
LIMIT = 120.0
"""Seconds after which a demonstration hangs."""


class StartDemo(Protocol):
    def __call__(self, *arguments: str, **variables: str) -> subprocess.Popen[str]: ...


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite3"


@pytest.fixture
def start_demo(server: Server, queue: FairQueue, database: Path) -> Iterator[StartDemo]:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        own = {
            "FAIRQUE_REDIS__URL": server.url,
            "FAIRQUE_OUTBOX": "true",  # the settings of testproject, which the tests replace, have this too
            "TESTPROJECT_DATABASE": str(database),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "testproject/manage.py", "demo", "--processes", "1", *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **own, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=LIMIT)
    kill_left_over(database)


def kill_left_over(database: Path) -> None:
    """Kill the workers of a demonstration that crashed. They would take the tasks of the tests that follow."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("TESTPROJECT_DATABASE") == str(database):
                process.kill()


@pytest.fixture
def demo(start_demo: StartDemo) -> Callable[..., tuple[int, str, str]]:
    """Run it to its end: exit code, output, errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        process = start_demo(*arguments)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    return run


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The project's queue, empty, on the server that tests share."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()
