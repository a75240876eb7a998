"""The stored form of a user's record: Lua writes it, Python reads it."""

from __future__ import annotations

import re
import struct
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import user_record
from django_fairque.engine.scripting.user_record import read_user_record
from tests.engine.conftest import NOW, task
from tests.user_records import write_user_record

KEY = "fq:{default:0}:user:a"
SOURCE = (files("django_fairque.engine") / "lua" / "lib" / "user_record.lua").read_text()
EMPTY = struct.pack("<19d", *[0.0] * 19)
NUMBERS = st.floats(min_value=0.5, max_value=1e15)


def test_lua_and_python_have_the_same_fields_of_a_user_record() -> None:
    numbered = re.search(r"local GROUPS = \{\n  \{(.*?)\n  \}", SOURCE, re.DOTALL)
    assert numbered
    assert tuple(re.findall(r"'([^']+)'", numbered[1])) == user_record._GROUPS[0]
    stored = re.search(r"struct\.pack\(FIRST_PART, (.*?), layout.first", SOURCE, re.DOTALL)
    assert stored
    assert tuple(re.findall(r"user(?:\.(\w+)|\['([^']+)'\])", stored[1])) == tuple(
        ("", name) if ":" in name else (name, "") for name in user_record._FIRST_PART
    )


@given(
    st.dictionaries(
        st.sampled_from([*user_record._FIRST_PART, *(n for group in user_record._GROUPS for n in group)]), NUMBERS
    )
)
def test_a_record_is_read_as_it_was_written(numbers: dict[str, float]) -> None:
    fields = {name: repr(value).encode() for name, value in numbers.items()} | {"group": b"acme", "plan": b"pro cap=2"}
    found = read_user_record(write_user_record(fields))
    assert {name.decode(): value if name in (b"group", b"plan") else float(value) for name, value in found.items()} == {
        **numbers,
        "group": b"acme",
        "plan": b"pro cap=2",
    }


def test_a_call_keeps_the_fields_that_it_does_not_change(queue: FairQueue, redis: Redis) -> None:
    queue.push(task("a"), now=NOW)
    queue.user("a").set_organization("acme", now=NOW)
    queue.user("a").set_max_running(3, now=NOW)
    queue.user("a").pause(note="a note: 7", now=NOW)
    queue.user("a").set_weight(2.5, now=NOW)
    before = redis.get(KEY)
    assert isinstance(before, bytes)
    queue.user("a").set_sla(9, now=NOW)
    after = redis.get(KEY)
    assert isinstance(after, bytes)
    assert read_user_record(after) == {**read_user_record(before), b"sla": b"9000000"}
    queue.user("a").set_sla(None, now=NOW)
    assert read_user_record(redis.get(KEY)) == read_user_record(before)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"x",
        EMPTY[:-1],
        struct.pack("<19d", *[0.0] * 16, 2.0**40, 0, 0),
        struct.pack("<19d", *[0.0] * 16, 0, 2.0**60, 0),
        struct.pack("<19d", *[0.0] * 16, 0, 0, 1),
        struct.pack("<19d", *[float("nan")] * 16, 0, 0, 0),
        *(EMPTY + tail for tail in (b"x", b"5:ab", b"1:a", b"1:a1:b1:c", b"3:abc-1:", b"group")),
    ],
)
def test_a_damaged_user_record_is_reported_and_stops_no_other_user(redis: Redis, text: bytes) -> None:
    queue = FairQueue(redis)
    queue.push_batch([task("a"), task("b")], now=NOW)
    redis.set(KEY, text)
    assert [lease.user_id for lease in queue.pop_batch(5, "w", now=NOW)] == ["b"]
    assert redis.get(KEY) == text
    assert KEY in {violation.key for violation in queue.check_invariants()}
    with pytest.raises(ValueError, match="expected a user's record, got"):
        read_user_record(text)
