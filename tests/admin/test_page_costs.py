"""The costs of a page do not grow with its queue: every list, filter, second page and question, at two sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_fairque.admin.pages import dead_letters, overview, tasks, users
from django_fairque.engine.dead_letters import dead_letters as dead_letter_operations
from django_fairque.engine.statistics import task_names
from django_fairque.engine.users import report
from django_fairque.monitoring import first_come
from django_fairque.monitoring.reports import incident_impact
from tests.fixture_types import Client, FairQueue, Redis
from tests.lab.benchmarks.admin import cost
from tests.lab.benchmarks.filling import Scale, fill
from tests.lab.benchmarks.visits import visits

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("each_page_reads_status")]

SMALL = Scale(queued=800, users=150, dead=250, noisy=100, some=250, few=110, run=100)
GROWING = ("queued", "users", "dead", "noisy", "some")
EXAMINED = 3 * 25 + 5 * 100
"""Tasks whose users are examined first; of each user its record, and the oldest task of each priority."""
MOST = {
    # The records of all 110 workers, of 40 users with their oldest tasks, and of 50 tasks that are replayed, in four states.
    "live": 680,
    # The oldest tasks are held back here, so those of the users who are served next are read as well.
    "overview": 120 + EXAMINED,
    "overview 24 hours": 1500 + EXAMINED,
    # Also the minutes of an hour, for the waits by lane, and the users' records once more for the list.
    "users": 200 + EXAMINED,
    "task": 160,
    # The graph of the tasks that are canceled with it: their number is in the question.
    "task cancel?": 420,
    "dependencies of one with many dependents": 420,
    # Each of the records that are looked through is read with its head, and the size of its payload, its head and the payload.
    "tasks with an argument": 1030,
    "tasks all": 500,
    # The records that name runs, and the tasks of the runs.
    "runs": 430,
}
"""Server commands; those in a script count too."""
OTHERS = 380
STATUS = 142
"""Commands of the status line: each page here reads the health and open incidents of two queues anew; one has 110 workers."""
TRIPS = 21


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a small queue reaches."""
    for module, name in (
        *((tasks, "TASKS_EXAMINED"), (tasks, "MAX_RECORDS_READ"), (dead_letters, "MAX_DEAD_LETTERS_READ")),
        *((report, "MAX_DEAD_LETTERS_READ"), (dead_letter_operations, "MAX_DEAD_LETTERS_READ")),
    ):
        monkeypatch.setattr(module, name, 200)
    for module in (overview, users):
        monkeypatch.setattr(module, "PAGE_USERS_EXAMINED", 100)
    monkeypatch.setattr(incident_impact, "MAX_IMPACT_USERS", 100)
    monkeypatch.setattr(users, "ENDED_TASKS_EXAMINED", 99)
    monkeypatch.setattr(first_come, "MAX_REPLAYED_TASKS", 50)
    monkeypatch.setattr(task_names, "SCHEDULED_SAMPLE", 30)


def costs(redis: Redis, queue: FairQueue, client: Client) -> dict[str, tuple[int, int]]:
    return {
        f"{visit.page} {visit.what}".strip(): cost(redis, lambda visit=visit: visit.pay(client))  # type: ignore[misc]
        for visit in list(visits(queue, client))
    }


@pytest.mark.slow  # tests/admin/test_pages.py bounds the commands of each page, at one size
@pytest.mark.usefixtures("few_at_once")
def test_pages_send_as_many_commands_for_a_queue_of_twice_the_size(
    admin_client: Client, queue: FairQueue, redis: Redis
) -> None:
    fill(queue, SMALL)
    once = costs(redis, queue, admin_client)
    redis.flushdb()
    fill(queue, replace(SMALL, **{name: 2 * getattr(SMALL, name) for name in GROWING}))
    twice = costs(redis, queue, admin_client)
    assert twice.keys() == once.keys()
    grown = {what: (once[what], twice[what]) for what in once if twice[what][0] > once[what][0] + 10}
    assert grown == {}, "a minute may begin in between, no more"
    dear = {what: found for what, found in twice.items() if found[0] > most(what) or found[1] > TRIPS}
    assert dear == {}


def most(what: str) -> int:
    return STATUS + MOST.get(what, MOST.get(what.partition(" ")[0], OTHERS))
