"""Write the table of all cases in ``results.md``, from the cases and one run. The page about reliability includes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .cases import Case

PAGE = Path(__file__).parent / "results.md"
BEGIN, END = "<!-- cases: python -m tests.lab.deployments --page -->", "<!-- end of the cases -->"
NAMES = ("deployment", "what must hold", "what came")


class Row(NamedTuple):
    """One line of the table."""

    deployment: str
    expected: str
    came: str


def read(text: str) -> list[Row]:
    """The rows of the page's table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])) for line in lines[1:]]


def replaced(text: str, known: Sequence[Case], came: Mapping[str, str]) -> str:
    """The page with a row for every known case; ``came`` has the texts of those that were run, by deployment."""
    before = {row.deployment: row.came for row in read(text)} | dict(came)
    rows: Iterable[Row] = [Row(case.deployment, case.expected, before.get(case.deployment, "—")) for case in known]
    lines = [f"| {' | '.join(NAMES)} |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    head, _, rest = text.partition(BEGIN)
    table = "\n".join(lines)
    return f"{head}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def write(known: Sequence[Case], came: Mapping[str, str]) -> None:
    """Bring the page up to date; cases that are not declared any more leave it."""
    PAGE.write_text(replaced(PAGE.read_text(), known, came))
