"""Ctrl-C and SIGTERM end a demonstration where it checks for them, at the latest after a fraction of a second.

Python's own handler raises `KeyboardInterrupt` wherever the program is. In a finalizer, which Django's migrations leave many of,
Python ignores this error, so the demonstration went on.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received = threading.Event()


def raise_if_interrupted() -> None:
    """Raise `KeyboardInterrupt` once if a signal has arrived."""
    if _received.is_set():
        _received.clear()
        raise KeyboardInterrupt


@contextmanager
def noted_signals() -> Iterator[None]:
    """Note the signals for `raise_if_interrupted`. A second signal raises `KeyboardInterrupt` at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, _note) for number in SIGNALS]
    try:
        yield
    finally:
        _received.clear()
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _note(number: int, frame: FrameType | None) -> None:
    if _received.is_set():
        signal.default_int_handler(number, frame)
    _received.set()
