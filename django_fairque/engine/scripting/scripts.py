"""The Lua commands: read once from ``lua/commands/``, with the contract from each header, and with the libraries that
they include.

A command's file starts with ``#!lua`` and a comment that is its contract. Two of its lines are read here::

    -- KEYS    base reply          the keys that it uses (`BASE_KEYS` for ``base``)
    -- include clock ring users    files of lua/lib/: the libraries whose tables it uses

A library's file defines one table with the name of the file, and includes other libraries in the same way. Its locals are
its own.

A call sends only the first of the `BASE_KEYS`, and the command derives the others from it. A call to a cluster sends
all.

Each command has two forms with the same text. A *function* is part of the library (`library`), which the server loads
once and keeps, replicates and persists: creating some hundred closures in each call took half the time of a call. A
*script* is used where the server or the user has no functions. The part that must run at each call is in
``each_call(function() ... end)``: it runs before the body, in order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from django_fairque.engine.model.data_format import FORMAT, FORMAT_VERSION
from django_fairque.engine.model.ids import split_names

_FRAME = """#!lua name={name}
local KEYS, ARGV, P, K
{first_argument}
local frame, each_call = {{ calls = 0, seen = 0, since = 0, {format} }}, nil
do

local inits = {{}} -- by library: the functions that run at each call of a command which includes it
local own_inits -- the functions of the library that is being defined
function frame.library(name)
  own_inits = {{}}
  inits[name] = own_inits
