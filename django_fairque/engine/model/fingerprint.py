"""Which dead letters died of the same: a short hash of task name, failure type, and the error without particulars."""

from __future__ import annotations

import hashlib
import re

MOST_READ = 2000
"""Characters of an error that are looked at: as many as are kept of one (`outcomes.MAX_ERROR`)."""

# An apostrophe within a word (can't, O'Brien) neither begins nor ends a quotation.
_QUOTED = r"(?<!\w)[bruf]{0,2}'(?:[^'\\\n]|\\.|'(?=\w))*'(?!\w)|(?:(?<!\w)[bruf]{1,2})?\"(?:[^\"\\\n]|\\.)*\""
_PARTICULARS = tuple(
    (re.compile(pattern, re.IGNORECASE), word)
    for pattern, word in (
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>"),
        (_QUOTED, "<text>"),
        (r"\b0x[0-9a-f]+\b", "<address>"),
        (r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+", "<email>"),
        # IPv6: two colons at least, and something that a time of day does not have.
        (r"(?<![\w:])(?=[0-9:]*(?:[a-f]|::))(?=:*[0-9a-f])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])", "<address>"),
        # Letters and digits mixed, as chance makes them; digits alone are a number, whatever their length.
        (r"\b(?:(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{6,}|[a-f]{12,})\b", "<hex>"),
        (r"\b(?=\d*[a-z])(?=[a-z]*\d)[0-9a-z]{16,}\b", "<id>"),
        (r"(?:(?<![\w)\]])[-+])?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?", "<n>"),
    )
)
_CUT_OFF = re.compile(r"(?<!\w)[bruf]{0,2}(?:'[^']*|\"[^\"]*)\Z", re.IGNORECASE)


def normalised(error: str) -> str:
    """The first line of an error with ids, numbers, addresses and quoted text replaced by what they are."""
    text = error[:MOST_READ].strip().partition("\n")[0]
    for pattern, word in _PARTICULARS:
        text = pattern.sub(word, text)
    return _CUT_OFF.sub("<text>", text) if len(error) >= MOST_READ else text


def fingerprint(name: str, failure_type: str, error: str) -> str:
    """Twelve hexadecimal digits, the same for errors that differ in their particulars only."""
    text = "\0".join((name, failure_type, normalised(error)))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
