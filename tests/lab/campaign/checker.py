"""The judge: compares the answers to producers and the runs of tasks with the state of the queue at the end.

Jepsen's total queue: a push that was acknowledged and never came to an end is lost, one whose outcome nobody knows is
not. Beyond that, every start after the first needs a reason that the queue has recorded; the outcome that counted must
be of the newest lease; what was refused, or never asked for, must not be there.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.records import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django_fairque.engine.model.records import Attempt
    from django_fairque.engine.model.task import Task

COUNTED = ("crashed", "lease_ended")
"""Reasons that count towards the deliveries a task may have."""
EXPLAINS = (*COUNTED, "released", "failed", "requeued")
"""Kinds of recorded attempts that explain another start of a task."""
MOST_REMEMBERED = 25
"""The most lines of a task's history: a history of this length may have lost its oldest lines."""
SHOWN = 5


@dataclass
class Push:
    name: str
    sum: int
    has_parents: bool = False
    at: float = 0.0
    """When it was asked for, in seconds since the epoch."""
    limits: Sequence[tuple[str, int]] = ()
    """The ids of its limits, each with the number of tasks that may run at once."""
    outcome: str = "info"
    """The answer to its producer: ok, fail, or info if the outcome is unknown."""


@dataclass
class Runs:
    """Records that the runs of one task id wrote."""

    starts: list[int] = field(default_factory=list)
    """Tokens."""
    began: float = 0.0
    """When the first one did, in seconds since the epoch."""
    sums: set[int] = field(default_factory=set)
    ends: list[int] = field(default_factory=list)
    started_at: dict[int, float] = field(default_factory=dict)
    """By token, in seconds since the epoch; and the same of the ends."""
    ended_at: dict[int, float] = field(default_factory=dict)


