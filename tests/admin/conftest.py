from __future__ import annotations

import pytest

from django_fairque.admin import page_queues
from django_fairque.admin.status_line import status_probe
from django_fairque.conf import get_queue
from tests.fixture_types import FairQueue, Redis, Server, Settings


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The default queue, empty."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"default": {}, "mail": {}}}
    return get_queue()


@pytest.fixture(autouse=True)
def first_page_reads_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page of a test reads the health of the queues; how long it takes does not matter for the others."""
    status_probe.forget()
    monkeypatch.setattr(status_probe, "keep_seconds", 3600.0)


@pytest.fixture
def each_page_reads_status(first_page_reads_status: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page reads the health of the queues, so that it shows what the test has just changed."""
    monkeypatch.setattr(status_probe, "keep_seconds", 0.0)


REAL_PAGE_TIMEOUT_SECONDS = page_queues.PAGE_TIMEOUT_SECONDS


@pytest.fixture(autouse=True)
def pages_wait_for_busy_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of most tests wait longer than a second for the server, because tests run next to many others."""
    page_queues.close_connections()
    monkeypatch.setattr(page_queues, "PAGE_TIMEOUT_SECONDS", 20.0)


@pytest.fixture
def real_page_timeout(pages_wait_for_busy_servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of this test wait for the server as long as they do outside of tests."""
    monkeypatch.setattr(page_queues, "PAGE_TIMEOUT_SECONDS", REAL_PAGE_TIMEOUT_SECONDS)
