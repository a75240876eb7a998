"""pyright understands tasks as mypy does. basedpyright is pyright in a wheel that needs no download when it runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("basedpyright")

SAMPLES = [Path(__file__).with_name(name) for name in ("typed_tasks.py", "typed_django_tasks.py")]


def test_pyright_finds_the_types_and_the_mistakes_that_mypy_finds(tmp_path: Path) -> None:
    for sample in SAMPLES:
        shutil.copy(sample, tmp_path)
    project = tmp_path / "pyrightconfig.json"
    options = {
        "typeCheckingMode": "strict",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": [sample.name for sample in SAMPLES],
    }
    project.write_text(json.dumps({**options, "pythonVersion": "3.10"}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--project", str(project)]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, timeout=120, check=False
    )
    found = json.loads(done.stdout)
    assert [
        f"{problem['range']['start']['line'] + 1}: {problem['message']}" for problem in found["generalDiagnostics"]
    ] == []
    assert found["summary"]["filesAnalyzed"] == len(SAMPLES)
