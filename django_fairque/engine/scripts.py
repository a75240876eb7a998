"""The Lua commands: read once from ``lua/``, their contract from their header, their includes put in.

A command's file starts with ``#!lua`` and a comment that is its contract. Two of its lines are read here::

    -- KEYS    base reply          the declared keys, in order (`keys.BASE` for ``base``)
    -- include base user task      files of lua/lib/ to put before the body, in this order

Each is made into two sources of the same text: a *function*, which the server loads once and keeps, replicates and persists
(making some hundred closures anew took half the time of a call), and a *script* for servers or users where functions
are not to be had. What belongs to one call stands in ``each_call(function() ... end)``: run before the body, in order.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from .keys import BASE

_ROOT = files(__package__) / "lua"
_LINE = {word: re.compile(rf"^-- {word} +(.+)$", re.MULTILINE) for word in ("KEYS", "include")}

_AS_FUNCTION = """#!lua name={name}
local KEYS, ARGV, P
local K, inits = {{}}, {{}}
local function each_call(init) inits[#inits + 1] = init end
each_call(function()
  {table}
  P = string.sub(KEYS[1], 1, -{cut})
end)
{libraries}
local function main()
{body}
end
redis.register_function{{
  function_name = '{name}',
  callback = function(keys, args)
    KEYS, ARGV = keys, args
    for i = 1, #inits do inits[i]() end
    return main()
  end,
  flags = {{ {flags} }},
}}
"""

_AS_SCRIPT = """{shebang}
local K = {{}}
{table}
local P = string.sub(KEYS[1], 1, -{cut})
local function each_call(init) init() end
{libraries}
local function main()
{body}
end
return main()
"""


@dataclass(frozen=True)
class Script:
    """One command: its source as a script with its SHA-1, as a function with its name, and the names of its declared keys."""

    name: str
    source: str
    sha: str
    library: str
    function: str
    keys: tuple[str, ...]


def names() -> list[str]:
    """The names of all commands."""
    return sorted(entry.name[:-4] for entry in _ROOT.iterdir() if entry.name.endswith(".lua"))


@cache
def load(name: str) -> Script:
    """The command of that name, assembled."""
    text = (_ROOT / f"{name}.lua").read_text(encoding="utf-8")
    shebang, body = text.split("\n", 1)
    keys = tuple(key for word in _words("KEYS", text) for key in (BASE if word == "base" else (word,)))
    libraries = ((_ROOT / "lib" / f"{include}.lua").read_text(encoding="utf-8") for include in _words("include", text))
    parts = {
        "table": "; ".join(f"K[{key!r}] = KEYS[{index}]" for index, key in enumerate(keys, 1)),
        "cut": str(len(keys[0]) + 1),
        "libraries": "\n".join(libraries),
        "body": body.rstrip("\n"),
    }
    source = _AS_SCRIPT.format(shebang=shebang, **parts)
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    # Named by its content: versions that run side by side don't take each other's place.
    function = f"fairque_{name}_{sha[:16]}"
    flags = ", ".join(repr(flag) for flag in shebang.partition("flags=")[2].split(",") if flag)
    return Script(name, source, sha, _AS_FUNCTION.format(name=function, flags=flags, **parts), function, keys)


def _words(kind: str, text: str) -> list[str]:
    found = _LINE[kind].search(text)
    return found.group(1).split() if found else []
