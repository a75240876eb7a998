"""Each reason for which a task can be waiting, provoked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.monitoring.wait_explanations import BLOCKERS_NAMED, reasons
from tests.fixture_types import FairQueue, Redis, Server, Settings
from tests.leases import pop

NOW = 2_000_000_000.0
"""After any real clock, so that it is the engine's time."""


@pytest.fixture
def queue(redis: Redis) -> FairQueue:
    """With a worker that serves everyone."""
    queue = FairQueue(redis, config=QueueConfig(fair_by="tasks", retry_jitter=0))
    queue.heartbeat("w:1", {"users": "*"}, now=NOW, ttl=3600)
    return queue


def push(queue: FairQueue, task_id: str = "t", user: str = "ann", **options: Any) -> None:
    queue.push(Task.create(user, 3, None, task_id=task_id, **options), now=NOW)


def kinds(queue: FairQueue, task_id: str = "t") -> list[str]:
    return [reason.kind for reason in reasons(queue, task_id)]


def only(queue: FairQueue, kind: str, task_id: str = "t") -> str:
    """The text of the one reason, which is of this kind."""
    (reason,) = reasons(queue, task_id)
    assert reason.kind == kind
    return reason.text


def beat(queue: FairQueue, worker: str = "w:1", now: float = NOW, **info: str) -> None:
    queue.heartbeat(worker, {"users": "*", **info}, now=now, ttl=3600)


def pause_organization(queue: FairQueue) -> None:
    queue.user("ann").set_organization("acme", now=NOW)
    queue.organization("acme").pause(now=NOW)


