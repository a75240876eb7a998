"""Measures the parts of a campaign: the parts before and after the faults should be short."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Phases:
    """For one thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """In the order in which they began."""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.seconds.setdefault(name, 0.0)
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] += time.monotonic() - began
