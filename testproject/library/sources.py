"""The demonstration's documents: the source files of Python's own library. Knows no Django."""

from __future__ import annotations

import io
import sysconfig
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

MODULES = "single-modules"
"""Whose are the modules that belong to no package."""
MAX_BYTES = 1_000_000
"""Larger files are generated data."""
MAX_FILES = 1_000
"""Of one user, which bounds the time that a demonstration takes."""


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def packages(root: Path, only: Collection[str] = ()) -> dict[str, list[Path]]:
    """The source files of each top-level package under ``root``, those with the most files first.

    Parameters
    ----------
    only
        The packages to look at; empty for all.
    """
    found = {MODULES: python_files(root.glob("*.py"))}
    for directory in root.iterdir():
        # `site-packages` and the like are no packages.
        if directory.is_dir() and directory.name.isidentifier():
            found[directory.name] = python_files(directory.rglob("*.py"))
    wanted = {name: files for name, files in found.items() if files and (not only or name in only)}
    return dict(sorted(wanted.items(), key=lambda item: (-len(item[1]), item[0])))


def python_files(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.is_file() and path.stat().st_size <= MAX_BYTES)[:MAX_FILES]


def read_source(path: Path) -> str:
    """The file's text, in the encoding that it declares; where that fails, with replacement characters."""
    raw = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return raw.decode(errors="replace")
