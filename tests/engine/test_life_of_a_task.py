"""Every arrow of docs/contributing/life.md is walked, and the page has no other and lacks none of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_fairque.engine.model.lease import Lease
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, task
from tests.engine.conftest import pop as pop_task

PAGE = (Path(__file__).parent.parent.parent / "docs" / "contributing" / "life.md").read_text()
ARROW = re.compile(r"^\| ((?:`[A-Z]+`(?:, )?)+) \| `([A-Z]+)`(?: `(\w+)`)? \|", re.MULTILINE)


def drawn() -> set[tuple[str, str]]:
    """The page's arrows between two states, those to FAILED with the dead letter's type."""
    return {
        (source, f"{target} {kind}".strip())
        for sources, target, kind in ARROW.findall(PAGE)
        for source in re.findall(r"[A-Z]+", sources)
    }


def pop(queue: FairQueue) -> Lease:
    return pop_task(queue, lease=10)


def begin(queue: FairQueue, state: str) -> None:
    """The task ``it`` in that state; DEFERRED, it waits for ``blocker``."""
    if state == "DEFERRED":
        queue.push(task(task_id="blocker", priority=6), now=NOW)
    policy: dict[str, Any] = (
        {"depends_on": ["blocker"], "on_dependency_failure": "cancel"} if state == "DEFERRED" else {}
    )
    later: dict[str, Any] = {"execute_after": NOW + 60} if state == "SCHEDULED" else {}
    queue.push(task(task_id="it", expires_at=NOW + 100, **later, **policy), now=NOW)
    if state == "FAILED":
        queue.fail(pop(queue), "no", retry=False, now=NOW)


def ends(make: Callable[[Lease], Outcome]) -> Callable[[FairQueue], object]:
    return lambda queue: queue.settle([make(pop(queue))], now=NOW)


def letter(queue: FairQueue) -> str:
    (entry,) = queue.dlq.list().items
    return entry.entry_id


def never_renewed(queue: FairQueue, times: int = 1) -> None:
    for turn in range(times):
        assert queue.pop("w", lease=10, now=NOW + 20 * turn) is not None
        queue.sweep(now=NOW + 20 * turn + 10)


def put_off(queue: FairQueue) -> None:
    """Finish the task that it waits for, while its own time lies ahead."""
    queue.cancel("it", now=NOW)
    queue.push(task(task_id="it", depends_on=["blocker"], execute_after=NOW + 60), now=NOW)
    queue.finish(pop(queue), now=NOW)


WALKS: list[tuple[str, str, Callable[[FairQueue], object]]] = [
    ("DEFERRED", "QUEUED", lambda queue: queue.finish(pop(queue), now=NOW)),
    ("DEFERRED", "SCHEDULED", put_off),
    ("DEFERRED", "CANCELED", lambda queue: queue.fail(pop(queue), "no", retry=False, now=NOW)),
    ("DEFERRED", "CANCELED", lambda queue: queue.cancel("it", now=NOW)),
    ("DEFERRED", "FAILED expired", lambda queue: queue.sweep(now=NOW + 101)),
    ("SCHEDULED", "QUEUED", lambda queue: queue.sweep(now=NOW + 60)),
    ("SCHEDULED", "CANCELED", lambda queue: queue.cancel("it", now=NOW)),
    ("SCHEDULED", "FAILED expired", lambda queue: queue.sweep(now=NOW + 101)),
    ("QUEUED", "STARTED", pop),
    ("QUEUED", "CANCELED", lambda queue: queue.user("u").purge(now=NOW)),
    ("QUEUED", "FAILED expired", lambda queue: queue.sweep(now=NOW + 101)),
    ("STARTED", "FINISHED", ends(Outcome.finish)),
    ("STARTED", "SCHEDULED", ends(lambda lease: Outcome.fail(lease, "no", delay=5))),
    ("STARTED", "SCHEDULED", ends(lambda lease: Outcome.retry(lease, "not yet", delay=5))),
    ("STARTED", "QUEUED", ends(Outcome.release)),
    ("STARTED", "QUEUED", ends(lambda lease: Outcome.crash(lease, "gone"))),
    ("STARTED", "QUEUED", never_renewed),
    ("STARTED", "FAILED failed", ends(lambda lease: Outcome.fail(lease, "no", delay=None))),
    ("STARTED", "FAILED expired", ends(lambda lease: Outcome.fail(lease, "no", delay=101))),
    ("STARTED", "FAILED poisoned", ends(lambda lease: Outcome.poison(lease, "can't be read"))),
    ("STARTED", "FAILED poisoned", lambda queue: never_renewed(queue, 3)),
    ("STARTED", "CANCELED", ends(lambda lease: Outcome.discard(lease, "not wanted"))),
    ("STARTED", "CANCELED", lambda queue: (pop(queue), queue.cancel("it", now=NOW))),
    ("FAILED", "QUEUED", lambda queue: queue.dlq.requeue(letter(queue), now=NOW)),
    ("FAILED", "CANCELED", lambda queue: queue.dlq.discard(letter(queue), now=NOW)),
]
"""From a state (STARTED: from QUEUED, by a pop), what is done, and where that leads."""


@pytest.mark.parametrize(("source", "target", "act"), WALKS)
def test_each_arrow_of_the_life_of_a_task_is_taken_by_the_engine(
    make_queue: MakeQueue, source: str, target: str, act: Callable[[FairQueue], object]
) -> None:
    queue = make_queue(max_deliveries=3)
    begin(queue, source)
    assert queue.get_task("it").state.value.upper() == ("QUEUED" if source == "STARTED" else source)
    act(queue)
    found = queue.get_task("it").state.value.upper()
    if found == "FAILED":
        found = f"FAILED {next(entry.failure_type.value for entry in queue.dlq.list().items)}"
    assert found == target


def test_the_page_has_all_arrows_and_no_other() -> None:
    assert drawn() == {(source, target) for source, target, _ in WALKS}


@pytest.mark.parametrize(
    ("state", "options"),
    [("QUEUED", {}), ("SCHEDULED", {"execute_after": NOW + 60}), ("DEFERRED", {"depends_on": ["blocker"]})],
)
def test_a_pushed_task_begins_in_the_documented_state(queue: FairQueue, state: str, options: dict[str, Any]) -> None:
    queue.push(task(task_id="blocker"), now=NOW)
    queue.push(task(task_id="it", **options), now=NOW)
    assert queue.get_task("it").state.value.upper() == state
    assert f"| push | `{state}` |" in PAGE
