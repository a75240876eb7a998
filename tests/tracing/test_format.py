"""What W3C Trace Context allows is read as it says, and anything else is no trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_fairque.engine.model.trace_context import (
    MAX_TRACESTATE_CHARACTERS,
    MAX_TRACESTATE_MEMBERS,
    NO_TRACE,
    Trace,
    decode_trace,
    read,
    read_parent,
    read_state,
)

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


def test_a_trace_has_an_id_a_span_id_and_flags() -> None:
    trace = read(PARENT, "a=1")
    assert trace == Trace(PARENT, "a=1")
    assert (trace.id, trace.span_id, trace.flags) == (TRACE_ID, SPAN_ID, 1)
    assert (NO_TRACE.id, NO_TRACE.span_id, NO_TRACE.flags) == ("", "", 0)


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        (PARENT, PARENT),
        (f"00-{TRACE_ID}-{SPAN_ID}-ff", f"00-{TRACE_ID}-{SPAN_ID}-ff"),
        (f"01-{TRACE_ID}-{SPAN_ID}-01", PARENT),
        (f"cc-{TRACE_ID}-{SPAN_ID}-ff", f"00-{TRACE_ID}-{SPAN_ID}-03"),
        (f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-holds", PARENT),
    ],
)
def test_valid_traceparent_headers_are_read(text: str, read_as: str) -> None:
    assert read_parent(text) == read_as
    assert read_parent(read_as) == read_as


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        f" {PARENT}",
        f"{PARENT}\n",
        f"{PARENT},{PARENT}",
        f"{PARENT}-",
        f"{PARENT}-more",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01.more",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[1:]}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-0g",
        f"0-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID[:-1]}٣-01",
    ],
)
def test_invalid_traceparent_headers_are_ignored(text: str) -> None:
    assert read_parent(text) == ""
    assert read(text, "a=1") == NO_TRACE


def test_a_request_without_headers_has_no_trace() -> None:
    assert read(None, None) == NO_TRACE


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("", ""),
        (",,", ""),
        ("a=1", "a=1"),
        ("rojo=00f067aa0ba902b7 ,\tcongo=t61rcWkgMzE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("1tenant@system=a b!~", "1tenant@system=a b!~"),
        ("a_-*/0=x", "a_-*/0=x"),
    ],
)
def test_valid_tracestate_headers_are_read(text: str, read_as: str) -> None:
    assert read_state(text) == read_as


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "=1",
        "A=1",
        "1=1",
        "a=1,a=2",
        "a=1=2",
        "a=é",
        "a=1;b=\x01",
        "a=1,b",
        "@a=1",
        "a@1=1",
        f"a={'x' * 257}",
    ],
)
def test_invalid_tracestate_headers_are_dropped(text: str) -> None:
    assert read(PARENT, text) == Trace(PARENT, "")


def test_a_tracestate_with_too_many_members_is_dropped() -> None:
    assert read_state(",".join(f"k{n}=1" for n in range(MAX_TRACESTATE_MEMBERS))) != ""
    assert read_state(",".join(f"k{n}=1" for n in range(MAX_TRACESTATE_MEMBERS + 1))) == ""


def test_a_long_tracestate_drops_long_members_before_old_ones() -> None:
    short = [f"k{n}={'x' * 60}" for n in range(7)]
    assert read_state(",".join([*short, f"long={'y' * 200}"])) == ",".join(short)
    assert read_state(",".join([*short, "a=" + "z" * 100])) == ",".join(short)
    kept = read_state(",".join(f"k{n}={'x' * 100}" for n in range(6)))
    assert [entry[:2] for entry in kept.split(",")] == ["k0", "k1", "k2", "k3"]


@given(st.text(), st.text())
def test_reading_any_trace_header_raises_no_error(parent: str, state: str) -> None:
    trace = read(PARENT, state)
    assert read(parent, state) == NO_TRACE or read_parent(parent)
    assert len(trace.state) <= MAX_TRACESTATE_CHARACTERS
    assert decode_trace(trace.encode().encode()) == trace


@given(st.binary())
def test_reading_a_damaged_trace_record_raises_no_error(record: bytes) -> None:
    assert decode_trace(record) == NO_TRACE or read_parent(decode_trace(record).parent)
