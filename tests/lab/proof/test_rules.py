"""Rules that every script keeps, read from its text; and that no call ever touches a key outside of its shard."""

from __future__ import annotations

import re
from importlib.resources import files

from django_fairque.engine.scripting import scripts

LUA = files("django_fairque.engine") / "lua"
FILES = sorted(f"{folder}/{entry.name}" for folder in ("commands", "lib") for entry in (LUA / folder).iterdir())
TEXTS = {name: (LUA / name).read_text() for name in FILES}
WRITES = "HSET|HDEL|HINCRBY|ZADD|ZREM|SADD|SREM|RPUSH|LPUSH|LPOP|LREM|LTRIM|SET|MSET|SETNX|DEL|PEXPIRE|SPOP"


def bare(text: str) -> str:
    """The text without comments and without what is inside of strings."""
    return re.sub(r"'(?:[^'\\]|\\.)*'", "''", re.sub(r"--.*", "", text))


ATTEMPT = "local reply = redis.pcall(command, key, ...)"
"""The only place where an error is caught: one call on one key, whose error is looked at in the next line."""


def test_errors_are_never_caught_and_payloads_never_parsed() -> None:
    forbidden = r"\bx?pcall\b|(?<!\.)\b(cjson|cmsgpack|loadstring|load|dofile|setmetatable|getfenv|setfenv|_G)\b"
    assert [name for name, text in TEXTS.items() if re.search(forbidden, bare(text).replace(ATTEMPT, "", 1))] == []


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


def test_numbers_are_passed_to_commands_without_rounding() -> None:
    for name, call in [(name, call) for name, text in TEXTS.items() for call in calls(text)]:
        arguments = re.sub(r"unpack\((?:[^()]|\([^()]*\))*\)", "", call)
        if arguments.split(",")[0] in BARE_NUMBERS:
            continue
        text = re.sub(r"(?:exact|argument)\((?:[^()]|\([^()]*\))*\)", "", bare(arguments))
        assert not re.search(
            r"\b(now|tonumber|math\.\w+|shard\.\w+|t\.(ready|token|due|expires|sla|deliveries))\b(?!_)", text
        ), (name, arguments)


SET_BY_LOAD_USER = {
    *("is_damaged", "is_new", "is_other", "layout", "ready", "ring_owner", "text", "was_bulk", "was_idle", "weight"),
    *("was_newcomer", "was_ring_owner", "was_served", "was_tag", "was_urgent", "was_urgent_tag"),
}
SAVED_WITH_THE_RECORD = {"expected", "is_placed", "mean", "run", "start", "tag", "tat"}


def test_temporary_fields_of_a_user_table_are_removed_before_the_next_call() -> None:
    """A function keeps the tables of users. Fields of the record are changed with `set`; `forget_call` removes all others."""
    text = "\n".join(map(bare, TEXTS.values()))
    assigned = {
        name.strip().removeprefix("user.").removeprefix("one.")
        for names in re.findall(r"((?:\b(?:user|one)\.\w+, *)*\b(?:user|one)\.\w+) = ", text)
        for name in names.split(",")
    }
    forgotten = set(re.findall(r"user\.(\w+)", text.split("function forget_call", 1)[1].split("\nend", 1)[0]))
    assert assigned - forgotten == SET_BY_LOAD_USER | SAVED_WITH_THE_RECORD


def test_commands_are_named_by_a_constant() -> None:
    """So that the commands of a script can be read: the exceptions are three, and choose between constants."""
    constant = r"'[A-Z]+'|command,|\w+ and '[A-Z]+' or '[A-Z]+',"
    assert [call for text in TEXTS.values() for call in calls(text) if not re.match(constant, call)] == []


def test_replies_to_refusals_come_before_the_first_write() -> None:
    """In the text of a command's own file no refusal (``return 0``, ``return 2``) follows its first write."""
    # Repair fixes one thing after the other; for fire and settle the injected errors prove it.
    for name in set(scripts.names()) - {"repair", "fire", "settle"}:
        raw = TEXTS[f"commands/{name}.lua"].splitlines()
        lines = bare(TEXTS[f"commands/{name}.lua"]).splitlines()
        writes = (number for number, line in enumerate(raw) if re.search(rf"redis\.call\('(?:{WRITES})'", line))
        after = lines[next(writes, len(raw)) + 1 :]
        assert [line for line in after if re.match(r"\s*(if .* then )?return [02]\b", line)] == [], name
