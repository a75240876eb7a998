"""The measurements of the noisy neighbor cookbook: tasks of one second, on a real server with the time passed in.

A measurement gets an empty queue, and whether the recipe is followed. It returns its figures by their names in the table;
None is never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.task import Task

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    Measurement = Callable[[FairQueue, bool], dict[str, int | None]]

START = 1_800_000_000.0
MINUTE = 60


class Slots:
    """Slots in which the tasks of a queue run, second by second. ``starts`` has the second and the lease of each start."""

    def __init__(self, queue: FairQueue, count: int = 1) -> None:
        self.queue, self.count, self.second = queue, count, 0
        self.starts = list[tuple[int, Lease]]()
        self._running = list[tuple[int, Lease]]()

    def run(
        self,
        seconds: int,
        duration: Callable[[Lease], int] = lambda _: 1,
        retry: Callable[[Lease], int | None] = lambda _: None,
    ) -> None:
        """Run tasks for a time. ``duration`` returns the seconds of an attempt; ``retry``, at its end, those until the next one,
        or None if the task has finished.
        """
        for second in range(seconds):
            self.second, now = second, START + second
            for end, lease in self._running:
                if end == second:
                    self._end(lease, retry(lease), now)
            self._running = [entry for entry in self._running if entry[0] > second]
            self.queue.sweep(now=now)  # delayed tasks become ready
            while len(self._running) < self.count and (started := self.queue.pop("w", lease=60, now=now)):
                self.starts.append((second, started))
                self._running.append((second + duration(started), started))

    def _end(self, lease: Lease, delay: int | None, now: float) -> None:
        if delay is None:
            self.queue.finish(lease, now=now)
        else:
            self.queue.fail(lease, "refused", delay=delay, now=now)

    def start_of(self, name: str) -> int:
        """Return the second in which the task of this name started first."""
        return next(second for second, lease in self.starts if lease.name == name)

    def count_starts(self) -> Counter[str]:
        """Count the starts of each user, without the number at the end of its name."""
        return Counter(lease.user_id.partition("-")[0] for _, lease in self.starts)


def digest(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Send a digest to 200 customers, and after ten of them a password mail."""
    slots = Slots(queue)
    for number in range(200):
        queue.push(Task.create(f"customer-{number}", 3, None, lane="bulk" if followed else "normal"), now=START)
    mail = Task.create("customer-0", 3, None, name="mail", delay=10, lane="urgent" if followed else "normal")
    queue.push(mail, now=START)
    slots.run(201)
    return {"seconds until the password mail starts": slots.start_of("mail") - 10}


