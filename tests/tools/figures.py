"""The figures on pages that compare with other queues: they come from files that runs of the benchmarks wrote.

``python -m tests.tools.postgres python -m tests.lab.benchmarks PART --write tests/lab/benchmarks/results/PART.json`` measures
(PART is ``peers``, ``work`` or ``nightly``; ``users database idle`` together write ``users.json``, for `users_block`).
``python -m tests.tools.figures`` writes the figures into the pages, adds the newest run to the history of all runs, and draws its
chart (`history`); a test fails if they differ.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.docs.blocks import DOCS, ROOT
from tests.lab.benchmarks import nightly, users, work
from tests.lab.benchmarks.peers import OURS, SERVER_CPU, WORKER_CPU, rate_of, wait_of
from tests.lab.benchmarks.peers.systems import PEERS
from tests.tools import history
from tests.tools.pictures import NARROW, README, bar, picture, seconds, text, title

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

RESULTS = ROOT / "tests" / "lab" / "benchmarks" / "results"
COMPARISON, PERFORMANCE = DOCS / "explanation" / "comparison.md", DOCS / "contributing" / "performance.md"
PLACES = (
    ("users", "users", COMPARISON),
    ("peers", "peers", RESULTS / "peers.md"),
    ("capacity", "users", PERFORMANCE),
    ("work", "work", PERFORMANCE),
    ("nightly", "nightly", PERFORMANCE),
    ("capacity", "users", DOCS / "guides" / "scaling.md"),
    ("readme", "nightly", README),
)
"""The blocks of the pages: name, file of results, page."""
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
        medians = (_figure(figures.get(column)).partition(" (")[0] for column in shown)
        cells = [label, _place(name, python, details), *medians]
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
        f"{_measured(written)}. The job has {details['customers']:,} customers.",
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


def users_block(written: dict[str, Any]) -> str:
    """The text of a page that shows the speed with many users who have few tasks, and with one user, next to peers.

    Args:
        written: what ``python -m tests.lab.benchmarks users database idle --write`` wrote.

    Returns:
        When and where it was measured, and a table with a row for each figure. The first two columns of figures are ours. Behind
        a peer's figure is the ratio of our first column to it.
    """
    found = {figure["name"]: figure for part in written["parts"].values() for figure in part}
    details = {name: info for part in written["details"].values() for name, info in part.items()}
    ours, peers = measured_loads(found), [name for name in PEERS if "version" in details.get(name, {})]
    header = [f"{OURS}, {load}" for load in ours] + [f"{name} {details[name]['version']}" for name in peers]
    rows = [["", *header], ["---"] * (len(header) + 1)]
    for label in users.UNITS:
        figures = [found.get(f"{name}: {label}") for name in (*ours, *peers)]
        if any(figures):
            ratios = [found.get(f"{ours[0]}: {label}: over {name}") for name in peers]
            rows.append([label, *_with_ratios(figures, ratios)])
    queries = next((name.rpartition(": ")[0] for name in found if name.endswith(f": {OURS}")), "")
    for label, name_of in (
        (f"{queries}, tasks/s", f"{queries}: {{}}"),
        ("idle to start, p50, unix socket", wait_of("{}")),
    ):
        figures = [found.get(name_of.format(name)) for name in (OURS, *peers)]
        if figures[0]:
            medians = [figure and figures[0]["median"] / figure["median"] for figure in figures[1:]]
            ratios = [median and {"unit": "×", "median": median} for median in medians]
            rows.append([label, *_with_ratios([figures[0], *[None] * (len(ours) - 1), *figures[1:]], ratios)])
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{_measured(written)}; median and spread of {_rounds(found)} rounds, in which the queues took turns.\n\n{table}"


def capacity_block(written: dict[str, Any]) -> str:
    """The text of a page that says how many tasks a core of the server can hand out.

    Args:
        written: what ``python -m tests.lab.benchmarks users database idle --write`` wrote.
    """
    found = {figure["name"]: figure for figure in written["parts"]["users"]}
    many, one = measured_loads(found)
    parts = {
        load: [found[f"{load}: {label}"]["median"] for label in (users.BULK_SERVER_TIME, users.SERVER_TIME)]
        for load in (many, one)
    }
    durable = found[f"{many}: {users.DURABLE_SERVER_TIME}"]["median"]
    most = {load: f"{round(1e6 / sum(times), -2):,.0f}" for load, times in parts.items()}
    return (
        f"A core of the server hands out at most {most[one]} no-op tasks a second of one user, and {most[many]} of {many}: "
        f"{sum(parts[one]):.0f} and {sum(parts[many]):.0f} µs to push, fetch and finish one. An append-only file adds "
        f"{durable - parts[many][1]:.0f} µs (measured on {written['at'][:10]}).\n"
    )


def measured_loads(found: Collection[str]) -> list[str]:
    """Return the names of our loads, many users first, from the names of figures."""
    names = [name.rpartition(": ")[0] for name in found if name.endswith(f": {users.SERVER_TIME}")]
    return [name for name in names if name not in PEERS]


def _rounds(found: dict[str, Any]) -> int:
    return max(len(figure["values"]) for figure in found.values())


def _with_ratios(figures: Sequence[Any], ratios: Sequence[Any]) -> list[str]:
    """Return the cells of the figures. The last ones, of peers, have the ratio of our first figure."""
    cells = [_figure(figure) for figure in figures]
    for at, ratio in enumerate(ratios, len(cells) - len(ratios)):
        if ratio:
            cells[at] += f"; ours {_figure(ratio)}"
    return cells


def mail_waits(written: dict[str, Any]) -> dict[str, float]:
    """Return the wait of mails (p99, ms) of each queue, ours first, then the others by their wait."""
    medians = {figure["name"]: figure["median"] for figure in written["parts"]["nightly"]}
    found = {name: medians[key] for name in (OURS, *PEERS) if (key := f"{name}, {nightly.WAIT_P99}") in medians}
    return dict(sorted(found.items(), key=lambda item: (item[0] != OURS, item[1])))


def readme_block(written: dict[str, Any]) -> str:
    """The table of README with the waits of mails, and the price that other customers pay for urgent tasks.

    Args:
        written: what ``python -m tests.lab.benchmarks nightly --write`` wrote.
    """
    figures = {figure["name"]: figure for figure in written["parts"]["nightly"]}
    names = list(mail_waits(written))
    waits = [_figure(figures[f"{name}, {nightly.WAIT_P99}"]) for name in names]
    shares = [_figure(figures.get(f"{name}, {nightly.OTHER_SHARE}")).removesuffix(" ×") for name in names]
    rows = [
        ["", *names],
        ["---"] * (len(names) + 1),
        ["99 % of the mails wait at most", f"**{waits[0]}**", *waits[1:]],
        ["others’ tasks for each task of a customer who marks all urgent", f"**{shares[0]}**", *shares[1:]],
    ]
    normal = seconds(figures[f"{nightly.OURS_NORMAL}, {nightly.WAIT_P99}"]["median"] / 1000)
    return (
        "".join(f"| {' | '.join(row)} |\n" for row in rows)
        + f"\nMails during the nightly job of {written['details']['nightly']['customers']:,} customers, {nightly.SLOTS} slots "
        "([how](docs/contributing/performance.md#a-nightly-job-and-urgent-mails)). "
        f"With all tasks in lane normal: {normal}.\n"
    )


def nightly_chart(written: dict[str, Any]) -> str:
    """Draw the waits of mails during a nightly job as bars."""
    waits = mail_waits(written)
    left, top, row = 140, 84, 48
    scale = (NARROW - left - 76) / max(waits.values())
    bottom = top + row * len(waits)
    customers = written["details"]["nightly"]["customers"]
    body = title("How long urgent mails wait (p99)", f"while a nightly job of {customers:,} customers runs")
    for index, (name, wait) in enumerate(waits.items()):
        y, words = top + row * index, "name" if name == OURS else "note"
        kind = "fast" if name == OURS else "slow"
        body.append(text(left - 10, y + 28, name, f"{words} end"))
        body += bar(left, y + 14, scale * wait, 18, kind, f"{wait:,.0f} ms", words)
    body += [
        f'<path class="axis" d="M{left} {top - 6}V{bottom}"/>',
        text(20, bottom + 24, f"{nightly.SLOTS} slots, tasks of 20 ms, one mail each 200 ms.", "note"),
        text(20, bottom + 41, "Each as its documentation recommends.", "note"),
    ]
    all_waits = ", ".join(f"{name} {wait:,.0f} ms" for name, wait in waits.items())
    return picture(bottom + 56, "The wait of urgent mails during a nightly job", f"{all_waits}.", body, width=NARROW)


BLOCKS = {
    "readme": readme_block,
    "peers": peers_block,
    "work": work_block,
    "nightly": nightly_block,
    "users": users_block,
    "capacity": capacity_block,
}


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
        return f"{median:,.0f} {figure['unit']}" if median >= 100 else f"{median:.3g} {figure['unit']}".strip()
    low, high = min(figure["values"]), max(figure["values"])
    return f"{figure['median']:,.0f}" + (f" ({low:,.0f} – {high:,.0f})" if low < high else "")


def _reason(name: str, details: dict[str, dict[str, str]]) -> str:
    reason = details.get(name, {}).get("missing", "")
    return f"{name} ({reason})" if reason else name


def results(part: str) -> dict[str, Any]:
    """Return the data of the newest run of this part of the benchmarks."""
    found: dict[str, Any] = json.loads((RESULTS / f"{part}.json").read_text())
    return found


def with_figures(page: str, block: str, written: dict[str, Any]) -> str:
    """This page with the figures of this result between the two marks of the block."""
    mark = f"<!-- figures: {block} -->\n"
    before, begin, rest = page.partition(mark)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {mark.strip()} and {END.strip()}")
    return f"{before}{mark}\n{BLOCKS[block](written)}\n{END}{after}"


def files() -> dict[Path, str]:
    """Return the files of this command: the text of each page, the history of all runs, and its chart."""
    pages: dict[Path, str] = {}
    for block, part, page in PLACES:
        pages[page] = with_figures(pages.get(page) or page.read_text(), block, results(part))
    pages[DOCS / "images" / "nightly.svg"] = nightly_chart(results("nightly"))
    runs = history.with_run(history.history(), results("peers"))
    return {**pages, history.FILE: history.to_text(runs), history.PICTURE: history.chart(runs)}


if __name__ == "__main__":
    for file, content in files().items():
        file.write_text(content)
