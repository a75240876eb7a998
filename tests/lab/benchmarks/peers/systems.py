"""The peers that are measured: what each installs, what starts its worker, and what runs the tasks in it."""

from __future__ import annotations

from dataclasses import dataclass

DJANGO = ("-m", "django")


@dataclass(frozen=True)
class Urgent:
    """Describes how a peer runs urgent tasks before the others, as its documentation recommends.

    Attributes:
        configuration: in words for the table.
        page: the page of its documentation.
        arguments: further arguments of the worker's command.
    """

    configuration: str
    page: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """Describes the installation and the start of a peer.

    Attributes:
        packages: what pip installs; the first is the peer, whose version is recorded.
        command: starts the worker: a program of the peer's environment and its arguments. ``{url}`` is the server's URL,
            ``{number}`` the worker's number, ``{slots}`` how many tasks it runs at the same time.
        tasks: how many tasks a round sends.
        module: of the tasks; its ``__main__`` sends them.
        slots: how many tasks it runs at the same time when their overhead is measured.
        coroutines: it runs tasks as coroutines; if not, in threads.
        python: the oldest version that the peer supports.
        needs_database: it stores tasks in PostgreSQL instead of Redis or Valkey.
        urgent: its configuration for urgent tasks; None if it has no figures with urgent tasks.
    """

    packages: tuple[str, ...]
    command: tuple[str, ...]
    tasks: int
    module: str
    slots: int = 8
    coroutines: bool = False
    python: tuple[int, int] = (3, 10)
    needs_database: bool = False
    urgent: Urgent | None = None

    @property
    def runs_in(self) -> str:
        """The threads or coroutines that run its tasks, in words for the table."""
        return f"{self.slots} {'coroutines' if self.coroutines else 'threads'}" if self.slots > 1 else "one thread"


def django_system(
    package: str,
    command: tuple[str, ...],
    *,
    tasks: int = 2_000,
    slots: int = 8,
    coroutines: bool = False,
    needs_database: bool = False,
    urgent: Urgent | None = None,
) -> System:
    """A backend of ``django.tasks``, which all run the same tasks."""
    return System(
        packages=(package, "django>=6.0", "psycopg[binary]" if needs_database else "redis"),
        command=("python", *DJANGO, *command),
        tasks=tasks,
        module="peer_django",
        slots=slots,
        coroutines=coroutines,
        python=(3, 12),
        needs_database=needs_database,
        urgent=urgent,
    )


PEERS = {
    "rq": System(
        ("rq",),
        ("rq", "worker", "-w", "rq.SimpleWorker", "--url", "{url}", "--burst", "--quiet"),
        2_000,
        "peer_rq",
        slots=1,
        urgent=Urgent("first of two queues", "https://python-rq.org/docs/workers/", ("urgent", "default")),
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
            "{slots}",
            "--loglevel",
            "ERROR",
            "--without-gossip",
            "-n",
            "{number}@peers",
        ),
        3_000,
        "peer_celery",
        urgent=Urgent(
            "priority, prefetch multiplier 1",
            "https://docs.celeryq.dev/en/stable/userguide/routing.html",
            ("--prefetch-multiplier", "1"),  # with --disable-prefetch it runs 9 tasks a second
        ),
    ),
    "huey": System(
        ("huey", "redis"),
        ("huey_consumer", "peer_huey.huey", "-k", "thread", "-w", "{slots}", "-q", "-n"),
        10_000,
        "peer_huey",
        urgent=Urgent("priority", "https://huey.readthedocs.io/en/latest/guide.html"),
    ),
    "dramatiq": System(
        ("dramatiq[redis]",),
        ("dramatiq", "peer_dramatiq", "--processes", "1", "--threads", "{slots}"),
        10_000,
        "peer_dramatiq",
        urgent=Urgent("priority and a second queue", "https://dramatiq.io/guide.html#prioritizing-messages"),
    ),
    "taskiq": System(
        ("taskiq", "taskiq-redis"),
        ("taskiq", "worker", "peer_taskiq:broker", "--workers", "1", "--max-async-tasks", "{slots}"),
        10_000,
        "peer_taskiq",
        slots=100,
        coroutines=True,
    ),
    "ardiq": System(
        ("ardiq",),
        ("ardiq", "run", "peer_ardiq:app", "--quiet"),
        20_000,
        "peer_ardiq",
        slots=100,
        coroutines=True,
        python=(3, 12),
    ),
    "streaq": System(
        ("streaq",), ("streaq", "run", "peer_streaq:worker"), 3_000, "peer_streaq", slots=100, coroutines=True
    ),
    "mayu": System(
        ("mayu",),
        ("mayu", "worker", "peer_mayu:app", "--mode", "thread", "--threads", "{slots}"),
        20_000,
        "peer_mayu",
        python=(3, 13),
    ),
    "django-tasks-redis": django_system(
        "django-tasks-redis", ("run_redis_tasks", "--continuous"), tasks=1_000, slots=1
    ),
    "django-vtasks": django_system("django-vtasks[valkey]", ("runworker",), slots=100, coroutines=True),
    "django-tasks-db": django_system(
        "django-tasks-db",
        ("db_worker",),
        slots=1,
        needs_database=True,
        urgent=Urgent("priority", "https://docs.djangoproject.com/en/6.0/ref/tasks/"),
    ),
    "dj-queue": django_system(
        "dj-queue[postgres]",
        ("dj_queue",),
        needs_database=True,
        urgent=Urgent("priority", "https://docs.djangoproject.com/en/6.0/ref/tasks/"),
    ),
    "steady-queue": django_system("steady-queue", ("steady_queue",), needs_database=True),
}
