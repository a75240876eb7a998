"""Tests of `unique_for`, `debounce` and chosen ids of captured tasks: some calls are one task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_fairque import Discard, Retry, task
from django_fairque.testing import capture_tasks, eager, private_server, run_tasks

if TYPE_CHECKING:
    from django_fairque.testing import Capture

pytestmark = pytest.mark.usefixtures("nobody_answers")

ENDS: dict[str, Exception | None] = {
    "returns": None,
    "raises": ValueError("no"),
    "retries": Retry(5),
    "discards": Discard("unwanted"),
}
WAYS: dict[str, dict[str, Any]] = {
    "unique_for": {"unique_for": 60},
    "task_id": {"task_id": "chosen"},
    "both": {"task_id": "chosen", "unique_for": 60},
}


@pytest.fixture
def calls() -> list[str]:
    """Return the list of the arguments of the runs of `work`, which decide about their ends."""
    return []


@pytest.fixture
def work(calls: list[str]) -> Any:
    @task(name="work", max_retries=0)
    def work(how: str) -> None:
        calls.append(how)
        if error := ENDS[how]:
            raise error

    return work


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_captured_unique_task_behaves_like_a_queued_one(work: Any, calls: list[str], way: str, how: str) -> None:
    sent = work.using(**WAYS[way])
    with private_server():
        expected = _is_one_after_its_run(sent, how, run_tasks), [*calls]
    calls.clear()
    with capture_tasks() as capture:
        found = _is_one_after_its_run(sent, how, lambda: capture.run(raise_errors=False)), calls
    assert found == expected


def _is_one_after_its_run(sent: Any, how: str, run: Any) -> tuple[bool, Any]:
    first = sent.enqueue(how)
    run()
    second = sent.enqueue(how)
    state = second.state
    run()
    return first.id == second.id, state


def test_an_eager_unique_task_behaves_like_one_in_a_queue(work: Any, calls: list[str]) -> None:
    with eager() as capture:
        first, second = (work.using(unique_for=60).enqueue("returns") for _ in range(2))
        other = work.using(unique_for=60, user_id="other").enqueue("returns")
    assert first.id == second.id != other.id
    assert (calls, len(capture)) == (["returns"] * 2, 2)


def test_a_captured_unique_window_does_not_end_with_time(fairque: Capture, work: Any, calls: list[str]) -> None:
    for _ in range(2):
        work.using(unique_for=0.000_001).enqueue("returns")
        fairque.run()
    assert calls == ["returns"]
    fairque.clear()
    work.using(unique_for=0.000_001).enqueue("returns")
    assert fairque.run() == 1


def test_a_call_without_a_unique_window_is_another_task(fairque: Capture, work: Any) -> None:
    first = work.using(unique_for=60).enqueue("returns")
    fairque.run()
    assert work.enqueue("returns").id != first.id
    assert work.using(unique_for=60).enqueue("returns").id == first.id


def test_a_debounced_call_after_the_run_is_a_new_task(fairque: Capture, work: Any, calls: list[str]) -> None:
    ids = []
    for _ in range(2):
        ids += [work.using(debounce=60).enqueue("returns").id for _ in range(2)]
        assert fairque.run() == 1
    assert len(set(ids)) == len(calls) == 2
