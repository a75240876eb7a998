"""Signals and calls from other threads, as something that a loop can wait for together with pipes and processes."""

from __future__ import annotations

import os
import signal

from django_fairque.early_signals import exit_early, received

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STOP_AT_ONCE_SIGNALS = (
    signal.SIGQUIT,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGXCPU,
)
"""Signals that end a process by default: they end a worker at once, which gives back what runs."""


class StopSignals:
    """Counts stop signals, and wakes who waits for `fileno`. Signals: main thread only."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.stop_count = 0
        """How often the process was asked to stop."""
        self.dump_count = 0
        """How often it was asked for the stacks of its threads."""

    def fileno(self) -> int:
        return self._read

    def install_handlers(self) -> None:
        for each in STOP_SIGNALS:
            if signal.getsignal(each) is not signal.SIG_IGN:  # nohup wants it so
                signal.signal(each, self._on_signal)
        for each in STOP_AT_ONCE_SIGNALS:
            if signal.getsignal(each) in (signal.SIG_DFL, exit_early):
                signal.signal(each, self._on_stop_at_once)
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._on_dump)
        self.stop_count += len(received)

    def _on_signal(self, *_: object) -> None:
        self.stop_count += 1
        self.wake()

    def _on_stop_at_once(self, *_: object) -> None:
        self.stop_count += 2
        self.wake()

    def _on_dump(self, *_: object) -> None:
        self.dump_count += 1
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
