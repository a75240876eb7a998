"""The numbers of the pages that explain the engine are the engine's, the pages stay short, and what they name exists."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from django_fairque.engine.model.priority import Priority, calculate_score
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue
from tests.engine.conftest import NOW, MakeQueue, pop, push_many, task
from tests.lab.reliability.test_peers_page import missing_in

DOCS = Path(__file__).parent.parent.parent / "docs"
USER_PAGES = sorted((DOCS / "explanation").glob("*.md"))
PAGES = [
    *USER_PAGES,
    *(DOCS / "contributing" / f"{name}.md" for name in ("architecture", "fairness", "life", "order")),
]
MOST_WORDS = 1500
DRAWINGS = sorted((DOCS / "images").glob("*.svg"))
HOUR = 3600.0
HEAD_START = 6.0
"""Hours: what docs/contributing/order.md says of the default."""


def table(page: str, name: str) -> list[list[str]]:
    """The cells of a table that a page marks with ``<!-- table: name -->``, without its heading."""
    text = (DOCS / "contributing" / page).read_text()
    found = re.search(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", text)
    assert found, f"{page} has no table {name}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in found[1].splitlines()[2:]]


def hours(text: str) -> float:
    number, unit = text.split()
    assert unit == "h"
    return float(number)


def test_the_engine_follows_the_example_of_fairness(queue: FairQueue) -> None:
    rows = table("fairness.md", "example")
    queue.user("beta").set_weight(2, now=NOW)
    push_many(queue, "acme", 9)
    push_many(queue, "beta", 9)
    for step, user, virtual_time, _ in rows:
        if int(step) == 6:
            push_many(queue, "carol", 2)
        reply = queue.settle([], 1, worker="w", now=NOW)
        assert [lease.user_id for lease in reply.leases] == [user], step
        assert reply.virtual_time / 1e6 == pytest.approx(float(virtual_time), abs=1e-3), step
    assert len(rows) == 12


def test_a_user_of_long_tasks_gets_fewer_tasks_than_a_user_of_short_ones(make_queue: MakeQueue) -> None:
    """Sixty short tasks for each long one, as docs/explanation/fairness.md describes."""
    queue, now = make_queue(fair_by="time"), NOW
    push_many(queue, "short", 400)
    push_many(queue, "long", 10)
    started: dict[str, int] = {"short": 0, "long": 0}
    while started["long"] < 6:
        lease = pop(queue, now, lease=1e5)
        took = 60.0 if lease.user_id == "long" else 1.0
        now += took
        started[lease.user_id] += 1
        queue.finish(lease, took=took, now=now)
    assert started["short"] == pytest.approx(60 * 5, abs=61)


@pytest.mark.parametrize("seed", range(3))
def test_two_users_with_work_differ_by_at_most_a_task(make_queue: MakeQueue, seed: int) -> None:
    """The bound of docs/explanation/fairness.md, over every stretch of a run of tasks of random length."""
    queue, chance, now = make_queue(fair_by="time"), random.Random(seed), NOW
    weights, longest, got = {"a": 1, "b": 3}, {"a": 2.0, "b": 5.0}, {"a": 0.0, "b": 0.0}
    queue.user("b").set_weight(3, now=NOW)
    for user in weights:
        push_many(queue, user, 300)
    differences = [0.0]
    for _ in range(300):
        lease = pop(queue, now, lease=100)
        took = chance.uniform(0.01, longest[lease.user_id])
        now += took
        got[lease.user_id] += took / weights[lease.user_id]
        differences.append(got["a"] - got["b"])
        queue.finish(lease, took=took, now=now)
    bound = sum(longest[user] / weights[user] for user in weights)
    assert bound / 4 < max(differences) - min(differences) <= bound


@pytest.fixture
def unhurried(make_queue: MakeQueue) -> FairQueue:
    """Here nobody moves up, so that the formula alone decides."""
    return make_queue(fair_by="tasks", starvation={"VERY_LOW": 0, "LOW": 0, "NORMAL": 0})


def test_the_engine_follows_the_example_of_order(unhurried: FairQueue) -> None:
    rows = table("order.md", "earned")
    now, expected = NOW + 100 * HOUR, []
    for name, waited, weight, earned, place in sorted(rows, key=lambda row: -hours(row[1])):
        priority, since = Priority[name], now - hours(waited) * HOUR
        made = task("a", priority).model_copy(update={"created_at": since})
        by_waiting = (calculate_score(made, now) - since) / HOUR
        assert priority.weight == float(weight)
        assert by_waiting + priority.weight * HEAD_START == pytest.approx(float(earned), abs=0.005)
        expected.append((int(place), unhurried.push(task("a", priority), now=since).task_id))
    got = [lease.task_id for lease in unhurried.pop_batch(99, "w", now=now)]
    assert got == [task_id for _, task_id in sorted(expected)]


@pytest.mark.parametrize(("late", "expected"), [(-60, "VERY_HIGH"), (60, "other")])
def test_a_lower_priority_overtakes_after_the_documented_wait(unhurried: FairQueue, late: int, expected: str) -> None:
    rows = table("order.md", "equal")
    assert len(rows) == 4
    for name, after in sorted(rows, key=lambda row: -hours(row[1])):  # the queue's clock never goes back
        since = NOW - hours(after) * HOUR - late
        unhurried.push(task(name, Priority[name], task_id=f"other {name}"), now=since)
    for name, _ in rows:
        unhurried.push(task(name, Priority.VERY_HIGH, task_id=f"VERY_HIGH {name}"), now=NOW)
        assert pop(unhurried, users=[name], lease=1e6).task_id == f"{expected} {name}"


def test_explanation_pages_have_at_most_150_lines() -> None:
    assert [page.name for page in PAGES if len(page.read_text().splitlines()) > 150] == []


def test_pages_name_only_tests_that_exist() -> None:
    for page in [*USER_PAGES, *sorted((DOCS / "contributing").rglob("*.md"))]:
        assert missing_in(page.read_text()) == [], page.name


def test_pages_for_users_are_short_and_name_no_test_file() -> None:
    for page in USER_PAGES:
        text = re.sub(r"<!-- .*? -->", "", page.read_text(), flags=re.DOTALL)
        assert len(re.findall(r"\S*\w\S*", text)) <= MOST_WORDS, page.name  # bars of tables are no words
        assert re.findall(r"\btests/|\btest_\w+\.py\b", text) == [], page.name


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.stem)
def test_a_drawing_can_be_read_in_the_dark_and_by_ear(drawing: Path) -> None:
    text = drawing.read_text()
    root = ET.fromstring(text)
    for part in ("title", "desc"):
        element = root.find(f"{{http://www.w3.org/2000/svg}}{part}")
        assert element is not None
        assert len(element.text or "") > 10
    assert "prefers-color-scheme: dark" in text
    assert root.get("role") == "img"


def test_the_life_of_a_task_has_every_state_in_words_and_drawn() -> None:
    drawn, text = ((DOCS / name).read_text() for name in ("images/states.svg", "contributing/life.md"))
    for state in TaskState:
        assert f">{state.value.upper()}<" in drawn
        assert f"`{state.value.upper()}`" in text
