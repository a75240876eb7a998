"""Failing at any ``redis.call`` of any script, without a hook in the product.

The loader's text of a script is taken, each of its calls numbered, and a few lines put before it that count the calls and
raise at the one that is asked for, or at a key that is not of the shard. What runs otherwise is the script, word for word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from redis import ResponseError

from django_fairque.engine.scripting import scripts

if TYPE_CHECKING:
    from redis import Redis

LUA = files("django_fairque.engine") / "lua"
CALL = "redis.call("

# The number of the call that is to fail comes as one key more, behind the script's own: arguments are counted by scripts.
_BEFORE = """
local call_at, report
do
  local fail_at, made, seen = tonumber(KEYS[#KEYS]), 0, {}
  local prefix, many = string.match(KEYS[1], '^.-}:'), { EXISTS = 1, DEL = 1, MGET = 1, MSET = 2 }
  local function look_at_keys(command, ...)
    if command == 'TIME' or command == 'INFO' then return end
    for i = 1, many[command] and select('#', ...) or 1, many[command] or 1 do
      local key = select(i, ...)
      if string.sub(key, 1, #prefix) ~= prefix then error('foreign key ' .. key) end
    end
  end
  call_at = function(site, ...)
    made = made + 1
    if made == fail_at then error('injected at site ' .. site) end
    seen[made] = site
    look_at_keys(...)
    return redis.call(...)
  end
  report = function(reply) return { reply, seen } end
end
"""


class Injected(Exception):  # noqa: N818 - nothing is wrong: it was asked for
    """A script was ended at the call that was asked for."""


@dataclass(frozen=True)
class Numbered:
    """One command's script with its calls numbered, and where each stands: ``lib/clock.lua:41``; ``…:41#2`` the second."""

    name: str
    source: str
    places: tuple[str, ...]


@cache
def numbered(name: str) -> Numbered:
    script = scripts.load(name)
    shebang, text = script.source.split("\n", 1)
    places: list[str] = []

    def number(found: re.Match[str]) -> str:
        places.append(_place(name, text, found.start()))
        return f"call_at({len(places)}, "

    body = re.sub(re.escape(CALL), number, text)
    assert body.endswith("return main()\n")
    body = body.removesuffix("return main()\n") + "return report(main())\n"
    return Numbered(name, shebang + _BEFORE + body, tuple(places))


def _place(name: str, text: str, at: int) -> str:
    """Where in the folder the call at this character of an assembled script stands."""
    before = text.count(CALL, text.rfind("\n", 0, at) + 1, at)
    return _line(name, text, at) + (f"#{before + 1}" if before else "")


def _line(name: str, text: str, at: int) -> str:
    for file, start, end in _libraries(text):
        if start <= at < end:
            return f"{file}:{text.count(chr(10), start, at) + 1}"
    body = (LUA / "commands" / f"{name}.lua").read_text().split("\n", 1)[1].rstrip("\n")
    return f"commands/{name}.lua:{body.count(chr(10), 0, at - text.find(body)) + 2}"


@cache
def _libraries(text: str) -> list[tuple[str, int, int]]:
    """Return the file of each library inside this script, and where its text begins and ends there."""
    sources = [(f"lib/{entry.name}", entry.read_text()) for entry in sorted((LUA / "lib").iterdir(), key=str)]
    found = [(file, text.find(source), len(source)) for file, source in sources]
    return [(file, start, start + length) for file, start, length in found if start >= 0]


def all_places() -> set[str]:
    """Every call that is written anywhere in the folder."""
    return {place for name in scripts.names() for place in numbered(name).places}


def line_of(place: str) -> str:
    """The text of the line of such a place."""
    file, line = place.split("#", maxsplit=1)[0].rsplit(":", 1)
    return (LUA / file).read_text().splitlines()[int(line) - 1]


class FailingClient:
    """A client whose script calls fail at the call number `fail_at` (0: never), counted over all of an operation."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.fail_at = 0
        self.seen: list[tuple[str, str]] = []
        """Command and place of each call that was made, in order."""
        self.calls = 0
        """Script calls that were made or tried."""
        self.failed: tuple[Any, ...] = ()
        self._names = {scripts.load(name).function: name for name in scripts.names()}
        self._shas = {name: redis.script_load(numbered(name).source) for name in scripts.names()}

    def begin(self, fail_at: int = 0) -> None:
        self.fail_at, self.seen, self.calls = fail_at, [], 0

    def repeat(self) -> Any:
        """Send the script call that failed again as it was."""
        return self.execute_command(*self.failed)

    def execute_command(self, *args: Any, **options: Any) -> Any:
        if args[0] != "FCALL":
            return self.redis.execute_command(*args, **options)
        self.calls += 1
        name, size = self._names[args[1]], args[2]
        left = max(0, self.fail_at - len(self.seen))
        keys, rest = args[3 : 3 + size], args[3 + size :]
        try:
            reply, seen = self.redis.execute_command("EVALSHA", self._shas[name], size + 1, *keys, left, *rest)
        except ResponseError as error:
            if "foreign key" in str(error):
                raise AssertionError(f"{name} touches a key outside of its shard: {error}") from error
            self.fail_at, self.failed = 0, args  # the call fails only once
            raise
        self.seen += [(name, numbered(name).places[site - 1]) for site in seen]
        return reply

    def pipeline(self, transaction: bool = True) -> Any:
        return self.redis.pipeline(transaction)

    def script_load(self, script: str) -> Any:
        return self.redis.script_load(script)

    def function_load(self, code: str, replace: bool | None = False) -> Any:
        return self.redis.function_load(code, replace)