def import_rows(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Import 1,000 rows of one customer, and after ten of them send a task of another."""
    slots = Slots(queue)
    importer, other = ("importer", "other") if followed else ("everybody", "everybody")
    queue.push_batch([Task.create(importer, 3, None) for _ in range(1000)], now=START)
    queue.push(Task.create(other, 3, None, name="other", delay=10), now=START)
    slots.run(1001)
    return {"seconds until another customer's task starts": slots.start_of("other") - 10}


def webhooks(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Receive 1,000 events about 50 orders of one customer, and after ten seconds one event of another."""
    slots = Slots(queue)
    partner, other = ("partner", "other") if followed else ("everybody", "everybody")
    for number in range(1000):
        joined = {"unique_key": f"order-{number % 50}", "debounce": 2.0} if followed else {}
        queue.push(Task.create(partner, 3, None, **joined), now=START)  # type: ignore[arg-type]
    queue.push(Task.create(other, 3, None, name="other", delay=10), now=START)
    slots.run(1010)
    return {
        "tasks that run for 1,000 events": len(slots.starts) - 1,
        "seconds until another customer's event is handled": slots.start_of("other") - 10,
    }


def failing_tasks(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Let 100 tasks of one customer hang for 30 seconds each, and send a task of another customer every ten seconds."""
    slots = Slots(queue, 4)
    limits = [TaskLimit("hooks", 2, is_of_user=True)] if followed else []
    queue.push_batch([Task.create("broken", 3, None, name="hangs", limits=limits) for _ in range(100)], now=START)
    for ready in range(5, 600, 10):
        queue.push(Task.create("other", 3, ready, delay=ready), now=START)

    def retry(lease: Lease) -> int | None:
        if lease.name != "hangs":
            return None
        if followed:
            queue.limit("hooks", "broken").close(300, now=START + slots.second)
        return 300

    slots.run(600, lambda lease: 30 if lease.name == "hangs" else 1, retry)
    waits = [second - lease.payload for second, lease in slots.starts if lease.user_id == "other"]
    return {
        "longest wait of another customer's task, in seconds": max(waits),
        "seconds of slots that failing tasks took": 30 * slots.count_starts()["broken"],
    }


def plans(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Run tasks of one paying customer and three free ones, which have more than the four slots can do."""
    slots = Slots(queue, 4)
    for user in ("pro", "free-1", "free-2", "free-3"):
        if followed and user == "pro":
            queue.user(user).set_weight(3, now=START)
        elif followed:
            queue.user(user).set_max_running(2, now=START)
            queue.user(user).set_rate("60/m", now=START)
        queue.push_batch([Task.create(user, 3, None) for _ in range(200)], now=START)
    slots.run(30)
    starts = slots.count_starts()
    return {
        "starts of the paying customer, of the first 120": starts["pro"],
        "starts of the three free customers": starts["free"],
    }


def quota(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Call a service that accepts 60 calls in a minute: 300 calls of one customer, and after ten seconds one of another."""
    slots, accepted, attempts, refused = Slots(queue, 8), Counter[int](), Counter[str](), set[str]()
    limits = [TaskLimit("service", gap=1_000_000)] if followed else []
    queue.push_batch([Task.create("big", 3, None, limits=limits) for _ in range(300)], now=START)
    queue.push(Task.create("small", 3, None, name="small", delay=10, limits=limits), now=START)
    answered = list[int]()

    def call(lease: Lease) -> int:
        attempts[lease.task_id] += 1
        if accepted[slots.second // MINUTE] < 60:
            accepted[slots.second // MINUTE] += 1
            refused.discard(lease.task_id)
            answered.extend([slots.second] if lease.name == "small" else [])
        else:
            refused.add(lease.task_id)
        return 1

    slots.run(600, call, lambda lease: 2 ** (attempts[lease.task_id] - 1) if lease.task_id in refused else None)
    return {
        "calls that the service refuses": attempts.total() - accepted.total(),
        "calls that end as dead letters": len(queue.dlq.list(limit=1000).items),
        "seconds until the other customer's call is answered": next((second - 10 for second in answered), None),
    }


def sizes(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Run tasks of a customer with 90 people and of ten customers with one person each."""
    slots = Slots(queue)
    people = {f"big-{number}": "big" for number in range(90)} | {
        f"small-{number}": f"s{number}" for number in range(10)
    }
    for person, customer in people.items():
        if followed:
            queue.user(person).set_organization(customer, now=START)
        queue.push_batch([Task.create(person, 3, None) for _ in range(30)], now=START)
    if followed:
        queue.organization("big").set_weight(10, now=START)
    slots.run(200)
    starts = slots.count_starts()
    return {
        "starts of the big customer, of the first 200": starts["big"],
        "starts of the ten small customers": starts["small"],
    }


def tokens(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Call a model that accepts calls until 80,000 tokens are used in a minute, with large prompts of one customer."""
    slots, used, budgets, refused = Slots(queue, 2), Counter[int](), Counter[tuple[str, int]](), set[Lease]()
    limits = [TaskLimit("tokens", 2, is_of_user=True)] if followed else []
    for user in ("large", "small"):
        queue.push_batch([Task.create(user, 3, None, limits=limits, max_retries=1000) for _ in range(500)], now=START)

    def size(lease: Lease) -> int:
        return 8000 if lease.user_id == "large" else 500

    def call(lease: Lease) -> int:
        minute = slots.second // MINUTE
        if used[minute] + size(lease) > 80_000:
            refused.add(lease)
        else:
            used[minute] += size(lease)
        return 1

    def retry(lease: Lease) -> int | None:
        if lease in refused:
            return 5
        user, minute = lease.user_id, slots.second // MINUTE
        budgets[user, minute] += size(lease)
        if followed and budgets[user, minute] >= 25_000:
            queue.limit("tokens", user).close(MINUTE - slots.second % MINUTE, now=START + slots.second)
        return None

    slots.run(300, call, retry)
    answers = Counter(lease.user_id for _, lease in slots.starts if lease not in refused)
    return {
        "answers for the customer with small prompts, in five minutes": answers["small"],
        "answers for the customer with large prompts": answers["large"],
        "calls that the provider refuses": len(refused),
    }


def accounts(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Count the starts of a customer with nine accounts and of one with a single account, among a hundred."""
    slots = Slots(queue)
    for account in (*(f"big-{number}" for number in range(9)), "small"):
        if followed and account != "small":
            queue.user(account).set_organization("big", now=START)
        queue.push_batch([Task.create(account, 3, None) for _ in range(100)], now=START)
    slots.run(100)
    return {f"starts of {name}, of the first 100": slots.count_starts()[name] for name in ("big", "small")}


def progress(queue: FairQueue, followed: bool) -> dict[str, int | None]:
    """Send an export, for which a person waits, after ten of 500 tasks of the same customer."""
    slots = Slots(queue)
    queue.push_batch([Task.create("acme", 3, None) for _ in range(500)], now=START)
    export = Task.create("acme", 3, None, name="export", delay=10, lane="urgent" if followed else "normal")
    queue.push(export, now=START)
    slots.run(501)
    return {"seconds until the bar moves": slots.start_of("export") - 10 + 1}


RECIPES: dict[str, Measurement] = {
    "digest": digest,
    "import": import_rows,
    "webhooks": webhooks,
    "failing-tasks": failing_tasks,
    "plans": plans,
    "quota": quota,
    "sizes": sizes,
    "tokens": tokens,
    "accounts": accounts,
    "progress": progress,
}
"""The measurement of each page in docs/guides/noisy-neighbors."""


def table(name: str, make_queue: Callable[[], FairQueue]) -> str:
    """Return a recipe's table in Markdown."""
    without, with_it = (RECIPES[name](make_queue(), followed) for followed in (False, True))
    cells = [
        (figure, *("never" if value is None else f"{value:,}" for value in (without[figure], with_it[figure])))
        for figure in without
    ]
    rows = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(["| | without | with |", "|---|---|---|", *rows]) + "\n"
