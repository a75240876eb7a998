"""The judge on small made-up histories: each kind of wrong is found, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.engine.model.task import Task

from .checker import Push, judge, pushes_of, runs_of, waits

PUSH = {"what": "invoke", "tasks": [["a", "campaign.work", 7, False, []]], "at": 1.0}
OK = {"what": "ok", "ids": ["a"]}


def start(token: int, task_id: str = "a", checksum: int = 7) -> dict[str, Any]:
    return {"what": "start", "id": task_id, "token": token, "sum": checksum, "at": 2.0}


def end(token: int) -> dict[str, Any]:
    return {"what": "end", "id": "a", "token": token, "at": 3.0}


def ended(token: int = 1, state: TaskState = TaskState.FINISHED, **changes: Any) -> dict[str, Task]:
    task = Task.create("ann", 3, {}, task_id="a", name="campaign.work")
    return {"a": task.model_copy(update={"state": state, "result": {"token": token}, **changes})}


def verdict(
    *effects: dict[str, Any],
    tasks: dict[str, Task],
    history: tuple[str, ...] = (),
    answer: dict[str, Any] | None = OK,
) -> list[str]:
    pushes = pushes_of([PUSH, answer] if answer else [PUSH])
    attempts = {"a": [Attempt(2.5, kind, "w") for kind in history]}
    return [line.split(":")[0] for line in judge(pushes, runs_of(effects), tasks, attempts).violations]


def test_a_task_that_ran_once_is_no_violation() -> None:
    assert verdict(start(1), end(1), tasks=ended()) == []


@pytest.mark.parametrize("reason", ["crashed", "lease_ended", "released", "failed", "requeued"])
def test_a_second_start_with_a_reason_is_allowed(reason: str) -> None:
    assert verdict(start(1), start(2), end(2), tasks=ended(2), history=(reason,)) == []


@pytest.mark.parametrize(("at_once", "found"), [(1, ["limits exceeded"]), (2, [])])
def test_tasks_that_ran_at_once_beyond_their_limit_are_found(at_once: int, found: list[str]) -> None:
    names = ["a", "b"]
    pushes = {name: Push("campaign.work", 7, at=1.0, outcome="ok", limits=[("s:k", at_once)]) for name in names}
    runs = runs_of([line for name in names for line in (start(1, name), {**end(1), "id": name})])
    tasks = {name: ended()["a"] for name in names}
    assert [line.split(":")[0] for line in judge(pushes, runs, tasks, {}).violations] == found


def test_a_second_start_without_a_reason_is_a_violation() -> None:
    assert verdict(start(1), start(2), end(2), tasks=ended(2)) == ["unexplained duplicates"]
    assert verdict(start(1), start(2), end(2), tasks=ended(2), history=("canceled",)) == ["unexplained duplicates"]


def test_a_single_crash_does_not_explain_two_additional_starts() -> None:
    assert verdict(start(1), start(2), start(3), end(3), tasks=ended(3), history=("crashed",)) == [
        "unexplained duplicates"
    ]


def test_an_acknowledged_task_that_is_nowhere_is_lost() -> None:
    assert verdict(tasks={}) == ["lost"]


@pytest.mark.parametrize("state", [TaskState.QUEUED, TaskState.STARTED, TaskState.SCHEDULED, TaskState.DEFERRED])
def test_an_acknowledged_task_that_did_not_end_is_lost(state: TaskState) -> None:
    assert verdict(tasks=ended(state=state)) == ["lost"]


def test_a_task_with_an_unknown_push_result_is_not_lost() -> None:
    assert verdict(tasks={}, answer=None) == []
    assert verdict(tasks={}, answer={"what": "info", "ids": ["a"]}) == []
    assert verdict(start(1), end(1), tasks=ended(), answer=None) == []


def test_a_refused_task_that_exists_is_found() -> None:
    answer = {"what": "fail", "ids": ["a"]}
    assert verdict(tasks={}, answer=answer) == []
    assert verdict(start(1), end(1), tasks=ended(), answer=answer) == ["refused, yet there"]


def test_the_outcome_must_be_of_the_newest_lease() -> None:
    assert verdict(start(1), start(2), end(1), tasks=ended(1), history=("lease_ended",)) == ["stale outcomes believed"]


def test_an_outcome_reported_under_a_stale_lease_is_found() -> None:
    assert verdict(start(1), end(1), tasks=ended(result={"token": 1, "stale": True})) == ["stale outcomes believed"]


def test_two_starts_under_one_lease_are_found() -> None:
    assert "one lease, two starts" in verdict(start(1), start(1), end(1), tasks=ended(), history=("crashed",))


def test_a_payload_that_changed_is_found() -> None:
    assert verdict(start(1, checksum=8), end(1), tasks=ended()) == ["payload changed"]


def test_a_task_that_was_never_pushed_is_found() -> None:
    assert verdict(start(1), end(1), start(2, "b"), tasks=ended()) == ["invented"]


def test_a_task_that_finished_without_running_is_found() -> None:
    assert verdict(tasks=ended()) == ["finished without having run"]


def test_a_retry_that_was_used_for_a_crash_is_found() -> None:
    assert verdict(start(1), end(1), tasks=ended(retry_count=1)) == ["burnt retries"]


def test_waits_are_measured_only_for_tasks_that_could_start_at_once() -> None:
    pushes = {
        "a": Push("campaign.work", 7, at=1.0),
        "b": Push("campaign.work", 7, at=1.5),
        "parents": Push("campaign.work", 7, has_parents=True, at=1.0),
        "poison": Push("campaign.poison", 7, at=1.0),
        "before": Push("campaign.work", 7, at=0.5),
        "after": Push("campaign.work", 7, at=4.0),
        "never": Push("campaign.work", 7, at=1.0),
    }
    runs = runs_of(start(1, task_id) for task_id in pushes if task_id != "never")
    assert waits(pushes, runs, 1.0, 4.0) == [0.5, 1.0]
