"""Payloads are strict JSON: a payload arrives byte for byte as it was pushed, and nothing else is accepted.

Python's ``json`` accepts and writes more than JSON (``NaN``, ``Infinity``, repeated keys, keys that are not strings).
Such values would arrive changed or not at all, so they are refused. The error names the wrong part of the payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from django_fairque.engine.model.errors import TaskSerializationError, short
from django_fairque.safely import Interruption, is_a, type_name

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""The largest payload in bytes that settings allow: a server shared by all users is no place for files."""

# The encoder needs no check for values that contain themselves: `_refuse_other_keys` visits the whole value before.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))


def _text_encoder() -> Callable[[Any], str]:
    """Make the encoder in C once. `JSONEncoder.encode` makes an encoder for each call."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:  # only CPython has the encoder in C
        return _encoder.encode
    as_chunks = make(
        markers=None,
        default=_encoder.default,
        encoder=json.encoder.encode_basestring,
        indent=None,
        key_separator=":",
        item_separator=",",
        sort_keys=False,
        skipkeys=False,
        allow_nan=False,
    )
    return lambda value: "".join(as_chunks(value, 0))


_encode = _text_encoder()


class _NotStrictError(ValueError):
    """The message ``plain`` does not quote the payload, so that it may be logged."""

    def __init__(self, text: str, plain: str) -> None:
        super().__init__(text)
        self.plain = plain


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise _NotStrictError(f"the number {text[:40]} is too large for a float", "a number is too large for a float")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _NotStrictError(f"the key {twice!r} occurs twice", "a key occurs twice")
    return result


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys)


def _decode(text: str) -> Any:
    """Decode like `JSONDecoder.decode`, but search for spaces around the value only if decoding without them fails."""
    try:
        value, end = _decoder.raw_decode(text)
    except json.JSONDecodeError:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


MAX_PAYLOAD_DEPTH = 200
"""The largest number of levels of a value. Python's own limit counts stack frames, which differ between encoding and decoding,
so that a value could be pushed but not be read.
"""


_CONTAINERS = (dict, list, tuple)


def _refuse_other_keys(value: Any, where: str, depth: int = 1) -> None:
    """Raise an error for keys that are not strings: Python would silently turn ``{1: …}`` into ``{"1": …}``."""
    if depth > MAX_PAYLOAD_DEPTH:
        raise RecursionError
    if not isinstance(value, dict):
        for index, item in enumerate(value):
            if isinstance(item, _CONTAINERS):
                _refuse_other_keys(item, f"{where}[{index}]", depth + 1)
        return
    for key, item in value.items():
        if not isinstance(key, str):
            raise TaskSerializationError(
                f"{where}: the keys of a JSON object are strings, got {type(key).__name__} {short(key)}"
            )
        if isinstance(item, _CONTAINERS):
            _refuse_other_keys(item, f"{where}.{key}", depth + 1)


def dumps(value: Any, *, limit: int = MAX_PAYLOAD_BYTES, what: str = "payload") -> bytes:
    """Encode ``value`` as compact UTF-8 JSON of at most ``limit`` bytes.

    Tuples become lists, because JSON has no tuples. Raises `TaskSerializationError`, which names the wrong part of the
    value, if JSON can't represent a value exactly.
    """
    try:
        if isinstance(value, _CONTAINERS):
            _refuse_other_keys(value, what)
        data = _encode(value).encode()
    except (TypeError, ValueError) as error:  # UnicodeEncodeError (a lone surrogate) is a ValueError too
        raise TaskSerializationError(
            f"{what} is not JSON: {error}; use only dict, list, str, int, float, bool and None"
        ) from error
    except RecursionError as error:
        raise TaskSerializationError(
            f"{what} is nested too deeply for JSON (at most {MAX_PAYLOAD_DEPTH} levels); flatten it"
        ) from error
    except Exception as error:
        if is_a(error, (Interruption, MemoryError)):
            raise
        raise TaskSerializationError(
            f"{what} is not JSON: a method of a value in it raised {type_name(error)}; use only dict, list, str, int, float, "
            "bool and None"
        ) from error
    if len(data) > limit:
        raise TaskSerializationError(
            f"{what} takes {len(data):,} bytes, the limit is {limit:,}; store the data and pass a reference to it"
        )
    return data


def loads(data: bytes, *, what: str = "payload", quotes: bool = True) -> Any:
    """Decode strict JSON; raise `TaskSerializationError` for everything else. The error quotes the wrong part if ``quotes``."""
    try:
        return _decode(data.decode("utf-8"))
    except _NotStrictError as error:
        raise TaskSerializationError(f"{what} can't be decoded: ValueError: {error if quotes else error.plain}") from (
            error if quotes else None
        )
    except (ValueError, RecursionError) as error:
        raise TaskSerializationError(f"{what} can't be decoded: {type(error).__name__}: {error}") from error


def pack(values: Iterable[Any]) -> bytes:
    """Pack texts, bytes and whole numbers into one byte string, which the scripts and `unpack` can read: ``3:abc0:…``."""
    raw = (value if isinstance(value, bytes) else str(value).encode() for value in values)
    return b"".join(b"%d:%b" % (len(value), value) for value in raw)


def unpack(data: bytes) -> list[bytes]:
    """Return the byte strings that the scripts or `pack` packed into one: ``3:abc0:…``.

    Raises:
        ValueError: the data have another form.
    """
    parts, at = [], 0
    while at < len(data):
        colon = data.index(b":", at)
        size = int(data[at:colon])
        if size < 0:  # a negative length would make the loop endless
            raise ValueError(f"expected a packed list, got a part of {size} bytes in {data[:50]!r}")
        end = colon + 1 + size
        parts.append(data[colon + 1 : end])
        at = end
    return parts
