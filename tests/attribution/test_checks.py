"""What `manage.py check` says of settings that would find no user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.core.checks import run_checks

from django_fairque.checks import check_attribution
from django_fairque.middleware import CurrentUserMiddleware

from .conftest import MIDDLEWARE

if TYPE_CHECKING:
    from pytest_django import Settings

AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


class Ours(CurrentUserMiddleware):
    """A project may derive its own middleware."""


@pytest.mark.parametrize(
    ("middleware", "path", "found"),
    [
        ([], None, []),
        ([MIDDLEWARE, AUTHENTICATION], None, []),
        ([f"{__name__}.Ours", AUTHENTICATION], "builtins.str", []),
        ([MIDDLEWARE], "builtins.str", []),
        ([AUTHENTICATION], "builtins.str", ["fairque.W030"]),
        ([f"{__name__}.Ours"], None, ["fairque.W031"]),
        ([MIDDLEWARE, "no.such.Middleware"], None, ["fairque.W031"]),
        ([MIDDLEWARE], "no.such.function", ["fairque.E030"]),
        ([MIDDLEWARE], "builtins.__name__", ["fairque.E030"]),
    ],
)
def test_the_check_finds_middleware_that_can_not_set_the_user(
    settings: Settings, middleware: list[str], path: str | None, found: list[str]
) -> None:
    settings.MIDDLEWARE = middleware
    settings.FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:1"}, "REQUEST_USER": path}
    messages = check_attribution()
    assert [message.id for message in messages] == found
    assert all(message.hint for message in messages)


def test_the_check_of_the_middleware_belongs_to_the_checks_of_the_app(settings: Settings) -> None:
    settings.MIDDLEWARE = [MIDDLEWARE]
    assert "fairque.W031" in [message.id for message in run_checks(tags=["fairque"])]


def test_the_check_of_the_middleware_ignores_mistakes_in_other_settings(settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"PORT": "x"}}
    assert check_attribution() == []
