"""What ``manage.py demo --serve`` plays: a mixed day of several customers that never ends."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from django.db import transaction

from django_fairque.conf import get_config, get_queue
from django_fairque.models import OutboxEntry

from .pipelines import package_pipeline
from .tasks import fetch_mail, fetch_rates, rebuild_search_index, send_code, send_reminder, serve_customer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_fairque import FairQueue

WEIGHTS = {"acme": 4.0, "birch": 2.0, "cedar": 1.0, "delta": 1.0, "ember": 1.0}
"""Customers who always have a little to do."""
ORGANIZATION, MEMBERS = "northwind", ("delta", "ember")
NOISY, LIMITED, PAUSED = "noisy", "limited", "paused"
NIGHTLY = tuple(f"tenant{number}" for number in range(200))
"""Customers with a bulk task in each nightly job."""
CUSTOMERS = (*WEIGHTS, NOISY, LIMITED, PAUSED, *NIGHTLY)

RUN_SECONDS = (0.1, 0.4)
"""Shortest and longest run time of a customer's task."""
MEAN_RUN_SECONDS = sum(RUN_SECONDS) / 2
BASE_LOAD = 0.5
"""The part of all slots that the customers in `WEIGHTS` need on average."""
BURST_SECONDS = 15
"""How long all slots would need for one burst of the noisy user."""
LIMITED_SLA_SECONDS = 15.0
"""The limited user has about 20 tasks of a second waiting, one of which may run: some will miss this."""
LIMITED_BACKLOG = 20
MAILBOX, MAIL_BACKLOG = "support", 10
"""A mailbox that the customers in `WEIGHTS` share, and the tasks from which on none is added to those that wait for it."""
PAUSED_BACKLOG = 3
"""The paused user may not have more: further tasks stay in the outbox."""
OUTBOX_TASKS = 2
"""Tasks that the paused user has in the outbox: the first one is tried again and again, and the others wait for it."""
MAX_BACKLOG_SECONDS = 120
"""Run time that may wait before nothing is added: the machine may be slower than expected."""
MAX_DEAD_LETTERS = 50
DOCUMENTS = 8
"""Of a pipeline."""

BURST_EVERY, PIPELINE_EVERY, LONG_EVERY, NIGHTLY_JOB_EVERY = 60, 20, 150, 90
FAILING_EVERY, FLAKY_EVERY, HELD_BACK_EVERY = 15, 10, 5
"""Seconds."""
EVERY_HALF_MINUTE, NIGHTLY_REPORT = "demo: every half minute", "demo: nightly report"
"""Names of schedules."""


