"""Each reason for which a task can be waiting, provoked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.monitoring.wait_explanations import BLOCKERS_NAMED, reasons

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

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


def test_nothing_stands_in_its_way(queue: FairQueue) -> None:
    push(queue)
    assert only(queue, "next") == "Nothing stands in its way: the next free worker takes it."


def test_its_time_has_not_come(queue: FairQueue) -> None:
    push(queue, execute_after=NOW + 90)
    assert only(queue, "scheduled") == "It is scheduled for 2033-05-18 03:34:50 UTC, in 1 min 30 s."


def test_its_time_has_come_and_nobody_has_looked(queue: FairQueue) -> None:
    push(queue, execute_after=NOW + 90)
    queue.heartbeat("w:1", {"users": "*"}, now=NOW + 90, ttl=3600)
    assert "Its time came at 2033-05-18 03:34:50 UTC" in only(queue, "scheduled")


def test_it_has_failed_and_is_tried_again(queue: FairQueue) -> None:
    push(queue)
    lease = queue.pop("w:1", now=NOW)
    assert lease is not None
    queue.fail(lease, "no", delay=60, now=NOW)
    assert only(queue, "retry") == "Attempt 1 failed; it is tried again at 2033-05-18 03:34:20 UTC, in 1 min."


def test_it_has_ended_its_workers_and_has_to_wait(queue: FairQueue) -> None:
    push(queue)
    for _ in range(2):
        lease = queue.pop("w:1", now=NOW)
        assert lease is not None
        queue.release_worker("w:1", [lease.token], now=NOW)
    queue.heartbeat("w:1", {"users": "*"}, now=NOW, ttl=3600)
    expected = "Handed out 2 times without an outcome: its next turn is at 2033-05-18 03:33:20 UTC, in 562 ms."
    assert only(queue, "crashed") == expected


def test_it_depends_on_others(queue: FairQueue) -> None:
    push(queue, "a")
    push(queue, "b", execute_after=NOW + 60)
    push(queue, depends_on=["a", "b"])
    (reason,) = reasons(queue, "t")
    assert reason.text == "It waits for 2 tasks: a (queued), b (scheduled)."
    assert reason.tasks == ("a", "b")


def test_it_depends_on_many_and_on_its_time(queue: FairQueue) -> None:
    ids = [f"p{n:02}" for n in range(BLOCKERS_NAMED + 3)]
    for task_id in ids:
        push(queue, task_id)
    push(queue, depends_on=ids, execute_after=NOW)
    push(queue, "later", depends_on=ids[:1], execute_after=NOW + 60)
    (reason,) = reasons(queue, "t")
    assert reason.text.endswith("p19 (queued), 3 more.")
    assert [reason.kind for reason in reasons(queue, "later")] == ["depends", "scheduled"]
    assert reasons(queue, "later")[1].text == "After that it is scheduled for 2033-05-18 03:34:20 UTC."


def test_what_it_waited_for_has_ended_and_it_was_not_told_yet(queue: FairQueue) -> None:
    push(queue, "a")
    for n in range(60):
        push(queue, f"t{n}", depends_on=["a"])
    lease = queue.pop("w:1", now=NOW)
    assert lease is not None
    queue.finish(lease, now=NOW)
    still = next(n for n in range(60) if queue.get_task(f"t{n}").state is TaskState.DEFERRED)
    assert "has ended" in only(queue, "resolving", f"t{still}")


def test_the_queue_is_paused(queue: FairQueue) -> None:
    push(queue)
    queue.pause(now=NOW)
    assert only(queue, "queue_paused") == "The queue is paused."


def test_its_user_is_paused(queue: FairQueue) -> None:
    push(queue)
    queue.user("ann").pause(now=NOW)
    assert only(queue, "user_paused") == "User ann is paused."
    queue.user("ann").pause(note="moves", until=4102444800, now=NOW)
    assert only(queue, "user_paused") == "User ann is paused. It ends at 2100-01-01 00:00:00 UTC. Note: moves"


def test_its_user_s_organization_is_paused(queue: FairQueue) -> None:
    queue.user("ann").set_organization("acme", now=NOW)
    push(queue)
    queue.organization("acme").pause(now=NOW)
    assert only(queue, "organization_paused") == "Organization acme, to which its user belongs, is paused."


def test_its_user_s_organization_runs_as_much_as_it_may(queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme", now=NOW)
    queue.organization("acme").set_max_running(1, now=NOW)
    push(queue, "a", user="bob")
    push(queue)
    queue.pop("w:1", ["bob"], now=NOW)
    text = "Organization acme, to which its user belongs, may run 1 task at once, and runs 1."
    assert only(queue, "organization_capped") == text


def test_its_user_runs_as_much_as_it_may(queue: FairQueue) -> None:
    queue.user("ann").set_max_running(1, now=NOW)
    push(queue, "a")
    push(queue)
    queue.pop("w:1", now=NOW)
    assert only(queue, "capped") == "User ann may run 1 task at once, and runs 1."


def test_its_user_is_out_of_rate(queue: FairQueue) -> None:
    queue.user("ann").set_rate("1/m", now=NOW)
    push(queue, "a")
    push(queue)
    queue.pop("w:1", now=NOW)
    expected = "User ann has used up the rate of 1/60s: the next task may start at 2033-05-18 03:34:20 UTC."
    assert only(queue, "throttled") == expected


def test_others_are_before_it(queue: FairQueue) -> None:
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


def test_no_worker_runs(redis: Redis) -> None:
    queue = FairQueue(redis)
    push(queue)
    assert only(queue, "no_worker") == "No worker is running: start one with manage.py fairque_worker."


@pytest.mark.parametrize("users", ["ann", "bob, ann", "*"])
@pytest.mark.parametrize("field", ["users", "steal"])
def test_a_worker_serves_its_user(redis: Redis, users: str, field: str) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w:2", {"users": "cid", field: users}, now=NOW, ttl=3600)
    push(queue)
    assert kinds(queue) == ["next"]


def test_no_worker_serves_its_user(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w:1", {"users": "anna, bo", "steal": ""}, now=NOW, ttl=3600)
    push(queue)
    assert only(queue, "not_served") == "The worker that runs does not serve user ann."
    queue.heartbeat("w:2", {"users": "bo"}, now=NOW, ttl=3600)
    assert only(queue, "not_served") == "None of the 2 workers serves user ann."
    queue.heartbeat("w:3", {"users": "a, b, c, d, e, f, g, h, i, j and 2 more"}, now=NOW, ttl=3600)
    assert kinds(queue) == ["next"], "nobody can say that it does not"


def test_a_worker_that_does_not_say_whom_it_serves_may_serve_its_user(redis: Redis) -> None:
    queue = FairQueue(redis)
    queue.heartbeat("w:1", {}, now=NOW, ttl=3600)
    push(queue)
    assert kinds(queue) == ["next"]


def test_a_worker_holds_it(queue: FairQueue) -> None:
    push(queue)
    queue.pop("w:1", lease=30, now=NOW)
    assert only(queue, "running") == ("It runs: worker w:1 holds it until 2033-05-18 03:33:50 UTC, and renews that.")


def test_its_worker_has_not_renewed_its_lease(queue: FairQueue) -> None:
    push(queue)
    queue.pop("w:1", lease=30, now=NOW)
    queue.heartbeat("w:2", {}, now=NOW + 30, ttl=3600)
    assert "Worker w:1 has not renewed its lease, which ended at 2033-05-18 03:33:50 UTC" in only(queue, "lost_lease")


def test_it_has_expired_and_nobody_has_looked(queue: FairQueue) -> None:
    push(queue, expires_at=NOW + 5)
    queue.heartbeat("w:1", {"users": "*"}, now=NOW + 5, ttl=3600)
    assert only(queue, "expired").startswith("It expired at 2033-05-18 03:33:25 UTC")
    queue.sweep(now=NOW + 6)
    assert only(queue, "expired") == "It expired before it was started, and is a dead letter: it waits for a requeue."


def test_it_is_a_dead_letter(queue: FairQueue, server: Server, settings: Settings) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}  # says what is hidden in errors
    push(queue)
    lease = queue.pop("w:1", now=NOW)
    assert lease is not None
    queue.fail(lease, "no such address", retry=False, now=NOW)
    assert re.fullmatch(r"It is a dead letter .* discard it: no such address", only(queue, "dead"))


def test_it_has_ended(queue: FairQueue) -> None:
    push(queue)
    queue.cancel("t", now=NOW)
    assert only(queue, "ended") == "It waits for nothing: it is canceled."


def test_it_is_not_known(queue: FairQueue) -> None:
    with pytest.raises(TaskNotFoundError, match="'t'"):
        reasons(queue, "t")


def test_several_reasons_at_once(queue: FairQueue) -> None:
    queue.pause(now=NOW)
    queue.user("ann").pause(now=NOW)
    push(queue, "a")
    push(queue)
    assert kinds(queue) == ["queue_paused", "user_paused", "behind_own"]


def test_no_worker_knows_its_name(queue: FairQueue) -> None:
    queue.heartbeat("w:1", {"users": "*", "unknown_tasks": '["gone"]'}, now=NOW, ttl=3600)
    push(queue, name="gone", execute_after=NOW + 30)
    assert kinds(queue) == ["unknown_name", "scheduled"]
    assert reasons(queue, "t")[0].text == (
        "No worker knows a task named gone: deploy its code, or import its module where the workers start. It is offered to "
        "workers for ten minutes and then becomes a dead letter."
    )
    push(queue, "other", name="known")
    assert kinds(queue, "other") == ["next"]


def test_some_workers_do_not_know_its_name(queue: FairQueue) -> None:
    queue.heartbeat("w:2", {"users": "*", "unknown_tasks": '["gone"]'}, now=NOW, ttl=3600)
    queue.heartbeat("w:3", {"users": "bob", "unknown_tasks": '["gone"]'}, now=NOW, ttl=3600)  # nothing to this user
    push(queue, name="gone")
    text = "1 of 2 workers does not know a task named gone: it waits for one that does."
    assert only(queue, "unknown_name") == text


@pytest.mark.parametrize("damaged", ["[", "{}", "[1]", "null"])
def test_a_damaged_list_of_unknown_names_is_left_out(queue: FairQueue, damaged: str) -> None:
    queue.heartbeat("w:1", {"users": "*", "unknown_tasks": damaged}, now=NOW, ttl=3600)
    push(queue, name="gone")
    assert kinds(queue) == ["next"]
    assert not any("gone" in reason for reason in queue.health().reasons)
