"""Ids, names and errors may contain any text: none of them begins a new line or controls the terminal."""

from __future__ import annotations

from itertools import chain

import pytest

from django_fairque.engine.model.task import Task
from django_fairque.monitoring.formatting import table
from tests.fixture_types import FairQueue, Redis
from tests.leases import pop

from .conftest import Run

BAD = "\x1b[31m\nfaked \u202e\x7f"
SHOWN = r"\x1b[31m\nfaked \u202e\x7f"


@pytest.fixture
def first(queue: FairQueue) -> str:
    """The id of a task of a run, for which another task waits; there is a schedule, too."""

    def one(name: str, *parents: str) -> Task:
        return Task.create(BAD, 3, {"n": BAD}, name=BAD, task_id=name + BAD, depends_on=parents)

    queue.push_graph([one("a"), one("b", "a" + BAD)], BAD)
    queue.xcom(BAD).push(BAD, BAD)
    queue.schedules.add(BAD, task=Task.create(BAD, 3, None, name=BAD), every=60)
    queue.user(BAD).set_organization(BAD)
    return "a" + BAD


def lines(run: Run, *words: str) -> list[str]:
    """Return the lines of the output as a terminal counts them."""
    found = run(*words).split("\n")
    assert all(map(str.isprintable, found)), [line for line in found if not line.isprintable()]
    assert not any(line.startswith("faked") for line in found)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("fairque_task", "list"),
        ("fairque_task", "show", "a" + BAD),
        ("fairque_task", "show", "b" + BAD),
        ("fairque_task", "run", BAD),
        ("fairque_task", "xcom", BAD),
        ("fairque_schedule", "list"),
        ("fairque_schedule", "pause", BAD),
        ("fairque_schedule", "run", BAD),
        ("fairque_schedule", "remove", BAD),
        ("fairque_user", "list"),
        ("fairque_user", "purge", BAD),
        ("fairque_organization", "list"),
        ("fairque_stats", "--top", "1"),
        ("fairque_stats", "--user", BAD),
    ],
    ids=lambda words: " ".join(words[:2]),
)
@pytest.mark.usefixtures("first")
def test_hostile_names_are_shown_without_control_characters(run: Run, words: tuple[str, ...]) -> None:
    assert SHOWN in "\n".join(lines(run, *words))


def test_a_task_that_ran_is_shown_without_control_characters(queue: FairQueue, run: Run, first: str) -> None:
    lease = pop(queue, "w" + BAD)
    assert f" by w{SHOWN}" in "\n".join(lines(run, "fairque_task", "show", first))
    queue.fail(lease, BAD, retry=False)
    shown = lines(run, "fairque_task", "show", first)
    assert any(line.startswith("- ") and line.count(SHOWN) == 2 for line in shown)
    for words in (("list",), ("groups",), ("show", f"{first}~1")):
        assert SHOWN in "\n".join(lines(run, "fairque_dlq", *words))


def test_a_repair_is_reported_without_control_characters(run: Run, redis: Redis, first: str) -> None:
    redis.zrem("fq:{default:0}:state:queued", first)
    assert f"task:{SHOWN}" in "\n".join(lines(run, "fairque_check", "--repair")).replace("task:a", "task:")


def test_columns_of_hostile_names_are_aligned(run: Run, first: str) -> None:
    head, row, _end = lines(run, "fairque_schedule", "list")
    assert head.index("when") == row.index("every 60 s")
    assert [len(line) for line in table([("id", "name"), (BAD, BAD)])] == [len(SHOWN) * 2 + 2] * 2
    assert all(map(str.isprintable, chain(*table([(BAD, BAD)]))))
