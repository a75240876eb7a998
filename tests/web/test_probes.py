"""Tests of the answers to load balancers, orchestrators and Prometheus, and of data that no answer contains."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import AsyncClient, Client, override_settings
from django.urls import reverse
from prometheus_client.parser import text_string_to_metric_families

from django_fairque.engine.model.task import Task

from .conftest import TOKEN

if TYPE_CHECKING:
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer

PAGES = ("live", "ready", "metrics")
WITHIN = 2.0
"""Seconds in which every answer comes, whatever the server does."""


def get(page: str, token: str = "", **headers: str) -> Any:
    """The answer of a page, as a client without a session gets it."""
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return Client().get(f"/fairque/{page}/", headers=headers)


def test_the_probe_pages_have_stable_addresses() -> None:
    assert [reverse(f"fairque:{page}") for page in PAGES] == [f"/fairque/{page}/" for page in PAGES]


def test_the_live_page_contacts_no_server(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"HOST": "nowhere.invalid", "DBB": "a mistake as well"}}
    answer = get("live")
    assert (answer.status_code, answer.json()) == (200, {"status": "live"})


def test_the_ready_page_shows_only_its_status_without_a_token(queue: FairQueue) -> None:
    answer = get("ready")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_the_ready_page_shows_each_queue_with_a_token(queue: FairQueue) -> None:
    queue.push(Task.create("u", 3, None))
    content = get("ready", TOKEN).json()
    assert content["status"] == "ready"
    assert set(content["queues"]) == {"default", "mail"}
    found = content["queues"]["default"]
    assert found["status"] == "degraded"
    assert "tasks are waiting and no worker is running; start one with manage.py fairque_worker" in found["reasons"]
    assert content["server"]["memory_used"] > 0


def test_an_exceeded_limit_is_shown_and_the_ready_page_succeeds(queue: FairQueue, settings: Settings) -> None:
    queue.push(Task.create("u", 3, None))
    settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"TOKEN": TOKEN, "LIMITS": {"DEPTH": 0}}}
    answer = get("ready", TOKEN)
    assert answer.status_code == 200
    assert "queue default: ready tasks 1, over 0" in answer.json()["queues"]["default"]["reasons"]


def test_the_ready_page_fails_if_a_queue_accepts_no_tasks(make_server: MakeServer, settings: Settings) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"TOKEN": TOKEN}}
    assert get("ready").status_code == 200
    with server.client() as client:
        client.replicaof("127.0.0.1", 1)
    answer = get("ready", TOKEN)
    assert (answer.status_code, answer.json()["status"]) == (503, "not ready")
    assert "the server is a read-only replica; connect to the primary" in answer.json()["queues"]["default"]["reasons"]


def test_the_ready_page_fails_while_the_server_is_full(make_server: MakeServer, settings: Settings) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "MONITOR": {"TOKEN": TOKEN}}
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        answer = get("ready", TOKEN)
        assert (answer.status_code, answer.json()["queues"]["default"]["status"]) == (503, "down")
        client.config_set("maxmemory", 0)
    assert get("ready").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_down_is_reported_in_time_and_without_its_name(
    make_server: MakeServer, settings: Settings, number: signal.Signals
) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}, "MONITOR": {"TOKEN": TOKEN}}
    assert get("ready").status_code == 200
    os.kill(server.pid, number)
    answers = {}
    for page in PAGES:
        began = time.monotonic()
        answers[page] = get(page, TOKEN)
        assert time.monotonic() - began < WITHIN
        assert server.socket not in answers[page].content.decode()
    assert {page: answer.status_code for page, answer in answers.items()} == {"live": 200, "ready": 503, "metrics": 200}
    reason = {"status": "down", "reasons": ["the server can't be reached"]}
    queues = {"default": reason, "mail": reason}
    assert answers["ready"].json() == {"status": "not ready", "queues": queues, "server": {}}
    figures = samples(answers["metrics"])
    assert (figures["fairque_server_up", ""], figures["fairque_scrape_errors", ""]) == (0, 2)
    assert figures["fairque_queue_up", "mail"] == 0
    assert ("fairque_tasks_pushed_total", "default") not in figures  # no figure is better than a wrong one


def test_the_ready_page_fails_with_configuration_mistakes_without_showing_them(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": "redis://:hunter2@secret.example/x"}, "MONITOR": {"TOKEN": TOKEN}}
    for page in ("ready", "metrics"):
        answer = get(page, TOKEN)
        assert answer.status_code == 503
        assert "secret.example" not in answer.content.decode()
        assert "hunter2" not in answer.content.decode()


class TestTokens:
    def test_metrics_are_not_served_if_no_token_is_configured(self, queue: FairQueue, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {}}
        assert get("metrics").status_code == get("metrics", TOKEN).status_code == 404
        assert get("ready", TOKEN).json() == {"status": "ready"}

    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer é"]
    )
    def test_metrics_are_served_only_with_the_token(self, queue: FairQueue, header: str) -> None:
        answer = get("metrics", **({"Authorization": header} if header else {}))
        assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")
        assert "fairque_" not in answer.content.decode()
        assert TOKEN not in answer.content.decode()

    def test_ready_refuses_a_wrong_token_and_ignores_other_schemes(self, queue: FairQueue) -> None:
        assert get("ready", "wrong").status_code == 401
        answer = get("ready", Authorization="Basic dTpw")
        assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
        assert get("metrics", Authorization=f"bearer  {TOKEN}").status_code == 200

    def test_two_tokens_are_valid_during_a_replacement(self, queue: FairQueue, settings: Settings) -> None:
        settings.FAIRQUE = {**settings.FAIRQUE, "MONITOR": {"TOKEN": [TOKEN, TOKEN[::-1]]}}
        assert {get("metrics", token).status_code for token in (TOKEN, TOKEN[::-1])} == {200}
        assert get("metrics", TOKEN + TOKEN[::-1]).status_code == 401


@pytest.mark.parametrize("page", PAGES)
class TestEveryPage:
    def test_no_answer_is_cached_and_only_get_and_head_are_allowed(self, queue: FairQueue, page: str) -> None:
        client = Client(enforce_csrf_checks=True)
        for answer in (get(page), get(page, TOKEN), client.post(f"/fairque/{page}/")):
            assert answer["Cache-Control"] == "no-store"
        for method in ("post", "put", "patch", "delete", "options"):
            answer = getattr(client, method)(f"/fairque/{page}/")
            assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
        head = client.head(f"/fairque/{page}/", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (head.status_code, head.content) == (200, b"")

    def test_probe_pages_need_no_middleware_login_or_database(
        self, queue: FairQueue, page: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This test may not use the database: a transaction around the view would fail."""
        monkeypatch.setitem(
            connections.settings, "default", {**connections.settings["default"], "ATOMIC_REQUESTS": True}
        )
        auth = "django.contrib.auth.middleware"
        login = ["django.contrib.sessions.middleware.SessionMiddleware"]
        login += [f"{auth}.AuthenticationMiddleware", f"{auth}.LoginRequiredMiddleware"]
        for middleware in ([], login):
            with override_settings(MIDDLEWARE=middleware):
                assert get(page, TOKEN).status_code == 200

    async def test_probe_pages_are_served_under_asgi(self, queue: FairQueue, page: str) -> None:
        answer = await AsyncClient().get(f"/fairque/{page}/", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200


class TestFormats:
    def test_metrics_have_the_older_format_unless_openmetrics_is_accepted(self, queue: FairQueue) -> None:
        assert get("metrics", TOKEN)["Content-Type"].startswith("text/plain; version=0.0.4")
        answer = get("metrics", TOKEN, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert answer["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        assert answer.content.endswith(b"# EOF\n")
        assert get("metrics", TOKEN, Accept="text/plain; version=; q=é, */*;;").status_code == 200


def test_the_metrics_page_says_which_package_to_install(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    answer = get("metrics", TOKEN)
    assert answer.status_code == 501
    assert "pip install 'django-fairque[prometheus]'" in answer.content.decode()
    assert get("ready").status_code == 200


def samples(answer: Any) -> dict[tuple[str, str], float]:
    """Values by name and queue."""
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name, sample.labels.get("queue", "")): sample.value for family in families for sample in family.samples
    }
