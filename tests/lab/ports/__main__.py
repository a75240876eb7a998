"""``python -m tests.lab.ports [NAME ...]``: move projects to django_fairque, and run their own tests before and after.

`FAIRQUE_PORT_NAME` names the folder of a project's snapshot; a project without it is skipped. Exit code 1 if a test
fails that passed before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from tests.tools import postgres

from . import linkding, netbox, pretix
from .edits import EditError
from .projects import Project, Result, SkippedError

MODULE = "tests.lab.ports"
PROJECTS = {module.PROJECT.name: module.PROJECT for module in (linkding, netbox, pretix)}
SHOWN_OUTPUT = 6_000  # characters of the output of failed tests


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.ports", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PROJECTS, []], help="projects to move; all by default")
    names = parser.parse_args(arguments).names or list(PROJECTS)
    if "PGHOST" not in os.environ and postgres.binaries() is not None:
        return postgres.main([sys.executable, "-m", MODULE, *arguments])
    results = {name: _run(PROJECTS[name]) for name in names}
    failed = [name for name, result in results.items() if isinstance(result, str) or (result and not result.is_right)]
    skipped = [name for name, result in results.items() if result is None]
    print(f"{len(results) - len(failed) - len(skipped)} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


def _run(project: Project) -> Result | str | None:
    """Run a port and print a line about it. Returns the error of a port that can't be run, None for a skipped one."""
    began = time.monotonic()
    try:
        result = project.run()
    except SkippedError as error:
        print(f"{project.name}: skipped: {error}")
        return None
    except (EditError, subprocess.CalledProcessError) as error:
        print(f"{project.name}: FAILED: {error}")
        return str(error)
    print(
        f"{project.name} ({project.queue}): lines: {result.lines}; tests before: {result.before}; after: {result.after} "
        f"({time.monotonic() - began:.0f} s)"
    )
    if not result.is_right:
        print((result.after if result.before.passed else result.before).output[-SHOWN_OUTPUT:], file=sys.stderr)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
