"""Which dead letters died of the same: a short hash of the task's name, how it failed, and the error without its particulars."""

from __future__ import annotations

import hashlib
import re

MOST_READ = 2000
"""Characters of an error that are looked at."""
_PARTICULARS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<address>"),
    (re.compile(r"'(?:[^'\\\n]|\\.){0,500}'|\"(?:[^\"\\\n]|\\.){0,500}\""), "<text>"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<email>"),
    (re.compile(r"\b[0-9a-f]{12,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)


def normalised(error: str) -> str:
    """The first line of an error with ids, numbers, addresses and quoted text replaced by what they are."""
    text = error.strip().partition("\n")[0][:MOST_READ]
    for pattern, word in _PARTICULARS:
        text = pattern.sub(word, text)
    return text


def fingerprint(name: str, failure_type: str, error: str) -> str:
    """Twelve hexadecimal digits, the same for errors that differ in their particulars only."""
    text = "\0".join((name, failure_type, normalised(error)))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
