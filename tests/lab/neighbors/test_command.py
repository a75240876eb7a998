"""``python -m tests.lab.neighbors``: its exit code, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from . import __main__ as command
from .cases import Case, Felt
from .world import World


def good(world: World) -> Felt:
    assert world.redis.ping()
    return Felt(0, 0.25, 0)


def bad(world: World) -> Felt:
    return Felt(3, 9.0, 2, within_bound=False, details="3 extra starts")


def broken(world: World) -> Felt:
    raise RuntimeError("it can't be run")


def slow(world: World) -> Felt:
    return Felt(0, 1.5, 0)


CASES = [Case("B1", f"is {case.__name__}", "1 extra start", case) for case in (good, bad, broken, slow)]


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "all_cases", lambda: CASES)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["tests.lab.neighbors", *arguments])
    return command.main()


def test_cases_within_their_bounds_pass(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "good") == 0
    text = capsys.readouterr().out
    assert "1 passed, 0 failed" in text
    assert "is bad" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad", "FAILED (3 extra starts)"),
        ("broken", "RuntimeError: it can't be run"),
        ("slow", "FAILED (a wait of 1.50 s, and the bound names none)"),
    ],
)
def test_a_case_outside_of_its_bound_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert run(monkeypatch, "good", name) == 1
    text = capsys.readouterr().out
    assert f"outside of their bound: {name}" in text
    assert "1 passed, 1 failed" in text
    assert words in text


def test_a_failed_case_is_repeated_only_on_request_and_both_runs_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [Felt(3, 9.0, 2, within_bound=False, details="3 extra starts"), Felt(0, 0.1, 0)]
    case = Case("B1", "is delayed once", "1 extra start", lambda _world: results.pop(0))
    monkeypatch.setattr(command, "all_cases", lambda: [case])
    assert run(monkeypatch, "--repeat-failed") == 0
    text = capsys.readouterr().out
    assert f"may be repeated: {case.name}: it measures times" in text
    assert "3 extra starts" in text
    results[:] = [Felt(3, 9.0, 2, within_bound=False)] * 2
    assert run(monkeypatch, "--repeat-failed") == 1
    assert "1 failed" in capsys.readouterr().out


def test_a_bound_that_names_a_wait_is_judged_by_the_case() -> None:
    bounds = ["unaffected", "1 extra start", "0 leaks in 800 tasks", "p99 wait 0.5 s", "within 3 s of their push"]
    assert [Case("B1", "is slow", bound, slow).names_wait for bound in bounds] == [False, False, False, True, True]


def test_figures_of_the_cases_are_written_to_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    run(monkeypatch, "good", "bad", "--write", str(path))
    assert [
        (result["name"], result["extra_starts"], result["within_bound"]) for result in json.loads(path.read_text())
    ] == [
        ("good", 0, True),
        ("bad", 3, False),
    ]


def test_a_case_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, "unknown")
    assert caught.value.code == 2