def fill_organization(queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme", now=NOW)
    queue.organization("acme").set_max_running(1, now=NOW)
    push(queue, "a", user="bob")
    queue.pop("w:1", ["bob"], now=NOW)


def end_workers(queue: FairQueue) -> None:
    for _ in range(2):
        queue.release_worker("w:1", [pop(queue, "w:1", now=NOW).token], now=NOW)
    beat(queue)


@pytest.mark.parametrize(
    ("arrange", "kind", "text"),
    [
        (lambda queue: None, "next", "Nothing stands in its way: the next free worker takes it."),
        (lambda queue: queue.pause(now=NOW), "queue_paused", "The queue is paused."),
        (pause_organization, "organization_paused", "Organization acme, to which its user belongs, is paused."),
        (
            fill_organization,
            "organization_capped",
            "Organization acme, to which its user belongs, may run 1 task at once, and runs 1.",
        ),
        (
            lambda queue: queue.fail(pop(queue, "w:1", now=NOW), "no", delay=60, now=NOW),
            "retry",
            "Attempt 1 failed; it is tried again at 2033-05-18 03:34:20 UTC, in 1 min.",
        ),
        (
            end_workers,
            "crashed",
            "Handed out 2 times without an outcome: its next turn is at 2033-05-18 03:33:20 UTC, in 562 ms.",
        ),
        (
            lambda queue: pop(queue, "w:1", lease=30, now=NOW),
            "running",
            "It runs: worker w:1 holds it until 2033-05-18 03:33:50 UTC, and renews that.",
        ),
        (lambda queue: queue.cancel("t", now=NOW), "ended", "It waits for nothing: it is canceled."),
    ],
)
def test_the_reason_for_a_wait_is_explained_in_words(
    queue: FairQueue, arrange: Callable[[FairQueue], object], kind: str, text: str
) -> None:
    push(queue)
    arrange(queue)
    assert only(queue, kind) == text


@pytest.mark.parametrize(
    ("limits", "kind", "text"),
    [
        ({"max_running": 1}, "capped", "User ann may run 1 task at once, and runs 1."),
        (
            {"rate": "1/m"},
            "throttled",
            "User ann has used up the rate of 1/60s: the next task may start at 2033-05-18 03:34:20 UTC.",
        ),
    ],
)
def test_a_task_waits_because_of_a_limit_of_its_user(
    queue: FairQueue, limits: dict[str, Any], kind: str, text: str
) -> None:
    for name, value in limits.items():
        getattr(queue.user("ann"), f"set_{name}")(value, now=NOW)
    push(queue, "a")
    push(queue)
    queue.pop("w:1", now=NOW)
    assert only(queue, kind) == text


CLOSED_AT_20 = "Limit k is closed until 2033-05-18 03:33:40 UTC."
ONE = TaskLimit("k", 1)
RATE = TaskLimit("k", gap=60_000_000)


@pytest.mark.parametrize(
    ("limit", "close", "expected"),
    [
        (ONE, None, {"limit_full": "1 of 1 task of limit k runs."}),
        (ONE._replace(is_of_user=True), None, {"limit_full": "1 of 1 task of limit k runs."}),
        (RATE, None, {"limit_rate": "The rate 1/m of limit k allows the next start in 1 min."}),
        (TaskLimit("k", 9), 20, {"limit_closed": CLOSED_AT_20}),
        (
            RATE,
            20,
            {"limit_closed": CLOSED_AT_20, "limit_rate": "The rate 1/m of limit k allows the next start in 1 min."},
        ),
        (RATE, 100, {"limit_closed": "Limit k is closed until 2033-05-18 03:35:00 UTC."}),
        (TaskLimit("k", 9), 0, {"limit_closed": "Limit k is closed until somebody opens it."}),
    ],
)
def test_a_task_at_a_limit_names_it_and_when_it_opens(
    queue: FairQueue, limit: TaskLimit, close: int | None, expected: dict[str, str]
) -> None:
    push(queue, "a", limits=[limit])
    queue.pop("w:1", now=NOW)
    push(queue, limits=[limit])
    if close is not None:
        queue.limit("k").close(close or None, now=NOW)
    assert {reason.kind: reason.text for reason in reasons(queue, "t")} == expected


def test_a_task_at_a_limit_with_a_place_waits_for_earlier_tasks(queue: FairQueue) -> None:
    push(queue, "a", limits=[ONE])
    push(queue, limits=[ONE])
    push(queue, "b", user="bob", limits=[ONE])
    assert only(queue, "next", "a") == "Nothing stands in its way: the next free worker takes it."
    assert only(queue, "behind_own") == "1 task of the same user is before it."
    assert only(queue, "behind_users", "b") == "1 user has a turn before its user."


@pytest.mark.parametrize(
    ("fair_by", "text"),
    [
        ("tasks", "Limit k has a free place; its user is 10 tasks ahead of its share; 10 tasks are allowed."),
        ("time", "Limit k has a free place; its user is 20 min ahead of its share; 10 s are allowed."),
    ],
)
def test_a_user_ahead_of_its_share_waits_at_a_limit_with_a_place(redis: Redis, fair_by: Any, text: str) -> None:
    queue = FairQueue(redis, config=QueueConfig(fair_by=fair_by))
    beat(queue)
    push(queue, "b", user="bob")
    for number in range(12):
        push(queue, f"a{number}", limits=[TaskLimit("k", 1000)])
    leases = queue.pop_batch(10, "w:1", lease=1000, now=NOW)
    if fair_by == "time":
        queue.finish(leases[0], took=120, now=NOW + 120)
    assert {reason.kind: reason.text for reason in reasons(queue, "a10")}["limit_ahead"] == text


def test_a_scheduled_task_waits_for_its_time_and_then_for_a_sweep(queue: FairQueue) -> None:
    push(queue, execute_after=NOW + 90)
    assert only(queue, "scheduled") == "It is scheduled for 2033-05-18 03:34:50 UTC, in 1 min 30 s."
    beat(queue, now=NOW + 90)
    assert "Its time came at 2033-05-18 03:34:50 UTC" in only(queue, "scheduled")


def test_a_lost_lease_is_explained_with_its_end(queue: FairQueue) -> None:
    push(queue)
    queue.pop("w:1", lease=30, now=NOW)
    queue.heartbeat("w:2", {}, now=NOW + 30, ttl=3600)
    assert "Worker w:1 has not renewed its lease, which ended at 2033-05-18 03:33:50 UTC" in only(queue, "lost_lease")


def test_a_worker_without_a_list_of_users_may_take_any_task(redis: Redis) -> None:
    queue = FairQueue(redis)
    push(queue)
    assert only(queue, "no_worker") == "No worker is running: start one with manage.py fairque_worker."
    queue.heartbeat("w:1", {}, now=NOW, ttl=3600)
    assert kinds(queue) == ["next"]


def test_a_task_waits_for_the_tasks_it_depends_on(queue: FairQueue) -> None:
    push(queue, "a")
    push(queue, "b", execute_after=NOW + 60)
    push(queue, depends_on=["a", "b"])
    (reason,) = reasons(queue, "t")
    assert reason.text == "It waits for 2 tasks: a (queued), b (scheduled)."
    assert reason.tasks == ("a", "b")


def test_a_task_that_depends_on_many_names_a_few(queue: FairQueue) -> None:
    ids = [f"p{n:02}" for n in range(BLOCKERS_NAMED + 3)]
    for task_id in ids:
        push(queue, task_id)
    push(queue, depends_on=ids, execute_after=NOW)
    push(queue, "later", depends_on=ids[:1], execute_after=NOW + 60)
    (reason,) = reasons(queue, "t")
    assert reason.text.endswith("p19 (queued), 3 more.")
    assert [reason.kind for reason in reasons(queue, "later")] == ["depends", "scheduled"]
    assert reasons(queue, "later")[1].text == "After that it is scheduled for 2033-05-18 03:34:20 UTC."


def test_a_dependency_has_ended_and_its_dependents_are_released_later(queue: FairQueue) -> None:
    push(queue, "a")
    for n in range(60):
        push(queue, f"t{n}", depends_on=["a"])
    queue.finish(pop(queue, "w:1", now=NOW), now=NOW)
    still = next(n for n in range(60) if queue.get_task(f"t{n}").state is TaskState.DEFERRED)
    assert "has ended" in only(queue, "resolving", f"t{still}")


def test_a_task_waits_while_its_user_is_paused(queue: FairQueue) -> None:
    push(queue)
    queue.user("ann").pause(now=NOW)
    assert only(queue, "user_paused") == "User ann is paused."
    queue.user("ann").pause(note="moves", until=4102444800, now=NOW)
    assert only(queue, "user_paused") == "User ann is paused. It ends at 2100-01-01 00:00:00 UTC. Note: moves"


def test_a_task_waits_behind_others(queue: FairQueue) -> None:
    for n in range(3):
        push(queue, f"a{n}", user="bob")
    push(queue, "b", user="cid")
    push(queue, "a")
    push(queue)
    found = {reason.kind: reason.text for reason in reasons(queue, "t")}
    assert found == {
        "behind_own": "1 task of the same user is before it.",
        "behind_users": "2 users have their turn before its user.",
    }


@pytest.mark.parametrize("users", ["ann", "bob, ann", "*"])
@pytest.mark.parametrize("field", ["users", "steal"])
def test_a_worker_that_serves_the_user_takes_its_task(redis: Redis, users: str, field: str) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w:2", {"users": "cid", field: users}, now=NOW, ttl=3600)
    push(queue)
    assert kinds(queue) == ["next"]


def test_a_task_waits_when_no_worker_serves_its_user(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w:1", {"users": "anna, bo", "steal": ""}, now=NOW, ttl=3600)
    push(queue)
    assert only(queue, "not_served") == "The worker that runs does not serve user ann."
    queue.heartbeat("w:2", {"users": "bo"}, now=NOW, ttl=3600)
    assert only(queue, "not_served") == "None of the 2 workers serves user ann."
    queue.heartbeat("w:3", {"users": "a, b, c, d, e, f, g, h, i, j and 2 more"}, now=NOW, ttl=3600)
    assert kinds(queue) == ["next"], "nobody can say that it does not"


def test_an_expired_task_is_explained_before_and_after_a_sweep(queue: FairQueue) -> None:
    push(queue, expires_at=NOW + 5)
    beat(queue, now=NOW + 5)
    assert only(queue, "expired").startswith("It expired at 2033-05-18 03:33:25 UTC")
    queue.sweep(now=NOW + 6)
    assert only(queue, "expired") == "It expired before it was started, and is a dead letter: it waits for a requeue."


def test_a_dead_letter_waits_for_an_operator(queue: FairQueue, server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}  # says what is hidden in errors
    push(queue)
    queue.fail(pop(queue, "w:1", now=NOW), "no such address", retry=False, now=NOW)
    assert re.fullmatch(r"It is a dead letter .* discard it: no such address", only(queue, "dead"))


def test_an_unknown_task_has_no_reasons(queue: FairQueue) -> None:
    with pytest.raises(TaskNotFoundError, match="'t'"):
        reasons(queue, "t")


def test_several_reasons_are_listed_together(queue: FairQueue) -> None:
    queue.pause(now=NOW)
    queue.user("ann").pause(now=NOW)
    push(queue, "a")
    push(queue)
    assert kinds(queue) == ["queue_paused", "user_paused", "behind_own"]


def test_a_task_waits_when_no_worker_knows_its_name(queue: FairQueue) -> None:
    beat(queue, "w:1", unknown_tasks='["gone"]')
    push(queue, name="gone", execute_after=NOW + 30)
    assert kinds(queue) == ["unknown_name", "scheduled"]
    assert reasons(queue, "t")[0].text == (
        "No worker knows a task named gone: deploy its code, or import its module where the workers start. It is offered to "
        "workers for ten minutes and then becomes a dead letter."
    )
    push(queue, "other", name="known")
    assert kinds(queue, "other") == ["next"]


def test_a_task_waits_for_a_worker_that_knows_its_name(queue: FairQueue) -> None:
    beat(queue, "w:2", unknown_tasks='["gone"]')
    queue.heartbeat("w:3", {"users": "bob", "unknown_tasks": '["gone"]'}, now=NOW, ttl=3600)  # nothing to this user
    push(queue, name="gone")
    text = "1 of 2 workers does not know a task named gone: it waits for one that does."
    assert only(queue, "unknown_name") == text


@pytest.mark.parametrize("damaged", ["[", "{}", "[1]", "null"])
def test_a_damaged_list_of_unknown_names_is_left_out(queue: FairQueue, damaged: str) -> None:
    beat(queue, "w:1", unknown_tasks=damaged)
    push(queue, name="gone")
    assert kinds(queue) == ["next"]
    assert not any("gone" in reason for reason in queue.health().reasons)


def test_an_urgent_task_of_a_user_far_ahead_of_its_share_waits(queue: FairQueue) -> None:
    for number in range(12):
        push(queue, f"u{number}", lane="urgent")
    push(queue, "t", lane="urgent")
    leases = queue.pop_batch(11, "w:1", ["ann"], now=NOW)
    assert {lease.lane for lease in leases} == {"urgent"}
    assert "lane_ahead" not in kinds(queue), "nobody else waits"
    push(queue, "n", user="bob")
    texts = {reason.kind: reason.text for reason in reasons(queue, "t")}
    assert texts["lane_ahead"] == "It is urgent, but its user is 11 tasks ahead of its share; 10 tasks are allowed."
    assert "behind_lanes" not in texts


def test_the_reason_states_how_far_a_user_is_ahead(redis: Redis) -> None:
    queue = FairQueue(redis, config=QueueConfig())
    queue.heartbeat("w:1", {"users": "*"}, now=NOW, ttl=3600)
    for user in ("ann", "bob"):
        push(queue, user, user=user, lane="urgent")
        queue.finish(pop(queue, "w:1", [user], now=NOW), took=12.0, now=NOW)
    push(queue, "other", user="bob")
    push(queue, lane="urgent")
    text = "It is urgent, but its user is 12 s ahead of its share; 10 s are allowed."
    assert text in [reason.text for reason in reasons(queue, "t")]


def test_a_bulk_task_waits_for_tasks_of_the_other_lanes(queue: FairQueue) -> None:
    push(queue, lane="bulk")
    assert kinds(queue) == ["next"]
    push(queue, "other", user="bob")
    assert only(queue, "behind_lanes") == (
        "It is a bulk task: it waits until no urgent or normal task can start, except for a least share of 5 %."
    )


def test_a_normal_task_waits_for_urgent_tasks(queue: FairQueue) -> None:
    push(queue)
    push(queue, "other", user="bob", lane="urgent")
    assert only(queue, "behind_lanes") == "Urgent tasks can start, and go first."
    assert kinds(queue, "other") == ["next"]


def test_a_member_waits_in_its_lane_of_its_organization(queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme", now=NOW)
    push(queue, "first", user="bob", lane="bulk")
    push(queue, lane="bulk")
    assert only(queue, "behind_users") == "1 user has a turn before its user."


def test_one_urgent_task_more_than_a_user_s_limit_is_allowed(queue: FairQueue) -> None:
    queue.user("ann").set_max_running(1, now=NOW)
    push(queue, "a")
    pop(queue, "w:1", now=NOW)
    push(queue, "b", lane="urgent")
    assert kinds(queue, "b") == ["next"]
    assert pop(queue, "w:1", now=NOW).task_id == "b"
    push(queue, lane="urgent")
    assert only(queue, "capped") == ("User ann may run 1 task at once, and runs 2. One urgent task more is allowed.")
