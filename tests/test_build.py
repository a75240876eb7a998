"""A build does as many parts of the check as fit into its time, and says which it left out."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
PARTS = {"first": 100, "second": 200, "third": 300}


def build(minutes: float, *, spent: int = 50, usual: int = 50, commit: str = "0000000") -> tuple[list[str], list[str]]:
    """What was done, in its order, and what was left out."""
    parts = "\n".join(
        f'{name}() {{ echo "done: {name}"; }}\npart {time} {name} "{name}"' for name, time in PARTS.items()
    )
    script = f". .ci/steps.sh\n. .ci/parts.sh\ngit() {{ echo {commit}; }}\n{parts}\nSECONDS={spent}\nrun_parts {usual}\nsummary 0"
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env={**os.environ, "FAIRQUE_CI_MINUTES": str(minutes)},
        capture_output=True,
        text=True,
        check=True,
    )
    return re.findall(r"^done: (.*)", result.stdout, re.MULTILINE), re.findall(
        r"^skipped: (.*)", result.stdout, re.MULTILINE
    )


def test_with_time_everything_is_done_once() -> None:
    done, left_out = build(60)
    assert done == list(PARTS)
    assert left_out == []


def test_what_does_not_fit_is_left_out_and_named() -> None:
    done, left_out = build(4)  # 240 s, of which 50 are over
    assert done == ["first"]
    assert left_out == ["second", "third"]


def test_a_slow_machine_does_less() -> None:
    assert build(4, spent=100)[0] == []
    assert build(6, spent=25)[0] == list(PARTS)


def test_the_commit_draws_the_first_part() -> None:
    assert build(60, commit="0000000")[0] == ["first", "second", "third"]
    assert build(60, commit="0000001")[0] == ["second", "third", "first"]
    assert build(60, commit="000000e")[0] == ["third", "first", "second"]


def test_every_part_of_the_check_is_there() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    parts = re.findall(r"^part \d+ (\w+) \"", run, re.MULTILINE)
    assert len(parts) == len(set(parts)) >= 10
    assert all(re.search(rf"^{part}\(\) {{", run, re.MULTILINE) for part in parts)
