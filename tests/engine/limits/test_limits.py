"""Limits by key: tasks that share a key run at once only up to its limit, and no place stays free while one waits."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.model.errors import AtLimitError, TaskNotFoundError, TaskValidationError
from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, task

MAILBOX = TaskLimit("mailbox", 1, is_of_user=True)


def push(
    queue: FairQueue, user: str, *limits: TaskLimit, number: int = 1, now: float = NOW, **options: Any
) -> list[str]:
    tasks = [task(user, limits=limits, **options) for _ in range(number)]
    return [result.task_id for result in queue.push_batch(tasks, now=now)]


def fetch(queue: FairQueue, number: int = 100, now: float = NOW) -> list[Lease]:
    return queue.pop_batch(number, "w", now=now)


def finish(queue: FairQueue, *leases: Lease, now: float = NOW) -> None:
    for lease in leases:
        queue.settle([Outcome.finish(lease)], now=now)


def started(queue: FairQueue, leases: list[Lease]) -> list[str]:
    return [lease.task.user_id for lease in leases]


def test_a_shared_limit_runs_as_many_tasks_at_once_as_it_allows(queue: FairQueue) -> None:
    for user in "abc":
        push(queue, user, TaskLimit("k", 2), number=3)
    leases = fetch(queue)
    assert len(leases) == 2
    assert fetch(queue) == []
    finish(queue, leases[0])
    assert len(fetch(queue)) == 1


def test_users_take_turns_at_a_shared_limit(queue: FairQueue) -> None:
    for user in "abc":
        push(queue, user, TaskLimit("k", 1), number=3)
    order = []
    while leases := fetch(queue):
        order += started(queue, leases)
        finish(queue, *leases)
    assert len(order) == 9
    assert all(sorted(order[first : first + 3]) == ["a", "b", "c"] for first in (0, 3, 6))


def start(queue: FairQueue, number: int) -> list[str]:
    """Start and finish tasks one by one. Return their users."""
    order = []
    for _ in range(number):
        leases = fetch(queue, 1)
        order += started(queue, leases)
        finish(queue, *leases)
    return order


def test_urgent_starts_count_against_the_normal_tasks_of_their_user_at_a_limit(queue: FairQueue) -> None:
    push(queue, "a", TaskLimit("k", 1), number=10, lane="urgent")
    for user in "ab":
        push(queue, user, TaskLimit("k", 1), number=20)
    assert 19 <= start(queue, 40).count("a") <= 21


def test_a_new_user_at_a_limit_does_not_wait_until_others_have_had_as_much_as_a_user_with_urgent_tasks(
    queue: FairQueue,
) -> None:
    push(queue, "a", TaskLimit("k", 1), number=60, lane="urgent")
    for user in "bc":
        push(queue, user, TaskLimit("k", 1), number=100)
    start(queue, 60)
    push(queue, "d", TaskLimit("k", 1), number=10)
    assert "d" in start(queue, 8)


def test_a_member_of_an_organization_that_is_resumed_starts_its_task_with_a_limit_at_once(queue: FairQueue) -> None:
    queue.organization("o").set_weight(4, now=NOW)
    for user in ("m", "n", "x"):
        queue.user(user).set_organization("o" if user != "x" else None, now=NOW)
        push(queue, user, number=200)
    start(queue, 100)
    (task_id,) = push(queue, "m", TaskLimit("k", 1))
    queue.user("m").pause(now=NOW)
    start(queue, 1)
    queue.user("m").resume(now=NOW)
    assert [lease.task_id for lease in fetch(queue, 1)] == [task_id]


def test_a_limit_of_one_user_does_not_delay_its_other_tasks(queue: FairQueue) -> None:
    push(queue, "a", MAILBOX, number=3)
    free = push(queue, "a", number=2)
    leases = fetch(queue)
    assert len(leases) == 3
    assert {lease.task.task_id for lease in leases} > set(free)
    finish(queue, *leases)
    assert len(fetch(queue)) == 1


def test_each_user_has_its_own_limit_under_the_same_key(queue: FairQueue) -> None:
    push(queue, "a", MAILBOX, number=2)
    push(queue, "b", MAILBOX, number=2)
    assert sorted(started(queue, fetch(queue))) == ["a", "b"]


def test_a_task_starts_only_if_all_its_limits_allow_it(queue: FairQueue) -> None:
    both = [TaskLimit("k", 1), MAILBOX]
    push(queue, "a", *both, number=2)
    push(queue, "b", *both, number=2)
    push(queue, "a", MAILBOX)
    first = fetch(queue)
    assert len(first) == 2 or started(queue, first) == ["a"]
    seen = []
    while first:
        assert sum("k" in [limit.key for limit in queue.get_task(lease.task.task_id).limits] for lease in first) <= 1
        seen += first
        finish(queue, *first)
        first = fetch(queue)
    assert len(seen) == 5


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_rate_lets_a_task_start_when_its_time_has_come(queue: FairQueue, is_of_user: bool) -> None:
    push(queue, "a", TaskLimit("api", gap=1_000_000, burst=2, is_of_user=is_of_user), number=4)
    leases = fetch(queue)
    assert len(leases) == 2
    finish(queue, *leases)
    assert fetch(queue, now=NOW + 0.5) == []
    assert len(fetch(queue, now=NOW + 1)) == 1
    assert len(fetch(queue, now=NOW + 2)) == 1


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_task_that_is_given_back_frees_its_limit_and_rate_token(queue: FairQueue, is_of_user: bool) -> None:
    push(queue, "a", TaskLimit("api", 1, 1_000_000, is_of_user=is_of_user), number=2)
    (lease,) = fetch(queue)
    queue.release(lease, now=NOW)
    assert len(fetch(queue)) == 1


@pytest.mark.parametrize("is_of_user", [False, True])
def test_an_ended_lease_frees_its_limit(make_queue: MakeQueue, is_of_user: bool) -> None:
    queue = make_queue(fair_by="tasks", retry_jitter=0, lease_seconds=10)
    push(queue, "a", TaskLimit("k", 1, is_of_user=is_of_user), number=2)
    assert len(fetch(queue)) == 1
    assert len(fetch(queue, now=NOW + 20)) == 1


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_canceled_task_lets_the_next_one_start(queue: FairQueue, is_of_user: bool) -> None:
    first, second, third = push(queue, "a", TaskLimit("k", 1, is_of_user=is_of_user), number=3)
    assert queue.cancel(first, now=NOW)
    (lease,) = fetch(queue)
    assert lease.task.task_id == second
    assert queue.cancel(third, now=NOW)
    finish(queue, lease)
    assert fetch(queue) == []


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_waiting_task_that_expires_becomes_a_dead_letter(queue: FairQueue, is_of_user: bool) -> None:
    limit = TaskLimit("k", 1, is_of_user=is_of_user)
    push(queue, "a", limit)
    push(queue, "a", limit, expires=5, number=2)
    (lease,) = fetch(queue)
    finish(queue, lease, now=NOW + 6)
    assert fetch(queue, now=NOW + 6) == []
    assert [letter.failure_type.value for letter in queue.dlq.list()] == ["expired", "expired"]


def test_tasks_of_a_paused_user_do_not_block_a_limit_for_other_users(queue: FairQueue) -> None:
    limit = TaskLimit("k", 1)
    for user in "abc":
        push(queue, user, limit, number=2)
    queue.user("a").pause(now=NOW)
    queue.user("b").pause(now=NOW)
    (lease,) = fetch(queue)
    assert lease.task.user_id == "c"
    finish(queue, lease)
    queue.user("a").resume(now=NOW)
    users = []
    while leases := fetch(queue):
        users += started(queue, leases)
        finish(queue, *leases)
    assert sorted(users) == ["a", "a", "c"]


@pytest.mark.parametrize("keys", [1, 40])
def test_a_user_at_its_own_limit_starts_its_next_task_when_one_ends(queue: FairQueue, keys: int) -> None:
    queue.user("a").set_max_running(1, now=NOW)
    for number in range(keys):
        push(queue, "a", TaskLimit(f"k{number}", 5), number=2)
    push(queue, "b", TaskLimit("k0", 5))
    leases = fetch(queue)
    assert sorted(started(queue, leases)) == ["a", "b"]
    total = 0
    while leases:
        total += len(leases)
        finish(queue, *leases)
        leases = fetch(queue)
        assert len(leases) <= 1
    assert total == 2 * keys + 1


def test_a_member_of_a_paused_organization_does_not_block_a_limit(queue: FairQueue) -> None:
    limit = TaskLimit("k", 1)
    queue.user("a").set_organization("acme", now=NOW)
    push(queue, "a", limit, number=2)
    push(queue, "b", limit, number=2)
    queue.organization("acme").pause(now=NOW)
    leases = fetch(queue)
    assert started(queue, leases) == ["b"]
    queue.organization("acme").resume(now=NOW)
    finish(queue, *leases)
    assert started(queue, fetch(queue)) == ["a"]


def test_urgent_tasks_of_a_limit_start_first_and_bulk_tasks_last(queue: FairQueue) -> None:
    limit = TaskLimit("k", 1)
    for lane in ("bulk", "normal", "urgent"):
        push(queue, lane, limit, lane=lane)
    users = []
    while leases := fetch(queue):
        users += started(queue, leases)
        finish(queue, *leases)
    assert users == ["urgent", "normal", "bulk"]


def test_within_a_limit_the_tasks_of_a_user_start_by_priority(queue: FairQueue) -> None:
    limit = TaskLimit("k", 1)
    low, high = push(queue, "a", limit, priority=1) + push(queue, "a", limit, priority=5)
    assert [fetch(queue)[0].task.task_id] == [high]
    assert low != high


def test_a_more_urgent_task_of_a_limit_does_not_wait_for_an_admitted_task(queue: FairQueue) -> None:
    push(queue, "a", MAILBOX, priority=1)
    push(queue, "a", number=20)
    (critical,) = push(queue, "a", MAILBOX, priority=6)
    assert fetch(queue, 1)[0].task.task_id == critical


def test_an_urgent_task_of_a_rate_does_not_wait_for_the_tokens_of_admitted_tasks(queue: FairQueue) -> None:
    api = TaskLimit("api", gap=1_000_000, burst=3, is_of_user=True)
    queue.user("a").set_max_running(1, now=NOW)
    push(queue, "a")
    assert len(fetch(queue)) == 1
    push(queue, "a", api, number=2)
    push(queue, "a", api, lane="urgent", number=4)
    for _ in range(3):
        finish(queue, *fetch(queue))
    assert fetch(queue) == []
    assert [lease.lane for lease in fetch(queue, now=NOW + 1)] == ["urgent"]


@pytest.mark.parametrize("is_of_user", [False, True])
def test_a_purge_of_a_user_cancels_its_tasks_that_wait_at_limits(queue: FairQueue, is_of_user: bool) -> None:
    limits = [TaskLimit(f"k{number}", 1, is_of_user=is_of_user) for number in range(3)]
    for limit in limits:
        push(queue, "a", limit, number=300)
        push(queue, "b", limit, number=2)
    push(queue, "a", number=10)
    user = queue.user("a")
    assert [user.purge(500, now=NOW), user.purge(now=NOW), user.purge(now=NOW)] == [500, 410, 0]
    assert queue.get_queue_sizes("a").total == 0
    assert queue.get_stats().states["queued"] == 6


def test_a_task_with_at_limit_skip_is_refused_at_a_full_limit(queue: FairQueue) -> None:
    limit = TaskLimit("rebuild", 1, at_limit="skip")
    push(queue, "a", limit)
    with pytest.raises(AtLimitError, match="limit 'rebuild' with at_limit='skip' has no place"):
        push(queue, "a", limit)
    results = queue.push_batch  # one of two in a batch
    with pytest.raises(AtLimitError) as refused:
        results([task("b", limits=[TaskLimit("other", 1, at_limit="skip")]) for _ in range(2)], now=NOW)
    assert [getattr(result, "status", "") for result in refused.value.results] == ["accepted", "at_limit"]


def test_a_graph_with_a_refused_task_at_a_full_limit_is_refused_as_a_whole(queue: FairQueue) -> None:
    limit = TaskLimit("rebuild", 1, at_limit="skip")
    push(queue, "a", limit)
    free = task("a", task_id="first")
    with pytest.raises(AtLimitError, match="'rebuild'"):
        queue.push_graph([free, task("a", limits=[limit], depends_on=["first"])], now=NOW)
    with pytest.raises(TaskNotFoundError):
        queue.get_task("first")


def states_of(queue: FairQueue, *task_ids: str) -> list[str]:
    return [queue.get_task(task_id).state.value for task_id in task_ids]


REBUILD = TaskLimit("rebuild", 1, at_limit="newest")


@pytest.mark.parametrize("is_of_user", [False, True])
def test_the_newest_task_of_a_limit_replaces_the_waiting_tasks(queue: FairQueue, is_of_user: bool) -> None:
    limit = REBUILD._replace(is_of_user=is_of_user)
    (running,) = push(queue, "a", limit)
    assert len(fetch(queue)) == 1
    (of_other_user,) = push(queue, "b", limit)
    first, second = push(queue, "a", limit) + push(queue, "a", limit)
    third, fourth = push(queue, "a", limit, number=2)
    assert states_of(queue, running, first, second, third, fourth) == [
        "started",
        *["canceled"] * 3,
        "queued",
    ]
    assert states_of(queue, of_other_user) == ["queued" if is_of_user else "canceled"]
    assert queue.check_invariants() == []


def test_the_newest_task_of_a_push_replaces_those_of_other_users_in_the_same_push(queue: FairQueue) -> None:
    results = queue.push_batch([task(user, limits=[REBUILD]) for user in "abc"], now=NOW)
    assert states_of(queue, *(result.task_id for result in results)) == ["canceled", "canceled", "queued"]


def test_the_newest_task_of_a_limit_replaces_a_task_of_a_paused_user(queue: FairQueue) -> None:
    (waiting,) = push(queue, "a", REBUILD)
    queue.user("a").pause(now=NOW)
    assert fetch(queue) == []
    push(queue, "b", REBUILD)
    assert states_of(queue, waiting) == ["canceled"]
    assert started(queue, fetch(queue)) == ["b"]
    assert queue.check_invariants() == []


def test_the_newest_task_of_a_limit_replaces_a_task_that_waits_at_another_limit(queue: FairQueue) -> None:
    api = TaskLimit("api", 1)
    push(queue, "c", api)
    assert len(fetch(queue)) == 1
    (waiting,) = push(queue, "a", REBUILD, api)
    push(queue, "b", REBUILD)
    assert states_of(queue, waiting) == ["canceled"]
    assert queue.check_invariants() == []


def test_the_newest_task_of_a_limit_replaces_a_failed_task_that_waits_again(queue: FairQueue) -> None:
    (retried,) = push(queue, "a", REBUILD)
    (lease,) = fetch(queue)
    queue.settle([Outcome.fail(lease, "an error", delay=5)], now=NOW)
    queue.sweep(now=NOW + 6)
    assert states_of(queue, retried) == ["queued"]
    push(queue, "b", REBUILD, now=NOW + 6)
    assert states_of(queue, retried) == ["canceled"]


def test_a_task_that_waits_for_a_replaced_task_of_another_user_is_canceled_too(queue: FairQueue) -> None:
    queue.push_graph(
        [task("a", task_id="rebuild", limits=[REBUILD]), task("a", task_id="mail", depends_on=["rebuild"])], now=NOW
    )
    push(queue, "b", REBUILD)
    queue.sweep(now=NOW)
    assert states_of(queue, "rebuild", "mail") == ["canceled", "canceled"]


def test_a_push_replaces_up_to_a_hundred_tasks(queue: FairQueue) -> None:
    push(queue, "a", REBUILD)
    queue.push_batch([task(f"u{number}", limits=[REBUILD._replace(at_limit="wait")]) for number in range(250)], now=NOW)
    counts = []
    for _ in range(3):
        push(queue, "b", REBUILD)
        counts.append(queue.get_stats().states["canceled"])
    assert counts == [100, 200, 253]
    assert queue.check_invariants() == []


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (TaskLimit("k", 0), "at_once of limit 'k' must be an integer from 1 to 1000000, got 0"),
        (TaskLimit("k", gap=0), "gap of limit 'k' must be an integer from 1"),
        (TaskLimit("k", gap=1, burst=0), "burst of limit 'k' must be an integer from 1"),
        (TaskLimit("k", 1, at_limit="later"), "at_limit of limit 'k' must be one of wait, skip, newest"),  # type: ignore[arg-type]
        (TaskLimit("", 1), "the key of a limit"),
    ],
)
def test_a_wrong_value_of_a_limit_is_an_error(limit: TaskLimit, message: str) -> None:
    with pytest.raises(TaskValidationError, match=message):
        task("a", limits=[limit])


def test_a_task_has_at_most_four_limits() -> None:
    with pytest.raises(TaskValidationError, match="at most 4 limits, got 5"):
        task("a", limits=[TaskLimit(f"k{number}", 1) for number in range(5)])
