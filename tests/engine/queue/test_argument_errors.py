"""A wrong argument raises an error that is both a `FairQueueError` and a `ValueError`, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from redis import Redis

from django_fairque.engine.inspection.search import Search
from django_fairque.engine.model.errors import TaskValidationError, short
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.counting import commands
from tests.engine.conftest import NOW, pop, task

Wrong = Callable[..., Any]

CURSOR = "cursor must be one that an earlier page returned"
TOO_FAR = datetime(9999, 12, 1, tzinfo=timezone.utc)
NO_MOMENT = "must be a moment from 1970-01-01 to 2248-.*got "
WRONG: dict[str, tuple[Wrong, str]] = {
    "a start far in the future": (
        lambda q: q.push(task("a", execute_after=TOO_FAR)),
        f"execute_after {NO_MOMENT}.*9999",
    ),
    "a start as a large number": (lambda q: q.push(task("a", execute_after=1e11)), f"execute_after {NO_MOMENT}1000"),
    "a start before the epoch": (
        lambda q: q.push(task("a", execute_after=datetime(1969, 1, 1, tzinfo=timezone.utc))),
        f"execute_after {NO_MOMENT}.*1969",
    ),
    "an expiry far in the future": (lambda q: q.push(task("a", expires_at=TOO_FAR)), f"expires_at {NO_MOMENT}.*9999"),
    "an expiry that is no number": (lambda q: q.push(task("a", expires_at=float("nan"))), f"expires_at {NO_MOMENT}nan"),
    "a start after a long time": (
        lambda q: q.push(task("a", execute_after=timedelta(days=99_999))),
        "execute_after must be a number of seconds from 0 to",
    ),
    "a state that is none": (lambda q: q.tasks(state="xx"), "state must be one of scheduled, deferred, .* got 'xx'"),
    "a state that is a number": (lambda q: q.tasks(state=7), "state must be one of .* got 7"),
    "no tasks": (lambda q: q.tasks(limit=0), "limit must be a whole number from 1 to 1000, got 0"),
    "more tasks than a page": (lambda q: q.tasks(limit=5000), "got 5000"),
    "part of a task": (lambda q: q.tasks(limit=1.5), "got 1.5"),
    "more users than a page": (lambda q: q.users(limit=5000), "limit must be a whole number"),
    "a cursor of tasks": (lambda q: q.tasks(cursor="x"), CURSOR),
    "a cursor without an end": (lambda q: q.tasks(cursor="0:" + "9" * 5000), CURSOR),
    "a cursor of users": (lambda q: q.users(cursor="0"), CURSOR),
    "a cursor of organizations": (lambda q: q.organizations(cursor=""), CURSOR),
    "a cursor of letters": (lambda q: q.dlq.letters(cursor="x:y"), CURSOR),
    "a cursor of entries": (lambda q: q.dlq.list(cursor="x"), CURSOR),
    "a number for letters": (lambda q: q.dlq.letters(cursor=7), CURSOR),
    "a number to go on with": (lambda q: q.find(Search(TaskState.QUEUED), 10, 7), CURSOR),
    "a cursor of what was found": (lambda q: q.find(Search(TaskState.QUEUED), 10, "x"), CURSOR),
    "more than a batch": (lambda q: q.pop_batch(1001, "w"), "a batch has 1 to 1000 tasks, got 1001"),
    "no number of tasks": (lambda q: q.pop_batch("5", "w"), "got '5'"),
    "more than settle fetches": (lambda q: q.settle([], 1001, worker="w"), "a batch has 1 to 1000 tasks, got 1001"),
    "a lease that is a string": (lambda q: q.renew("abc"), "expected a list of leases, got 'abc'"),
    "no lease": (lambda q: q.renew(None), "expected a list of leases, got None"),
    "a list of nothing": (lambda q: q.renew([None]), "expected a Lease, as pop"),
    "outcomes that are none": (lambda q: q.settle(["done"]), "expected an Outcome, .* got 'done'"),
    "more minutes than a day": (lambda q: q.get_activity(2000, 10), "minutes must be from 1 to 1440"),
    "minutes in words": (lambda q: q.get_activity("60", 10), "minutes must be from 1 to 1440"),
    "figures of a day": (lambda q: q.get_stats(1440), "minutes must be a whole number from 0 to 60"),
    "a command that is none": (
        lambda q: q.set_worker_command("w", "dance"),
        "a command is one of drain, work, stop, got 'dance'",
    ),
    "no wait": (lambda q: q.wait_for_work(0), "timeout must be a positive number of seconds"),
    "no organizations": (lambda q: q.organizations(limit=0), "limit must be a whole number"),
    "a prefix that is a number": (lambda q: q.users(prefix=5), "prefix must be a text, got 5"),
    "a cursor in bytes": (lambda q: q.tasks("queued", cursor=b"0:1"), CURSOR),
    "an empty user id": (lambda q: q.fairness(user_ids=[""]), "user ids"),
}
VALUES: list[tuple[Wrong, list[Any], str]] = [
    (lambda q, wrong: q.pop_batch(wrong, "w"), [-1, 1.5, True], "a batch has 1 to 1000 tasks, got"),
    (lambda q, wrong: q.take_alerts(wrong), [0, 10_001, 2**63, 1.5, "5", True, None], "limit .* from 1 to 10000, got"),
    (lambda q, wrong: q.blockers(["t"], wrong), [0, 1.5, "x"], "most must be a whole number from 1, got"),
    (lambda q, wrong: q.schedules.fire_due(wrong), [0, 1e18, "x"], "limit must be a whole number from 1, got"),
    (lambda q, wrong: q.release_worker("w", [wrong]), [0, "x", 1.0], "crashed: a token must be a whole number from 1"),
    (lambda q, wrong: q.user("a").set_rate(wrong), ["x", "0/s", "5/y", 5], "such as '100/m'"),
    (
        lambda q, wrong: q.user("a").set_rate("1/s", burst=wrong),
        [0, 1.5, True, "2", None, 10**6 + 1],
        "burst .* from 1",
    ),
    (lambda q, wrong: q.user("a").set_max_running(wrong), [0, -1, 1.5, True, "5"], "or None for no limit"),
    (lambda q, wrong: q.user("a").set_max_backlog(wrong), [0, -1, 1.5, True, "5"], "or None for no limit"),
    (lambda q, wrong: q.user("a").set_max_backlog_bytes(wrong), [0, -1, 1.5, "9", True], "must be an integer"),
    (lambda q, wrong: q.user("a").purge(wrong), [0, True, 1.5], "limit must be a whole number from 1"),
    (lambda q, wrong: q.organization("g").set_max_running(wrong), [0, -1, 1.5, True, "2"], "must be an integer"),
    (lambda q, wrong: q.purge(wrong), [0, True, 1.5], "limit must be a whole number from 1"),
    (lambda q, wrong: q.fairness(wrong), [0, 2001, True, "5"], "limit"),
    (lambda q, wrong: q.task_names(wrong), [0, 25, 1.5, True, "1"], "hours must be a whole number from 1 to 24"),
    (lambda q, wrong: q.find(Search(TaskState.QUEUED), wrong), [0], "limit must be"),
    (lambda q, wrong: q.find(Search(TaskState.QUEUED), 10, wrong), ["-1:a", ":a", ""], "cursor must be"),
    (lambda q, wrong: q.dlq.letters(5, wrong), ["", "0", "-1:a", "1:", "²:a", f"{'9' * 20}:a"], CURSOR),
    (lambda _, wrong: Search(TaskState.QUEUED, payload_bytes=wrong), [-1, 1_000_001, 1.5, "1"], "payload_bytes"),
    (lambda _, wrong: Search(TaskState.QUEUED, look_at=wrong), [0, 10_001, True], "look_at must be"),
    (lambda q, wrong: q.users(prefix=wrong), ["x" * 257, "\ud800"], "prefix must"),
    (lambda q, wrong: q.users(wrong, prefix="u"), ["2:0"], "earlier page"),
    (lambda q, wrong: q.users(wrong, busy_first=True), ["1:0"], "earlier page"),
    (lambda q, wrong: q.get_activity(*wrong), [(0, 1), (1441, 1), (60, 0), (60, 7), (10, 20)], "minutes"),
]
"""Calls with one value, wrong values for it, and what the error says."""
WRONG |= {
    f"{at}: {short(value)}": (partial(call, wrong=value), words)
    for at, (call, values, words) in enumerate(VALUES)
    for value in values
}


@pytest.fixture
def lease(queue: FairQueue) -> Lease:
    queue.push(task(), now=NOW)
    return pop(queue)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_value_is_a_validation_error(queue: FairQueue, what: str) -> None:
    call, words = WRONG[what]
    with pytest.raises(TaskValidationError, match=words):
        call(queue)


def test_wrong_arguments_send_nothing_to_the_server(queue: FairQueue, redis: Redis) -> None:
    queue.users()  # the first call of a queue looks at the server

    def all_of_them() -> None:
        for call, _words in WRONG.values():
            with pytest.raises(TaskValidationError):
                call(queue)

    assert commands(redis, all_of_them) == 0


def test_a_lease_in_place_of_a_list_is_refused(queue: FairQueue, lease: Lease) -> None:
    with pytest.raises(TaskValidationError, match=r"a list of leases, got a single one: put it into a list, \[lease\]"):
        queue.renew(lease)  # type: ignore[arg-type]
    assert queue.renew([lease], now=NOW) == [True]
    assert queue.renew((lease for _ in range(1)), now=NOW) == [True]  # type: ignore[arg-type]


def test_an_outcome_in_place_of_a_list_is_refused(queue: FairQueue, lease: Lease) -> None:
    done = Outcome.finish(lease)
    with pytest.raises(TaskValidationError, match=r"got a single one: put it into a list, \[outcome\]"):
        queue.settle(done)  # type: ignore[arg-type]
    with pytest.raises(TaskValidationError, match="at most 1000 outcomes are settled in one call, got 1001"):
        queue.settle([done] * 1001)
    assert queue.settle([done], now=NOW).statuses == ["finished"]


@pytest.mark.parametrize("name", ["queued", "QUEUED", "Queued", TaskState.QUEUED])
def test_the_name_of_a_state_may_be_written_in_capitals(queue: FairQueue, name: str) -> None:
    queue.push(task("ann"), now=NOW)
    assert [task.user_id for task in queue.tasks(name)] == ["ann"]


def test_an_invalid_priority_is_refused() -> None:
    with pytest.raises(TaskValidationError, match=r"from 1 \(VERY_LOW\) to 6"):
        Priority.from_int(7)
    with pytest.raises(TaskValidationError, match="no weight"):
        _ = Priority.CRITICAL.weight
