"""Dead letters: found by what they are and what they died of, requeued and given up one by one or all that match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.engine.errors import TaskNotFoundError, TaskSerializationError, TaskValidationError
from django_fairque.engine.fingerprint import fingerprint, normalised
from django_fairque.engine.records import FailureType, TaskState

from .conftest import NOW, MakeQueue, task

if TYPE_CHECKING:
    from django_fairque.engine.queue import FairQueue


def bury(queue: FairQueue, error: str = "boom", *, user: str = "u", name: str = "app.send", at: float = NOW) -> str:
    made = task(user, name=name)
    queue.push(made, now=at)
    (lease,) = queue.pop_batch(1, "w", [user], now=at)
    queue.fail(lease, error, retry=False, now=at)
    return f"{made.task_id}~1"


@pytest.fixture
def letters(queue: FairQueue) -> dict[str, str]:
    found = {
        "a": bury(queue, "KeyError: 'x1'"),
        "b": bury(queue, "KeyError: 'x2'", user="v"),
        "c": bury(queue, "TimeoutError: 30 s", name="app.fetch", at=NOW + 100),
    }
    queue.push(task(task_id="late", expires_at=NOW + 101), now=NOW + 100)
    queue.sweep(now=NOW + 102)
    return {**found, "d": "late~1"}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "abcd"),
        ({"failure_type": "expired"}, "d"),
        ({"failure_type": FailureType.FAILED}, "abc"),
        ({"user_id": "v"}, "b"),
        ({"name": "app.fetch"}, "c"),
        ({"older_than": 150}, "ab"),
        ({"newer_than": 150}, "cd"),
        ({"older_than": 90, "newer_than": 150}, "cd"),
        ({"user_id": "u", "name": "app.send"}, "a"),
    ],
)
def test_filters(queue: FairQueue, letters: dict[str, str], filters: dict[str, Any], expected: str) -> None:
    found = {entry.entry_id for entry in queue.dlq.list(now=NOW + 200, **filters).items}
    assert found == {letters[name] for name in expected}
    assert queue.dlq.requeue_all(now=NOW + 200, **filters) == len(expected)
    assert queue.dlq.count() == 4 - len(expected)


def test_groups_of_the_same_error(queue: FairQueue, letters: dict[str, str]) -> None:
    found = queue.dlq.groups(now=NOW + 200)
    assert (found.looked_at, found.is_whole) == (4, True)
    first = found.groups[0]
    assert (first.error, first.count, first.name) == ("KeyError: <text>", 2, "app.send")
    assert first.example in (letters["a"], letters["b"])
    assert {entry.entry_id for entry in queue.dlq.list(fingerprint=first.fingerprint).items} == {
        letters["a"],
        letters["b"],
    }
    assert not queue.dlq.groups(2).is_whole
    assert queue.dlq.discard_all(fingerprint=first.fingerprint, now=NOW + 200) == 2


def test_counts_are_of_what_lies_there_now(queue: FairQueue, letters: dict[str, str]) -> None:
    assert queue.dlq.counts() == {"failed": 3, "expired": 1, "poisoned": 0}
    queue.dlq.requeue(letters["d"], now=NOW + 200)
    queue.dlq.discard(letters["a"], now=NOW + 200)
    assert queue.dlq.counts() == {"failed": 2, "expired": 0, "poisoned": 0}
    assert queue.dlq.cleanup(50, now=NOW + 200) == 2
    assert queue.dlq.counts() == {"failed": 0, "expired": 0, "poisoned": 0}


def test_an_id_that_lives_again_takes_its_letter_along(queue: FairQueue, letters: dict[str, str]) -> None:
    queue.push(task(task_id="late"), now=NOW + 200)
    assert queue.dlq.counts()["expired"] == 0


def test_selected_ones(queue: FairQueue, letters: dict[str, str]) -> None:
    gone = "nobody~1"
    assert queue.dlq.requeue_many([letters["a"], gone, letters["b"]], {"new": 1}, now=NOW + 200) == 2
    assert queue.get_task(letters["a"][:-2]).payload == {"new": 1}
    assert queue.dlq.discard_many([letters["a"], letters["c"]], now=NOW + 200) == 1
    assert queue.get_task(letters["c"][:-2]).state is TaskState.CANCELED


def test_all_that_match_are_moved_in_slices(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks")
    for i in range(250):
        bury(queue, user="a" if i % 2 else "b")
    assert queue.dlq.requeue_all({"n": 1}, user_id="a", limit=100, now=NOW) == 100
    assert queue.dlq.requeue_all(user_id="a", now=NOW) == 25
    assert queue.dlq.discard_all(now=NOW) == 125
    assert queue.get_stats().states["queued"] == 125


def test_a_letter_of_an_earlier_death_is_refused(queue: FairQueue) -> None:
    first = bury(queue)
    queue.dlq.requeue(first, now=NOW)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.fail(lease, "again", retry=False, now=NOW)
    for act in (queue.dlq.requeue, queue.dlq.discard, queue.dlq.get):
        with pytest.raises(TaskNotFoundError, match="requeued, discarded or forgotten"):
            act(first)
    assert queue.dlq.get(first[:-1] + "2").reason == "again"


def test_the_history_tells_of_every_attempt(queue: FairQueue) -> None:
    queue.push(task(task_id="t", max_retries=1), now=NOW)
    for moment in (NOW, NOW + 10):
        (lease,) = queue.pop_batch(1, f"w{moment - NOW:.0f}", now=moment)
        try:
            raise ValueError(f"at {moment - NOW:.0f}")  # noqa: TRY301 - an error with a traceback
        except ValueError as error:
            queue.fail(lease, error, now=moment)
    history = queue.dlq.get("t~1").retry_history
    assert [(each.kind, each.at, each.worker, each.error) for each in history] == [
        ("failed", NOW, "w0", "ValueError: at 0"),
        ("failed", NOW + 10, "w10", "ValueError: at 10"),
    ]
    assert "raise ValueError" in history[0].traceback


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"failure_type": "dead"}, "failed, expired, poisoned, got 'dead'"),
        ({"older_than": -1}, "older_than"),
        ({"newer_than": "1d"}, "newer_than"),
    ],
)
def test_filters_that_mean_nothing(queue: FairQueue, filters: dict[str, Any], words: str) -> None:
    for act in (queue.dlq.list, queue.dlq.requeue_all, queue.dlq.discard_all, queue.dlq.groups):
        with pytest.raises(TaskValidationError, match=words):
            act(**filters)


def test_other_mistakes(queue: FairQueue, letters: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="no filter 'usr'"):
        queue.dlq.list(usr="u")  # type: ignore[call-arg]
    with pytest.raises(TaskNotFoundError, match="looks like"):
        queue.dlq.get("no number")
    with pytest.raises(TaskSerializationError):
        queue.dlq.requeue_many([letters["a"]], "x" * 300_000)
    with pytest.raises(TaskValidationError, match="limit"):
        queue.dlq.requeue_all(limit=0)
    with pytest.raises(TaskValidationError, match="look_at"):
        queue.dlq.groups(0)
    assert queue.dlq.count() == 4


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ValueError: user 42 of 'acme'", "ValueError: user <n> of <text>"),
        ("E: 550e8400-e29b-41d4-a716-446655440000", "E: <uuid>"),
        ("<Thing object at 0x7f2a99>", "<Thing object at <address>>"),
        ("no such key deadbeefdeadbeef", "no such key <hex>"),
        ("bounced: a.b@example.com", "bounced: <email>"),
        ("took 12.5 s\nand more", "took <n> s"),
    ],
)
def test_particulars_are_left_out(error: str, expected: str) -> None:
    assert normalised(error) == expected
    assert fingerprint("a", "failed", error) != fingerprint("b", "failed", error)
    assert len(fingerprint("a", "failed", "\ud800")) == 12
