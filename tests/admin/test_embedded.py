"""An embedded server that hangs is a banner as soon as any other server is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from django_fairque.conf import close_queues, get_queue
from django_fairque.embedded import EmbeddedServer
from tests.embedded.conftest import MakeEmbedded, make_embedded, place
from tests.fixture_types import Client, Settings

from .test_pages import SIMPLE, url

__all__ = ["make_embedded", "place"]


@pytest.fixture
def embedded(make_embedded: MakeEmbedded, settings: Settings) -> Iterator[EmbeddedServer]:
    server = make_embedded()
    settings.FAIRQUE = {"REDIS": {"URL": f"embedded://{server.directory}"}}
    get_queue().get_stats()
    yield server
    close_queues()


@pytest.mark.thorough
@pytest.mark.usefixtures("real_page_timeout")
@pytest.mark.parametrize(
    "is_open", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["new connection", "open connection"]
)
def test_a_hung_embedded_server_is_a_banner(admin_client: Client, embedded: EmbeddedServer, *, is_open: bool) -> None:
    if is_open:
        assert 'class="fq-trouble"' not in admin_client.get(url(SIMPLE[0].name)).content.decode()
    pid = embedded.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        took = []
        for page in SIMPLE[:3]:  # each waits two seconds; test_pages.py has all of them
            began = time.monotonic()
            answer = admin_client.get(url(page.name))
            took.append(time.monotonic() - began)
            assert answer.status_code == 200
            assert 'class="fq-trouble" role="alert"' in answer.content.decode()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert sorted(took)[len(took) // 2] < 3, "two seconds by design"
    assert max(took) < 10, "and a slow machine"
