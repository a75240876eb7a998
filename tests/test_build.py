"""The check runs all its parts, and hosted builds run the same ones."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import django_fairque

ROOT = Path(__file__).parent.parent
RUN = ROOT / ".ci" / "run"


def parts() -> list[str]:
    listed = subprocess.run([RUN, "--list"], capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_each_part_of_the_check_is_listed_once_and_defined() -> None:
    script = RUN.read_text()
    assert len(parts()) == len(set(parts())) >= 15
    for part in parts():
        assert len(re.findall(rf"^{part}\(\) {{", script, re.MULTILINE)) == 1, part


def test_an_unknown_part_is_refused_before_anything_runs() -> None:
    refused = subprocess.run([RUN, "static", "statik"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert 'there is no part "statik"; the parts are: quick long static ' in refused.stderr
    assert refused.stdout == ""


def test_the_quick_check_is_a_part_of_the_whole() -> None:
    (quick,) = re.findall(r"^quick_parts=\((.*)\)$", RUN.read_text(), re.MULTILINE)
    assert set(quick.split()) < set(parts())


@pytest.mark.parametrize(("words", "status"), [(["run", "statik"], 1), (["what"], 1)])
def test_the_long_check_refuses_unknown_parts(words: list[str], status: int) -> None:
    command = [sys.executable, str(ROOT / ".ci" / "long.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "long" in done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose long check has two parts, the second of which fails if the file `broken` exists."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "long.py", tmp_path / ".ci")
    run = tmp_path / ".ci" / "run"
    run.write_text(
        "#!/bin/sh\nlong_parts='\nlong_parts=(one two)\n'\necho \"running $1\"\n[ $1 = one ] || [ ! -e broken ]\n"
    )
    run.chmod(0o755)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")


def long_check(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, ".ci/long.py", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_interrupted_long_check_goes_on_with_the_parts_that_have_no_record(checkout: Path) -> None:
    (checkout / "broken").touch()
    commit(checkout)
    status, output = long_check(checkout, "run", "one", "two")
    assert (status, output.count("running")) == (1, 2), output
    assert "LONG CHECK FAILED: two" in output
    record = json.loads((checkout / "tests/lab/records/two.json").read_text())
    assert (record["part"], record["result"]) == ("two", "failed")
    assert long_check(checkout, "refuse")[0] == 1
    (checkout / "broken").unlink()
    commit(checkout)
    status, output = long_check(checkout, "run", "two")
    assert (status, output.count("running")) == (0, 1)
    assert "warning: long check: one passed on" in long_check(checkout, "warn")[1]
    status, output = long_check(checkout, "run", "one", "two")
    assert status == 0
    assert "two: has a record of this code, skipped" in output
    commit(checkout)
    assert long_check(checkout, "refuse") == (0, "")


def test_the_long_check_does_not_run_with_changes_that_are_not_committed(checkout: Path) -> None:
    (checkout / "new").touch()
    status, output = long_check(checkout, "run", "one", "two")
    assert status == 1
    assert "commit or remove what has changed" in output
    assert "running" not in output


def test_only_tests_with_a_documented_reason_are_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    repeated = runpy.run_path(str(ROOT / ".ci" / "repeated.py"))
    named = list(repeated["reasons"]())
    for name in named:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(), name
    assert repeated["main"]([f"{name}[1]" for name in named]) == 0
    assert repeated["main"]([*named, "tests/test_build.py::test_another"]) == 1
    assert "failed: tests/test_build.py::test_another" in capsys.readouterr().out
    assert repeated["main"]([]) == 1  # something failed that was no test


def test_hosted_builds_run_every_part() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    assert workflow["jobs"]["part"]["strategy"]["matrix"]["part"] == parts()


STEPS = """
set -euo pipefail
. .ci/steps.sh
trap 'summary $?' EXIT
quick() { step "quick one" true; skip "another" "why not"; }
slow() { step "slow one" echo "from the slow one"; }
broken() { step "broken one" false; step "never" true; }
"""


@pytest.mark.parametrize(
    ("parts", "status", "shown"),
    [
        (
            'in_parallel "slow" quick',
            0,
            ["--- quick one: passed", "from the slow one", "skipped: another", "CI PASSED: 2 steps passed, 1 skipped"],
        ),
        (
            'in_parallel "broken" quick',
            1,
            ["--- quick one: passed", 'CI FAILED at "broken one" (exit 1): 1 steps passed'],
        ),
        ('in_parallel "slow" broken quick', 1, ['CI FAILED at "broken one" (exit 1): 0 steps passed']),
    ],
)
def test_parallel_parts_of_the_check_fail_like_others(parts: str, status: int, shown: list[str]) -> None:
    done = subprocess.run(["bash", "-c", STEPS + parts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status
    places = [done.stdout.find(text) for text in shown]
    assert -1 not in places, done.stdout
    assert places == sorted(places)


def test_interpreters_that_no_part_runs_on_stop_no_hosted_build() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text())
    job = workflow["jobs"]["unverified"]
    assert job["continue-on-error"] is True
    versions = {version.rstrip("t") for version in job["strategy"]["matrix"]["python"]}
    tested = set(re.findall(r"^ *test_on_python (\d+\.\d+)", RUN.read_text(), re.MULTILINE))
    assert versions
    assert not versions & tested, "this version is verified now: take it out, and name it in pyproject.toml"


def test_hooks_of_pre_commit_run_what_the_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    for command in ("ruff check", "ruff format", "mypy"):
        assert any(command in entry for entry in entries), command
        assert f"uv run --no-sync {command}" in RUN.read_text()


def test_a_release_needs_one_version_in_all_files_and_a_dated_changelog(tmp_path: Path) -> None:
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    read, refused = release["release_version"], release["ReleaseError"]
    assert read(ROOT, is_final=False) == django_fairque.__version__
    (tmp_path / "django_fairque").mkdir()
    (tmp_path / "django_fairque" / "version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('version = "1.2.3"\n')
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text("# Changelog\n\n## 1.2.2 (2026-11-25)\n")
    with pytest.raises(
        refused, match=r"1\.2\.3 in pyproject\.toml, 1\.2\.3 in .*version\.py, and .* \"1\.2\.2 \(2026-11-25\)\""
    ):
        read(tmp_path, is_final=False)
    changelog.write_text("# Changelog\n\n## 1.2.3 (unreleased)\n")
    assert read(tmp_path, is_final=False) == "1.2.3"
    with pytest.raises(refused, match="instead of the date of the release"):
        read(tmp_path, is_final=True)
    changelog.write_text("# Changelog\n\n## 1.2.3 (2026-11-25)\n")
    assert read(tmp_path, is_final=True) == "1.2.3"


def test_a_release_needs_the_addresses_that_its_readme_links_to() -> None:
    release = runpy.run_path(str(ROOT / ".ci" / "release.py"))
    addresses = dict(release["EXAMPLE_ADDRESSES"])
    release["check_addresses"](addresses)
    addresses["FAIRQUE_DOCUMENTATION_URL"] = ""
    with pytest.raises(release["ReleaseError"], match=r"^set FAIRQUE_DOCUMENTATION_URL, such as https://"):
        release["check_addresses"](addresses)


def test_the_changelog_is_short_until_a_version_is_released() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 40
