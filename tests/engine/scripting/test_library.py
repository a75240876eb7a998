"""Commands as one library: each sees what it includes, and nothing of the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from django_fairque.engine.scripting.scripts import Command, assemble

INCLUDES = {
    "all": "local calls = 0\neach_call(function() calls = calls + 1 end)",
    "some": "local here = 0\neach_call(function() here = here + 1 end)",
    "others": "local here = 100\neach_call(function() here = here + 1 end)",
}


def command(name: str, body: str, *includes: str) -> Command:
    return Command(name, ["no-writes"], f"K['{name}'] = KEYS[1]; P = string.sub(KEYS[1], 1, 1)", body, includes)


@pytest.fixture
def loaded(redis: Redis) -> Iterator[Redis]:
    commands = [
        command("one", "return { calls, here, K.one }", "all", "some"),
        command("two", "return { calls, here, K.two }", "all", "others"),
        command("plain", "return { calls, P, K.one or 'none' }", "all"),
        command("late", "return { calls, here }", "all", "some"),
        command("alone", "return KEYS"),
        command("wrong", "return here", "all"),
    ]
    redis.function_load(assemble("tests", commands, INCLUDES), replace=True)
    yield redis
    redis.function_delete("tests")


def test_an_included_lua_file_is_loaded_once_and_run_only_for_its_users(loaded: Redis) -> None:
    def call(name: str) -> object:
        return loaded.fcall(name, 1, "key")

    assert call("one") == [1, 1, b"key"]
    assert call("two") == [2, 101, b"key"]
    assert call("late") == [3, 2]
    assert call("plain") == [4, b"k", b"none"]
    assert call("alone") == [b"key"]
    assert call("one") == [5, 3, b"key"]


def test_a_local_function_of_a_lua_file_is_hidden_from_others(loaded: Redis) -> None:
    with pytest.raises(ResponseError, match="here"):
        loaded.fcall("wrong", 1, "key")
