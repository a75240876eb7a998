"""Lists of byte strings in one string: what Python and the scripts pack, and what somebody else may have written there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import hypothesis.strategies as st
import pytest
from hypothesis import given
from redis import Redis

from django_fairque.engine.model.errors import LuaScriptError
from django_fairque.engine.model.payload import pack, unpack
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, task

DAMAGED = [b"-3:", b"-1:x", b"-2:x", b"1:a-3:", b"3", b":", b"x:y"]
"""The first leads back to itself: a reader that followed it would never end."""


@contextmanager
def ends_within(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError("it does not come to an end")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@given(st.lists(st.binary()))
def test_a_packed_list_is_unpacked_unchanged(parts: list[bytes]) -> None:
    assert unpack(pack(parts)) == parts


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_list_is_an_error_in_python(text: bytes) -> None:
    with ends_within(5), pytest.raises(ValueError, match=r"packed list|not found|invalid literal"):
        unpack(text)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_list_is_an_error_in_a_script(queue: FairQueue, redis: Redis, text: bytes) -> None:
    """Where a caller gives it, before anything is written."""
    home = queue._shards.home
    call = home.call("push", [0, "", 0, 1, 1, "id", "ann", "{}", 1, text], NOW, reply="n")
    with ends_within(5), pytest.raises(LuaScriptError):
        queue._transport.send(call)
    assert redis.keys() == []


def test_a_damaged_window_of_a_unique_key_is_an_error(queue: FairQueue, redis: Redis) -> None:
    """Where somebody has changed what was stored."""
    queue.push(task("ann", unique_key="k", unique_for=60), now=NOW)
    (key,) = redis.keys("*:unique:*")
    redis.set(key, b"-3:", keepttl=True)
    with ends_within(5), pytest.raises(LuaScriptError, match="expected a packed list"):
        queue.push(task("ann", unique_key="k", unique_for=60), now=NOW)
