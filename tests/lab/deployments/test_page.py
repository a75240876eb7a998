"""The page about unusual deployments shows every case as it is declared, and the command judges what comes."""

from __future__ import annotations

import sys

import pytest

from tests.lab.neighbors.world import World

from . import __main__ as command
from . import page
from .cases import Case, Outcome, SkippedError, all_cases


def test_the_page_of_deployments_lists_exactly_the_cases() -> None:
    """If not: ``python -m tests.lab.deployments --page``, with the names of new cases to run only those."""
    rows = page.read(page.PAGE.read_text())
    assert [row[:2] for row in rows] == [(case.deployment, case.expected) for case in all_cases()]
    assert all(row.came != "—" for row in rows)


def good(world: World) -> Outcome:
    return Outcome("all", world.redis.ping() is True)


def bad(world: World) -> Outcome:
    return Outcome(f"{world.queue.get_stats().states['queued']} tasks", is_right=False)


def broken(world: World) -> Outcome:
    raise RuntimeError(f"{world.queue.name} can't be tried")


def impossible(world: World) -> Outcome:
    raise SkippedError(f"nothing runs {world.queue.name} here")


def test_an_unexpected_outcome_fails_and_an_impossible_case_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = [Case(function.__name__, "all of it", function) for function in (good, bad, broken, impossible)]
    monkeypatch.setattr(command, "all_cases", lambda: known)
    codes = {}
    for case in known:
        monkeypatch.setattr(sys, "argv", ["tests.lab.deployments", case.name])
        codes[case.name] = command.main()
    assert codes == {"good": 0, "bad": 1, "broken": 1, "impossible": 0}
    text = capsys.readouterr().out
    assert "RuntimeError: default can't be tried" in text
    assert "skipped: impossible" in text
    before = page.replaced(f"before\n{page.BEGIN}\n{page.END}\nafter\n", known[:2], {"good": "all", "bad": "0 tasks"})
    after = page.replaced(before, known[1:], {"broken": "nothing"})
    assert [row.came for row in page.read(after)] == ["0 tasks", "nothing", "—"]
