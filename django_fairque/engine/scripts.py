"""The Lua commands: read once from ``lua/``, their contract from their header, their includes put in.

A command's file starts with ``#!lua`` and a comment that is its contract. Two of its lines are read here::

    -- KEYS    base reply          the declared keys, in order (`keys.BASE` for ``base``)
    -- include base user task      files of lua/lib/ to put before the body, in this order
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


@dataclass(frozen=True)
class Script:
    """One command: its source as sent to the server, its SHA-1, and the names of its declared keys."""

    name: str
    source: str
    sha: str
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
    table = ", ".join(f"[{key!r}] = KEYS[{index}]" for index, key in enumerate(keys, 1))
    parts = [
        shebang,
        f"local K = {{ {table} }}",
        f"local P = string.sub(KEYS[1], 1, -{len(keys[0]) + 1})",
        *((_ROOT / "lib" / f"{include}.lua").read_text(encoding="utf-8") for include in _words("include", text)),
        body,
    ]
    source = "\n".join(parts)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest(), keys)


def _words(kind: str, text: str) -> list[str]:
    found = _LINE[kind].search(text)
    return found.group(1).split() if found else []
