"""What a process must have loaded before it can run tasks: in a child, or once for all in the process they are forked from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_fairque.worker.options import WorkerOptions

PRELOADED_MODULES = (
    "django_fairque.worker.core",
    "concurrent.futures.thread",
    "redis.asyncio",
    "django.core.cache",
    "django_fairque.engine.queue.queue",
    "django_fairque.tasks.results",
)
"""What is imported by the first task, or by what surrounds it, and so would be by every child anew."""


def load_project(options: WorkerOptions) -> None:
    """Set up Django, with it the project and its tasks, and take over what the command was given.

    Raises whatever the project does. It must not be repeated: logging would be set up anew, and forget its loggers.
    """
    import django
    from django.apps import apps

    if not apps.ready:  # a manage.py without `if __name__ == "__main__":` has done this
        django.setup()
    from django_fairque.conf import set_overrides
    from django_fairque.worker.reporting import log

    log.set_up()
    set_overrides(options.overrides)


def preload(options: WorkerOptions) -> None:
    """More that children would import, read or work out, once the project is loaded."""
    from django_fairque.conf import get_queue
    from django_fairque.engine.scripting import scripts
    from django_fairque.worker.execution.task_services import import_handler

    import_handler(options.handler)
    for module in PRELOADED_MODULES:
        importlib.import_module(module)
    for name in scripts.names():
        scripts.load(name)
    for queue in options.queues:
        get_queue(queue)


def close_project_connections() -> None:
    """Close what the project opened at import: two processes that talk through one connection understand nothing."""
    from django.core.cache import close_caches
    from django.db import connections

    from django_fairque.conf import close_queues

    for connection in connections.all(initialized_only=True):
        connection.close()
        if connection.connection is not None:  # Django never closes a SQLite database in memory
            connection.connection.close()
        if hasattr(connection, "close_pool"):
            connection.close_pool()
        del connections[connection.alias]
    close_caches()
    close_queues()
