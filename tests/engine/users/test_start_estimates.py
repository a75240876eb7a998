"""Estimates of when a task starts: how often they are right, what they cost, and when there is none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.model.errors import TaskNotFoundError
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.users.start_estimates import StartEstimate
from tests.counting import commands, counted
from tests.engine.conftest import NOW, push_many, task

from .starting_worlds import Question, StartingWorld

if TYPE_CHECKING:
    from redis import Redis

SHARED = TaskLimit("shared", 1)


def check_answers(redis: Redis, number: int, in_each_world: int) -> None:
    questions: list[Question] = []
    for seed in count():
        questions += StartingWorld(redis, seed).play(in_each_world)
        if len(questions) >= number:
            break
    answers = [question for question in questions if question.estimate.reason is None]
    assert len(answers) >= 0.9 * len(questions)
    right = sum(question.is_right for question in answers)
    assert right >= 0.8 * len(answers), f"{right} of {len(answers)} tasks started in the estimated time"
    for low, high in ((question.estimate.low, question.estimate.high) for question in answers):
        assert low is not None
        assert high == pytest.approx(3 * low + 5)


def test_four_of_five_tasks_start_in_the_estimated_time(redis: Redis) -> None:
    check_answers(redis, 20, 4)


@pytest.mark.slow
def test_800_of_1000_tasks_in_random_worlds_start_in_the_estimated_time(redis: Redis) -> None:
    check_answers(redis, 1000, 10)


@pytest.fixture
def busy(queue: FairQueue) -> FairQueue:
    """A queue with one slot, tasks of ten seconds, and a running task."""
    queue.heartbeat("w", {}, ttl=1000, now=NOW)
    push_many(queue, "first", 8)
    for second in range(7):
        (lease,) = queue.pop_batch(1, "w", now=NOW + 10 * second)
        if second < 6:
            queue.settle([Outcome.finish(lease, took=10.0)], now=NOW + 10 * (second + 1))
    return queue


def contains(estimate: StartEstimate, seconds: float) -> bool:
    return estimate.low is not None and estimate.high is not None and estimate.low <= seconds <= estimate.high


def test_the_tasks_of_the_same_user_and_of_others_count(busy: FairQueue) -> None:
    *_, last = push_many(busy, "second", 5)
    assert contains(busy.starts_in(last), 60)
    for user in "abcd":
        push_many(busy, user, 5)
    assert contains(busy.starts_in(last), 240)


def test_a_limit_of_a_user_makes_the_estimate_longer(busy: FairQueue) -> None:
    *_, last = push_many(busy, "second", 10)
    busy.user("second").set_rate("1/m", now=NOW)
    assert contains(busy.starts_in(last), 540)


def test_the_tasks_at_a_limit_count(busy: FairQueue) -> None:
    *_, last = push_many(busy, "second", 10, limits=[SHARED])
    assert busy.pop("w", now=NOW + 61) is not None
    busy.pop("w", now=NOW + 61)
    assert contains(busy.starts_in(last), 90)


def pause_organization(queue: FairQueue) -> None:
    queue.user("second").set_organization("o", now=NOW)
    queue.organization("o").pause(now=NOW)


@pytest.mark.parametrize(
    ("options", "arrange", "reason"),
    [
        ({"execute_after": NOW + 3600}, lambda _: None, "not_queued"),
        ({}, lambda queue: queue.pause(now=NOW), "queue_paused"),
        ({}, lambda queue: queue.user("second").pause(now=NOW), "user_paused"),
        ({}, pause_organization, "organization_paused"),
        ({}, lambda queue: queue.release_worker("w", forget=True, now=NOW), "no_worker"),
        ({}, lambda queue: queue.user("second").set_rate("1/30d", now=NOW), "too_far"),
    ],
)
def test_there_is_no_estimate_with_a_reason(
    busy: FairQueue, options: dict[str, Any], arrange: Callable[[FairQueue], object], reason: str
) -> None:
    *_, last = push_many(busy, "second", 3, **options)
    arrange(busy)
    estimate = busy.starts_in(last)
    assert (estimate.low, estimate.high, estimate.reason) == (None, None, reason)
    assert estimate.text().startswith("no estimate: ")


def test_there_is_no_estimate_at_a_closed_limit(busy: FairQueue) -> None:
    *_, last = push_many(busy, "second", 3, limits=[SHARED])
    busy.pop_batch(2, "w", now=NOW + 61)
    busy.limit("shared").close(now=NOW + 61)
    assert busy.starts_in(last).reason == "limit_closed"


def test_the_only_task_of_an_idle_queue_starts_in_a_few_seconds(queue: FairQueue) -> None:
    queue.heartbeat("w", {}, now=NOW)
    (only,) = push_many(queue, "u", 1)
    assert queue.starts_in(only) == StartEstimate(0.0, 5.0)
    *_, last = push_many(queue, "u", 1000)
    assert queue.starts_in(last).reason == "nothing_runs"


def test_an_unknown_task_has_no_estimate(queue: FairQueue) -> None:
    with pytest.raises(TaskNotFoundError):
        queue.starts_in("nobody")


@pytest.mark.parametrize(
    ("low", "text"),
    [
        (0.0, "starts in a few seconds"),
        (20.0, "starts in about 40 s"),
        (600.0, "starts in about 17 min"),
        (40_000.0, "starts in about 19 h"),
    ],
)
def test_the_text_of_an_estimate_is_rounded(low: float, text: str) -> None:
    assert StartEstimate(low, 3 * low + 5).text() == text


@pytest.mark.parametrize(("kind", "most"), [("alone", 8), ("at a limit", 10), ("in an organization", 11)])
def test_an_estimate_takes_few_server_commands(busy: FairQueue, redis: Redis, kind: str, most: int) -> None:
    busy.push_batch([task(f"u{number}") for number in range(500)], now=NOW)
    *_, last = push_many(busy, "second", 5, limits=[SHARED] if kind == "at a limit" else [])
    if kind == "at a limit":
        busy.pop_batch(300, "w", now=NOW + 61)
    if kind == "in an organization":
        busy.user("second").set_organization("o", now=NOW)
    found = counted(redis, lambda: busy.starts_in(last))
    assert commands(redis, lambda: busy.starts_in(last)) <= most, found
