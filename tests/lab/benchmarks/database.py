"""Measures saving with model events and enqueueing with the outbox, on SQLite in memory or on PostgreSQL
(``python -m tests.tools.postgres python -m tests.lab.benchmarks database``); there also tasks with two queries, with peers in
the same rounds."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers import Server

from . import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .table import Table


ROOT = Path(__file__).parents[3]
PEERS_WITH_QUERIES = ("mayu", "dramatiq", "celery")


def run(table: Table, *, quick: bool, only: Sequence[str] = (), rounds: int = 5) -> None:
    import os
    import sys

    if "PGHOST" in os.environ:
        kinds = [kind for kind in work.KINDS if kind.work == "database"]
        work.measure(table, kinds, list(only or PEERS_WITH_QUERIES), 1 if quick else rounds)
    sys.path.insert(0, str(ROOT / "testproject"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    os.environ["TESTPROJECT_DATABASE"] = ":memory:"
    import django

    django.setup()
    from django.db import connection
    from django.test import override_settings

    with Server() as server, override_settings(FAIRQUE={"REDIS": {"URL": server.url}}):
        name = connection.creation.create_test_db(verbosity=0)
        try:
            _saves(table, 1_000 if quick else 10_000)
            _outbox(table, server.url, 200 if quick else 1_000)
        finally:
            connection.creation.destroy_test_db(name, verbosity=0)


@contextmanager
def rules(*declared: Any) -> Iterator[None]:
    """Only these events; a declaration is a function that makes one."""
    from django_fairque.events import activation, field_tracker, rules

    before, rules.rule_registry, watched = rules.rule_registry, rules._RuleRegistry(), field_tracker.tracked
    field_tracker.tracked = {}
    activation.ready()
    try:
        for declare in declared:
            declare()
        yield
    finally:
        rules.rule_registry, field_tracker.tracked = before, watched


def _seconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def _saves(table: Table, count: int) -> None:
    """``count`` saves of one object in one transaction: what events add to each."""
    from django.db import transaction

    from django_fairque import task
    from django_fairque.events import changed, on_save
    from tests.shop.models import Order

    @task(name="bench.event")
    def work(pk: int) -> None: ...

    order = Order.objects.create()

    def saves() -> None:
        with transaction.atomic():
            for total in range(count):
                order.total = total
                order.save()

    kinds: dict[str, tuple[Any, ...]] = {
        "without events": (),
        "one event, coalesced": (lambda: on_save(Order).enqueue(work, "pk"),),
        "one event, whose condition is watched": (lambda: on_save(Order, when=changed("total")).enqueue(work, "pk"),),
        "one event, whose condition is false": (lambda: on_save(Order, when=changed("status")).enqueue(work, "pk"),),
    }
    figures: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(5):
        for kind, declared in kinds.items():
            with rules(*declared):
                figures[kind].append(_seconds(saves) / count)
    base = statistics.median(figures["without events"])
    table.add("a save in a transaction, without events", base * 1e6, "µs")
    for kind, times in figures.items():
        if times is not figures["without events"]:
            table.add(f"more for {kind}", (statistics.median(times) - base) * 1e6, "µs")


def _outbox(table: Table, url: str, count: int) -> None:
    """Transactions that store a row of their own and enqueue a task, with and without the outbox."""
    from django.db import transaction
    from django.test import override_settings

    from django_fairque import task
    from tests.shop.models import Customer

    @task(name="bench.enqueue", user="user")
    def work(user: str, n: int) -> None: ...

    def transactions() -> None:
        for n in range(count):
            with transaction.atomic():
                Customer.objects.create(slug="x")
                work.enqueue("u", n)

    def bulk() -> None:
        with transaction.atomic():
            work.enqueue_many([(("u", n), {}) for n in range(count)])

    figures: dict[tuple[bool, str], list[float]] = {}
    for _ in range(5):
        for outbox in (False, True):
            with override_settings(FAIRQUE={"REDIS": {"URL": url}, "OUTBOX": outbox}):
                for name, call in (("a transaction with one task", transactions), ("a task of many in one", bulk)):
                    figures.setdefault((outbox, name), []).append(_seconds(call) / count)
    for (outbox, name), times in figures.items():
        table.add(f"{name}, {'with' if outbox else 'without'} the outbox", statistics.median(times) * 1e6, "µs")
