"""Run the parts of the long check one after the other, and keep a record of each in tests/lab/records.

    .ci/run long [PART ...]     run the parts that have no record of this code; a part that is named runs in any case
    python .ci/long.py warn     print a warning for each part whose record is missing, failed or of other code
    python .ci/long.py refuse   the same, and exit with 1 if there is a warning

A record is of this code if nothing but pages and records has changed since its commit.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests" / "lab" / "records"
NOT_CODE = (":!tests/lab/records", ":!docs", ":!*.md")
LIMIT_SECONDS = 3600
"""More than a part may take. A part that reaches it has failed."""


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        sys.exit(f"git {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def long_parts() -> list[str]:
    """Return the names of the parts, in the order in which they run."""
    (names,) = re.findall(r"^long_parts=\((.*)\)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    return str(names).split()


def warning_about(part: str) -> str | None:
    """Return why the record of a part does not count for the code of this checkout, or None if it counts."""
    file = RECORDS / f"{part}.json"
    if not file.exists():
        return f"{part} has no record"
    record = json.loads(file.read_text())
    commit = record["commit"]
    when = f"on {record['date']} at {commit[:10]}"
    if record["result"] != "passed":
        return f"{part} {record['result']} {when}"
    known = subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, capture_output=True, check=False)  # noqa: S603, S607
    if known.returncode:
        return f"{part} passed {when}, a commit that this checkout does not have"
    later = git("rev-list", "--count", f"{commit}..HEAD", "--", ".", *NOT_CODE)
    return f"{part} passed {when}, {later} commits of code ago" if later != "0" else None


def run(parts: list[str], *, again: bool) -> int:
    """Run parts that have no record of this code, or all of them ``again``; return the exit status."""
    if changed := git("status", "--porcelain", "--", ".", ":!tests/lab/records"):
        sys.exit(f"commit or remove what has changed, because a record names the commit:\n{changed}")
    failed = []
    for part in parts:
        if not again and warning_about(part) is None:
            sys.stdout.write(f"{part}: has a record of this code, skipped\n")
        elif not run_part(part):
            failed.append(part)
    if failed:
        sys.stdout.write(f"LONG CHECK FAILED: {', '.join(failed)}\n")
        return 1
    sys.stdout.write("LONG CHECK PASSED; commit tests/lab/records\n")
    return 0


def run_part(part: str) -> bool:
    """Run one part, write its record, and return whether it has passed."""
    began, lines = time.monotonic(), []
    process = subprocess.Popen(  # noqa: S603
        [ROOT / ".ci" / "run", part], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGTERM))
    signal.alarm(LIMIT_SECONDS)
    assert process.stdout is not None  # noqa: S101
    for line in process.stdout:
        sys.stdout.write(line)
        lines.append(line)
    status = process.wait()
    signal.alarm(0)
    output = "".join(lines)
    record = {
        "part": part,
        "commit": git("rev-parse", "HEAD"),
        "date": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "seconds": round(time.monotonic() - began),
        "result": "failed" if status else "passed",
        "skipped": re.findall(r"^skipped: (.*)$", output, re.MULTILINE),
        "repeated": re.findall(r"^may be repeated: (\S+)", output, re.MULTILINE),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{part}.json").write_text(json.dumps(record, indent=1) + "\n")
    return status == 0


def warn() -> int:
    """Print the warnings of all parts; return 1 if there are any."""
    if not (ROOT / ".git").exists():
        sys.stdout.write("this is no git checkout, so the records of the long check are not compared\n")
        return 0
    warnings = [text for text in map(warning_about, long_parts()) if text]
    for text in warnings:
        sys.stdout.write(f"warning: long check: {text}\n")
    return bool(warnings)


def main(words: list[str]) -> int:
    match words:
        case ["run", *parts]:
            if unknown := set(parts) - set(long_parts()):
                sys.exit(f"the long check has no part {sorted(unknown)}; its parts are: {' '.join(long_parts())}")
            return run(parts, again=parts != long_parts())
        case ["warn"]:
            warn()
            return 0
        case ["refuse"]:
            return warn()
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
