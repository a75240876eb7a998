"""The pytest plugin, installed with the package: tasks are captured, each test begins with none; and its fixtures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    from .capture import Capture


is_running = False
"""Whether pytest runs in this process; then tasks are captured (`conf.current.is_test_run`)."""


def pytest_configure() -> None:
    """Have tasks captured from now on."""
    global is_running  # noqa: PLW0603
    is_running = True


def pytest_unconfigure() -> None:
    """End that."""
    global is_running  # noqa: PLW0603
    is_running = False


@pytest.fixture(autouse=True)
def _fairque_enqueued_is_empty() -> None:
    """Each test begins without the tasks of the one before."""
    capture = sys.modules.get("django_fairque.testing.capture")
    if capture is not None:  # else nothing was captured yet
        capture.enqueued.begin()


@pytest.fixture
def fairque() -> Iterator[Capture]:
    """What the test enqueues from here on."""
    from .capture import capture_tasks

    with capture_tasks() as capture:
        yield capture


@pytest.fixture
def fairque_run(fairque: Capture) -> Callable[..., int]:
    """Call it to run what was captured, and what that enqueues."""
    return fairque.run


@pytest.fixture
def fairque_server() -> Iterator[FairQueue]:
    """The default queue on a real server of the test's own; `django_fairque.testing.run_tasks` runs what is in it."""
    from .servers import private_server

    with private_server() as queue:
        yield queue
