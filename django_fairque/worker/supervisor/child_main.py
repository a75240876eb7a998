"""The main function of a worker process. The process runs a `Core` and has a pipe to its supervisor. The supervisor
renews the leases of the process, and may kill it at any moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.ids import split_names
from django_fairque.worker.common import process_copies
from django_fairque.worker.common.log import logger, set_up_logging
from django_fairque.worker.supervisor.messages import (
    Announce,
    Done,
    Drain,
    LoopChanged,
    Ready,
    Reconcile,
    Retiring,
    Revoked,
    SeparateEnded,
    StopProcess,
    Unfit,
    UnknownNames,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from django_fairque.worker.common.options import WorkerOptions
    from django_fairque.worker.common.status_board import StatusBoard
    from django_fairque.worker.supervisor.core import Core


PRELOADED_MODULES = split_names("""
    django_fairque.worker.supervisor.core concurrent.futures.thread redis.asyncio django.core.cache
    django_fairque.engine.queue.queue django_fairque.tasks.results
""")
"""Modules that the first task, or the code that runs tasks, imports. If the fork server did not import them in advance,
every child would import them again."""


def load_project(options: WorkerOptions) -> None:
    """Set up Django with the project and its tasks, and apply the settings that the command was given.

    Raises all errors of the project. Call this only once: a second call would set up logging anew, and forget its loggers.
    """
    import django
    from django.apps import apps

    if not apps.ready:  # a manage.py without `if __name__ == "__main__":` has already set up Django
        django.setup()
    from django_fairque.conf import set_overrides

    set_up_logging(with_tasks=options.logs_tasks)
    set_overrides(options.overrides)


def preload(options: WorkerOptions) -> None:
    """Import modules, read files and calculate values for the children in advance, after the project is loaded."""
    from django_fairque.conf import get_queue
    from django_fairque.engine.scripting import scripts
    from django_fairque.worker.supervisor.core import import_handler, import_middleware

    import_handler(options.handler)
    import_middleware()
    for module in PRELOADED_MODULES:
        importlib.import_module(module)
    for name in scripts.names():
        scripts.load(name)
    for queue in options.queues:
        get_queue(queue)


def close_project_connections() -> None:
    """Close connections that the project opened at import, because two processes that share a connection would receive
    each other's replies.
    """
    from django.core.cache import close_caches
    from django.db import connections

    from django_fairque.conf import close_queues
    from django_fairque.worker.common.isolation import close_connections

    close_connections()
    for connection in connections.all(initialized_only=True):
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        del connections[connection.alias]
    close_caches()
    close_queues()


def freeze_loaded_objects() -> None:
    """Exclude all existing objects from later garbage collections: about 80,000 objects of Django and the project,
    which exist until the process ends. Without this, collecting them takes a quarter of the time that a process needs
    to end.
    """
    gc.collect()
    gc.freeze()


SWITCH_INTERVAL_SECONDS = 0.001
"""Seconds after which a busy thread must release the interpreter lock. With Python's default of 5 ms, the thread that
talks to the server would wait longer for the lock than for the server."""

UNUSABLE_EXIT_CODE = 3
"""Exit code of a child that could not start and has logged the reason."""


def run_child(
    options: WorkerOptions,
    status_board: StatusBoard,
    pipe: Connection,
    parent: int,
    load: Callable[[WorkerOptions], None] = lambda _: None,
) -> None:
    """Run a child from start to end. The child dies when the process ``parent`` dies. ``load`` is called first, to load
    the project.
    """
    end_with_parent(parent)
    process_copies.end_with_this_process()
    ignore_terminal_signals()
    write_stacks_on_signals()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        load(options)
        from django_fairque.conf import get_queue
        from django_fairque.tasks.signing import keep_key
        from django_fairque.worker.leases.outage import get_startup_timeout
        from django_fairque.worker.supervisor.core import Core

        keep_key()
        queues = [get_queue(name) for name in options.queues]
        core = Core(
            options,
            queues,
            status_board,
            lambda reason: _send(pipe, Retiring(reason)),
            lambda: _send(pipe, Unfit()),
            get_startup_timeout(options, queues),
            lambda blocked: _send(pipe, LoopChanged(blocked)),
            lambda task: _send(pipe, task),
            lambda names: _send(pipe, UnknownNames(names)),
        )
    except Exception:  # noqa: BLE001 - whatever the project raises
        logging.basicConfig()
        logger.exception("worker process %s could not begin", options.worker_id)
        sys.exit(UNUSABLE_EXIT_CODE)
    freeze_loaded_objects()
    signal.signal(signal.SIGTERM, lambda *_: core.stop())
    threading.Thread(target=_listen, args=(pipe, core), name="fairque-supervisor-pipe", daemon=True).start()
    _send(pipe, Ready())
    core.start()
    core.join()
    core.report_stopped()
    _send(pipe, Done())


STALLED_STACKS_SIGNAL: int | None = getattr(signal, "SIGRTMIN", None)
"""The signal that makes a process write its stacks although it does not respond to SIGUSR1; None on systems without
real-time signals."""


def write_stacks_on_signals() -> None:
    """Install handlers, so that SIGUSR1 writes the stacks of all threads to standard error.

    The main thread writes the stacks while it holds the interpreter lock, because Python may crash if other threads run
    at the same time (python/cpython#116008). If C code keeps the lock, no other thread runs, and
    `STALLED_STACKS_SIGNAL` writes the stacks without the lock. If the process was only stopped, or had no processor,
    other threads may run meanwhile, so a small risk remains.
    """
    signal.signal(signal.SIGUSR1, lambda *_: write_stacks())
    signal.siginterrupt(signal.SIGUSR1, False)  # noqa: FBT003 - its name takes no keyword
    if STALLED_STACKS_SIGNAL is not None:
        with contextlib.suppress(Exception):  # fails if the process has no standard error
            faulthandler.register(STALLED_STACKS_SIGNAL, all_threads=True)


def write_stacks() -> None:
    """Write the stacks of all threads to standard error, if there is one."""
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback(all_threads=True)


def ignore_terminal_signals() -> None:
    """Ignore SIGINT and SIGHUP. The terminal sends these signals to the whole process group, and only the supervisor
    reacts to them.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def _listen(pipe: Connection, core: Core) -> None:
    """Carry out the supervisor's messages. If the supervisor has died, end the process at once, because nobody renews
    its leases.
    """
    from django_fairque.worker.supervisor.separate_tasks import SeparateTask

    def run(task: SeparateTask) -> None:
        threading.Thread(target=core.run_one, args=(task,), name="fairque-separate-task", daemon=True).start()

    handlers: dict[type, Callable[[Any], object]] = {
        StopProcess: lambda _: core.stop(),
        Drain: lambda message: core.set_draining(is_draining=message.is_draining),
        Reconcile: lambda message: core.reconcile(message.shard_index),
        Revoked: lambda message: core.slot_pool.revoke(message.shard_index, message.leases),
        Announce: lambda message: core.signal_thread.announce(message.announcements),
        SeparateEnded: lambda message: core.separate_ended(message.shard_index, message.tokens),
        SeparateTask: run,
    }
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(1)
        handlers[type(message)](message)


_send_lock = threading.Lock()
"""A lock for the pipe to the supervisor, because several threads of a process send messages."""


def _send(pipe: Connection, message: object) -> None:
    with _send_lock, contextlib.suppress(OSError):  # the supervisor has ended, which `_listen` notices
        pipe.send(message)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent dies, even if a task holds the interpreter lock at that
    moment.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the death signal was set
            os._exit(1)