end
function each_call(init) own_inits[#own_inits + 1] = init end

-- The keys that a call does not send, until a call is for another shard. The first one is named last: if it is right, all are.
function frame.name_keys()
  local names = {{ {base_keys} }}
  K.prefix = string.sub(KEYS[1], 1, -{cut})
  for i = #names, 1, -1 do K[names[i]] = K.prefix .. names[i] end
end

function frame.command(name, flags, libraries, read_keys, main)
  local path, named = {{}}, {{}} -- a table of keys for each: none sees another's
  for i = 1, #libraries do
    local some = inits[libraries[i]]
    for n = 1, #some do path[#path + 1] = some[n] end
  end
  redis.register_function{{
    function_name = name,
    callback = function(keys, args)
      KEYS, ARGV, K = keys, args, named
      frame.calls = frame.calls + 1
      read_keys()
      for i = 1, #path do path[i]() end
      return main()
    end,
    flags = flags,
  }}
end

redis.register_function{{
  function_name = '{idle}',
  callback = function(_, args)
    local now = tonumber(args[1] or redis.call('TIME')[1])
    if frame.since == 0 or frame.calls ~= frame.seen then frame.seen, frame.since = frame.calls, now end
    return now - frame.since
  end,
  flags = {{ 'no-writes' }},
}}

end
{libraries}
{commands}
"""

IDLE_FUNCTION = "{name}_idle"
"""The name of a library's function that returns the seconds since another function of the library was called. The
function knows only the number of calls, so it counts from its first call that found the current number. A
test passes the time, in seconds since the epoch."""

_FORMAT = f"format = {FORMAT}, format_version = {FORMAT_VERSION!r}"

_FIRST_ARGUMENT = "local FIRST_ARG = 3 -- the command's own arguments begin here"

_COMMAND = """frame.command({name!r}, {{ {flags} }}, {{ {libraries} }}, function()
  {read_keys}
end, function()
{body}
end)"""


@dataclass(frozen=True)
class Command:
    """A command that becomes a function: its name and flags, the Lua code that names its keys, its own code, and the
    libraries that it needs, each after the libraries that it includes.
    """

    name: str
    flags: Sequence[str]
    read_keys: str
    body: str
    libraries: Sequence[str]

    def build_registration(self) -> str:
        """Return the Lua code that registers the function."""
        return _COMMAND.format(
            name=self.name,
            flags=_lua_list(self.flags),
            libraries=_lua_list(self.libraries),
            read_keys=self.read_keys,
            body=self.body,
        )


def assemble(name: str, commands: Sequence[Command], libraries: Mapping[str, str]) -> str:
    """Return the source of all commands. ``libraries`` are the texts by name, each after the libraries that it
    includes.
    """
    return _FRAME.format(
        name=name,
        idle=IDLE_FUNCTION.format(name=name),
        format=_FORMAT,
        first_argument=_FIRST_ARGUMENT,
        base_keys=_lua_list(BASE_KEYS),
        cut=len(BASE_KEYS[0]) + 1,
        libraries="\n".join(f"frame.library({name!r})\n{_define(name, text)}" for name, text in libraries.items()),
        commands="\n".join(command.build_registration() for command in commands),
    )


def _define(library: str, text: str) -> str:
    """Return the Lua code that defines a library's table. All other local variables of the library are hidden."""
    return f"local {library} = (function()\n{text}return {library}\nend)()"


BASE_KEYS = split_names("""
    stats ring urgent bulk wake wake:urgent wake:normal users throttled state:scheduled state:queued state:started state:finished
    state:failed state:canceled state:deferred resolving alerts outbox mirrors groups grouped due
    limited:urgent limited:normal limited:bulk limits parked guaranteed
""")
"""Keys that ``base`` in a script's ``KEYS`` line stands for. Scripts take the prefix from the first of these keys."""

_ROOT = files("django_fairque.engine") / "lua"
_LINE = {word: re.compile(rf"^-- {word} +(.+)$", re.MULTILINE) for word in ("KEYS", "include")}

_AS_SCRIPT = """{shebang}
local frame = {{ {format} }}
{first_argument}
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
    """One command: its source as a script with its SHA-1, its name as a function, and the names of the keys that it
    uses. ``own_keys`` are the keys that follow `BASE_KEYS`.
    """

    name: str
    source: str
    sha: str
    function: str
    keys: tuple[str, ...]
    own_keys: tuple[str, ...]


def names() -> list[str]:
    """Return the names of all commands."""
    return sorted(entry.name[:-4] for entry in (_ROOT / "commands").iterdir() if entry.name.endswith(".lua"))


@cache
def load(name: str) -> Script:
    """Return the assembled command with this name."""
    _, keys, source = _files()[name]
    own_keys = keys[len(BASE_KEYS) :] if keys[: len(BASE_KEYS)] == BASE_KEYS else keys
    return Script(name, source, _digest(source), f"fairque_{name}_{_version()}", keys, own_keys)


@cache
def functions() -> str:
    """Return the library of all commands, in the form for ``FUNCTION LOAD``."""
    commands = [replace(command, name=load(name).function) for name, (command, _, _) in _files().items()]
    libraries = {name: _read_library(name) for command in commands for name in command.libraries}
    return assemble(library_name(), commands, libraries)


def library_name() -> str:
    """Return the name of this release's library."""
    return f"fairque_{_version()}"


@cache
def _version() -> str:
    """Return a digest of all commands, which is part of the functions' names: versions that run side by side keep their
    own functions.
    """
    return _digest("".join(source for _, _, source in _files().values()))[:16]


@cache
def _files() -> dict[str, tuple[Command, tuple[str, ...], str]]:
    """Read each command's file: the command, the names of its keys, and its source as a script."""
    return {name: _read(name) for name in names()}


def _read(name: str) -> tuple[Command, tuple[str, ...], str]:
    text = (_ROOT / "commands" / f"{name}.lua").read_text(encoding="utf-8")
    shebang, body = text.rstrip("\n").split("\n", 1)
    flags = [flag for flag in shebang.partition("flags=")[2].split(",") if flag]
    keys = tuple(key for word in _words("KEYS", text) for key in (BASE_KEYS if word == "base" else (word,)))
    sent = keys if keys[: len(BASE_KEYS)] != BASE_KEYS else (keys[0], *keys[len(BASE_KEYS) :])
    named = "".join(f"K[{key!r}] = KEYS[{index}]; " for index, key in enumerate(sent, 1))
    prefix = f"P = string.sub(KEYS[1], 1, -{len(keys[0]) + 1})"
    derived = ""
    read_keys = named + prefix
    if sent != keys:
        derived = f"; for _, name in ipairs({{ {_lua_list(BASE_KEYS)} }}) do K[name] = P .. name end"
        read_keys = f"if K[{keys[0]!r}] ~= KEYS[1] then frame.name_keys() end; {named}P = K.prefix"
    command = Command(name, flags, read_keys, body, _needed(text))
    source = _AS_SCRIPT.format(
        shebang=shebang,
        format=_FORMAT,
        first_argument=_FIRST_ARGUMENT,
        read_keys=f"{named}local {prefix}{derived}",
        libraries="\n".join(_define(library, _read_library(library)) for library in command.libraries),
        body=body,
    )
    return command, keys, source


def _needed(text: str) -> tuple[str, ...]:
    """Return the libraries that a file needs, each after the libraries that it includes."""
    return tuple(dict.fromkeys(name for library in _words("include", text) for name in _with_includes(library)))


@cache
def _with_includes(library: str) -> tuple[str, ...]:
    return (*_needed(_read_library(library)), library)


@cache
def _read_library(name: str) -> str:
    return (_ROOT / "lib" / f"{name}.lua").read_text(encoding="utf-8")


def _lua_list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _words(kind: str, text: str) -> list[str]:
    found = _LINE[kind].search(text)
    return found.group(1).split() if found else []


UNUSED_SECONDS = 86_400
"""Seconds without a call after which a library is deleted."""


def delete_unused(execute: Callable[..., Any]) -> Generator[Any, Any, None]:
    """Delete unused libraries of one server, as steps like those of `SharedTransport`. ``execute`` sends a command.

    Nothing is deleted if this user lacks the permission.
    """
    # imported here, because a process that only captures tasks does not import redis-py
    from redis.exceptions import ResponseError

    def attempt(*command: Any) -> Generator[Any, Any, Any]:
        try:
            return (yield execute(*command))
        except ResponseError:
            return None

    for name in _library_names((yield from attempt("FUNCTION LIST", "LIBRARYNAME", "fairque_*"))):
        if name == library_name():
            continue
        idle = yield from attempt("FCALL", IDLE_FUNCTION.format(name=name), 0)
        if isinstance(idle, int) and idle >= UNUSED_SECONDS:
            yield from attempt("FUNCTION DELETE", name)


def _library_names(reply: Any) -> Iterator[str]:
    """Yield the libraries' names in a reply to FUNCTION LIST. Its entries are mappings or flat lists, depending on the
    protocol.
    """
    for entry in reply or ():
        fields = entry.items() if isinstance(entry, dict) else zip(entry[::2], entry[1::2], strict=False)
        yield next((_text(value) for key, value in fields if _text(key) == "library_name"), "")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
