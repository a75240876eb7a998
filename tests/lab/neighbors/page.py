"""Write the table of all cases in ``results.md``, from the cases and one run. The page about reliability includes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cases import Case, Felt

PAGE = Path(__file__).parent / "results.md"
BEGIN, END = "<!-- cases: python -m tests.lab.neighbors --page -->", "<!-- end of the cases -->"
NAMES = ("item", "what the neighbor does", "what others notice at most", "extra starts", "p99 wait", "wrong end states")
UNAFFECTED = "unaffected"


class Row(NamedTuple):
    """One line of the table; the last three are the figures of a run."""

    item: str
    neighbor: str
    bound: str
    extra_starts: str = ""
    p99_wait: str = ""
    wrong_ends: str = ""


def row_of(case: Case, felt: Felt) -> Row:
    wait = "—" if felt.p99_wait is None else f"{felt.p99_wait:.2f} s"
    return Row(case.item, _cell(case.neighbor), _cell(case.bound), str(felt.extra_starts), wait, str(felt.wrong_ends))


def declared(case: Case) -> tuple[str, str, str]:
    """Return the columns of a case that do not depend on a run."""
    return case.item, _cell(case.neighbor), _cell(case.bound)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def read(text: str) -> list[Row]:
    """The rows of the page's table."""
    table = text.partition(BEGIN)[2].partition(END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [Row(*(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])) for line in lines[1:]]


def replaced(text: str, rows: Iterable[Row]) -> str:
    """The page with these rows in place of those for the same neighbor, and the rows of all others."""
    found = {row[:2]: row for row in [*read(text), *rows]}
    ordered = sorted(found.values(), key=lambda row: (row.item[0], int(row.item[1:] or 0)))
    lines = [NAMES, ("---",) * len(NAMES), *ordered]
    table = "\n".join(f"| {' | '.join(line)} |" if line[0] != "---" else "|---" * len(NAMES) + "|" for line in lines)
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


def write(rows: Iterable[Row], known: Iterable[Case]) -> None:
    """Bring the page up to date; cases that are not declared any more leave it."""
    text = replaced(PAGE.read_text(), rows)
    names = {declared(case)[:2] for case in known}
    kept = [row for row in read(text) if row[:2] in names]
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(replaced(f"{before}{BEGIN}\n{END}{rest.partition(END)[2]}", kept))
