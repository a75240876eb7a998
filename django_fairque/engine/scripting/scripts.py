"""The Lua commands: read once from ``lua/commands/``, their contract from their header, their includes put in.

A command's file starts with ``#!lua`` and a comment that is its contract. Two of its lines are read here::

    -- KEYS    base reply          the declared keys, in order (`keys.BASE` for ``base``)
    -- include base user task      files of lua/lib/ to put before the body, in this order

Each comes in two forms of the same text: a *function* of the library (`library`), which the server loads once and keeps,
replicates and persists (making some hundred closures anew took half the time of a call), and a *script* for servers or users
where functions are not to be had. What belongs to one call stands in ``each_call(function() ... end)``: run before the body, in
order.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from django_fairque.engine.scripting.keys import BASE
from django_fairque.engine.scripting.library import Command, assemble

_ROOT = files("django_fairque.engine") / "lua"
_LINE = {word: re.compile(rf"^-- {word} +(.+)$", re.MULTILINE) for word in ("KEYS", "include")}

_AS_SCRIPT = """{shebang}
local K = {{}}
{read_keys}
local function each_call(init) init() end
{libraries}
local function main()
{body}
end
return main()
"""


@dataclass(frozen=True)
class Script:
    """One command: its source as a script with its SHA-1, its name as a function, and the names of its declared keys."""

    name: str
    source: str
    sha: str
    function: str
    keys: tuple[str, ...]


def names() -> list[str]:
    """The names of all commands."""
    return sorted(entry.name[:-4] for entry in (_ROOT / "commands").iterdir() if entry.name.endswith(".lua"))


@cache
def load(name: str) -> Script:
    """The command of that name, assembled."""
    file = _files()[name]
    return Script(name, file.source, _digest(file.source), f"fairque_{name}_{_version()}", file.keys)


@cache
def functions() -> str:
    """The library of all commands, as ``FUNCTION LOAD`` takes it."""
    files = _files().values()
    includes = {name: _lib(name) for file in files for name in file.includes}
    commands = [file.as_command(load(file.name).function) for file in files]
    return assemble(library_name(), commands, includes)


def library_name() -> str:
    """The name of this version's library."""
    return f"fairque_{_version()}"


@cache
def _files() -> dict[str, _File]:
    return {name: _File(name) for name in names()}


@cache
def _version() -> str:
    """What the functions are named by: their text. Versions that run side by side don't take each other's place."""
    return _digest("".join(file.source for file in _files().values()))[:16]


class _File:
    """A command's file, read."""

    def __init__(self, name: str) -> None:
        text = (_ROOT / "commands" / f"{name}.lua").read_text(encoding="utf-8")
        self.name = name
        self.shebang, body = text.split("\n", 1)
        self.body = body.rstrip("\n")
        self.keys = tuple(key for word in _words("KEYS", text) for key in (BASE if word == "base" else (word,)))
        self.includes = _words("include", text)
        named = "; ".join(f"K[{key!r}] = KEYS[{index}]" for index, key in enumerate(self.keys, 1))
        read_keys = f"{named}\n{{}}P = string.sub(KEYS[1], 1, -{len(self.keys[0]) + 1})"
        self.read_keys = read_keys.format("  ")
        libraries = "\n".join(map(_lib, self.includes))
        self.source = _AS_SCRIPT.format(
            shebang=self.shebang, read_keys=read_keys.format("local "), libraries=libraries, body=self.body
        )

    def as_command(self, function: str) -> Command:
        flags = [flag for flag in self.shebang.partition("flags=")[2].split(",") if flag]
        return Command(function, flags, self.read_keys, self.body, self.includes)


@cache
def _lib(name: str) -> str:
    return (_ROOT / "lib" / f"{name}.lua").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _words(kind: str, text: str) -> list[str]:
    found = _LINE[kind].search(text)
    return found.group(1).split() if found else []
