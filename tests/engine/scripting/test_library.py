"""Libraries are one table each: a command sees the tables, and none of the libraries' own names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.scripts import Command, assemble

LIBRARIES = {
    "total": """local total = {}
local hidden = 0
each_call(function()
  hidden = hidden + 1
  total.calls = hidden
end)
""",
    "some": """local some = {}
local hidden = 100
each_call(function()
  hidden = hidden + 1
  some.sum = hidden + total.calls
end)
""",
}


def command(name: str, body: str, *libraries: str) -> Command:
    return Command(name, ["no-writes"], f"K['{name}'] = KEYS[1]; P = string.sub(KEYS[1], 1, 1)", body, libraries)


@pytest.fixture
def loaded(redis: Redis) -> Iterator[Redis]:
    commands = [
        command("one", "return { total.calls, some.sum, K.one }", "total", "some"),
        command("plain", "return { total.calls, P, K.one or 'none' }", "total"),
        command("alone", "return { KEYS[1], ARGV[FIRST_ARG] }"),
        command("wrong", "return hidden", "total"),
    ]
    redis.function_load(assemble("tests", commands, LIBRARIES), replace=True)
    yield redis
    redis.function_delete("tests")


def test_a_library_is_loaded_once_and_runs_at_each_call_of_its_users(loaded: Redis) -> None:
    assert loaded.fcall("one", 1, "key") == [1, 102, b"key"]
    assert loaded.fcall("plain", 1, "key") == [2, b"k", b"none"]
    assert loaded.fcall("alone", 1, "key", "now", "options", "first") == [b"key", b"first"]
    assert loaded.fcall("one", 1, "key") == [3, 105, b"key"]


def test_a_local_of_a_library_is_hidden_from_commands(loaded: Redis) -> None:
    with pytest.raises(ResponseError, match="hidden"):
        loaded.fcall("wrong", 1, "key")


def test_libraries_are_defined_behind_those_that_they_include() -> None:
    for name in scripts.names():
        libraries = scripts._files()[name][0].libraries
        for at, library in enumerate(libraries):
            assert set(scripts._words("include", scripts._read_library(library))) <= set(libraries[:at]), name


def test_each_command_reads_the_counters_and_the_time() -> None:
    """So it refuses data of another format, and notices that the server's clock was set."""
    without = [name for name in scripts.names() if "clock" not in scripts._files()[name][0].libraries]
    assert without == []
