"""Tests of the pages and commands with several servers, also while one of them is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_fairque.conf import get_queue
from django_fairque.monitoring.prometheus import exposition
from tests.engine.conftest import task
from tests.engine.sharding.sharded import SHARDS
from tests.servers import Server

if TYPE_CHECKING:
    from pytest_django import Settings  # the oldest supported version does not export it

PAGES = ("overview", "queues", "tasks", "users", "organizations", "dead_letters", "schedules", "workers")
VICTIM = 2


@pytest.fixture(autouse=True)
def filled(settings: Settings, urls: list[str]) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": urls}, "QUEUE": {"REQUEST_TIMEOUT": 0.3}}
    get_queue().push_batch([task(f"user-{number}") for number in range(20)])


@pytest.mark.django_db
def test_the_admin_shows_a_server_of_the_list_that_is_down(admin_client: Any, servers: list[Server]) -> None:
    page = admin_client.get(reverse("admin:django_fairque_queues")).content.decode()
    for server in servers:
        assert server.socket in page
    servers[VICTIM].kill()
    for name in PAGES:
        page = admin_client.get(reverse(f"admin:django_fairque_{name}")).content.decode()
        assert f"can't be reached for now: {VICTIM}." in page, name
        assert "Nothing can be shown" not in page, name


def test_commands_and_metrics_show_a_server_of_the_list_that_is_down(servers: list[Server], capsys: Any) -> None:
    call_command("fairque_stats")
    shown = capsys.readouterr().out
    assert all(server.socket in shown for server in servers)
    servers[VICTIM].kill()
    call_command("fairque_stats")
    assert f"shard {VICTIM} can't be reached" in capsys.readouterr().out
    lines = exposition("")[0].decode().splitlines()
    for shard in range(SHARDS):
        up = "0.0" if shard == VICTIM else "1.0"
        assert f'fairque_shard_up{{queue="default",shard="{shard}"}} {up}' in lines


def test_the_system_check_names_the_server(servers: list[Server], settings: Settings) -> None:
    from django_fairque.checks.server import check_caches, check_server

    with servers[VICTIM].client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            evicting = [
                message
                for message in check_server()
                if servers[VICTIM].socket in message.msg and "evict" in message.msg
            ]
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "0")
    assert [message.msg.count("(node ") for message in evicting] == [1]
    location = servers[VICTIM].url
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": location}}
    (found,) = check_caches()
    assert found.id == "fairque.W002"
    assert servers[VICTIM].socket in found.msg
