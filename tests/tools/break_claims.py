"""Make each claim of tests/docs/claims.md false, and report the claims whose tests pass nevertheless.

    python -m tests.tools.break_claims             all claims
    python -m tests.tools.break_claims TEXT ...    the claims that contain one of these texts

Copies the checkout into a temporary folder, where the tests of all claims must pass. Then makes one change of
tests/docs/claim_changes.yaml after the other there, and runs the tests of its claim: at least one of them must fail. Exits with 1
if the tests of a claim all pass, or end in another way.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.blocks import ROOT
from tests.docs.claims import read_changes, read_claims

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.docs.claims import Change, Claim

LIMIT_SECONDS = 300
"""More than the tests of one claim may take."""


def copy_checkout(target: Path) -> None:
    """Copy the files that git knows, or would add, with their present contents."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def tests_of(claims: Iterable[Claim]) -> list[str]:
    return list(dict.fromkeys(test for claim in claims for test in claim.test_ids))


def run_tests(folder: Path, tests: list[str], limit_seconds: float | None) -> tuple[int | None, str]:
    """Run tests in a copy of the checkout until one fails. Return the exit status, None after the limit, and the output."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *tests,
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, output


def judge(status: int | None, output: str) -> tuple[bool, str]:
    """Return whether a test has noticed the change, and the reason in one line."""
    failed = re.search(r"^FAILED (.*)$", output, re.MULTILINE)
    if status == 1 and failed:
        return True, failed[1]
    if status == 0:
        return False, f"its tests pass: {output.strip().splitlines()[-1]}"
    if status is None:
        return False, f"its tests did not end within {LIMIT_SECONDS} s"
    return False, f"pytest ended with {status} and no failed test:\n{output[-3000:]}"


def break_claim(folder: Path, claim: Claim, change: Change) -> tuple[bool, str]:
    """Make a claim false, run its tests, and undo the change. Return the same as `judge`."""
    if (count := change.count(folder)) != 1:
        return False, f"{change.file} has the text of the change {count} times"
    text = change.apply(folder)
    try:
        return judge(*run_tests(folder, tests_of([claim]), LIMIT_SECONDS))
    finally:
        (folder / change.file).write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="run only the claims that contain one of these texts")
    texts = parser.parse_args().texts
    changes = read_changes()
    claims = [claim for claim in read_claims() if not texts or any(text in claim.text for text in texts)]
    if not claims:
        sys.exit("no claim contains this text")
    began, missed = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="fairque-claims-") as name:
        folder = Path(name)
        copy_checkout(folder)
        status, output = run_tests(folder, tests_of(claims), None)
        if status:
            sys.exit(f"the tests must pass before the code is changed:\n{output[-6000:]}")
        print(f"the unchanged code passes: {output.strip().splitlines()[-1]}", flush=True)
        for claim in claims:
            is_noticed, reason = break_claim(folder, claim, changes[claim.text])
            print(f"{'noticed' if is_noticed else 'NOT NOTICED'}: {claim.text}\n    {reason}", flush=True)
            if not is_noticed:
                missed.append(claim.text)
    print(f"{len(claims) - len(missed)} of {len(claims)} changes noticed in {time.monotonic() - began:.0f} s")
    if missed:
        sys.exit("not noticed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
