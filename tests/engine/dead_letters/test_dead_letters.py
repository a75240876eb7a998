"""Dead letters are found by their fields and errors, and are requeued or discarded one by one or all that match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_fairque.engine.dead_letters import dead_letters as dlq
from django_fairque.engine.dead_letters.letters import Filter, fingerprint, normalize_error
from django_fairque.engine.model.errors import TaskNotFoundError, TaskSerializationError, TaskValidationError
from django_fairque.engine.model.outcome import MAX_ERROR_CHARACTERS
from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting.operations import Operation, Request, ScriptCall
from tests.engine.conftest import NOW, MakeQueue, pop, task


def bury(
    queue: FairQueue,
    error: str = "boom",
    *,
    user: str = "u",
    name: str = "app.send",
    at: float = NOW,
    payload: Any = None,
) -> str:
    made = task(user, payload=payload, name=name)
    queue.push(made, now=at)
    (lease,) = queue.pop_batch(1, "w", [user], now=at)
    queue.fail(lease, error, retry=False, now=at)
    return f"{made.task_id}~1"


def drive(queue: FairQueue, steps: Operation[int], after: Callable[[Request], None]) -> int:
    """Run ``steps``, doing ``after`` when a request has been served and its reply not been seen."""
    request = next(steps)
    while True:
        reply = queue._transport.send(request)
        after(request)
        try:
            request = steps.send(reply)
        except StopIteration as stop:
            return int(stop.value)


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
        ({"user_id": None, "name": "app.fetch", "older_than": None}, "c"),
    ],
)
def test_filters_select_dead_letters_by_type_age_user_and_name(
    queue: FairQueue, letters: dict[str, str], filters: dict[str, Any], expected: str
) -> None:
    found = {entry.entry_id for entry in queue.dlq.list(now=NOW + 200, **filters).items}
    assert found == {letters[name] for name in expected}
    assert queue.dlq.requeue_all(now=NOW + 200, **filters) == len(expected)
    assert queue.dlq.count() == 4 - len(expected)


def test_dead_letters_with_the_same_error_form_a_group(queue: FairQueue, letters: dict[str, str]) -> None:
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
    some = queue.dlq.groups(user_id="v", now=NOW + 200)
    assert (some.looked_at, [group.count for group in some.groups]) == (4, [1])
    assert queue.dlq.discard_all(fingerprint=first.fingerprint, now=NOW + 200) == 2


def test_counts_of_dead_letters_fall_when_entries_are_removed(queue: FairQueue, letters: dict[str, str]) -> None:
    assert queue.dlq.counts() == {"failed": 3, "expired": 1, "poisoned": 0}
    queue.dlq.requeue(letters["d"], now=NOW + 200)
    queue.dlq.discard(letters["a"], now=NOW + 200)
    assert queue.dlq.counts() == {"failed": 2, "expired": 0, "poisoned": 0}
    assert queue.dlq.cleanup(50, now=NOW + 200) == 2
    assert queue.dlq.counts() == {"failed": 0, "expired": 0, "poisoned": 0}


def test_a_new_task_with_the_id_of_a_dead_letter_removes_the_entry(queue: FairQueue, letters: dict[str, str]) -> None:
    queue.push(task(task_id="late"), now=NOW + 200)
    assert queue.dlq.counts()["expired"] == 0


def test_selected_dead_letters_are_requeued_or_discarded_together(queue: FairQueue, letters: dict[str, str]) -> None:
    gone = "nobody~1"
    assert queue.dlq.requeue_many([letters["a"], gone, letters["b"]], {"new": 1}, now=NOW + 200) == 2
    assert queue.get_task(letters["a"][:-2]).payload == {"new": 1}
    assert queue.dlq.discard_many([letters["a"], letters["c"]], now=NOW + 200) == 1
    assert queue.get_task(letters["c"][:-2]).state is TaskState.CANCELED


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, {"old": 1}), (b"null", None), (b' {"a": [1, 2]}\n', {"a": [1, 2]}), ({}, {}), (False, False), ("", "")],
    ids=repr,
)
def test_a_requeued_dead_letter_may_get_a_new_payload(queue: FairQueue, given: Any, expected: Any) -> None:
    entries = [bury(queue, payload={"old": 1}) for _ in range(3)]
    queue.dlq.requeue(entries[0], given, now=NOW)
    assert queue.dlq.requeue_many(entries[:2], payload=given, now=NOW) == 1
    assert queue.dlq.requeue_all(given, now=NOW) == 1
    assert [queue.get_task(entry[:-2]).payload for entry in entries] == [expected] * 3


def test_matching_dead_letters_are_requeued_in_slices(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks")
    for i in range(250):
        bury(queue, user="a" if i % 2 else "b")
    assert queue.dlq.requeue_all({"n": 1}, user_id="a", limit=100, now=NOW) == 100
    assert queue.dlq.requeue_all(user_id="a", now=NOW) == 25
    assert queue.dlq.discard_all(now=NOW) == 125
    assert queue.get_stats().states["queued"] == 125


def test_two_operators_who_move_dead_letters_at_once_miss_none(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks")
    for i in range(250):
        bury(queue, user="ab"[i % 2], at=NOW + i // 7)
    others: list[int] = []

    def the_other_operator(request: Request) -> None:
        if isinstance(request, ScriptCall) and not others:
            others.append(queue.dlq.discard_all(user_id="b", now=NOW + 300))

    steps = dlq.requeue_all(queue._shards, Filter.create({"user_id": "a"}), None, "normal", None, NOW + 300)
    assert drive(queue, steps, the_other_operator) == 125
    assert others == [125]
    assert queue.dlq.count() == 0


def test_a_dead_letter_that_is_named_twice_is_changed_once(queue: FairQueue, letters: dict[str, str]) -> None:
    assert queue.dlq.discard_many([letters["a"]] * 3, now=NOW + 200) == 1
    assert queue.dlq.requeue_many([letters["b"]] * 3, now=NOW + 200) == 1
    assert queue.dlq.counts()["failed"] == 1


@pytest.mark.parametrize("action", ["requeue_many", "discard_many"])
def test_an_outdated_entry_id_does_not_hinder_the_current_entry(queue: FairQueue, action: str) -> None:
    first = bury(queue)
    queue.dlq.requeue(first, now=NOW)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.fail(lease, "again", retry=False, now=NOW)
    assert getattr(queue.dlq, action)([first, first[:-1] + "2"], now=NOW) == 1


def test_large_payloads_are_sent_in_smaller_slices(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", max_payload_bytes=2_000_000)
    entries = [bury(queue) for _ in range(9)]
    sizes: list[int] = []

    def measure(request: Request) -> None:
        if isinstance(request, ScriptCall):  # the others read whom the payload is signed for
            sizes.append(sum(len(arg) for arg in request.args if isinstance(arg, bytes)))

    steps = dlq.requeue_some(queue._shards, entries, "x" * 1_000_000, "normal", NOW)
    assert drive(queue, steps, measure) == 9
    assert len(sizes) == 3
    assert max(sizes) <= dlq.MAX_CALL_PAYLOAD_BYTES


def test_a_cleanup_removes_dead_letters_by_their_age_and_not_by_their_retention(make_queue: MakeQueue) -> None:
    queue = make_queue(fair_by="tasks", failed_ttl=86_400)
    bury(queue)
    bury(queue, at=NOW + 86_400 / 2)
    longer = type(queue)(
        queue._transport.client, queue.name, queue.config.model_copy(update={"failed_ttl": 7 * 86_400})
    )
    assert longer.dlq.cleanup(86_400, now=NOW + 86_399) == 0
    assert longer.dlq.cleanup(86_400, now=NOW + 86_400) == 1
    assert longer.dlq.counts()["failed"] == 1


def test_a_task_with_the_longest_id_can_become_a_dead_letter(queue: FairQueue) -> None:
    queue.push(task(task_id="x" * 256), now=NOW)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.fail(lease, "boom", retry=False, now=NOW)
    (entry,) = queue.dlq.list().items
    assert queue.dlq.get(entry.entry_id) == entry
    assert queue.dlq.requeue(entry.entry_id, now=NOW) == "x" * 256


def test_the_entry_id_of_an_earlier_death_is_refused(queue: FairQueue) -> None:
    first = bury(queue)
    queue.dlq.requeue(first, now=NOW)
    (lease,) = queue.pop_batch(1, "w", now=NOW)
    queue.fail(lease, "again", retry=False, now=NOW)
    for act in (queue.dlq.requeue, queue.dlq.discard, queue.dlq.get):
        with pytest.raises(TaskNotFoundError, match="requeued, discarded or forgotten"):
            act(first)
    assert queue.dlq.get(first[:-1] + "2").reason == "again"


def test_the_history_of_a_dead_letter_has_every_attempt(queue: FairQueue) -> None:
    queue.push(task(task_id="t", max_retries=1), now=NOW)
    for moment in (NOW, NOW + 10):
        (lease,) = queue.pop_batch(1, f"w{moment - NOW:.0f}", now=moment)
        try:
            raise ValueError(f"at {moment - NOW:.0f}")  # noqa: TRY301 - an error with a traceback
        except ValueError as error:
            queue.fail(lease, error, now=moment)
    history = queue.dlq.get("t~1").retry_history
    assert [(attempt.kind, attempt.at, attempt.worker, attempt.error) for attempt in history] == [
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
        ({"newer_than": float("nan")}, "newer_than"),
        ({"user_id": 7}, "user_id must be a non-empty string"),
        ({"name": 7}, "name must be a string"),
        ({"fingerprint": "xyz"}, "12 hexadecimal digits"),
    ],
)
def test_invalid_filters_of_dead_letters_are_refused(queue: FairQueue, filters: dict[str, Any], words: str) -> None:
    for act in (queue.dlq.list, queue.dlq.requeue_all, queue.dlq.discard_all, queue.dlq.groups):
        with pytest.raises(TaskValidationError, match=words):
            act(**filters)


def test_unknown_filters_and_malformed_entry_ids_are_refused(queue: FairQueue, letters: dict[str, str]) -> None:
    with pytest.raises(TypeError, match="no filter 'usr'"):
        queue.dlq.list(usr="u")  # type: ignore[call-arg]
    for malformed in (
        "",
        "late",
        "~1",
        "late~",
        "late~0",
        "late~01",
        "late~x",
        "late~1 ",
        "late~-1",
        "late~" + "9" * 5000,
    ):
        for act in (queue.dlq.get, queue.dlq.requeue, queue.dlq.discard):
            with pytest.raises(TaskNotFoundError, match="looks like"):
                act(malformed)
    with pytest.raises(TaskNotFoundError, match="looks like"):
        queue.dlq.discard_many([letters["a"], "malformed"])
    with pytest.raises(TaskValidationError, match="a list of entries' ids"):
        queue.dlq.discard_many(letters["a"])
    with pytest.raises(TaskValidationError, match="an entry's id is a string"):
        queue.dlq.discard(7)  # type: ignore[arg-type]
    with pytest.raises(TaskSerializationError):
        queue.dlq.requeue_many([letters["a"]], "x" * 300_000)
    with pytest.raises(TaskSerializationError):
        queue.dlq.requeue_all({"n": float("nan")}, user_id="nobody")
    with pytest.raises(TaskSerializationError, match="the payload can't be decoded"):
        queue.dlq.requeue_all(b"{'n': 1}", user_id="nobody")
    with pytest.raises(TaskValidationError, match="older_than"):
        queue.dlq.cleanup(-1)
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
        ("from -5 to 1e-05 or 1,000,000,000,000", "from <n> to <n> or <n>"),
        ("can't open 'a.txt': it isn't there", "can't open <text>: it isn't there"),
        ("user 'O'Brien' and \"it's\" or b'\\x00'", "user <text> and <text> or <text>"),
        ("commit a1b2c3d is no ancestor of 1b2c3d4", "commit <hex> is no ancestor of <hex>"),
        ("no task 01JDXY7Q8Z5V1M2N3P4R5S6T7V", "no task <id>"),
        ("host fe80::1ff:fe23:4567:890a, 10.0.0.1:80 at 12:30:45", "host <address>, <n> at <n>"),
        ("std::vector of deface", "std::vector of deface"),
        (f"no '{'y' * MAX_ERROR_CHARACTERS}"[:MAX_ERROR_CHARACTERS], "no <text>"),
    ],
)
def test_numbers_and_ids_in_errors_do_not_divide_groups(error: str, expected: str) -> None:
    assert normalize_error(error) == expected
    assert fingerprint("a", "failed", error) != fingerprint("b", "failed", error)
    assert len(fingerprint("a", "failed", "\ud800")) == 12


def test_entry_ids_are_unique_although_a_task_id_is_used_again(queue: FairQueue) -> None:
    """A page that was opened long ago must not act on a letter that nobody has looked at."""
    for number in (1, 2):
        queue.push(task("a", payload=number, task_id="t"), now=NOW + number)
        queue.fail(pop(queue, NOW + number), f"boom {number}", retry=False, now=NOW + number)
        (entry,) = queue.dlq.list().items
        assert entry.entry_id == f"t~{number}"
        assert entry.retry_history[-1].error == f"boom {number}"
    with pytest.raises(TaskNotFoundError):
        queue.dlq.discard("t~1", now=NOW + 3)
    assert queue.get_task("t").state is TaskState.FAILED
