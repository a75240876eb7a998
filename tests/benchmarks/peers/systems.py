"""The peers that are measured: what each installs, what starts its worker, and what runs the tasks in it."""

from __future__ import annotations

from dataclasses import dataclass

DJANGO = ("-m", "django")


@dataclass(frozen=True)
class System:
    """How a peer is installed and run.

    Attributes:
        packages: what pip installs; the first is the peer, whose version is recorded.
        command: starts the worker: a program of the peer's environment and its arguments. ``{url}`` is the server's URL,
            ``{number}`` the worker's number.
        tasks: how many tasks a round sends.
        runs_in: what runs tasks at the same time, for the table.
        module: of the tasks; its ``__main__`` sends them.
        python: the oldest version that the peer supports.
        needs_database: it stores tasks in PostgreSQL instead of Redis or Valkey.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    tasks: int
    runs_in: str
    module: str
    python: tuple[int, int] = (3, 10)
    needs_database: bool = False


def django_system(
    package: str, command: tuple[str, ...], runs_in: str, *, tasks: int = 2_000, needs_database: bool = False
) -> System:
    """A backend of ``django.tasks``, which all run the same tasks."""
    return System(
        packages=(package, "django>=6.0", "psycopg[binary]" if needs_database else "redis"),
        command=("python", *DJANGO, *command),
        tasks=tasks,
        runs_in=runs_in,
        module="peer_django",
        python=(3, 12),
        needs_database=needs_database,
    )


PEERS = {
    "rq": System(
        ("rq",),
        ("rq", "worker", "-w", "rq.SimpleWorker", "--url", "{url}", "--burst", "--quiet"),
        2_000,
        "one thread",
        "peer_rq",
    ),
    "celery": System(
        ("celery[redis]",),
        (
            "celery",
            "-A",
            "peer_celery",
            "worker",
            "--pool",
            "threads",
            "-c",
            "8",
            "--loglevel",
            "ERROR",
            "--without-gossip",
            "-n",
            "{number}@peers",
        ),
        3_000,
        "8 threads",
        "peer_celery",
    ),
    "huey": System(
        ("huey", "redis"),
        ("huey_consumer", "peer_huey.huey", "-k", "thread", "-w", "8", "-q", "-n"),
        10_000,
        "8 threads",
        "peer_huey",
    ),
    "dramatiq": System(
        ("dramatiq[redis]",),
        ("dramatiq", "peer_dramatiq", "--processes", "1", "--threads", "8"),
        10_000,
        "8 threads",
        "peer_dramatiq",
    ),
    "taskiq": System(
        ("taskiq", "taskiq-redis"),
        ("taskiq", "worker", "peer_taskiq:broker", "--workers", "1", "--max-async-tasks", "100"),
        10_000,
        "100 coroutines",
        "peer_taskiq",
    ),
    "ardiq": System(
        ("ardiq",),
        ("ardiq", "run", "peer_ardiq:app", "--quiet"),
        20_000,
        "100 coroutines",
        "peer_ardiq",
        python=(3, 12),
    ),
    "streaq": System(("streaq",), ("streaq", "run", "peer_streaq:worker"), 3_000, "100 coroutines", "peer_streaq"),
    "mayu": System(
        ("mayu",),
        ("mayu", "worker", "peer_mayu:app", "--mode", "thread", "--threads", "8"),
        20_000,
        "8 threads",
        "peer_mayu",
        python=(3, 13),
    ),
    "django-tasks-redis": django_system(
        "django-tasks-redis", ("run_redis_tasks", "--continuous"), "one thread", tasks=1_000
    ),
    "django-vtasks": django_system("django-vtasks[valkey]", ("runworker",), "100 coroutines"),
    "django-tasks-db": django_system("django-tasks-db", ("db_worker",), "one thread", needs_database=True),
    "dj-queue": django_system("dj-queue[postgres]", ("dj_queue",), "8 threads", needs_database=True),
    "steady-queue": django_system("steady-queue", ("steady_queue",), "8 threads", needs_database=True),
}
