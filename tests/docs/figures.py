"""The figures on the page that compares with other queues: they come from the file that a run of the benchmarks wrote.

``python -m tests.postgres python -m tests.benchmarks peers --write tests/benchmarks/results/peers.json`` measures, and
``python -m tests.docs.figures`` writes the figures into docs/explanation/comparison.md; a test fails if they differ.
"""

from __future__ import annotations

import json
from typing import Any

from tests.benchmarks.peers import OURS, SERVER_CPU, WORKER_CPU, rate_of, wait_of
from tests.benchmarks.peers.systems import PEERS
from tests.docs.blocks import DOCS, ROOT

FILE = ROOT / "tests" / "benchmarks" / "results" / "peers.json"
PAGE = DOCS / "explanation" / "comparison.md"
BEGIN, END = "<!-- figures: peers -->\n", "<!-- end of figures -->\n"


def block(written: dict[str, Any]) -> str:
    """The text of the page that shows this result of the benchmarks.

    Args:
        written: what ``python -m tests.benchmarks peers --write`` wrote.

    Returns:
        When and where it was measured, a table that begins with the highest rate, and the peers without figures.
    """
    figures = {each["name"]: each for each in written["parts"]["peers"]}
    details = written["details"]["peers"]
    measured = [name for name in (OURS, *PEERS) if rate_of(name) in figures]
    measured.sort(key=lambda name: -figures[rate_of(name)]["median"])
    python, server = written["versions"]["python"], written["versions"]["server"].capitalize()
    date, cores = written["at"][:10], written["machine"]["cores"]
    lines = [
        (
            f"Measured on {date}: {cores} cores, load {written['load']:.1f}, Python {python}, {server}, over TCP; "
            "idle to start: on a unix socket."
        ),
        "",
        "| | runs tasks in | tasks/s, one process | two processes | worker CPU per task | server CPU per task | idle to start |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in measured:
        label = " ".join(part for part in (name, details.get(name, {}).get("version", "")) if part)
        one, two = rate_of(name), rate_of(name, processes=2)
        shown = (one, two, f"{one}: {WORKER_CPU}", f"{one}: {SERVER_CPU}", wait_of(name))
        cells = [label, _place(name, python, details), *(_figure(figures.get(each)) for each in shown)]
        lines.append(f"| {' | '.join(cells)} |")
    missing = [_reason(name, details) for name in PEERS if name not in measured]
    if missing:
        lines += ["", f"No figures yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def _place(name: str, python: str, details: dict[str, dict[str, str]]) -> str:
    """What runs the tasks, and what differs from the others' surroundings."""
    if name == OURS:
        return "8 threads"
    parts = [PEERS[name].runs_in]
    if PEERS[name].needs_database:
        parts.append("PostgreSQL without `fsync`")
    own = details.get(name, {}).get("python", python)
    if own.split(".")[:2] != python.split(".")[:2]:
        parts.append(f"Python {own}")
    return ", ".join(parts)


def _figure(figure: dict[str, Any] | None) -> str:
    """The median with its unit; of a rate also the lowest and the highest value."""
    if figure is None:
        return "–"
    if figure["unit"] != "/s":
        median = figure["median"]
        return f"{median:,.0f} {figure['unit']}" if median >= 100 else f"{median:.3g} {figure['unit']}"
    low, high = min(figure["values"]), max(figure["values"])
    return f"{figure['median']:,.0f}" + (f" ({low:,.0f} – {high:,.0f})" if low < high else "")


def _reason(name: str, details: dict[str, dict[str, str]]) -> str:
    reason = details.get(name, {}).get("missing", "")
    return f"{name} ({reason})" if reason else name


def with_figures(page: str, written: dict[str, Any]) -> str:
    """This page with the figures of this result between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}\n{block(written)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text(), json.loads(FILE.read_text())))
