from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from django_fairque.conf import get_queue
from django_fairque.testing import run_tasks
from tests.fixture_types import FairQueue, Redis, Server, Settings

if TYPE_CHECKING:
    from pytest_django import DjangoDbBlocker


BACKEND = "django_fairque.backends.FairqueBackend"


class Configure(Protocol):
    def __call__(self, **options: Any) -> None: ...


@pytest.fixture
def queue(
    server: Server, redis: Redis, settings: Settings, configure: Configure, django_db_blocker: DjangoDbBlocker
) -> Iterator[FairQueue]:
    """The default queue, empty; two queues are declared, and named in ``TASKS``."""
    settings.FAIRQUE = {
        "REDIS": {"URL": server.url},
        "QUEUES": {"default": {}, "mail": {}},
        "QUEUE": {"RETRY_BASE_SECONDS": 0},
    }
    configure()
    # A worker in this process tidies up the connections that coroutines of earlier tests have left open.
    with django_db_blocker.unblock():
        yield get_queue()


def run(result: Any, tasks: int | None = None) -> Any:
    """Run all tasks, as many as this if it is given. Return the result as it is then."""
    assert run_tasks() == tasks or tasks is None
    result.refresh()
    return result


@pytest.fixture
def configure(settings: Settings) -> Configure:
    """Set the backend's ``OPTIONS``."""

    def configure(**options: Any) -> None:
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}}

    return configure
