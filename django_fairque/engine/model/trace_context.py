"""The trace that a task belongs to, in the form of the W3C's Trace Context: ``traceparent`` and ``tracestate``.

A trace from outside that does not have this form is dropped, without a repair and without an error: a lost trace does no
harm, but an invented one misleads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_TRACESTATE_CHARACTERS = 512
"""The largest number of characters that are kept of a ``tracestate``. The W3C requires at least as many."""
LONG_TRACESTATE_MEMBER_CHARACTERS = 128
MAX_TRACESTATE_MEMBERS = 32

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_KNOWN_FLAGS = 0b11  # the flags "sampled" and "random trace id"
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_VALUE = r"[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
_MEMBER = re.compile(rf"({_KEY})={_VALUE}")


class Trace(NamedTuple):
    """A position in a trace, as W3C Trace Context writes it: ``parent`` (traceparent) and ``state`` (tracestate); both
    empty if there is none. `read` returns only well-formed traces.
    """

    parent: str = ""
    state: str = ""

    @property
    def id(self) -> str:
        """The id of the whole trace: 32 hexadecimal digits."""
        return self.parent[3:35]

    @property
    def span_id(self) -> str:
        """The id of the span that is the parent of the next span: 16 hexadecimal digits."""
        return self.parent[36:52]

    @property
    def flags(self) -> int:
        """The flags of the trace, as a number."""
        return int(self.parent[53:55] or "0", 16)

    def encode(self) -> str:
        """Return the trace in the form in which the record of a task keeps it; `decode_trace` reads it."""
        return f"{self.parent} {self.state}" if self.state else self.parent


NO_TRACE = Trace()


def read(parent: str | None, state: str | None = "") -> Trace:
    """Return the trace of two headers; `NO_TRACE` if ``parent`` is not valid. A ``state`` that is not valid is dropped."""
    known = read_parent(parent or "")
    return Trace(known, read_state(state or "")) if known else NO_TRACE


def decode_trace(text: bytes) -> Trace:
    """Return the trace that `Trace.encode` wrote; `NO_TRACE` if the record is damaged."""
    parent, _, state = text.decode("ascii", "replace").partition(" ")
    return read(parent, state)


def read_parent(text: str) -> str:
    """Return a valid ``traceparent`` in version 00, or an empty string.

    A later version begins with the same parts. Its further parts are dropped, because their meaning is not known here.
    """
    match = _PARENT.fullmatch(text)
    if match is None:
        return ""
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return ""
    return text if version == "00" else f"00-{trace_id}-{span_id}-{int(flags, 16) & _KNOWN_FLAGS:02x}"


def read_state(text: str) -> str:
    """Return a valid ``tracestate`` without blanks around its members, shortened to its limit; or an empty string."""
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > MAX_TRACESTATE_MEMBERS or len(keys) < len(members):  # a member is not valid, or a key comes twice
        return ""
    if len(",".join(members)) > MAX_TRACESTATE_CHARACTERS:
        members = [member for member in members if len(member) <= LONG_TRACESTATE_MEMBER_CHARACTERS]
    while len(",".join(members)) > MAX_TRACESTATE_CHARACTERS:
        members.pop()  # the newest members are at the front
    return ",".join(members)
