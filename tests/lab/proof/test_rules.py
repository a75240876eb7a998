"""Rules that every script keeps, read from its text; and that no call ever touches a key outside of its shard."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from django_fairque.engine.scripting import scripts

LUA = files("django_fairque.engine") / "lua"
FILES = sorted(f"{folder}/{entry.name}" for folder in ("commands", "lib") for entry in (LUA / folder).iterdir())
WRITES = (
    "HSET",
    "HDEL",
    "HINCRBY",
    "ZADD",
    "ZREM",
    "SADD",
    "SREM",
    "RPUSH",
    "LPUSH",
    "LPOP",
    "LREM",
    "LTRIM",
    "SET",
    "MSET",
    "SETNX",
    "DEL",
    "PEXPIRE",
    "SPOP",
)


def bare(text: str) -> str:
    """The text without comments and without what is inside of strings."""
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", re.sub(r"--.*", "", text))


ATTEMPT = "local reply = redis.pcall(command, key, ...)"
"""The only place where an error is caught: one call on one key, whose error is looked at in the next line."""


@pytest.mark.parametrize("name", FILES)
def test_errors_are_never_caught_and_payloads_never_parsed(name: str) -> None:
    assert not re.search(
        r"\bx?pcall\b|(?<!\.)\b(cjson|cmsgpack|loadstring|load|dofile|setmetatable|getfenv|setfenv|_G)\b",
        bare((LUA / name).read_text()).replace(ATTEMPT, "", 1),
    )


def calls(text: str) -> list[str]:
    """The arguments of each ``redis.call``, as written."""
    found = []
    text = re.sub(r"--.*", "", text)
    plain = re.sub(r"'(?:[^'\\]|\\.)*'", lambda quoted: "'" * len(quoted[0]), text)
    for match in re.finditer(r"redis\.call\(", plain):
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(plain[at], 0)
            at += 1
        found.append(text[match.end() : at - 1])
    return found


BARE_NUMBERS = {"'LRANGE'", "'LTRIM'", "'LPOP'", "'LREM'", "'ZRANGE'", "'SRANDMEMBER'", "'SPOP'", "'ZRANGEBYSCORE'"}
"""Commands that take small counts and indexes, for which Lua's own way to write a number is exact."""


@pytest.mark.parametrize("name", FILES)
def test_numbers_are_passed_to_commands_without_rounding(name: str) -> None:
    for call in calls((LUA / name).read_text()):
        arguments = re.sub(r"unpack\((?:[^()]|\([^()]*\))*\)", "", call)
        if arguments.split(",")[0] in BARE_NUMBERS:
            continue
        text = re.sub(r"(?:exact|argument)\((?:[^()]|\([^()]*\))*\)", "", bare(arguments))
        assert not re.search(
            r"\b(now|tonumber|math\.\w+|shard\.\w+|t\.(ready|token|due|expires|sla|deliveries))\b(?!_)", text
        ), arguments


SET_BY_LOAD_USER = {
    *(
        "is_damaged",
        "is_new",
        "is_other",
        "layout",
        "ready",
        "ring_owner",
        "text",
        "was_bulk",
        "was_idle",
        "was_newcomer",
        "was_ring_owner",
        "was_served",
        "was_tag",
        "was_urgent",
        "was_urgent_tag",
        "weight",
    ),
}
SAVED_WITH_THE_RECORD = {"expected", "is_placed", "mean", "run", "start", "tag", "tat"}


def test_temporary_fields_of_a_user_table_are_removed_before_the_next_call() -> None:
    """A function keeps the tables of users. Fields of the record are changed with `set`; `forget_call` removes all others."""
    text = "\n".join(bare((LUA / name).read_text()) for name in FILES)
    assigned = {
        name.strip().removeprefix("user.").removeprefix("one.")
        for names in re.findall(r"((?:\b(?:user|one)\.\w+, *)*\b(?:user|one)\.\w+) = ", text)
        for name in names.split(",")
    }
    forgotten = set(re.findall(r"user\.(\w+)", text.split("function forget_call", 1)[1].split("\nend", 1)[0]))
    assert assigned - forgotten == SET_BY_LOAD_USER | SAVED_WITH_THE_RECORD


@pytest.mark.parametrize("name", FILES)
def test_commands_are_named_by_a_constant(name: str) -> None:
    """So that what a script may do can be read: the exceptions are three, and choose between constants."""
    odd = [call for call in calls((LUA / name).read_text()) if not re.match(r"'[A-Z]+'", call)]
    for call in odd:
        assert call.startswith("command,") or re.match(r"\w+ and '[A-Z]+' or '[A-Z]+',", call), call


@pytest.mark.parametrize("name", scripts.names())
def test_replies_to_refusals_come_before_the_first_write(name: str) -> None:
    """In the text of a command's own file no refusal (``return 0``, ``return 2``) follows its first write."""
    if name in ("repair", "fire", "settle"):
        return  # repair fixes one thing after the other; for fire and settle the injected errors prove it
    lines = bare((LUA / "commands" / f"{name}.lua").read_text()).splitlines()
    raw = (LUA / "commands" / f"{name}.lua").read_text().splitlines()
    first = next(
        (i for i, line in enumerate(raw) if re.search(rf"redis\.call\('(?:{'|'.join(WRITES)})'", line)), len(raw)
    )
    assert not [line for line in lines[first + 1 :] if re.match(r"\s*(if .* then )?return [02]\b", line)]
