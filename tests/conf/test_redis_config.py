"""The options of the connection: forms of an address, contradictions, and secrets that stay secret."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from django_fairque.conf import FairQueueConfig, RedisConfig
from django_fairque.engine.model.errors import ConfigurationError

PASSWORD = "hunter/2@#"
QUOTED = "hunter%2F2%40%23"


def error(**options: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        RedisConfig(**options)
    return str(caught.value)


def test_the_options_of_the_server_have_defaults() -> None:
    config = RedisConfig()
    assert (config.host, config.port, config.db, config.url) == ("127.0.0.1", 6379, 0, None)
    assert (config.socket_timeout, config.socket_connect_timeout, config.health_check_interval) == (15, 2, 30)
    assert (config.max_connections, config.cluster, config.ssl) == (100, False, False)


class TestUrl:
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("redis://h", {"endpoint": ("h", 6379), "db": 0, "ssl": False, "database": "h:6379 number 0"}),
            ("redis://localhost:7/3", {"endpoint": ("localhost", 7), "db": 3, "database": "127.0.0.1:7 number 3"}),
            ("redis://[::1]:7/3", {"endpoint": ("::1", 7), "hosts": ["::1"]}),
            ("rediss://h:7", {"ssl": True, "url": "rediss://h:7"}),
            ("redis://bob@h", {"username": "bob", "url": "redis://h"}),
            ("redis://h?db=4&socket_timeout=20", {"db": 4, "socket_timeout": 20.0}),
            (
                "unix:///a/b.sock?db=2",
                {"db": 2, "endpoint": None, "hosts": [], "database": "/a/b.sock number 2"},
            ),
            ("embedded://", {"is_embedded": True, "endpoint": None, "url": "embedded://"}),
            ("embedded:///a/b", {"is_embedded": True, "url": "embedded:///a/b"}),
        ],
    )
    def test_the_parts_of_a_url_become_options(self, url: str, expected: dict[str, Any]) -> None:
        config = RedisConfig(url=url)
        assert {name: getattr(config, name) for name in expected} == expected

    @pytest.mark.parametrize(
        "url",
        [f"redis://bob:{QUOTED}@h/0", f"unix:///s.sock?password={QUOTED}&username=bob", f"redis://bob:{QUOTED}@h"],
    )
    def test_credentials_in_a_url_become_options(self, url: str) -> None:
        config = RedisConfig(url=url)
        assert config.password is not None
        assert (config.username, config.password.get_secret_value()) == ("bob", PASSWORD)
        assert config.url is not None
        assert "bob" not in config.url

    def test_an_explicit_option_wins_over_the_url(self) -> None:
        config = RedisConfig(url="redis://bob:x@h/3", db=5, password=SecretStr("y"))
        assert config.password is not None
        assert (config.db, config.password.get_secret_value(), config.username) == (5, "y", "bob")

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("localhost", "expected redis://, rediss://, unix:// or embedded://, for example redis://127.0.0.1:6379/0"),
            ("", "expected redis://, rediss://"),
            ("http://h", "got 'http://h'"),
            ("redis://", "expected a host, for example redis://127.0.0.1:6379/0; got 'redis://'"),
            ("redis:///3", "expected a host"),
            ("redis://h:port", "whose host or port can't be read"),
            ("redis://h:99999", "whose host or port can't be read"),
            ("redis://[::1", "whose host or port can't be read"),
            (
                "redis://h/first",
                "expected a database number after the host, for example redis://h/0; got 'redis://h/first'",
            ),
            ("unix://", "expected, with three slashes, unix:///absolute/path/of/the.sock"),
            ("unix://tmp/s.sock", "expected, with three slashes, unix:///absolute/path"),
            ("embedded://dir", "expected embedded:// or, with three slashes, embedded:///absolute/directory"),
            ("embedded:///", "expected embedded:// or, with three slashes"),
            ("embedded://?db=1", "expected embedded:// or, with three slashes"),
            ("redis://h?socket_timeot=1", "unknown option 'socket_timeot' in the URL; did you mean socket_timeout?"),
            ("redis://h?host=i", "unknown option 'host' in the URL"),
        ],
    )
    def test_mistakes_in_a_url_are_reported_in_one_line(self, url: str, expected: str) -> None:
        message = error(url=url)
        assert message.startswith("RedisConfig.url: ")
        assert expected in message
        assert "\n" not in message

    def test_a_wrong_option_in_a_url_is_named(self) -> None:
        assert "RedisConfig.socket_timeout: expected a number of seconds greater" in error(
            url="redis://h?socket_timeout=x"
        )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"port": 0}, "port: expected a whole number from 1 to 65535; got 0"),
        ({"port": 65536}, "port: expected a whole number from 1 to 65535; got 65536"),
        ({"db": -1}, "db: expected a whole number from 0"),
        ({"host": "redis://h"}, "host: expected a host's name or address; got 'redis://h'"),
        ({"socket_timeout": None}, "socket_timeout: expected a number of seconds greater than 0"),
        ({"socket_timeout": 0}, "socket_timeout: expected a number of seconds greater than 0"),
        ({"max_connections": 0}, "max_connections: expected a whole number from 1 to 10000; got 0"),
        ({"ssl_cert_reqs": "maybe"}, 'ssl_cert_reqs: expected "required", "optional" or "none"; got \'maybe\''),
        ({"cluster": "x"}, "cluster: expected true or false; got 'x'"),
        ({"pasword": "x"}, "pasword: unknown key; did you mean password?"),
        ({"sentinel": 3}, "sentinel: expected a mapping with nodes and service; got 3"),
        ({"sentinel": {"service": "s"}}, "sentinel.nodes: expected a list of sentinels"),
        ({"sentinel": {"service": "s", "nodes": []}}, "sentinel.nodes: expected a list of sentinels"),
        ({"sentinel": {"service": "s", "nodes": ["h:x"]}}, 'sentinel.nodes.0.1: expected a sentinel, "host:port"'),
        ({"sentinel": {"nodes": ["h"], "servce": "s"}}, "sentinel.servce: unknown key; did you mean service?"),
        # Settings that contradict each other
        ({"url": "redis://h", "host": "i"}, "host: expected one way to name the server; got url and host"),
        (
            {"cache": "a", "host": "h"},
            "cache: expected one way to name the server; got host and cache",
        ),
        ({"url": "redis://h", "port": 1}, "port: expected only together with host; got it with url"),
        ({"url": "rediss://h", "ssl": False}, "ssl: expected true, because the URL begins with rediss://; got False"),
        ({"ssl_ca_certs": "/ca"}, "ssl_ca_certs: expected only with ssl (or a rediss:// URL); got it without"),
        ({"url": "embedded://", "password": "x"}, "password: expected nothing here with embedded://"),
        ({"url": "embedded://", "cluster": True}, "cluster: expected nothing here with embedded://"),
        ({"cluster": True, "db": 1}, "db: expected 0, the only database of a cluster; got 1"),
        ({"cluster": True, "url": "unix:///s"}, "cluster: expected url (redis://, rediss://) or host together with it"),
    ],
)
def test_mistakes_in_the_options_of_the_server_are_reported(options: dict[str, Any], expected: str) -> None:
    assert f"RedisConfig.{expected}" in error(**options)


def test_a_certificate_file_may_be_given_as_a_path_object() -> None:
    assert RedisConfig.model_validate({"ssl": True, "ssl_ca_certs": Path("/ca")}).ssl_ca_certs == "/ca"


@pytest.mark.parametrize("nodes", ["a:1, [::1]:2, c", ["a:1", ["::1", 2], "c"], [("a", "1"), ("::1", 2), ("c", 26379)]])
def test_sentinels_may_be_written_in_several_ways(nodes: Any) -> None:
    config = RedisConfig.model_validate({"sentinel": {"service": "main", "nodes": nodes}, "db": 2})
    assert config.sentinel is not None
    assert config.sentinel.nodes == [("a", 1), ("::1", 2), ("c", 26379)]
    assert config.hosts == ["a", "::1", "c"]
    assert config.address == "main (of the sentinels a:1, ::1:2, c:26379)"


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({}, "127.0.0.1:6379"),
        ({"host": "h", "port": 7}, "h:7"),
        ({"url": f"redis://bob:{QUOTED}@h:7/1"}, "redis://h:7/1"),
        ({"url": "unix:///s"}, "unix:///s"),
        ({"cache": "queues"}, "cache queues"),
    ],
)
def test_the_address_of_the_server_is_shown_as_text(options: dict[str, Any], address: str) -> None:
    assert RedisConfig(**options).address == address


class TestSecrets:
    """Nothing that is printed, logged or raised shows a password."""

    GOOD: tuple[dict[str, Any], ...] = (
        {"password": PASSWORD},
        {"url": f"redis://bob:{QUOTED}@h/0"},
        {"url": f"unix:///s?password={QUOTED}"},
        {"sentinel": {"nodes": ["h"], "service": "s", "password": PASSWORD}},
    )
    BAD: tuple[dict[str, Any], ...] = (
        {"password": [PASSWORD]},
        {"password": PASSWORD, "port": "x"},
        {"pasword": PASSWORD},
        {"url": f"redis://bob:{QUOTED}@h:port"},
        {"url": f"redis://bob:{PASSWORD}@h/x"},
        {"url": f"http://bob:{QUOTED}@h"},
        {"url": f"redis://bob:{QUOTED}@h?x=1"},
        {"url": f"unix://s?password={QUOTED}"},
        {"host": f"redis://bob:{QUOTED}@h"},
        {"url": f"redis://bob:{QUOTED}@h", "host": "i"},
        {"sentinel": {"nodes": ["h"], "service": "s", "password": [PASSWORD]}},
        {"sentinel": {"nodes": ["h"], "service": "s", "pasword": PASSWORD}},
    )

    @pytest.mark.parametrize("options", GOOD)
    def test_passwords_are_not_in_texts_of_the_configuration(
        self, options: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        config = FairQueueConfig(redis=RedisConfig(**options))
        logging.getLogger("test").warning("%s %r", config, config.redis)
        shown = [repr(config), str(config), config.model_dump_json(), str(config.model_dump()), caplog.text]
        assert "hunter" not in "".join([*shown, config.redis.address, config.redis.database])

    @pytest.mark.parametrize("options", BAD)
    def test_passwords_are_not_in_errors_of_the_configuration(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError) as caught:
            RedisConfig(**options)
        # Everything that an error tracker might print, except the frames' local variables.
        assert "hunter" not in "".join(traceback.format_exception(caught.value))
        assert "hunter" not in repr((caught.value.args, caught.value.__context__, caught.value.__cause__))
