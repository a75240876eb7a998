"""``python -m tests.lab.deployments [NAME ...]``: try all unusual deployments, or those named, and print what came."""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING

import django

from tests.lab.neighbors.world import World

from . import page
from .cases import Outcome, SkippedError, all_cases

if TYPE_CHECKING:
    from .cases import Case

HEADERS = ("name", "deployment", "what must hold", "what came", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.deployments", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases to run; all by default")
    parser.add_argument("--list", action="store_true", help="print the names of all cases and end")
    parser.add_argument(
        "--page", action="store_true", help=f"write what came into {page.PAGE.name} next to this program"
    )
    options = parser.parse_args()
    known = all_cases()
    cases = [case for case in known if not options.names or case.name in options.names]
    if unknown := set(options.names) - {case.name for case in cases}:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; --list prints all")
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    began = time.monotonic()
    outcomes = [(case, _run(case)) for case in cases]
    print_table(outcomes)
    failed = [case.name for case, outcome in outcomes if outcome is not None and not outcome.is_right]
    skipped = [case.name for case, outcome in outcomes if outcome is None]
    print(f"\n{len(cases)} cases in {time.monotonic() - began:.0f} s; skipped: {', '.join(skipped) or 'none'}")
    print(f"{len(cases) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped")
    if options.page:
        page.write(known, {case.deployment: outcome.text for case, outcome in outcomes if outcome is not None})
    return 1 if failed else 0


def _run(case: Case) -> Outcome | None:
    """Run a case and return its outcome; None if this machine can't run the case."""
    began = time.monotonic()
    print(f"{case.name} ...", end=" ", file=sys.stderr, flush=True)
    outcome: Outcome | None
    try:
        with World() as world:
            outcome = case.run(world)
    except SkippedError as error:
        print(f"skipped: {error}", end=" ", file=sys.stderr)
        outcome = None
    except Exception as error:  # noqa: BLE001 - a case that can't be run is one that failed; the others go on
        traceback.print_exc()
        outcome = Outcome(f"{type(error).__name__}: {error}".splitlines()[0], is_right=False)
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
    return outcome


def print_table(outcomes: list[tuple[Case, Outcome | None]]) -> None:
    lines = [HEADERS, *(_cells(case, outcome) for case, outcome in outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADERS))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(case: Case, outcome: Outcome | None) -> tuple[str, ...]:
    verdict = "skipped" if outcome is None else "ok" if outcome.is_right else "FAILED"
    return case.name, case.deployment, case.expected, "" if outcome is None else outcome.text, verdict


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.worker.project.settings"
    os.environ.setdefault("TEST_SERVER", "unix:///nowhere")  # each case names another
    django.setup()
    sys.exit(main())
