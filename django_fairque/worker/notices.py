"""Signals and calls from other threads, as something that a loop can wait for together with pipes and processes."""

from __future__ import annotations

import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Notices:
    """Counts stop signals, and wakes who waits for `fileno`. Signals: main thread only."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.stops = 0
        """How often the process was asked to stop."""

    def fileno(self) -> int:
        return self._read

    def take_signals(self) -> None:
        for each in SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:  # nohup wants it so
                signal.signal(each, self._on_signal)

    def _on_signal(self, *_: object) -> None:
        self.stops += 1
        self.wake()

    def wake(self) -> None:
        try:
            os.write(self._write, b".")
        except BlockingIOError:  # it will wake anyway
            return

    def clear(self) -> None:
        try:
            os.read(self._read, 4096)
        except BlockingIOError:  # woken by something else
            return
