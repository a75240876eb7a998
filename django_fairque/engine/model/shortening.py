"""`short`: how errors show a value that a caller gave."""

from __future__ import annotations

import reprlib

LONGEST = 80
"""Characters of a value in a message."""


class _Repr(reprlib.Repr):
    """Builds no text that is much longer than what is shown, and fails for no value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = (
            self.maxarray
        ) = 20
        self.maxstring = self.maxother = self.maxlong = 4 * LONGEST

    def repr_str(self, value: str, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        return repr(value[: self.maxstring])

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        return repr(value[: self.maxstring])

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        # Python refuses to write integers of more than 4,300 digits.
        return repr(value) if value.bit_length() < self.maxlong else f"<an integer of {value.bit_length()} bits>"


_repr = _Repr().repr


def short(value: object, longest: int = LONGEST) -> str:
    """Return ``repr(value)``, shortened to ``longest`` characters. It never fails, and costs no more for large values."""
    try:
        text = _repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not take the place of the error that is about to be raised
        text = f"<{type(value).__name__}>"
    size = (
        f" ({len(value):,} long)" if isinstance(value, (str, bytes, list, tuple, dict)) and len(value) > longest else ""
    )
    return text if len(text) <= longest else f"{text[: longest - 3]}...{size}"
