"""The pytest plugin of this package. The plugin captures tasks, starts each test without captured tasks, and defines
fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    from .capture import Capture


is_running = False
"""Whether pytest runs in this process. If so, tasks are captured (`conf.current.is_test_run`)."""


def pytest_configure() -> None:
    """Start to capture tasks."""
    global is_running  # noqa: PLW0603
    is_running = True


def pytest_unconfigure() -> None:
    """Stop capturing tasks."""
    global is_running  # noqa: PLW0603
    is_running = False


@pytest.fixture(autouse=True)
def _fairque_enqueued_is_empty() -> None:
    """Remove the tasks of the previous test."""
    capture = sys.modules.get("django_fairque.testing.capture")
    if capture is not None:  # no capture exists before a first task was enqueued
        capture.enqueued.begin()


@pytest.fixture
def fairque() -> Iterator[Capture]:
    """The tasks that the test enqueues while it uses this fixture."""
    from .capture import capture_tasks

    with capture_tasks() as capture:
        yield capture


@pytest.fixture
def fairque_run(fairque: Capture) -> Callable[..., int]:
    """A function that runs the captured tasks and the tasks that they enqueue."""
    return fairque.run


@pytest.fixture
def fairque_server() -> Iterator[FairQueue]:
    """The default queue on a separate real server; `django_fairque.testing.run_tasks` runs its tasks."""
    from .servers import private_server

    with private_server() as queue:
        yield queue
