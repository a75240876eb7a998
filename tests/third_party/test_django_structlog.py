"""Tests that values that django-structlog binds for a request are in the log lines of the request's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpResponse
from django.urls import path

from django_fairque import Worker, task
from django_fairque.conf import aclose_queues
from django_fairque.tasks import registry

structlog = pytest.importorskip("structlog")
pytest.importorskip("django_structlog")

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.test import AsyncClient, Client
    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server


def respond(task_id: str) -> HttpResponse:
    return HttpResponse(f"{task_id} {structlog.contextvars.get_contextvars()['request_id']}")


def send(request: HttpRequest) -> HttpResponse:
    return respond(registry.get("note").enqueue().id)


async def asend(request: HttpRequest) -> HttpResponse:
    return respond((await registry.get("note").aenqueue()).id)


urlpatterns = [path("send/", send), path("asend/", asend)]


@pytest.fixture
def lines(server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The lines that the task logs."""
    monkeypatch.setattr(registry, "_tasks", {})
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["django_structlog.middlewares.RequestMiddleware"]
    settings.FAIRQUE = {
        "REDIS": {"URL": server.url},
        "MIDDLEWARE": ["django_fairque.integrations.structlog.StructlogContext"],
    }
    logged: list[Any] = []

    def collect(_logger: object, _method: str, event: dict[str, Any]) -> Any:
        logged.append(event)
        raise structlog.DropEvent

    logger = structlog.wrap_logger(None, processors=[structlog.contextvars.merge_contextvars, collect])

    @task(name="note")
    def note() -> None:
        logger.info("noted")

    return logged


def test_log_lines_of_a_task_have_the_request_id(lines: list[Any], client: Client) -> None:
    task_id, request_id = client.get("/send/").content.decode().split()
    Worker(burst=True, concurrency=1).run()
    (line,) = lines
    own = {"event": "noted", "request_id": request_id, "task_id": task_id, "task_name": "note"}
    assert line | own == line
    assert line["ip"] == "127.0.0.1"


async def test_log_lines_after_an_async_request_have_its_id(lines: list[Any], async_client: AsyncClient) -> None:
    response = await async_client.get("/asend/")
    await aclose_queues()
    task_id, request_id = response.content.decode().split()
    Worker(burst=True, concurrency=1).run()
    assert [(line["task_id"], line["request_id"]) for line in lines] == [(task_id, request_id)]
