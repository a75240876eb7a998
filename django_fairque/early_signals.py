"""Stop signals that reach a worker before it has begun: while Django loads the project.

There is nothing to give back yet, so the process exits with 0, as a worker does that was stopped later. Installed when this
package is imported: by Django, with the app, or earlier by ``manage.py``. A signal that arrives before ends the process with
the signal.
"""

from __future__ import annotations

import signal
import sys
import threading

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
COMMAND = "fairque_worker"

received: list[int] = []
"""Signals that were received; a handler's `SystemExit` can be lost, for example in a destructor."""


def install() -> None:
    """Take the signals if this process was started as a worker, and nobody else has taken them."""
    if getattr(sys, "argv", [])[1:2] != [COMMAND]:  # a program that embeds Python may have none
        return
    from multiprocessing import parent_process

    if parent_process() is not None:
        return
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, exit_early)


def exit_early(number: int, _: object) -> None:
    received.append(number)
    raise SystemExit(0)
