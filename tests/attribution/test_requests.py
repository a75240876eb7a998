"""Tasks that a request enqueues are its user's: real requests, with and without await."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.models import AnonymousUser, User
from django.db import connection
from django.http import HttpResponse
from django.test import AsyncClient, RequestFactory
from django.test.utils import CaptureQueriesContext

from django_fairque import ConfigurationError, current_user_id
from django_fairque.conf import aclose_queues, close_queues
from django_fairque.middleware import CurrentUserMiddleware

from .conftest import MIDDLEWARE, users

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from django.http import HttpRequest
    from django.test import Client
    from pytest_django import Settings

    from django_fairque import FairQueue
    from django_fairque.testing import Capture

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann() -> User:
    user: User = User.objects.create_user("ann", password="x")
    return user


@pytest.fixture
async def aclient() -> AsyncIterator[AsyncClient]:
    yield AsyncClient()
    await aclose_queues()


CALLED: list[str] = []


def tenant_of(request: HttpRequest) -> object:
    CALLED.append(request.path)
    tenant = request.headers.get("X-Tenant")
    return None if tenant is None else int(tenant)


async def atenant_of(request: HttpRequest) -> object: ...


@pytest.fixture
def tenants(settings: Settings) -> None:
    CALLED.clear()
    settings.FAIRQUE = {**settings.FAIRQUE, "REQUEST_USER": f"{__name__}.tenant_of"}


def test_a_request_enqueues_for_its_logged_in_user(client: Client, queue: FairQueue, note: Any, ann: User) -> None:
    client.force_login(ann)
    assert client.get("/enqueues/").content == str(ann.pk).encode()
    assert users(queue) == [str(ann.pk)]
    assert current_user_id() is None


def test_a_request_of_an_anonymous_user_has_no_user_id(client: Client, queue: FairQueue, note: Any) -> None:
    assert client.get("/enqueues/").content == b"nobody"
    assert users(queue) == ["default"]


def test_views_naming_users_read_no_session(
    client: Client, queue: FairQueue, note: Any, note_for: Any, ann: User
) -> None:
    client.force_login(ann)
    with CaptureQueriesContext(connection) as queries:
        client.get("/chooses/")
    assert users(queue) == ["bob", "cid", "dan"]
    assert len(queries) == 0


def test_a_request_without_tasks_reads_no_session(client: Client, ann: User) -> None:
    client.force_login(ann)
    with CaptureQueriesContext(connection) as queries:
        assert client.get("/nothing/").content == b"nothing"
    assert len(queries) == 0


def test_the_user_is_forgotten_when_a_view_fails(client: Client, ann: User) -> None:
    client.force_login(ann)
    with pytest.raises(ZeroDivisionError):
        client.get("/fails/")
    assert current_user_id() is None


def test_a_stream_is_sent_after_the_request(client: Client, ann: User) -> None:
    client.force_login(ann)
    assert client.get("/streams/").getvalue() == b"nobody"
    assert client.get("/streams/?now").getvalue() == f"{ann.pk} {ann.pk}".encode()


def test_a_tenant_can_be_the_request_user(
    client: Client, queue: FairQueue, note: Any, ann: User, tenants: None
) -> None:
    client.force_login(ann)
    with CaptureQueriesContext(connection) as queries:
        assert client.get("/enqueues/", headers={"x-tenant": "77"}).content == b"77"
    client.get("/enqueues/")
    client.get("/nothing/")
    assert users(queue) == ["77", "default"]
    assert CALLED == ["/enqueues/", "/enqueues/"]  # once a request, and only if somebody asks
    assert len(queries) == 0


def test_an_invalid_tenant_id_is_refused(client: Client, note: Any, settings: Settings) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "REQUEST_USER": f"{__name__}.wrong_tenant_of"}
    with pytest.raises(ValueError, match=r"what .*wrong_tenant_of returns \(REQUEST_USER\) must be text"):
        client.get("/enqueues/")


def wrong_tenant_of(request: HttpRequest) -> object:
    return ["acme"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no.such.module", "No module named 'no'"),
        (f"{__name__}.MIDDLEWARE", "is a str"),
        (f"{__name__}.atenant_of", "is a coroutine function"),
    ],
)
def test_a_function_for_the_user_that_can_not_be_called_is_a_configuration_error(
    client: Client, note: Any, settings: Settings, path: str, words: str
) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "REQUEST_USER": path}
    with pytest.raises(ConfigurationError, match=f"REQUEST_USER: expected .*{words}"):
        client.get("/enqueues/")


def test_tasks_have_the_default_user_if_no_middleware_sets_one(
    client: Client, queue: FairQueue, note: Any, settings: Settings
) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE]
    client.get("/enqueues/")
    assert users(queue) == ["default"]


def test_tasks_belong_to_the_user_that_a_view_or_another_middleware_has_set(
    rf: RequestFactory, queue: FairQueue, note: Any
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        for user in (User(pk=5), User(pk=6), AnonymousUser()):
            request.user = user
            note.enqueue()
        return HttpResponse()

    CurrentUserMiddleware(view)(rf.get("/"))
    assert users(queue) == ["5", "6", "default"]


async def test_async_views_enqueue_for_their_user(aclient: AsyncClient, queue: FairQueue, note: Any, ann: User) -> None:
    await aclient.aforce_login(ann)
    response = await aclient.get("/aenqueues/")
    assert response.content == str(ann.pk).encode()
    assert users(queue) == [str(ann.pk)]


async def test_anonymous_requests_to_async_views_have_no_user(
    aclient: AsyncClient, queue: FairQueue, note: Any
) -> None:
    response = await aclient.get("/aenqueues/")
    assert (response.content, users(queue)) == (b"nobody", ["default"])


async def test_many_tasks_and_pipelines_of_an_async_view_belong_to_the_logged_in_user(
    aclient: AsyncClient, queue: FairQueue, note: Any, ann: User
) -> None:
    await aclient.aforce_login(ann)
    await aclient.get("/aenqueues-many/")
    deferred = [task.user_id for task in queue.tasks("deferred").items]
    assert (users(queue), deferred) == ([str(ann.pk)] * 3, ["cid"])


async def test_an_async_view_that_names_the_user_calls_no_function_for_it(
    aclient: AsyncClient, queue: FairQueue, note_for: Any, tenants: None
) -> None:
    await aclient.get("/achooses/", headers={"x-tenant": "77"})
    assert sorted(users(queue)) == ["bob", "bob", "cid"]
    assert CALLED == []


async def test_an_async_view_enqueues_for_the_tenant_of_the_request(
    aclient: AsyncClient, queue: FairQueue, note: Any, tenants: None
) -> None:
    await aclient.get("/aenqueues/", headers={"x-tenant": "78"})
    assert users(queue) == ["78"]
    assert CALLED == ["/aenqueues/"]


async def test_a_sync_view_under_asgi_has_a_user(aclient: AsyncClient, queue: FairQueue, note: Any, ann: User) -> None:
    await aclient.aforce_login(ann)
    await aclient.get("/enqueues/")
    assert users(queue) == [str(ann.pk)]


def test_an_async_view_under_wsgi_has_its_user(client: Client, note: Any, ann: User, fairque: Capture) -> None:
    client.force_login(ann)
    client.get("/aenqueues/")
    assert [call.user_id for call in fairque] == [str(ann.pk)]


async def test_enqueue_in_a_coroutine_raises_an_error_with_advice(aclient: AsyncClient, note: Any, ann: User) -> None:
    await aclient.aforce_login(ann)
    response = await aclient.get("/blocks/")
    assert "use `await task.aenqueue(…)`" in response.content.decode()


@pytest.mark.parametrize("user", [User(pk=9), AnonymousUser()])
async def test_tasks_belong_to_the_user_that_a_coroutine_has_set(queue: FairQueue, note: Any, user: Any) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        request.user = user
        await note.aenqueue()
        return HttpResponse()

    middleware: Callable[[HttpRequest], Any] = CurrentUserMiddleware(view)
    await middleware(RequestFactory().get("/"))
    assert users(queue) == ["9" if user.pk else "default"]
    await aclose_queues()


def test_the_middleware_wraps_sync_and_async_views_without_an_adapter() -> None:
    async def awaited(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def plain(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    assert CurrentUserMiddleware.sync_capable
    assert CurrentUserMiddleware.async_capable
    assert iscoroutinefunction(CurrentUserMiddleware(awaited))
    assert not iscoroutinefunction(CurrentUserMiddleware(plain))
    close_queues()
