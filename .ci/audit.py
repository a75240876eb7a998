"""Asks for known vulnerabilities of the packages in a folder: 0 none, 1 some (each is printed), 75 nobody could be asked.

``python .ci/audit.py PIP_AUDIT SITE_PACKAGES``. pip-audit's own status does not tell a finding from a failure, and mirrors of
the package index answer without knowing of any vulnerability: one that finds none in an old Django is not believed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COULD_NOT_ASK = 75
SECONDS = 300
NETWORK = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "could not be reached", "your network may be blocking")
OLD = "Metadata-Version: 2.1\nName: Django\nVersion: 3.2\n"
"""It has had dozens."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def audited(program: str, folder: str, directory: Path) -> list[dict[str, Any]]:
    """The packages of a folder, each with what is known of it; ends the program if that can't be found out."""
    report = directory / "report.json"
    report.unlink(missing_ok=True)
    options = ["--path", folder, "--skip-editable", "--progress-spinner", "off", "-f", "json", "-o", str(report)]
    try:
        done = subprocess.run(  # noqa: S603 - the program that CI has installed for it
            [program, *options], check=False, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        say(f"no answer in {SECONDS} s")
        sys.exit(COULD_NOT_ASK)
    if not report.exists():
        say((done.stderr.strip() or "no report, and not a word").splitlines()[-1])
        sys.exit(COULD_NOT_ASK if any(word in done.stderr for word in NETWORK) else 2)
    packages: list[dict[str, Any]] = json.loads(report.read_text())["dependencies"]
    return packages


def main() -> int:
    program, folder = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        old = directory / "old" / "Django-3.2.dist-info"
        old.mkdir(parents=True)
        (old / "METADATA").write_text(OLD)
        if not any(package.get("vulns") for package in audited(program, str(old.parent), directory)):
            say("who answers knows of no vulnerability in Django 3.2 either: a mirror that does not pass them on")
            return COULD_NOT_ASK
        packages = audited(program, folder, directory)
    found = [(package, bug) for package in packages for bug in package.get("vulns", [])]
    for package, bug in found:
        fixed = ", ".join(bug["fix_versions"]) or "no version"
        say(f"{package['name']} {package['version']}: {bug['id']}, fixed in {fixed}")
    say(f"{len(packages)} packages, {len(found)} known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
