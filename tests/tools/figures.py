"""The figures on pages that compare with other queues: they come from files that runs of the benchmarks wrote.

``python -m tests.tools.postgres python -m tests.lab.benchmarks PART --write tests/lab/benchmarks/results/PART.json`` measures
(PART is ``peers``, ``work`` or ``nightly``). ``python -m tests.tools.figures`` writes the figures into the pages, adds
the newest run to the history of all runs, and draws its chart (`history`); a test fails if they differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.docs.blocks import DOCS, ROOT
from tests.lab.benchmarks import nightly, work
from tests.lab.benchmarks.peers import OURS, SERVER_CPU, WORKER_CPU, rate_of, wait_of
from tests.lab.benchmarks.peers.systems import PEERS
from tests.tools import history

if TYPE_CHECKING:
    from pathlib import Path

RESULTS = ROOT / "tests" / "lab" / "benchmarks" / "results"
PAGES = {
    "peers": DOCS / "explanation" / "comparison.md",
    "work": DOCS / "contributing" / "performance.md",
    "nightly": DOCS / "contributing" / "performance.md",
}
"""The page that shows the figures of each part of the benchmarks."""
END = "<!-- end of figures -->\n"


def peers_block(written: dict[str, Any]) -> str:
    """The text of the page that shows what queues cost with tasks that do nothing.

    Args:
        written: what ``python -m tests.lab.benchmarks peers --write`` wrote.

    Returns:
        When and where it was measured, a table that begins with the highest rate, and the peers without figures.
    """
    figures = {peer["name"]: peer for peer in written["parts"]["peers"]}
    details = written["details"]["peers"]
    measured = [name for name in (OURS, *PEERS) if rate_of(name) in figures]
    measured.sort(key=lambda name: -figures[rate_of(name)]["median"])
    python = written["versions"]["python"]
    lines = [
        f"{_measured(written)}; idle to start: on a unix socket.",
        "",
        "| | runs tasks in | tasks/s, one process | two processes | worker CPU per task | server CPU per task | idle to start |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in measured:
        label = " ".join(part for part in (name, details.get(name, {}).get("version", "")) if part)
        one, two = rate_of(name), rate_of(name, processes=2)
        shown = (one, two, f"{one}: {WORKER_CPU}", f"{one}: {SERVER_CPU}", wait_of(name))
        cells = [label, _place(name, python, details), *(_figure(figures.get(column)) for column in shown)]
        lines.append(f"| {' | '.join(cells)} |")
    missing = [_reason(name, details) for name in PEERS if name not in measured]
    if missing:
        lines += ["", f"No figures yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def work_block(written: dict[str, Any]) -> str:
    """The text of the page that shows what part of the possible rate queues reach with tasks that do something.

    Args:
        written: what ``python -m tests.lab.benchmarks work --write`` wrote.

    Returns:
        When and where it was measured, and a table with a row for each kind of tasks.
    """
    figures = {part["name"]: part["median"] for part in written["parts"]["work"]}
    details = written["details"]["work"]
    peers = [name for name in PEERS if "version" in details.get(name, {})]
    columns = ["possible", OURS, work.OURS_ASYNC, *peers]
    labels = ["possible", OURS, "the same, `AsyncWorker`", *(f"{name} {details[name]['version']}" for name in peers)]
    lines = [
        f"{_measured(written)}. Tasks per second.",
        "",
        f"| | {' | '.join(labels)} | ours over the best peer |",
        f"| --- |{' --- |' * (len(labels) + 1)}",
    ]
    for kind in work.KINDS:
        found = [figures.get(f"{kind.name}: {column}") for column in columns]
        cells = ["–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in found]
        ratio = figures.get(f"{kind.name}: {work.OVER_THE_BEST}")
        lines.append(f"| {kind.name} | {' | '.join(cells)} | {'–' if ratio is None else f'{ratio:.3f} ×'} |")
    return "\n".join(lines) + "\n"


def nightly_block(written: dict[str, Any]) -> str:
    """The text of the page that shows how long urgent mails wait behind a nightly job.

    Args:
        written: what ``python -m tests.lab.benchmarks nightly --write`` wrote.

    Returns:
        When and where it was measured, a table with a row for each queue, and the peers without figures.
    """
    figures = {figure["name"]: figure for figure in written["parts"]["nightly"]}
    details = written["details"]["nightly"]
    ours = {OURS: ("job `bulk`, mails `urgent`", OURS), nightly.OURS_NORMAL: ("all `normal`", OURS)}
    peers = {
        name: (f"[{peer.urgent.configuration}]({peer.urgent.page})", f"{name} {details[name]['version']}")
        for name, peer in PEERS.items()
        if peer.urgent and "version" in details.get(name, {})
    }
    lines = [
        f"{_measured(written)}.",
        "",
        f"| | urgent tasks | {' | '.join(nightly.UNITS)} |",
        f"| --- | --- |{' --- |' * len(nightly.UNITS)}",
    ]
    for name, (configuration, label) in (ours | peers).items():
        cells = [_figure(figures.get(f"{name}, {column}")) for column in nightly.UNITS]
        lines.append(f"| {label} | {configuration} | {' | '.join(cells)} |")
    missing = [_reason(name, details) for name in PEERS if "missing" in details.get(name, {})]
    if missing:
        lines += ["", f"No figures yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


BLOCKS = {"peers": peers_block, "work": work_block, "nightly": nightly_block}


def _measured(written: dict[str, Any]) -> str:
    """When and where."""
    versions = written["versions"]
    return (
        f"Measured on {written['at'][:10]}: {written['machine']['cores']} cores, load {written['load']:.1f} before and "
        f"{written['load_afterwards']:.1f} afterwards, Python {versions['python']}, {versions['server'].capitalize()}, over TCP"
    )


def _place(name: str, python: str, details: dict[str, dict[str, str]]) -> str:
    """Return the threads or coroutines that run the tasks, and its differences from the other peers."""
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


def results(part: str) -> dict[str, Any]:
    """Return the data of the newest run of this part of the benchmarks."""
    found: dict[str, Any] = json.loads((RESULTS / f"{part}.json").read_text())
    return found


def with_figures(page: str, part: str, written: dict[str, Any]) -> str:
    """This page with the figures of this result between its two marks."""
    mark = f"<!-- figures: {part} -->\n"
    before, begin, rest = page.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {mark.strip()} and {END.strip()}")
    return f"{before}{mark}\n{BLOCKS[part](written)}\n{END}{after}"


def files() -> dict[Path, str]:
    """Return the files of this command: the text of each page, the history of all runs, and its chart."""
    pages: dict[Path, str] = {}
    for part, page in PAGES.items():
        pages[page] = with_figures(pages.get(page) or page.read_text(), part, results(part))
    runs = history.with_run(history.history(), results("peers"))
    return {**pages, history.FILE: history.to_text(runs), history.PICTURE: history.chart(runs)}


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text)
