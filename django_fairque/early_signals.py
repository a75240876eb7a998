"""Handles stop signals that a worker receives while Django still loads the project.

At that time the worker has no tasks to give back, so the process exits with 0, like a worker that is stopped later. The
handlers are installed when this package is imported: by Django together with the app, or earlier by ``manage.py``. A
signal that arrives before that terminates the process in the usual way.
"""

from __future__ import annotations

import signal
import sys
import threading

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)]
COMMAND = "fairque_worker"

received: list[int] = []
"""Signals that were received. Recorded because a handler's `SystemExit` can be lost, for example if it is raised in a
destructor."""


def install() -> None:
    """Install the handlers if this process was started as a worker and no other code has installed handlers."""
    if getattr(sys, "argv", [])[1:2] != [COMMAND]:  # a program that embeds Python may have no sys.argv
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
