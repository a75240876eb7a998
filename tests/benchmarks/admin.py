"""What the admin's pages take on a queue with a million tasks: server time, commands, round trips.

``--scale 0.01`` fills with a hundredth. Full scale takes some minutes and 1 GB.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .table import Table

PROJECT = Path(__file__).parent.parent.parent / "testproject"
"""Where the settings of tests come from: pytest puts it on the path, and here nobody does."""
TARGET = 300.0
"""Milliseconds."""


def run(table: Table, *, quick: bool, scale: float | None = None) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ["TESTPROJECT_DATABASE"] = ":memory:"
    sys.path.insert(0, str(PROJECT))
    import django

    django.setup()
    from django.db import connection
    from django.test import override_settings
    from django.test.utils import setup_test_environment, teardown_test_environment

    setup_test_environment(debug=False)
    name = connection.creation.create_test_db(verbosity=0)
    try:
        part = scale if scale is not None else 0.01 if quick else 1.0
        with Server() as server, override_settings(FAIRQUE={"REDIS": {"URL": server.url}}), server.client() as redis:
            _measure(table, redis, part, 5 if quick else 20)
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)
        teardown_test_environment()


def _measure(table: Table, redis: Any, scale: float, times: int) -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    from django_fairque.conf import get_queue

    from .filling import Scale, fill
    from .visits import visits

    queue, client = get_queue(), Client()
    client.force_login(User.objects.create_superuser("admin"))
    begun = time.perf_counter()
    fill(queue, Scale.of(scale))
    sizes = queue.get_stats(0)
    held = ", ".join(f"{count:,} {state}" for state, count in sizes.states.items())
    print(f"{sizes.users:,} users, {held}: filled in {time.perf_counter() - begun:.0f} s", flush=True)
    for visit in list(visits(queue, client)):
        pay = partial(visit.pay, client)
        pay()  # what is only done the first time
        commands, trips = cost(redis, pay)
        busy = _busy(redis)
        took = sorted(_milliseconds(pay) for _ in range(times))
        busy = (_busy(redis) - busy) * 1000 / times
        p50, p95 = took[len(took) // 2], took[min(len(took) - 1, round(0.95 * len(took)))]
        spread = f"p95 {p95:.0f} ms; {busy:.0f} ms of processors; {commands:,} commands, {trips:,} round trips"
        table.row(f"{visit.page} {visit.what}".strip(), f"{p50:.0f} ms", spread, f"≤ {TARGET:.0f} ms")


def _busy(redis: Any) -> float:
    """Seconds of processors that this process and the server have used: what others do beside does not count."""
    used = redis.info("cpu")
    return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def cost(redis: Any, call: Callable[[], object]) -> tuple[int, int]:
    """Server commands and round trips of a call."""
    before = int(redis.info("stats")["total_commands_processed"])
    with _sent() as trips:
        call()
    return int(redis.info("stats")["total_commands_processed"]) - before - 1, len(trips)


@contextmanager
def _sent() -> Iterator[list[None]]:
    """One item for each time that something was written to a server: a command, or all of a pipeline."""
    from redis.connection import AbstractConnection

    trips: list[None] = []
    send: Any = AbstractConnection.send_packed_command

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        trips.append(None)
        return send(self, *args, **options)

    AbstractConnection.send_packed_command = counting  # type: ignore[method-assign]
    try:
        yield trips
    finally:
        AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
