"""The program that moves other projects: its changes, its counts, and its words about a missing snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .__main__ import PROJECTS, main
from .edits import EditError, Edits
from .projects import read_counts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def edits(tmp_path: Path) -> Edits:
    (tmp_path / "tests").mkdir()
    (tmp_path / "jobs.py").write_text("import huey\n\n\ndef send(): ...\n")
    (tmp_path / "tests" / "test_jobs.py").write_text("send()\nsend()\n")
    return Edits(tmp_path)


def test_changed_lines_of_code_and_of_tests_are_counted_apart(edits: Edits) -> None:
    edits.replace("jobs.py", "import huey\n", "")
    edits.substitute("jobs.py", r"^def (\w+)", r"@task\ndef \1")
    edits.replace("tests/test_jobs.py", "send()", "send.enqueue()", times=2)
    edits.write("new.py", "one\ntwo\n")
    assert str(edits.count_lines()) == "code -1 +3, tests -2 +2"


@pytest.mark.parametrize("file", ["jobs.py", "missing.py"])
def test_an_expression_that_the_snapshot_does_not_have_ends_the_port(edits: Edits, file: str) -> None:
    with pytest.raises(EditError, match=rf"{file}.*port this snapshot again"):
        edits.replace(file, "import celery", "")


@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_without_a_snapshot_is_skipped_with_the_reason(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGHOST", "/nowhere")
    variable = PROJECTS[name].variable
    monkeypatch.delenv(variable, raising=False)
    assert main([name]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: skipped: {variable} is not set: expected the folder of a snapshot with an environment in .venv",
        "0 passed, 0 failed, 1 skipped",
    ]


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("...\n49 passed in 91.82s (0:01:31)\n", "49 passed, 0 failed"),
        ("== 1 failed, 4 passed, 2 skipped, 1 xfailed, 1 error in 3.1s ==\n", "4 passed, 2 failed, 2 skipped"),
        ("Ran 46 tests in 8.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n", "40 passed, 3 failed, 3 skipped"),
        ("ImportError: no module\n", "0 passed, 0 failed"),
    ],
)
def test_numbers_of_tests_are_read_from_the_output_of_both_test_runners(output: str, counts: str) -> None:
    assert str(read_counts(output)) == counts
