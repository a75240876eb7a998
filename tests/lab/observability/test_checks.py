"""The twelve checks hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_all_checks_of_observability_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.observability"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "12 of 12 passed"
