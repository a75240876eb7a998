"""Ages as people write them."""

from __future__ import annotations

import re

from django_fairque.engine.model.shortening import short

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_age(text: str) -> float:
    """``90s``, ``10m``, ``2h``, ``7d`` in seconds.

    Raises:
        ValueError: it is none; the message says what one looks like.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)([smhd])", text)
    if match is None:
        raise ValueError(f"expected an age such as 90s, 10m, 2h or 7d, got {short(text)}")
    return float(match[1]) * UNITS[match[2]]
