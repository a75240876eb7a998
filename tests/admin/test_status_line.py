"""The status line at the top of each page: what `fairque_health` reports, of all queues."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_fairque.admin.status_line import STATUS_MAX_AGE_SECONDS, status_probe
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import log_in, page_url, read, words_of
from tests.counting import counted
from tests.fixture_types import Client, FairQueue, MakeServer, Server, Settings

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_page_reads_status")]


def page(client: Client, name: str = "overview", **query: str) -> str:
    return read(client, page_url(name, **query))


def line(html: str) -> tuple[str, str, str]:
    """The status, its color, and the words of the status line."""
    found = re.search(
        r'<section id="fq-status" class="fq-status fq-status-(\w+)" data-status="(\w+)".*?</section>', html, re.DOTALL
    )
    assert found
    return found[2], found[1], words_of(found[0])


def reported() -> str:
    """The status that the command prints."""
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("fairque_health", stdout=out)
    return out.getvalue().partition("\n")[0]


@pytest.fixture
def durable(make_server: MakeServer, settings: Settings) -> Server:
    """A server without any fault, which the site uses."""
    server = make_server("--appendonly", "yes")
    redis = {"URL": server.url, "SOCKET_TIMEOUT": 2.1, "SOCKET_CONNECT_TIMEOUT": 1}
    queues = {"default": {"REQUEST_TIMEOUT": 0}, "mail": {}}
    settings.FAIRQUE = {"REDIS": redis, "WORKER": {"POLL_INTERVAL": 0.1}, "QUEUES": queues}
    return server


def is_fine(server: Server, settings: Any) -> None:
    for name in ("default", "mail"):
        get_queue(name).heartbeat("w", {}, ttl=900)


def has_no_worker_and_no_task(server: Server, settings: Any) -> None:
    pass


def is_over_a_limit(server: Server, settings: Any) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"LIMITS": {"DEPTH": 0}}}
    get_queue().heartbeat("w", {}, ttl=900)
    get_queue().push(Task.create("u", 3, None))


def has_no_worker(server: Server, settings: Any) -> None:
    get_queue().push(Task.create("u", 3, None))


def is_a_replica(server: Server, settings: Any) -> None:
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)


def is_frozen(server: Server, settings: Any) -> None:
    os.kill(server.pid, signal.SIGSTOP)


@pytest.mark.thorough
@pytest.mark.usefixtures("real_page_timeout")
@pytest.mark.parametrize(
    ("happens", "status", "level", "words"),
    [
        (is_fine, "good", "good", "Good All is well"),
        (
            is_over_a_limit,
            "degraded",
            "warning",
            "Degraded Something needs attention queue default: ready tasks 1, over 0",
        ),
        (
            has_no_worker_and_no_task,
            "degraded",
            "warning",
            "Degraded Something needs attention no worker is running, so tasks that are pushed will wait",
        ),
        (has_no_worker, "degraded", "critical", "No workers Tasks are waiting, and nothing works on them"),
        (is_a_replica, "down", "critical", "the server is a read-only replica; connect to the primary"),
        (is_frozen, "down", "critical", "Down No task is accepted the server can't be reached"),
    ],
)
def test_the_status_line_and_the_command_show_the_same_health(
    admin_client: Client,
    durable: Server,
    settings: Settings,
    happens: Callable[[Server, Settings], None],
    status: str,
    level: str,
    words: str,
) -> None:
    page(admin_client)  # opens the connection
    happens(durable, settings)
    try:
        begun = time.monotonic()
        html = page(admin_client)
        took = time.monotonic() - begun
        assert reported() == status
    finally:
        os.kill(durable.pid, signal.SIGCONT)
    assert line(html)[:2] == (status, level)
    assert words in line(html)[2]
    (word,) = re.findall(r"<title>([^|]*) \|", html)
    assert line(html)[2].startswith(word)
    assert took < 8, "1.5 s for the status and 1 s for the page by design, and a slow machine"


def test_every_page_shows_the_problems_of_other_queues(admin_client: Client, durable: Server) -> None:
    get_queue("mail").push(Task.create("u", 3, None))
    for name in ("overview", "users", "workers", "model_events", "audit"):
        status, _level, words = line(page(admin_client, name))
        assert (status, "Queue mail: tasks are waiting and no worker is running" in words) == ("degraded", True), name
    assert f'href="{reverse("admin:django_fairque_workers")}?queue=mail"' in page(admin_client)


def test_a_page_is_red_only_if_its_own_queue_has_no_worker(admin_client: Client, durable: Server) -> None:
    get_queue().heartbeat("w", {}, ttl=900)
    get_queue("mail").push(Task.create("u", 3, None))
    _status, level, words = line(page(admin_client))
    assert (level, words.partition(" and")[0]) == (
        "warning",
        "Degraded Something needs attention Queue mail: tasks are waiting",
    )
    assert line(page(admin_client, queue="mail"))[1] == "critical"


def test_reasons_need_the_permission_to_see_queues(client: Client, durable: Server) -> None:
    get_queue().push(Task.create("u", 3, None))
    log_in(client, "view_schedule")
    assert line(page(client, "schedules"))[2] == "No workers Tasks are waiting, and nothing works on them"


def test_task_names_are_escaped_and_only_the_first_reasons_are_shown(admin_client: Client, durable: Server) -> None:
    for number in range(20):
        get_queue().heartbeat(f"w{number}", {"blocked_by": "<b>x</b>", "unknown": f"<i>{number}</i>"}, ttl=900)
    html = page(admin_client)
    assert "<b>x" not in html
    assert "is blocked by <b>x</b>" in line(html)[2]
    assert re.search(r"and \d+ more$", line(html)[2]) or line(html)[2].count("blocked by") <= 8


def test_a_process_reads_the_health_once_in_four_seconds(
    admin_client: Client, queue: FairQueue, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_probe, "keep_seconds", 3600.0)
    page(admin_client, "schedules")
    kept = counted(redis, lambda: page(admin_client, "schedules"))
    monkeypatch.setattr(status_probe, "keep_seconds", 0.0)
    read = counted(redis, lambda: page(admin_client, "schedules"))
    assert "time" not in kept
    assert read["time"]["calls"] == 2, "once for each queue"
    assert 3 <= STATUS_MAX_AGE_SECONDS < 5, "less than the time between two refreshes"


def test_open_incidents_are_in_the_status_line_until_their_end(admin_client: Client, durable: Server) -> None:
    for name in ("default", "mail"):
        get_queue(name).heartbeat("w", {}, ttl=900)
    queue = get_queue()
    queue.incidents.open_limit("depth", "text", now=time.time() - 60)
    queue.incidents.open_limit("oldest_wait", "text")
    html = page(admin_client, "workers")
    status, level, words = line(html)
    text = "Queue default: 2 incidents are open, the latest: over the limit of oldest_wait"
    assert (status, level) == ("good", "good")
    assert words == f"Good The queues work, and incidents are open {text}"
    assert f'<a href="{page_url("incidents", queue="default")}"><bdi>2 incidents' in html
    get_queue("mail").push(Task.create("u", 3, None))
    get_queue("mail").release_worker("w", forget=True)
    assert f"attention {text} Queue mail: tasks are waiting" in line(page(admin_client))[2]
    assert line(page(admin_client, queue="mail"))[2].endswith(text)
    get_queue("mail").heartbeat("w", {}, ttl=900)
    for name in ("depth", "oldest_wait"):
        queue.incidents.close_limit(name)
    assert line(page(admin_client))[2] == "Good All is well"
