"""Two Django middlewares: one gives tasks the user and the trace of the request that enqueues them, the other one
refuses to start while model events have mistakes.

The user is looked up when a task is enqueued. So a request that enqueues no task only sets two variables, and makes no
query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import MiddlewareNotUsed, SynchronousOnlyOperation
from django.utils.functional import LazyObject

from django_fairque.engine.model.trace_context import read
from django_fairque.tasks import registry
from django_fairque.tasks.context import UserSource, as_source_user

from .conf import get_config
from .conf.sections import import_plain_function
from .tasks.errors import TaskUsageError
from .tasks.options import user_id
from .tasks.tracing import in_trace

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

    GetResponse = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class CurrentUserMiddleware:
    """Assigns the user of a request to the tasks that the request enqueues, unless a task names another user.

    The user is the primary key of ``request.user``, or the value that the callable in ``REQUEST_USER`` returns (such as
    a tenant); None means no user. The position of the middleware in the list does not matter, as long as
    ``request.user`` exists when a task is enqueued. If a request has a valid ``traceparent`` header, its tasks belong
    to that trace.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response: Callable[[HttpRequest], Any] = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._acall(request)
        with _serve_request(request):
            response: HttpResponseBase = self._get_response(request)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        with _serve_request(request):
            response: HttpResponseBase = await self._get_response(request)
        return response


class ModelEventCheckMiddleware:
    """Prevents the start of a web process while a model event has mistakes.

    Without this middleware, an event with mistakes is switched off, and the mistakes are logged. The middleware is not
    called for requests, and its position in the list does not matter. ``runserver`` is the only command of
    ``manage.py`` that loads it.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: GetResponse) -> None:  # noqa: ARG002 - Django's signature
        registry.refuse_mistakes()
        raise MiddlewareNotUsed("no model event has mistakes")


@contextmanager
def _serve_request(request: HttpRequest) -> Iterator[None]:
    trace = read(request.META.get("HTTP_TRACEPARENT"), request.META.get("HTTP_TRACESTATE"))
    with as_source_user(RequestUser(request)), in_trace(trace):
        yield


class RequestUser(UserSource):
    """Looks up the user of a request when it is first needed."""

    def __init__(self, request: HttpRequest) -> None:
        self._request = request

    def user_id(self) -> str | None:
        try:
            return self._own if get_config().request_user else _key(getattr(self._request, "user", None))
        except SynchronousOnlyOperation as error:
            raise TaskUsageError(
                "the user of the request is not known yet, and looking it up here would block the event loop: use "
                "`await task.aenqueue(…)`, or `await acurrent_user_id()`, in coroutines"
            ) from error

    async def auser_id(self) -> str | None:
        if get_config().request_user:
            return await sync_to_async(lambda: self._own)()
        user = getattr(self._request, "user", None)
        if isinstance(user, LazyObject) and hasattr(self._request, "auser"):
            return _key(await self._request.auser())
        return await sync_to_async(_key)(user) if isinstance(user, LazyObject) else _key(user)

    @cached_property
    def _own(self) -> str | None:
        """Return the result of the project's callable. The callable is called only once, because ``request.user`` may
        change when somebody logs in.
        """
        path = str(get_config().request_user)
        value = own_callable(path)(self._request)
        return None if value is None else user_id(value, f"what {path} returns (REQUEST_USER)")


def _key(user: Any) -> str | None:
    if user is None or not user.is_authenticated:
        return None
    return user_id(user.pk, "the key of request.user")


def own_callable(path: str) -> Callable[[HttpRequest], object]:
    """Return the callable that ``REQUEST_USER`` names. Raise `ConfigurationError` if it can't be called with a request."""
    return import_plain_function(path, "REQUEST_USER", "a callable", "the request")