@dataclass
class Verdict:
    """The result: counts, and sentences about violations."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _kinds: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def wrong(self, kind: str, what: str) -> None:
        self.counts[kind] += 1
        self._kinds[kind].append(what)

    def close(self) -> None:
        for kind, some in self._kinds.items():
            more = f", and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
            self.violations.append(f"{kind}: {'; '.join(some[:SHOWN])}{more}")


def pushes_of(history: Iterable[Mapping[str, Any]]) -> dict[str, Push]:
    pushes: dict[str, Push] = {}
    for line in history:
        if line["what"] == "invoke":
            for task_id, name, checksum, has_parents, limits in line["tasks"]:
                pushes[task_id] = Push(name, checksum, has_parents, line["at"], limits)
        else:
            for task_id in line["ids"]:
                pushes[task_id].outcome = line["what"]
    return pushes


def runs_of(effects: Iterable[Mapping[str, Any]]) -> dict[str, Runs]:
    runs: dict[str, Runs] = defaultdict(Runs)
    for line in effects:
        if line["what"] == "start":
            run = runs[line["id"]]
            run.starts.append(line["token"])
            run.sums.add(line["sum"])
            run.began = min(run.began or line["at"], line["at"])
            run.started_at[line["token"]] = line["at"]
        else:
            runs[line["id"]].ends.append(line["token"])
            runs[line["id"]].ended_at[line["token"]] = line["at"]
    return runs


def judge(
    pushes: Mapping[str, Push],
    runs: Mapping[str, Runs],
    tasks: Mapping[str, Task],
    histories: Mapping[str, Sequence[Attempt]],
) -> Verdict:
    """``histories`` of all tasks that started more than once, or were handed out more than once."""
    verdict = Verdict()
    for task_id, push in pushes.items():
        _judge_push(verdict, task_id, push, tasks.get(task_id), runs.get(task_id, Runs()))
    for task_id, run in runs.items():
        _judge_runs(verdict, task_id, run, pushes.get(task_id), tasks.get(task_id), histories.get(task_id, ()))
    _judge_limits(verdict, pushes, runs, tasks)
    verdict.counts["starts"] = sum(len(run.starts) for run in runs.values())
    verdict.close()
    return verdict


def _judge_push(verdict: Verdict, task_id: str, push: Push, task: Task | None, run: Runs) -> None:
    verdict.counts[f"pushes {push.outcome}"] += 1
    state = task.state.value if task else "nowhere"
    if push.outcome == "wrong":
        verdict.wrong("pushes that ended in an error of no known kind", task_id)
    if task is None or not task.state.is_ended:
        if push.outcome == "ok":
            verdict.wrong("lost", f"{task_id} was acknowledged and is {state}")
        elif task is not None:
            verdict.wrong("not ended", f"{task_id} is {state}")
        return
    verdict.counts[state] += 1
    if push.outcome == "fail":
        verdict.wrong("refused, yet there", f"{task_id} is {state}")
    if task.state is TaskState.FINISHED:
        if not run.ends:
            verdict.wrong("finished without having run", task_id)
        if task.retry_count != (push.name == "campaign.flaky"):
            verdict.wrong("burnt retries", f"{task_id} ({push.name}) has used {task.retry_count}")


def _judge_runs(
    verdict: Verdict, task_id: str, run: Runs, push: Push | None, task: Task | None, history: Sequence[Attempt]
) -> None:
    if push is None:
        verdict.wrong("invented", f"{task_id} was never asked for")
        return
    if run.sums != {push.sum}:
        verdict.wrong("payload changed", task_id)
    if len(set(run.starts)) != len(run.starts):
        verdict.wrong("one lease, two starts", f"{task_id}: tokens {sorted(run.starts)}")
    reasons = sum(attempt.kind in EXPLAINS for attempt in history)
    second = len(run.starts) - 1
    unexplained = 0 if len(history) >= MOST_REMEMBERED else max(0, second - reasons)
    verdict.counts["explained duplicates"] += second - unexplained
    if unexplained:
        verdict.wrong(
            "unexplained duplicates", f"{task_id}: {second + 1} starts, {[attempt.kind for attempt in history]}"
        )
    result = task.result if task and task.state is TaskState.FINISHED else None
    if result is not None and (result.get("stale") or result["token"] != max(run.starts)):
        verdict.wrong(
            "stale outcomes believed", f"{task_id}: the outcome of {result}, and it was started as {max(run.starts)}"
        )


def _judge_limits(
    verdict: Verdict, pushes: Mapping[str, Push], runs: Mapping[str, Runs], tasks: Mapping[str, Task]
) -> None:
    """Count how many tasks of a limit ran at once, by the moments that they recorded themselves.

    Only runs whose outcome was believed count. A frozen process goes on after its lease has ended, and nobody can stop it.
    """
    moments: dict[str, list[tuple[float, int]]] = defaultdict(list)
    most: dict[str, int] = {}
    for task_id, run in runs.items():
        task, push = tasks.get(task_id), pushes.get(task_id)
        token = task.result["token"] if task and task.state is TaskState.FINISHED and task.result else None
        if push is None or token not in run.started_at or token not in run.ended_at:
            continue
        for limit_id, at_once in push.limits:
            most[limit_id] = at_once
            moments[limit_id] += [(run.started_at[token], 1), (run.ended_at[token], -1)]
    for limit_id, some in moments.items():
        found = max(itertools.accumulate(change for _, change in sorted(some)))
        verdict.counts["runs with a limit"] += len(some) // 2
        if found > most[limit_id]:
            verdict.wrong("limits exceeded", f"{found} tasks of {limit_id} ran at once, {most[limit_id]} are allowed")


def waits(pushes: Mapping[str, Push], runs: Mapping[str, Runs], since: float, until: float) -> list[float]:
    """Seconds from a push in that time to its task's first start; of ordinary tasks that wait for no other."""
    return sorted(
        runs[task_id].began - push.at
        for task_id, push in pushes.items()
        if since <= push.at < until and task_id in runs and push.name != "campaign.poison" and not push.has_parents
    )


def burnt_in(tasks: Iterable[str], histories: Mapping[str, Sequence[Attempt]], since: float, until: float) -> list[str]:
    """Tasks that were counted as crashed, or whose lease ended, in that time."""
    return [
        task_id
        for task_id in tasks
        if any(attempt.kind in COUNTED and since <= attempt.at <= until for attempt in histories.get(task_id, ()))
    ]
