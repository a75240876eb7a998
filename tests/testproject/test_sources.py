"""The demonstration's documents are files of the standard library, by package, the largest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from library import sources
from library.sources import MODULES, packages, read_source, standard_library

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in [
        *("alone.py", "another.py", "notes.txt"),
        *("big/a.py", "big/b.py", "big/inner/c.py", "big/data.json"),
        *("small/a.py", "empty/readme", "site-packages/other/a.py", "config-3.11/a.py"),
    ]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a = 1\n")
    return tmp_path


def names(found: dict[str, list[Path]], root: Path) -> dict[str, list[str]]:
    return {name: [file.relative_to(root).as_posix() for file in files] for name, files in found.items()}


def test_packages_are_sorted_by_size_and_lone_modules_are_one_user(root: Path) -> None:
    found = names(packages(root), root)
    assert found == {
        "big": ["big/a.py", "big/b.py", "big/inner/c.py"],
        MODULES: ["alone.py", "another.py"],
        "small": ["small/a.py"],
    }
    assert list(found) == ["big", MODULES, "small"]


def test_packages_can_be_selected_by_name(root: Path) -> None:
    assert list(packages(root, ["small", "nowhere"])) == ["small"]


def test_generated_data_is_left_out(root: Path) -> None:
    (root / "small" / "a.py").write_bytes(b"#" * (sources.MAX_BYTES + 1))
    (root / "big" / "a.py").write_bytes(b"#" * sources.MAX_BYTES)
    assert list(packages(root)) == ["big", MODULES]
    assert len(packages(root)["big"]) == 3


def test_a_package_has_at_most_a_bounded_number_of_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_FILES", 2)
    assert max(map(len, packages(root).values())) == 2


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("é = 1\n".encode(), "é = 1\n"),
        ("# coding: latin-1\né = 1\n".encode("latin-1"), "# coding: latin-1\né = 1\n"),
        ("\ufeffa = 1\n".encode(), "a = 1\n"),
        (b"a = '\xff'\n", "a = '\ufffd'\n"),
        (b"# coding: no-such-thing\na = 1\n", "# coding: no-such-thing\na = 1\n"),
        (b"# coding: utf-8\n'\xff'\n", "# coding: utf-8\n'\ufffd'\n"),
    ],
)
def test_a_file_is_read_in_its_own_encoding_or_somehow(tmp_path: Path, raw: bytes, text: str) -> None:
    (tmp_path / "a.py").write_bytes(raw)
    assert read_source(tmp_path / "a.py") == text


def test_the_standard_library_has_uneven_packages() -> None:
    sizes = [len(files) for files in packages(standard_library()).values()]
    assert len(sizes) > 20
    assert sizes[0] > 100
    assert sizes[-1] < 10
