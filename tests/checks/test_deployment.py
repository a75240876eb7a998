"""Checks of the settings for production. No server listens at these addresses, which the checks report as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .conftest import ids

if TYPE_CHECKING:
    from pytest_django import Settings

    from .conftest import Check

DJANGO = "django.core.cache.backends.redis.RedisCache"
AWAY = "0.0.0.0:1"  # not a loopback address, and refuses at once


@pytest.mark.parametrize(
    ("redis", "found"),
    [
        ({"URL": f"redis://{AWAY}"}, ["E008", "W006"]),
        ({"SENTINEL": {"SERVICE": "m", "NODES": [AWAY]}}, ["E008", "W006"]),
        ({"URL": f"redis://{AWAY}", "CLUSTER": True}, ["E008", "W006"]),
        ({"URL": f"rediss://{AWAY}"}, ["W006"]),
        ({"URL": f"rediss://{AWAY}", "SSL_CERT_REQS": "none"}, ["E009", "W006"]),
        ({"URL": f"rediss://{AWAY}?ssl_check_hostname=false"}, ["E009", "W006"]),
        ({"URL": "redis://[::1]:1"}, ["W006"]),
        ({"URL": "redis://127.0.0.2:1"}, ["W006"]),
        ({"URL": "unix:///nonexistent/s"}, ["W006"]),
        ({"PORT": "x"}, ["E002"]),
    ],
)
def test_a_connection_without_encryption_is_reported(check: Check, redis: Any, found: list[str]) -> None:
    assert ids(check({"REDIS": redis}, deploy=True)) == found


@pytest.mark.parametrize(("mode", "found"), [("on", []), ("verify-only", ["W050"]), ("off", ["W050"])])
def test_the_deployment_check_warns_if_tasks_are_not_signed(
    check: Check, tmp_path: Any, settings: Settings, mode: str, found: list[str]
) -> None:
    settings.DEBUG = True
    redis = {"URL": f"embedded://{tmp_path}/server"}
    assert ids(check({"REDIS": redis, "SIGNING": mode}, deploy=True)) == [*found, "W052"]
    assert check({"REDIS": redis, "SIGNING": mode}) == []


def test_checks_of_a_server_run_only_with_the_deploy_option(check: Check) -> None:
    assert check({"REDIS": {"URL": f"redis://{AWAY}"}}) == []
    assert check({"REDIS": {"URL": "embedded://"}}) == []


def test_the_deployment_check_examines_the_server_of_a_cache_alias(check: Check, settings: Settings) -> None:
    settings.CACHES = {"queues": {"BACKEND": DJANGO, "LOCATION": f"redis://{AWAY}"}}
    assert ids(check({"REDIS": {"CACHE": "queues"}}, deploy=True)) == ["E008", "W006"]


@pytest.mark.parametrize(("debug", "found"), [(False, ["W009"]), (True, ["W052"])])
def test_the_embedded_server_is_for_development(
    check: Check, settings: Settings, tmp_path: Any, debug: bool, found: list[str]
) -> None:
    settings.DEBUG = debug
    assert ids(check({"REDIS": {"URL": f"embedded://{tmp_path}/server"}}, deploy=True)) == found
    assert not (tmp_path / "server").exists()  # the check neither starts nor queries the server


@pytest.mark.parametrize(
    ("database", "worker", "found"),
    [
        ({}, {}, []),
        ({"CONN_MAX_AGE": 60}, {}, ["W011"]),
        ({"CONN_MAX_AGE": None}, {}, ["W011"]),
        ({"OPTIONS": {"pool": True}}, {}, ["W011"]),
        ({"CONN_MAX_AGE": 60}, {"CLOSE_DATABASE_CONNECTIONS": True}, []),
        ({"CONN_MAX_AGE": 60, "ENGINE": "django.db.backends.sqlite3"}, {}, []),
    ],
)
def test_connections_that_keep_session_variables_are_a_warning(
    check: Check,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
    database: Any,
    worker: Any,
    found: list[str],
) -> None:
    settings.DEBUG = True
    monkeypatch.setitem(settings.DATABASES, "shop", {"ENGINE": "django.db.backends.postgresql", **database})
    configuration = {"REDIS": {"URL": f"embedded://{tmp_path}/server"}, "WORKER": worker}
    assert ids(check(configuration, deploy=True)) == [*found, "W052"]
    assert check(configuration) == []
