"""Exit with 0 if each test that failed may run a second time, and print the reasons; else print the others and exit with 1."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
REASONS = ROOT / ".ci" / "repeated.txt"
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def reasons() -> dict[str, str]:
    lines = [line.strip() for line in REASONS.read_text().splitlines()]
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def main(failed: list[str]) -> int:
    allowed = reasons()
    others = [test for test in failed if test.split("[")[0] not in allowed]
    for test in failed:
        if test not in others:
            sys.stdout.write(f"may be repeated: {test}: {allowed[test.split('[')[0]]}\n")
    for test in others:
        sys.stdout.write(f"failed: {test}\n")
    return 1 if others or not failed else 0


if __name__ == "__main__":
    sys.exit(main(list(json.loads(FAILED.read_text())) if FAILED.exists() else []))
