"""Whether the user who enqueues in a request can be found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils.module_loading import import_string

from .messages import configured, error, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.core.checks import CheckMessage


def check_attribution(**_: Any) -> list[CheckMessage]:
    """Check ``REQUEST_USER`` and the middleware that calls it. Returns the messages."""
    config = configured()
    if config is None:
        return []
    return [*_request_user(config.request_user), *_middleware(config.request_user)]


def _request_user(path: str | None) -> Iterator[CheckMessage]:
    from django_fairque.engine.model.errors import ConfigurationError
    from django_fairque.middleware import own_callable

    try:
        if path:
            own_callable(path)
    except ConfigurationError as mistake:
        yield error(
            "fairque.E030",
            str(mistake),
            "It is called with the request and returns a user's id, or None for nobody.",
        )


def _middleware(path: str | None) -> Iterator[CheckMessage]:
    installed = set().union(*map(_names_of, settings.MIDDLEWARE))
    has_ours = "django_fairque.middleware.CurrentUserMiddleware" in installed
    if path and not has_ours:
        yield warning(
            "fairque.W030",
            f"REQUEST_USER names {path!r}, and nobody calls it",
            "Add django_fairque.middleware.CurrentUserMiddleware to MIDDLEWARE.",
        )
    elif has_ours and not path and "django.contrib.auth.middleware.AuthenticationMiddleware" not in installed:
        yield warning(
            "fairque.W031",
            "CurrentUserMiddleware finds no user: no AuthenticationMiddleware sets request.user",
            "Add it, or name a callable as REQUEST_USER. Silence this number if something else sets request.user.",
        )


def _names_of(path: str) -> set[str]:
    """The dotted path of a middleware, and of the classes that it derives from."""
    try:
        bases = getattr(import_string(path), "__mro__", ())
    except ImportError:  # Django says so when the first request comes
        bases = ()
    return {path, *(f"{base.__module__}.{base.__qualname__}" for base in bases)}
