"""A database that the queues share with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .conftest import ids

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.servers import Server

    from .conftest import Check

DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"
MIDDLEWARE = "django.middleware.cache.UpdateCacheMiddleware"

both = pytest.mark.parametrize("backend", [DJANGO, DJANGO_REDIS])


@both
@pytest.mark.parametrize(
    ("redis", "location", "found"),
    [
        ({"URL": "redis://localhost/1"}, "redis://127.0.0.1:6379/1", ["W002"]),
        ({"HOST": "h", "PORT": 7, "DB": 1}, "redis://:p@h:7/1", ["W002"]),
        ({"URL": "unix:///s.sock"}, "unix:///s.sock", ["W002"]),
        ({"URL": "unix:///s.sock?db=1"}, "unix:///s.sock?db=1", ["W002"]),
        ({"CACHE": "default"}, "redis://h", ["W002"]),
        ({"CACHE": "default", "DB": 5}, "redis://h", []),
        ({"URL": "redis://h/1"}, "redis://h/2", []),
        ({"URL": "redis://h/1"}, "redis://i/1", []),
        ({"URL": "embedded://"}, "redis://i/1", []),
    ],
)
def test_a_cache_in_the_database_of_the_queues_is_found(
    check: Check, settings: Settings, backend: str, redis: Any, location: str, found: list[str]
) -> None:
    settings.CACHES = {
        "default": {"BACKEND": backend, "LOCATION": location, "KEY_PREFIX": "mine"},
        "other": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    }
    assert ids(check({"REDIS": redis})) == found


@both
@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"SESSION_CACHE_ALIAS": "queues"}, []),  # the sessions are in the database
        ({"SESSION_CACHE_ALIAS": "queues", "SESSION_ENGINE": "django.contrib.sessions.backends.cached_db"}, ["W002"]),
        ({"CACHE_MIDDLEWARE_ALIAS": "queues"}, []),
        ({"CACHE_MIDDLEWARE_ALIAS": "queues", "MIDDLEWARE": [MIDDLEWARE]}, ["W002"]),
    ],
)
def test_a_cache_alias_for_the_queues_is_no_conflict_unless_django_stores_in_it(
    check: Check, settings: Settings, backend: str, changes: dict[str, Any], found: list[str]
) -> None:
    settings.CACHES = {
        "default": {"BACKEND": backend, "LOCATION": "redis://h/0"},
        "queues": {"BACKEND": backend, "LOCATION": "redis://h/1"},
    }
    for name, value in changes.items():
        setattr(settings, name, value)
    assert ids(check({"REDIS": {"CACHE": "queues"}})) == found


def test_two_cache_aliases_with_the_database_of_the_queues_are_found(check: Check, settings: Settings) -> None:
    settings.CACHES = {name: {"BACKEND": DJANGO, "LOCATION": "redis://h/1"} for name in ("queues", "pages")}
    (message,) = check({"REDIS": {"CACHE": "queues"}})
    assert message.msg == "the queues share the database h:6379 number 1 with the cache 'pages'"


@both
@pytest.mark.parametrize(("db", "found"), [(0, ["W002"]), (1, ["W053"])])
def test_a_server_with_two_addresses_is_recognized_as_one_server(
    check: Check, settings: Settings, fit: Server, backend: str, db: int, found: list[str]
) -> None:
    link = fit.directory / "other.sock"
    link.symlink_to(fit.socket)
    settings.CACHES = {"default": {"BACKEND": backend, "LOCATION": f"unix://{link}?db={db}"}}
    configuration = {"REDIS": {"URL": fit.url}}
    assert check(configuration) == []
    assert ids(check(configuration, deploy=True)) == found


def test_a_cache_in_another_database_of_the_server_is_a_warning(check: Check, settings: Settings, fit: Server) -> None:
    settings.CACHES = {"pages": {"BACKEND": DJANGO, "LOCATION": f"unix://{fit.socket}?db=3"}}
    configuration = {"REDIS": {"URL": fit.url}}
    assert check(configuration) == []
    (message,) = check(configuration, deploy=True)
    assert ids([message]) == ["W053"]
    assert message.msg.startswith(
        "the cache 'pages' is on the queues' server, in its database 3: both fill the same memory"
    )


def test_a_cache_that_is_down_is_not_reported(check: Check, settings: Settings, fit: Server) -> None:
    settings.CACHES = {"default": {"BACKEND": DJANGO, "LOCATION": "unix:///nonexistent/s.sock"}}
    assert check({"REDIS": {"URL": fit.url}}, deploy=True) == []
