"""The quickstart and the tutorial, followed to the letter in an empty folder, with the wheel that a user would install."""

from __future__ import annotations

import http.cookiejar
import importlib.util
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests.docs.walkthrough import PATIENCE, Block, Walkthrough, blocks

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
# Files that must come from the wheel, and files that a new environment has itself.
NOT_LENT = re.compile(
    r"^(?:_*editable_*.*|(?:django_)?fairque.*|pip.*|setuptools.*|.*\.pth|__pycache__)$", re.IGNORECASE
)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once for both pages."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed: there is nothing to build a wheel with")
    folder = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def environment(tmp_path: Path, wheels: Path) -> dict[str, str]:
    """A reader's, who can install our wheel and already has what it depends on: no package registry is asked."""
    lent, programs = tmp_path / "lent", tmp_path / "programs"
    lent.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not NOT_LENT.match(path.name):
            (lent / path.name).symlink_to(path)
    programs.mkdir()
    (programs / "python3").symlink_to(sys.executable)
    # Without an active environment there is no `python`: a page that forgets to activate one is noticed.
    (programs / "django-admin").write_text('#!/bin/sh\nexec python -m django "$@"\n')
    (programs / "django-admin").chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    folders = [programs, Path("/usr/bin"), Path("/bin")]
    return kept | {
        "PATH": ":".join(map(str, folders)),
        "PYTHONPATH": str(lent),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


class Browser:
    """Looks at pages of the admin as whom the page makes its superuser, and waits for a web server that starts."""

    def __init__(self) -> None:
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(cookies)

    def look(self, address: str) -> str:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                form = self._get(address)
                break
            except urllib.error.URLError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        if match := re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form):
            fields = {"csrfmiddlewaretoken": match[1], "username": "admin", "password": "tutorial"}
            login = urllib.parse.urljoin(address, "/admin/login/?next=" + urllib.parse.urlsplit(address).path)
            return self._get(login, urllib.parse.urlencode(fields).encode())
        return form

    def _get(self, address: str, data: bytes | None = None) -> str:
        with self._opener.open(address, data, timeout=PATIENCE) as response:
            text: str = response.read().decode()
            return text


@pytest.mark.slow
def test_the_commands_of_the_tutorial_show_the_promised_output(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    # The only change: a port that is free here.
    page = PAGE.replace("runserver 8000", f"runserver {port}").replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    assert page.count(str(port)) == 3
    Walkthrough(folder, environment, Browser().look).follow(blocks(page))
    (installed,) = (folder / ".venv").rglob("django_fairque/__init__.py")
    assert installed.is_file()
    assert "orders.tasks.write_receipt of user globex finished" in (folder / "background-0.log").read_text()


@pytest.mark.slow
def test_the_quickstart_shows_the_waits_next_to_each_other(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    Walkthrough(folder, environment, Browser().look).follow(blocks(QUICKSTART))


@pytest.mark.parametrize("page", [PAGE, QUICKSTART], ids=["tutorial", "quickstart"])
def test_every_block_of_the_page_is_marked(page: str) -> None:
    assert len(blocks(page)) == page.count("```") / 2


class TestTheReader:
    """A reader that finds no mistake in any page would be useless."""

    def test_the_reader_of_the_tutorial_finds_output_that_is_missing(self) -> None:
        block = Block("shows", "", "1 of … tasks\nOK\n")
        assert block.missing("there is 1 of 3 tasks\nOK") == []
        assert block.missing("2 of 3 tasks\nOK") == ["1 of … tasks"]

    def test_the_reader_of_the_tutorial_ends_at_a_command_that_fails(self, tmp_path: Path) -> None:
        reader = Walkthrough(tmp_path, {"PATH": os.environ["PATH"]}, str)
        with pytest.raises(AssertionError, match="ended with 3"):
            reader.follow([Block("run", "", "exit 3\ntrue\n")])

    def test_an_unknown_mark_of_a_block_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="'ran'"):
            Walkthrough(tmp_path, {}, str).follow([Block("ran", "", "true")])
