"""The measurements of the noisy neighbor cookbook: one slot, tasks of one second, on a real server with the time passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from django_fairque.engine.model.lanes import Lane
from django_fairque.engine.model.task import Task
from tests.leases import pop

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    MakeQueue = Callable[[], FairQueue]

START = 1_800_000_000.0
CUSTOMERS = 200


def start_tasks(queue: FairQueue, count: int, now: float) -> Iterator[str]:
    """Run tasks one after the other, each for a second, and yield the user of each."""
    for second in range(count):
        lease = pop(queue, now=now + second)
        queue.finish(lease, now=now + second + 1)
        yield lease.user_id


def digest(make_queue: MakeQueue) -> Iterable[tuple[str, ...]]:
    """Count the seconds for which a password mail waits behind the digests of all customers, one of which runs."""
    waits = []
    ways: tuple[tuple[Lane, Lane], ...] = (("normal", "normal"), ("bulk", "urgent"))
    for of_digest, of_mail in ways:
        queue = make_queue()
        for number in range(CUSTOMERS):
            queue.push(Task.create(f"customer-{number}", 3, None, lane=of_digest), now=START)
        list(start_tasks(queue, 10, START))
        queue.push(Task.create("customer-0", 3, None, name="mail", lane=of_mail), now=START + 10)
        position = next(second for second in range(CUSTOMERS) if _runs_mail(queue, START + 10 + second))
        waits.append(position)
    yield "seconds until the password mail starts", *(f"{wait:,}" for wait in waits)


def _runs_mail(queue: FairQueue, now: float) -> bool:
    lease = pop(queue, now=now)
    queue.finish(lease, now=now + 1)
    return lease.name == "mail"


def split(make_queue: MakeQueue) -> Iterable[tuple[str, ...]]:
    """Count the starts of a customer with nine accounts and of one with a single account, among a hundred."""
    shares = []
    for has_organization in (False, True):
        queue = make_queue()
        accounts = [f"big-{number}" for number in range(9)]
        for account in accounts if has_organization else ():
            queue.user(account).set_organization("big")
        for account in (*accounts, "small"):
            queue.push_batch([Task.create(account, 3, None) for _ in range(100)], now=START)
        starts = Counter(user.partition("-")[0] for user in start_tasks(queue, 100, START))
        shares.append(starts)
    for name in ("big", "small"):
        yield f"starts of {name}, of the first 100", *(str(starts[name]) for starts in shares)


def bulk_import(make_queue: MakeQueue) -> Iterable[tuple[str, ...]]:
    """Count the seconds for which another customer's task waits while an import runs: all under one user, or each its own."""
    waits = []
    for importer, other in (("everybody", "everybody"), ("importer", "other")):
        queue = make_queue()
        queue.push_batch([Task.create(importer, 3, None) for _ in range(1000)], now=START)
        list(start_tasks(queue, 10, START))
        queue.push(Task.create(other, 3, None, name="mail"), now=START + 10)
        waits.append(next(second for second in range(1000) if _runs_mail(queue, START + 10 + second)))
    yield "seconds until another customer's task starts", *(f"{wait:,}" for wait in waits)


RECIPES = {"digest": digest, "import": bulk_import, "split": split}


def table(name: str, make_queue: MakeQueue) -> str:
    """Return a recipe's table in Markdown."""
    rows = ["| | without | with |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in RECIPES[name](make_queue))]
    return "\n".join(rows) + "\n"