class EndlessDay:
    """Sends a second's work per `step`, and never more than the workers can finish.

    Parameters
    ----------
    slots
        Tasks that the workers run at once.
    package, documents
        The owner of the documents, and their keys, whose pipeline is sent every 20 seconds.
    """

    def __init__(self, queue: FairQueue, slots: int, package: str, documents: Sequence[int]) -> None:
        self._queue = queue
        self._slots = slots
        self._package = package
        self._documents = documents
        self._random = random.Random(26)  # noqa: S311 - the same day each time

    def begin(self) -> None:
        """Set weights, limits, the organization and the schedules."""
        for name, weight in WEIGHTS.items():
            self._queue.user(name).set_weight(weight)
        for name in MEMBERS:
            self._queue.user(name).set_organization(ORGANIZATION)
        limited = self._queue.user(LIMITED)
        limited.set_max_running(1)
        limited.set_sla(LIMITED_SLA_SECONDS)
        paused = self._queue.user(PAUSED)
        paused.pause()
        paused.set_max_backlog(PAUSED_BACKLOG)
        self._queue.schedules.add(EVERY_HALF_MINUTE, task=serve_customer.s("acme", 0, MEAN_RUN_SECONDS), every=30)
        self._queue.schedules.add(
            NIGHTLY_REPORT, task=serve_customer.s("birch", 0, MEAN_RUN_SECONDS), cron="30 4 * * *"
        )

    def play(self, check: Callable[[], None]) -> None:
        """Go on until an exception ends it; calls ``check`` each second."""
        self.begin()
        second, began = 0, time.monotonic()
        while True:
            check()
            self.step(second)
            second += 1
            time.sleep(max(0.0, began + second - time.monotonic()))

    def step(self, second: int) -> None:
        """Send what is due in this second of the day; nothing if too much waits already."""
        sizes = self._queue.get_queue_sizes_batch(list(CUSTOMERS))
        waiting = sum(sizes[name].ready for name in CUSTOMERS if name not in (LIMITED, PAUSED))
        if waiting * MEAN_RUN_SECONDS > MAX_BACKLOG_SECONDS * self._slots:
            return
        for _ in range(self._tasks_of(BASE_LOAD)):
            owner, seconds = self._random.choice(list(WEIGHTS)), round(self._random.uniform(*RUN_SECONDS), 3)
            serve_customer.enqueue(owner, second, seconds)
        send_code.enqueue(self._random.choice(list(WEIGHTS)))
        if second % BURST_EVERY == BURST_EVERY // 4:
            self._burst()
        if second % HELD_BACK_EVERY == 0:
            self._fill_up(LIMITED, LIMITED_BACKLOG - sizes[LIMITED].ready, 1.0)
            if self._queue.limit(f"mailbox:{MAILBOX}").stats().waiting < MAIL_BACKLOG:
                fetch_mail.enqueue_many([((owner, MAILBOX, 1.0), {}) for owner in WEIGHTS])
            self._fill_up(PAUSED, PAUSED_BACKLOG - sizes[PAUSED].ready, MEAN_RUN_SECONDS)
            if sizes[PAUSED].ready >= PAUSED_BACKLOG and get_config().outbox:
                self._fill_outbox()
        self._send_rare_tasks(second)

    def _send_rare_tasks(self, second: int) -> None:
        if second % NIGHTLY_JOB_EVERY == 4:
            send_nightly_job()
        if second % PIPELINE_EVERY == 1:
            package_pipeline(self._package, self._documents).enqueue()
        if second % LONG_EVERY == 2:
            rebuild_search_index.enqueue("cedar", 120)
        if second % FLAKY_EVERY == 3:
            fetch_rates.enqueue("birch")
        if second % FAILING_EVERY == 0 and self._queue.dlq.count() < MAX_DEAD_LETTERS:
            send_reminder.enqueue("delta", f"nobody-{second}", api_token="t0ps3cret")  # noqa: S106 - none

    def _tasks_of(self, load: float) -> int:
        """How many tasks a second make this load; of a fraction of a task that part of the time one more."""
        return int(load * self._slots / MEAN_RUN_SECONDS + self._random.random())

    @staticmethod
    def _fill_outbox() -> None:
        """Enqueue tasks that do not fit into the paused user's backlog, once."""
        if not OutboxEntry.objects.filter(user_id=PAUSED).exists():
            with transaction.atomic():
                for number in range(OUTBOX_TASKS):
                    serve_customer.enqueue(PAUSED, number, MEAN_RUN_SECONDS)

    @staticmethod
    def _fill_up(owner: str, count: int, seconds: float) -> None:
        if count > 0:
            serve_customer.enqueue_many([((owner, number, seconds), {}) for number in range(count)])

    def _burst(self) -> None:
        count = int(BURST_SECONDS * self._slots / MEAN_RUN_SECONDS)
        serve_customer.enqueue_many([((NOISY, number, MEAN_RUN_SECONDS), {}) for number in range(count)])


def send_nightly_job() -> int:
    """Send a bulk task of each customer in `NIGHTLY`; return their number."""
    job = serve_customer.using(lane="bulk")
    return len(job.enqueue_many([((owner, number, MEAN_RUN_SECONDS), {}) for number, owner in enumerate(NIGHTLY)]))


def is_nightly_job_waiting() -> bool:
    """Return whether tasks of lane bulk are waiting: visitors of a hosted demonstration could send jobs without end."""
    return get_queue().get_stats(0).lanes["bulk"].ready > 0


def end_day(queue: FairQueue) -> None:
    """Remove the schedules, and cancel what the day's customers still have waiting: a paused user's tasks would stay for ever."""
    OutboxEntry.objects.filter(user_id=PAUSED).delete()
    for name in (EVERY_HALF_MINUTE, NIGHTLY_REPORT):
        queue.schedules.remove(name)
    for name in CUSTOMERS:
        user = queue.user(name)
        if user.is_known():
            user.resume()
            user.purge()
