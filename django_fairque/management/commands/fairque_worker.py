"""``manage.py fairque_worker``: runs tasks."""

from __future__ import annotations

import multiprocessing
import re
import sys
from argparse import BooleanOptionalAction
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, connections

from django_fairque.conf import get_config, set_overrides
from django_fairque.documentation import page_address
from django_fairque.engine.model.errors import ConfigurationError, FairQueueError, short
from django_fairque.engine.model.options import InvalidOptionsError, Mistake
from django_fairque.management.base import open_what_is_closed
from django_fairque.outbox.relay import is_migrated
from django_fairque.tasks.middleware import load_all
from django_fairque.worker.common import log
from django_fairque.worker.common.log import logger
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.supervisor.supervisor import Supervisor

WORKER_OPTIONS = {
    "worker": "id",
    "queue": "queues",
    "users": "users",
    "steal": "steal",
    "processes": "processes",
    "start_method": "start_method",
    "concurrency": "concurrency",
    "reserve": "reserve",
    "max_tasks": "max_tasks",
    "max_memory": "max_memory_mb",
}
"""The field of `WorkerConfig` that an option of the command overrides, by the name of the option."""


class Command(BaseCommand):
    help = (
        "Run tasks, in processes that this one watches over, until SIGTERM or SIGINT: then running tasks are given "
        "time to end (a second signal ends them at once). Every option wins over FAIRQUE['WORKER'] and the "
        "environment. -v 2 logs a line for each task that ends. See "
        f"{page_address('guides/workers')}."
    )
    requires_system_checks = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        open_what_is_closed()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--worker", metavar="ID", help="which of the configuration's workers to be, or a name of one's own")
        add("--config", metavar="FILE", help="a YAML file with the sections redis, worker, workers, queue, queues")
        add(
            "--queue", metavar="NAME", nargs="+", action="extend", help="serve these queues; may be given several times"
        )
        add("--users", metavar="A,B|*", help="serve these users only, * for everyone")
        add("--steal", metavar="C,D|*", help="serve these users while the others have nothing")
        add("--processes", metavar="N", type=int, help="how many processes run tasks")
        add(
            "--start-method",
            metavar="METHOD",
            help="how these begin: spawn, each anew; forkserver, from one that has loaded the project; auto (default), "
            "the latter where nothing speaks against it",
        )
        add("--concurrency", metavar="N", type=int, help="how many tasks each process runs at once")
        add(
            "--reserve",
            metavar="LANE=N",
            action="append",
            help="keep N of these for tasks of lane urgent or normal and higher ones; may be given for both",
        )
        add("--burst", action="store_true", help="end when nothing is left to do now (later tasks do not count)")
        add("--max-tasks", metavar="N", type=int, help="replace a process after it has run N tasks")
        add("--max-memory", metavar="MB", type=int, help="replace a process that uses more memory")
        reload = "replace the processes when code changes (default: with DEBUG, at a terminal)"
        add("--reload", action=BooleanOptionalAction, help=reload)
        add("--health-file", metavar="PATH", help="write how the worker is to this file once a second, as JSON")
        add("--metrics-port", metavar="P", type=int, help="serve /metrics for Prometheus, and /live, on this port")
        add("--metrics-host", metavar="HOST", help="on this address (default: 127.0.0.1)")

    is_program = False
    """Whether the process was started for this command. If so, no caller needs the command to return, and a copy of the
    process may end inside of the command."""

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_program = True
        super().run_from_argv(argv)

    def handle(self, **options: Any) -> None:
        if is_imported_by_child():
            return
        log.set_up_logging(with_tasks=options["verbosity"] > 1)
        try:
            made = _worker_options(options)
            # check once here; otherwise each process would report the mistake, and the last one would give up
            load_all(get_config().middleware)
            self._check_databases()
            with (
                closing(_supervisor(made, options, copied=self.is_program)) as supervisor,
                _metrics(options["metrics_port"], options["metrics_host"], supervisor),
            ):
                code = supervisor.run()
        except (FairQueueError, OSError) as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)

    def _check_databases(self) -> None:
        """Raise an error if the outbox table is missing. Log a warning about migrations that are not applied, also in
        development.
        """
        has_outbox = get_config().outbox
        if not (has_outbox or settings.DEBUG):
            return
        try:
            with suppress(DatabaseError):  # a database that can't be reached now may be reachable when a task needs it
                self.check_migrations()
            is_ready = not has_outbox or is_migrated()
        finally:
            if self.is_program:
                connections.close_all()  # a process that will be copied must have no open connections
        if not is_ready:
            raise ConfigurationError(
                "OUTBOX is on, and no database has the table of the outbox: run manage.py migrate, then start the worker"
            )
        if settings.DEBUG and not sys.stderr.isatty():
            logger.warning(
                "DEBUG is true: queries of a task are kept in memory until it ends; set DEBUG to False in production"
            )


def is_imported_by_child() -> bool:
    """Return whether this is a child process of `multiprocessing` that imports the main module of its parent.

    A main module without ``if __name__ == "__main__":`` runs this command again in the child. The child must not become
    another worker, because it has its own task.
    """
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _check_list(name: str, typed: object) -> None:
    """Raise an error for an empty list, because it is probably a variable that was not set. Only ``--steal`` may be
    empty.
    """
    if not isinstance(typed, str) or typed.strip(", ") or (name == "steal" and not typed.strip()):
        return
    raise ConfigurationError(f"--{name}: expected user ids separated by commas, or * for everyone; got {short(typed)}")


def _as_typed(mistake: Mistake, options: dict[str, Any]) -> Mistake:
    """Replace the keys in a mistake by the names of the command line options that were given."""
    key, problem = mistake.key.replace("override config_file", "--config"), mistake.problem
    for name, option in WORKER_OPTIONS.items():
        key = re.sub(rf"^override worker\.{option}\b", _flag(name), key)
    if options["users"] is not None:
        problem = problem.replace("that are not in users", "that are not in --users")
        problem = problem.replace("because users is", "because --users is")
    return replace(mistake, key=key, problem=problem)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metrics(port: int | None, host: str | None, supervisor: Supervisor) -> AbstractContextManager[object]:
    if port is None:
        if host is not None:
            raise ConfigurationError("--metrics-host goes with --metrics-port, which is not given")
        return nullcontext()
    from django_fairque.web.metrics_server import MetricsServer

    return MetricsServer(port, host or "127.0.0.1", lambda: supervisor.figures)


def _worker_options(options: dict[str, Any]) -> WorkerOptions:
    for name in ("users", "steal"):
        _check_list(name, options[name])
    overrides = {
        "config_file": options["config"],
        "worker": {option: options[name] for name, option in WORKER_OPTIONS.items()},
    }
    set_overrides(overrides)
    try:
        config = get_config().worker
    except InvalidOptionsError as error:
        raise InvalidOptionsError(_as_typed(mistake, options) for mistake in error.mistakes) from None
    return WorkerOptions.from_config(
        config, burst=options["burst"], logs_tasks=options["verbosity"] > 1, overrides=overrides
    )


def _supervisor(made: WorkerOptions, options: dict[str, Any], *, copied: bool) -> Supervisor:
    reload = options["reload"]
    if reload is None:
        reload = settings.DEBUG and sys.stderr.isatty() and not made.burst
    return Supervisor(made, health_file=options["health_file"], reload=reload, copied=copied)
