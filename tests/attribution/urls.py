"""Views of a project that uses the current user."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpResponse, StreamingHttpResponse
from django.urls import path

from django_fairque import TaskUsageError, acurrent_user_id, as_user, chain, current_user_id
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest

    from django_fairque.tasks.definition import AnyDefinition


def find(name: str) -> AnyDefinition:
    found = registry.find(name)
    assert found is not None
    return found


def enqueues(request: HttpRequest) -> HttpResponse:
    find("note").enqueue(1)
    return HttpResponse(current_user_id() or "nobody")


def enqueues_nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse("nothing")


def chooses(request: HttpRequest) -> HttpResponse:
    find("note_for").enqueue("bob")
    find("note").using(user_id="cid").enqueue()
    with as_user("dan"):
        find("note").enqueue()
    return HttpResponse("chosen")


def fails(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def streams(request: HttpRequest) -> StreamingHttpResponse:
    def lines() -> Iterator[str]:
        yield current_user_id() or "nobody"

    return StreamingHttpResponse([*lines(), " ", *lines()] if "now" in request.GET else lines())


async def aenqueues(request: HttpRequest) -> HttpResponse:
    await find("note").aenqueue(1)
    return HttpResponse(await acurrent_user_id() or "nobody")


async def aenqueues_many(request: HttpRequest) -> HttpResponse:
    note = find("note")
    await note.aenqueue_many([((n,), {}) for n in range(2)])
    await chain(note.s(1), note.using(user_id="cid").s(2)).aenqueue()
    return HttpResponse("sent")


async def achooses(request: HttpRequest) -> HttpResponse:
    await find("note_for").aenqueue("bob")
    await (find("note_for").s("bob") | find("note_for").s("cid")).aenqueue()
    return HttpResponse("chosen")


async def blocks(request: HttpRequest) -> HttpResponse:
    try:
        find("note").enqueue()
    except TaskUsageError as error:
        return HttpResponse(str(error))
    return HttpResponse("sent")


urlpatterns = [
    path("enqueues/", enqueues),
    path("nothing/", enqueues_nothing),
    path("chooses/", chooses),
    path("fails/", fails),
    path("streams/", streams),
    path("aenqueues/", aenqueues),
    path("aenqueues-many/", aenqueues_many),
    path("achooses/", achooses),
    path("blocks/", blocks),
]
