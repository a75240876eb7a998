"""The pytest plugin: fixtures `fairque`, `fairque_run` and `fairque_server`. Installed with the package, free until used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    from .capture import Capture


@pytest.fixture
def fairque() -> Iterator[Capture]:
    """What the test enqueues is captured here instead of sent."""
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
