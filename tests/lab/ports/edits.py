"""Changes in a copy of a project, and the number of lines that they change."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class EditError(Exception):
    """A text that a port replaces is not in the snapshot as often as expected."""


@dataclass(frozen=True)
class LineCounts:
    """The lines that a port removes and adds, in the code of a project and in its tests."""

    removed: int
    added: int
    test_removed: int
    test_added: int

    def __str__(self) -> str:
        return f"code -{self.removed} +{self.added}, tests -{self.test_removed} +{self.test_added}"


@dataclass
class Edits:
    """Changes of the files below ``root``. A file is read before its first change, and the lines are counted at the end."""

    root: Path
    _originals: dict[str, str] = field(default_factory=dict)

    def replace(self, file: str, old: str, new: str, *, times: int = 1) -> None:
        """Replace a text that occurs ``times`` times."""
        self.substitute(file, re.escape(old), lambda _: new, times=times)

    def substitute(self, file: str, pattern: str, new: object, *, times: int = 1) -> None:
        """Replace the matches of a regular expression, in which `.` matches line ends and `^` the start of a line.

        Raises `EditError` unless there are ``times`` matches.
        """
        text = self._read(file)
        changed, found = re.subn(pattern, new, text, flags=re.DOTALL | re.MULTILINE)  # type: ignore[call-overload]
        if found != times:
            raise EditError(f"{file} has {found} matches of {pattern!r}, {times} expected: port this snapshot again")
        self.write(file, changed)

    def write(self, file: str, text: str) -> None:
        """Write a whole file, a new one or another text."""
        path = self.root / file
        self._originals.setdefault(file, path.read_text() if path.exists() else "")
        path.write_text(text)

    def _read(self, file: str) -> str:
        path = self.root / file
        if not path.exists():
            raise EditError(f"the snapshot has no file {file}: port this snapshot again")
        return path.read_text()

    def count_lines(self) -> LineCounts:
        counts = {False: [0, 0], True: [0, 0]}
        for file, original in self._originals.items():
            changes = difflib.ndiff(original.splitlines(), (self.root / file).read_text().splitlines())
            signs = [change[:2] for change in changes]
            is_test = "tests" in file.split("/")
            counts[is_test][0] += signs.count("- ")
            counts[is_test][1] += signs.count("+ ")
        return LineCounts(*counts[False], *counts[True])
