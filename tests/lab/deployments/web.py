"""The applications of the web servers: they send tasks when they are imported, and for each request."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import JsonResponse
from django.urls import include, path

application = get_wsgi_application()
asgi_application = get_asgi_application()

from tests.worker.project.tasks import noop  # noqa: E402 - Django must be set up

if TYPE_CHECKING:
    from django.http import HttpRequest

LOADED_IN = os.getpid()
noop.using(queue="mail").enqueue()  # so that ids were made and a connection is open before a server forks


def push(request: HttpRequest) -> JsonResponse:
    """Send one task and a bulk of ten; say their ids."""
    time.sleep(0.02)  # so that all processes are needed for requests that come together
    ids = [noop.enqueue().id, *(result.id for result in noop.enqueue_many([((), {}) for _ in range(10)]))]
    return JsonResponse({"ids": ids, "pid": os.getpid(), "loaded_in": LOADED_IN})


async def apush(request: HttpRequest) -> JsonResponse:
    """Send the same tasks from a coroutine."""
    many = await noop.aenqueue_many([((), {}) for _ in range(10)])
    ids = [(await noop.aenqueue()).id, *(result.id for result in many)]
    return JsonResponse({"ids": ids, "pid": os.getpid(), "loaded_in": LOADED_IN})


urlpatterns = [path("push/", push), path("apush/", apush), path("fairque/", include("django_fairque.urls"))]
