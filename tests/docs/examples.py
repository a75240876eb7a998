"""The examples of a page, in their order."""

from __future__ import annotations

import re
import shlex
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)


def examples(page: Path, *kinds: str) -> list[str]:
    """The texts of the blocks of these kinds, also of those inside lists."""
    return [dedent(match["text"]) for match in FENCE.finditer(page.read_text()) if match["kind"] in kinds]


def command_lines(page: Path) -> list[list[str]]:
    """The words after ``manage.py`` of each line in a block for a terminal."""
    lines = [line for block in examples(page, "sh", "console") for line in block.splitlines()]
    return [
        shlex.split(re.split(r" [<>|] ", line.split("manage.py ", 1)[1])[0], comments=True)
        for line in lines
        if "manage.py " in line
    ]
