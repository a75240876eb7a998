#!/usr/bin/env python3
"""Rehearse a release, or make its tag: build, check, install in a clean environment, upgrade from the version before.

    .ci/release.py                    rehearse; nothing outside a temporary folder changes
    .ci/release.py --from REV         upgrade from that revision instead of the newest tag before this commit
    .ci/release.py --keep DIR         put the built files there
    .ci/release.py --tag              rehearse, then make the tag

It needs uv, git and the project's environment (`uv sync`). It builds the commit that is checked out, without changes that are not
committed, and uploads nothing: at the end it prints the commands that do.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

ROOT = Path(__file__).resolve().parent.parent
BAKERY = ROOT / "tests" / "consumer" / "bakery"
EXTRAS = "embedded,prometheus"
EXAMPLE_ADDRESSES = {
    "FAIRQUE_REPOSITORY_URL": "https://git.example/owner/django_fairque",
    "FAIRQUE_DOCUMENTATION_URL": "https://pages.example/0.1",
}
"""Addresses for a rehearsal, so that twine checks README in its published form too (.ci/hatch_build.py)."""


class ReleaseError(Exception):
    """What prevents the release, in a sentence."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return what it printed; `ReleaseError` with its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    done = subprocess.run(  # noqa: S603 - commands of this file
        [str(word) for word in command],
        cwd=cwd,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def release_version(source: Path, *, is_final: bool) -> str:
    """The version that all files of a source tree name; `ReleaseError` if they differ, or if a final one has no date."""
    project = found(r'^version = "([^"]+)"$', source / "pyproject.toml")
    package = found(r'^__version__ = "([^"]+)"$', source / "django_fairque" / "version.py")
    heading = found(r"^## (.+)$", source / "CHANGELOG.md")
    match = re.fullmatch(r"(\S+) \((unreleased|\d{4}-\d\d-\d\d)\)", heading)
    if not match or len({project, package, match[1]}) > 1:
        raise ReleaseError(
            f"the version is {project} in pyproject.toml, {package} in django_fairque/version.py, and the first heading of "
            f'CHANGELOG.md is "{heading}"; write one version in all of them, in the heading followed by (unreleased) or a date'
        )
    if is_final and match[2] == "unreleased":
        raise ReleaseError("CHANGELOG.md has (unreleased) instead of the date of the release")
    return project


def found(pattern: str, file: Path) -> str:
    match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        raise ReleaseError(f"{file.name} has no line like {pattern}")
    return match[1]


def export(revision: str, target: Path) -> Path:
    """Write the files of a revision into a new folder."""
    target.mkdir()
    archive = target.with_suffix(".tar")
    run("git", "archive", "--output", archive, revision)
    run("tar", "-xf", archive, "-C", target)
    return target


def build(source: Path, target: Path, **addresses: str) -> tuple[Path, Path]:
    """Build the source distribution, and from it the wheel. Returns both files."""
    run("uv", "build", "--quiet", "--out-dir", target, source, **addresses)
    (sdist,), (wheel,) = target.glob("*.tar.gz"), target.glob("*.whl")
    return sdist, wheel


def environment_with(wheel: Path, target: Path, *others: str) -> Path:
    """Make an environment with nothing but the wheel and what it needs. Returns its interpreter."""
    run("uv", "venv", "--quiet", "--python", sys.executable, target)
    install(wheel, target, *others)
    return target / "bin" / "python"


def install(wheel: Path, target: Path, *others: str) -> None:
    requirement = f"django-fairque[{EXTRAS}] @ file://{wheel}"
    run(
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        target,
        "--reinstall-package",
        "django-fairque",
        requirement,
        *others,
    )


class Project:
    """A project of a user of the package, outside of this source, with data that an upgrade must keep."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder = folder
        self.python = python
        shutil.copytree(BAKERY, folder / "bakery", ignore=shutil.ignore_patterns("__pycache__"))

    def run(self, *words: str) -> str:
        return run(self.python, *words, cwd=self.folder, DJANGO_SETTINGS_MODULE="bakery.settings")

    def manage(self, *words: str) -> str:
        return self.run("-m", "django", *words)

    def version(self) -> str:
        return self.run("-c", "import django_fairque; print(django_fairque.__version__)").strip()

    def stop(self) -> None:
        if (self.folder / ".fairque").exists():
            self.manage("fairque_server", "stop")


def upgrade(work: Path, before: Path, now: Path) -> str:
    """Fill a project's queue with one wheel, and go on with another. Returns what was done, as a line."""
    target = work / "upgraded"
    project = Project(work / "project", environment_with(before, target))
    try:
        project.manage("migrate", "--verbosity", "0")
        first = project.version()
        project.run("-m", "bakery.upgrade", "fill")
        project.manage("fairque_worker", "--burst")
        project.run("-m", "bakery.upgrade", "leave")
        install(now, target)
        project.manage("migrate", "--verbosity", "0")
        project.manage("check", "--fail-level", "WARNING")
        project.manage("fairque_check")
        project.manage("fairque_worker", "--burst")
        kept = json.loads(project.run("-m", "bakery.upgrade", "verify"))
        project.manage("fairque_check")
    finally:
        project.stop()
    return f"from {first} to {project.version()}: {', '.join(f'{count} {what}' for what, count in kept.items())}"


