"""``python -m tests.lab.neighbors [NAME ...]``: run all cases, or those named, and print what the others noticed."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import django

from . import page
from .cases import UNNOTICED_WAIT_SECONDS, Felt, all_cases
from .world import World

if TYPE_CHECKING:
    from .cases import Case

HEADERS = ("item", "the neighbor", "extra starts", "p99 wait (s)", "wrong end states", "bound", "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.neighbors", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases to run; all by default")
    parser.add_argument("--list", action="store_true", help="print the names of all cases and end")
    parser.add_argument("--write", type=Path, help="a file to write the figures to, as JSON")
    parser.add_argument(
        "--repeat-failed",
        action="store_true",
        help="run a case that fails a second time, and say so: cases measure times, which other programs can delay",
    )
    parser.add_argument(
        "--page", action="store_true", help=f"write the figures into {page.PAGE.name} next to this program"
    )
    options = parser.parse_args()
    cases = [case for case in all_cases() if not options.names or case.name in options.names]
    if unknown := set(options.names) - {case.name for case in cases}:
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; --list prints all")
    if options.list:
        for case in cases:
            print(f"{case.item:4} {case.name}")
        return 0
    began = time.monotonic()
    rows = [(case, _run(case)) for case in cases]
    if options.repeat_failed:
        rows = [(case, felt if felt.within_bound else _run_again(case, felt)) for case, felt in rows]
    print_table(rows)
    failed = [case.name for case, felt in rows if not felt.within_bound]
    print(
        f"\n{len(rows)} cases in {time.monotonic() - began:.0f} s; outside of their bound: {', '.join(failed) or 'none'}"
    )
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    if options.write:
        figures = [
            {"item": case.item, "name": case.name, "neighbor": case.neighbor, "bound": case.bound, **asdict(felt)}
            for case, felt in rows
        ]
        options.write.write_text(json.dumps(figures, indent=1) + "\n")
    if options.page:
        page.write([page.row_of(case, felt) for case, felt in rows], all_cases())
    return 1 if failed else 0


def _run(case: Case) -> Felt:
    began = time.monotonic()
    print(f"{case.item} {case.name} ...", end=" ", file=sys.stderr, flush=True)
    try:
        with World() as world:
            felt = case.run(world)
    except Exception as error:  # noqa: BLE001 - a case that can't be run is one that failed; the others go on
        traceback.print_exc()
        felt = Felt(within_bound=False, details=f"{type(error).__name__}: {error}".splitlines()[0])
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
    if felt.within_bound and not case.names_wait and (felt.p99_wait or 0.0) > UNNOTICED_WAIT_SECONDS:
        details = f"a wait of {felt.p99_wait:.2f} s, and the bound names none"
        felt = replace(felt, within_bound=False, details=details)
    return felt


def _run_again(case: Case, first: Felt) -> Felt:
    print(f"may be repeated: {case.name}: it measures times; the first run was outside of its bound: {first}")
    return _run(case)


def print_table(rows: list[tuple[Case, Felt]]) -> None:
    lines = [HEADERS, *(_cells(case, felt) for case, felt in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADERS))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cells(case: Case, felt: Felt) -> tuple[str, ...]:
    wait = "-" if felt.p99_wait is None else f"{felt.p99_wait:.2f}"
    verdict = ("ok" if felt.within_bound else "FAILED") + (f" ({felt.details})" if felt.details else "")
    return case.item, case.neighbor, str(felt.extra_starts), wait, str(felt.wrong_ends), case.bound, verdict


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.worker.project.settings"
    os.environ.setdefault("TEST_SERVER", "unix:///nowhere")  # each case names its own
    django.setup()
    sys.exit(main())
