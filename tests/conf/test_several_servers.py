"""``URL`` may name several servers: in a list, in a text, and with one number for embedded ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import RedisConfig
from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pytest_django import Settings

    from .conftest import Configure

TWO = ["redis://ann:secret@one:6380/3", "redis://ann:secret@two/3"]


@pytest.mark.parametrize("given", [TWO, tuple(TWO), " ".join(TWO), ",".join(TWO), f"\n  {TWO[0]}\n  {TWO[1]}\n"])
def test_several_servers_may_be_a_list_or_one_text(given: Any, configure: Configure) -> None:
    redis = configure({"REDIS": {"URL": given}}).redis
    assert redis.url == "redis://one:6380/3 redis://two/3"
    assert redis.number_of_servers == 2
    assert redis.hosts == ["one", "two"]
    assert [each.endpoint for each in redis.servers] == [("one", 6380), ("two", 6379)]
    for each in (redis, *redis.servers):
        assert each.password is not None
        assert (each.username, each.password.get_secret_value(), each.db) == ("ann", "secret", 3)


def test_several_servers_can_be_named_in_the_environment(configure: Configure) -> None:
    config = configure({}, FAIRQUE_REDIS__URL=" ".join(TWO))
    assert [each.endpoint for each in config.redis.servers] == [("one", 6380), ("two", 6379)]
    assert config.queue_config().shards == 2


def test_each_queue_has_a_shard_on_each_server_or_on_the_first_ones(configure: Configure) -> None:
    config = configure({"REDIS": {"URL": [*TWO, TWO[0].replace("one", "three")]}, "QUEUES": {"small": {"SHARDS": 1}}})
    assert (config.queue_config().shards, config.queue_config("small").shards) == (3, 1)
    message = configure.error({"REDIS": {"URL": TWO}, "QUEUE": {"SHARDS": 3}})
    assert "expected at most 2, because REDIS.URL names 2 servers and each has one shard of a queue; got 3" in message


def test_a_list_of_one_server_has_one_shard(configure: Configure) -> None:
    config = configure({"REDIS": {"URL": [TWO[0]]}})
    assert (config.redis.number_of_servers, config.queue_config().shards) == (1, 1)
    assert configure({"REDIS": {"URL": TWO[0]}, "QUEUE": {"SHARDS": 12}}).queue_config().shards == 12


def test_embedded_servers_have_directories_in_the_project(settings: Settings) -> None:
    settings.BASE_DIR = Path("/project")
    redis = RedisConfig(url="embedded://?servers=3")
    assert [each.url for each in redis.servers] == [f"embedded:///project/.fairque{end}" for end in ("", "-1", "-2")]
    assert (redis.is_embedded, redis.hosts, redis.number_of_servers) == (True, [], 3)
    assert [each.url for each in RedisConfig(url="embedded:///a%25b?servers=1").servers] == ["embedded:///a%25b"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (["redis://a", "unix:///b"], "expected URLs with the same scheme, user, password, database and options"),
        (
            ["redis://x:p@a", "redis://x:q@b"],
            "expected URLs with the same scheme, user, password, database and options",
        ),
        (["redis://a/1", "redis://b/2"], "expected URLs with the same scheme, user, password, database and options"),
        (["redis://a", "redis://b", "redis://a"], "expected each server once, because each has one shard"),
        (["redis://a", "redis://b/x"], "expected a database number after the host"),
        ([f"redis://h{number}" for number in range(257)], "expected at most 256 servers; got 257"),
        ("embedded://?servers=0", "?servers=N for N from 1 to 256"),
        ("embedded://?servers=257", "?servers=N for N from 1 to 256"),
        ("embedded://?servers=many", "?servers=N for N from 1 to 256"),
        ([1, 2], "expected a text"),
    ],
)
def test_mistakes_in_a_url_of_several_servers_are_reported(url: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RedisConfig(url=url)
    assert expected in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_cluster_is_named_by_one_node() -> None:
    with pytest.raises(ConfigurationError, match="expected one URL together with it"):
        RedisConfig.model_validate({"url": ["redis://a", "redis://b"], "cluster": True})
