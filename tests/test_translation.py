"""The committed catalogues say everything, and the same as is compiled; what the code says is in them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pofile

PACKAGE = Path(__file__).parent.parent / "django_fairque"
CATALOGUES = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.po"))
PLACEHOLDER = re.compile(r"%\(\w+\)[a-z]|%[a-z%]")


def language_of(path: Path) -> str:
    return path.parent.parent.name


pytestmark = pytest.mark.parametrize("path", CATALOGUES, ids=language_of)


def placeholders(text: str) -> list[str]:
    return sorted(PLACEHOLDER.findall(text))


def test_every_message_is_translated(path: Path) -> None:
    _header, entries = pofile.read(path)
    assert len(entries) > 500
    assert [entry.id for entry in entries if entry.is_fuzzy or not entry.texts or not all(entry.texts)] == []


def test_translations_have_the_placeholders_of_their_messages(path: Path) -> None:
    _header, entries = pofile.read(path)
    wrong = [
        entry.id
        for entry in entries
        for text in entry.texts
        if placeholders(text) not in (placeholders(entry.plural or entry.id), placeholders(entry.id))
    ]
    assert wrong == []


def test_translations_begin_and_end_as_their_messages(path: Path) -> None:
    """An ellipsis says that a question follows; a label's colon is there or is not."""
    _header, entries = pofile.read(path)
    for entry in entries:
        for text in entry.texts:
            assert text == text.strip(), entry.id
            if entry.id[-1] in "…:":
                assert text[-1] == entry.id[-1], entry.id


def test_the_compiled_catalogue_is_in_step(path: Path) -> None:
    _header, entries = pofile.read(path)
    compiled = pofile.compiled(path.with_suffix(".mo"))
    known: dict[object, str] = {**compiled._catalog}  # type: ignore[attr-defined]  # the only way to see all of it
    del known[""]  # the header, of which dates are left out
    wanted: dict[object, str] = {}
    for entry in entries:
        if entry.plural is None:
            wanted[entry.key] = entry.texts[0]
        for number, text in enumerate(entry.texts if entry.plural is not None else ()):
            wanted[entry.key, number] = text
    assert known == wanted, "compile it: django-admin compilemessages, in django_fairque"


def test_makemessages_finds_no_new_messages(path: Path, tmp_path: Path) -> None:
    if shutil.which("xgettext") is None:
        pytest.skip("GNU gettext is not installed: what the code says can't be compared with the catalogues")
    copy = tmp_path / "django_fairque"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.mo"))
    language = language_of(path)
    subprocess.run(
        [sys.executable, "-m", "django", "makemessages", "-l", language, "--no-location", "--no-obsolete"],
        cwd=copy,
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        check=True,
        capture_output=True,
    )
    _header, found = pofile.read(copy / "locale" / language / "LC_MESSAGES" / "django.po")
    assert [entry.id for entry in found if entry.is_fuzzy or not all(entry.texts)] == []
    _header, committed = pofile.read(path)
    assert {entry.key for entry in committed} == {entry.key for entry in found}