def version_before(revision: str) -> str | None:
    """The newest tag of a release that the revision comes after."""
    tags = run("git", "tag", "--merged", revision, "--no-contains", revision, "--sort=-version:refname", "--list", "v*")
    return next(iter(tags.split()), None)


def check_records() -> None:
    """Refuse a release whose code has not passed the long check."""
    try:
        run(sys.executable, ".ci/long.py", "refuse")
    except ReleaseError as error:
        raise ReleaseError(f"{error}\nrun '.ci/run long' and commit tests/lab/records") from None


def check_addresses(variables: Mapping[str, str]) -> None:
    """Refuse a release without addresses: its README would have links that lead nowhere, and say that nothing is published."""
    missing = [name for name in EXAMPLE_ADDRESSES if not variables.get(name)]
    if missing:
        raise ReleaseError(f"set {' and '.join(missing)}, such as {EXAMPLE_ADDRESSES[missing[0]]}, before a release")


def rehearse(work: Path, *, before: str | None, is_final: bool) -> tuple[str, Path]:
    """Do all steps that can be repeated. Returns the version and the folder with the built files."""
    source = export("HEAD", work / "source")
    version = release_version(source, is_final=is_final)
    dist = work / "dist"
    with Step(f"build {version}"):
        sdist, wheel = build(source, dist)
    with Step("check metadata and README, also in the published form (twine)"):
        published = build(source, work / "published", **EXAMPLE_ADDRESSES)
        run("uv", "tool", "run", "--quiet", "twine", "check", "--strict", sdist, wheel, *published)
    with Step("use the wheel in a clean environment"):
        python = environment_with(wheel, work / "clean", "mypy")
        tests = ("pytest", "-q", "-m", "", "-p", "no:cacheprovider", "tests/test_wheel.py")
        run("uv", "run", "--no-sync", *tests, FAIRQUE_TEST_WHEEL_PYTHON=str(python))
    revision = before or version_before("HEAD") or "HEAD"
    with Step(
        f"upgrade from {revision}{'' if before or revision != 'HEAD' else ' (no earlier version has a tag)'}"
    ) as step:
        _, older = build(export(revision, work / "before"), work / "dist-before")
        step.result = upgrade(work, older, wheel)
    return version, dist


class Step:
    """Announces a step, and prints how long it took."""

    result = ""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Self:
        self.began = time.monotonic()
        sys.stdout.write(f"{self.name} ...\n")
        sys.stdout.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        outcome = "passed" if kind is None else "FAILED"
        sys.stdout.write(f"  {outcome} in {time.monotonic() - self.began:.0f} s{self.result and f': {self.result}'}\n")
        sys.stdout.flush()


def make_tag(version: str, *, is_final: bool) -> str:
    """Make the tag if it is final. Returns what is left to do."""
    name = f"v{version}"
    if run("git", "tag", "--list", name).strip():
        raise ReleaseError(f"the tag {name} exists: write the next version into the files")
    command = ("git", "tag", "--annotate", name, "--message", f"django-fairque {version}")
    if is_final:
        if run("git", "status", "--porcelain", "--untracked-files=no").strip():
            raise ReleaseError("there are changes that are not committed: the tag would not have them")
        run(*command)
        return f"made the tag {name}"
    return f"not run: {' '.join(command[:-1])} '{command[-1]}'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="before", metavar="REV", help="the revision to upgrade from")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="put the built files there")
    parser.add_argument("--tag", action="store_true", help="make the tag when everything has passed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairque-release-") as folder:
        try:
            if options.tag:
                check_addresses(os.environ)
                check_records()
            version, dist = rehearse(Path(folder), before=options.before, is_final=options.tag)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                for file in (*dist.glob("*.whl"), *dist.glob("*.tar.gz")):
                    shutil.copy(file, options.keep)
            tag = make_tag(version, is_final=options.tag)
        except ReleaseError as error:
            sys.exit(f"no release: {error}")
    upload = f"git push origin v{version} && uv publish DIR/*{version}*"
    sys.stdout.write(f"everything passed\n{tag}\nnot run: {upload}\n")


if __name__ == "__main__":
    main()
