"""Measures the time, the commands and the round trips of the admin's pages on a queue with a million tasks.

The times are of the second visit / of the first visit, when the connections and the status of the queues are read anew.
``--scale 0.01`` fills with a hundredth. Full scale takes some minutes and 1 GB.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import Server

from .table import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .table import Table

PROJECT = Path(__file__).parents[3] / "testproject"
"""Where the settings of tests come from: pytest puts it on the path, and here nobody does."""
TARGET = 300.0
"""Milliseconds."""
MOST_TRIPS = 20
"""Round trips of a visit."""


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
        with Server() as server, override_settings(FAIRQUE=site_configuration(server)), server.client() as redis:
            _measure(table, redis, part, 5 if quick else 20)
    finally:
        connection.creation.destroy_test_db(name, verbosity=0)
        teardown_test_environment()


def site_configuration(server: Server) -> dict[str, Any]:
    """The configuration of a site whose queues are on this server, and are not captured by a test."""
    return {"REDIS": {"URL": server.url}, "QUEUES": {"default": {}, "mail": {}}, "CAPTURE_IN_TESTS": False}


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
    over = []
    for visit in list(visits(queue, client)):
        pay = partial(visit.pay, client)
        pay()  # the first request imports modules and compiles templates
        name = f"{visit.page} {visit.what}".strip()
        cold = [_milliseconds(pay, forget_cached) for _ in range(times)]
        _status().forget()  # the handshakes of new connections are no round trips of the page
        _, cold_trips = cost(redis, pay)
        commands, trips = cost(redis, pay)
        busy = _busy_seconds(redis)
        warm = [_milliseconds(pay) for _ in range(times)]
        busy = (_busy_seconds(redis) - busy) * 1000 / times
        first, second = statistics.median(cold), statistics.median(warm)
        spread = f"≤ {max(warm):.0f} / {max(cold):.0f} ms; {busy:.0f} ms of processors; {commands:,} commands, "
        spread += f"{trips} / {cold_trips} round trips"
        table.row(name, f"{second:.0f} / {first:.0f} ms", spread, f"≤ {TARGET:.0f} ms, {MOST_TRIPS} round trips")
        table.figures += [
            Figure(name, "ms", warm),
            Figure(f"{name}, first visit", "ms", cold),
            Figure(f"{name}, processors", "ms", [busy]),
            Figure(f"{name}, commands", "commands", [commands]),
            Figure(f"{name}, round trips", "round trips", [trips]),
            Figure(f"{name}, round trips of the first visit", "round trips", [cold_trips]),
        ]
        if max(first, second) > TARGET or max(trips, cold_trips) > MOST_TRIPS:
            over.append(name)
    print(f"over the target: {', '.join(over) or 'none'}", flush=True)


def _status() -> Any:
    from django_fairque.admin.status_line import status_probe

    return status_probe


def forget_cached() -> None:
    """Make the next visit the first one: the connections of pages are closed, and the status of the queues is not known."""
    from django_fairque.admin import page_queues

    page_queues.close_connections()
    _status().forget()


def _busy_seconds(redis: Any) -> float:
    """Seconds of processors that this process and the server have used: other processes do not count."""
    used = redis.info("cpu")
    return time.process_time() + float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _milliseconds(call: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
    """Measure the time of a call; ``before`` is called first and not measured."""
    before()
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
