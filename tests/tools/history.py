"""Keeps the history of the tasks a second that each run of the benchmarks measured, and draws a chart of it.

``python -m tests.tools.figures`` adds the newest run of ``peers`` to tests/lab/benchmarks/results/history.json and draws the
chart.
"""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.docs.blocks import DOCS, ROOT
from tests.lab.benchmarks.peers import OURS, rate_of
from tests.lab.benchmarks.peers.systems import PEERS
from tests.tools.pictures import picture, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILE = ROOT / "tests" / "lab" / "benchmarks" / "results" / "history.json"
PICTURE = DOCS / "images" / "rates-over-time.svg"
STYLE = """\
    .rate { fill: none; stroke: #97a3b0; stroke-width: 1.5 }
    .dot { fill: #97a3b0 }
    .rate.ours { stroke: #2e7d4f; stroke-width: 3 }
    .dot.ours { fill: #2e7d4f }
    @media (prefers-color-scheme: dark) {
      .rate, .dot { stroke: #5b6672 }
      .rate.ours, .dot.ours { stroke: #6bc08c }
    }
"""
TRANSPORT = "unix socket"
"""The only one that each run has."""
LEFT, RIGHT, TOP, BOTTOM = 64, 500, 64, 420
LABEL_HEIGHT = 16

Run = dict[str, Any]


def entry_of(written: Mapping[str, Any]) -> Run:
    """The figures in the history of a run that ``python -m tests.lab.benchmarks peers --write`` wrote."""
    medians = {peer["name"]: peer["median"] for peer in written["parts"]["peers"]}
    names = {name: rate_of(name, TRANSPORT) for name in (OURS, *PEERS)}
    rates = {name: round(medians[figure]) for name, figure in names.items() if figure in medians}
    facts = {key: written[key] for key in ("at", "commit", "machine", "load")}
    return {**facts, "python": written["versions"]["python"], "server": written["versions"]["server"], "rates": rates}


def history() -> list[Run]:
    found: list[Run] = json.loads(FILE.read_text())
    return found


def with_run(runs: Sequence[Run], written: Mapping[str, Any]) -> list[Run]:
    """The history with this run, in the order of time."""
    others = [run for run in runs if run["at"] != written["at"]]
    return sorted([*others, entry_of(written)], key=lambda run: str(run["at"]))


def to_text(runs: Sequence[Run]) -> str:
    return json.dumps(runs, indent=1) + "\n"


def chart(runs: Sequence[Run]) -> str:
    """A line for each queue over the times of the runs; rates are on a logarithmic scale."""
    times = [datetime.fromisoformat(run["at"].replace("Z", "+00:00")) for run in runs]
    span = max(1.0, (times[-1] - times[0]).total_seconds())
    across = [LEFT + (RIGHT - LEFT) * (time - times[0]).total_seconds() / span for time in times]
    rates = [rate for run in runs for rate in run["rates"].values()]
    least, most = math.floor(math.log10(min(rates))), math.log10(max(rates)) + 0.1
    body = [text(24, 32, "Tasks a second, one worker process, tasks that do nothing, on a unix socket", "name")]

    def height(rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (math.log10(rate) - least) / (most - least)

    for power in range(least, math.floor(most) + 1):
        body.append(f'<path class="grid" d="M{LEFT} {height(10**power):.1f}H{RIGHT}"/>')
        body.append(text(LEFT - 8, round(height(10**power) + 4, 1), f"{10**power:,}", "note end"))
    labeled = -math.inf
    for x, time, run in zip(across, times, runs, strict=True):
        if x - labeled >= 64:
            labeled = x
            body.append(text(round(x, 1), BOTTOM + 20, f"{time:%b} {time.day}", "note middle"))
            load = "–" if run["load"] is None else f"{run['load']:.1f}"
            body.append(text(round(x, 1), BOTTOM + 37, f"load {load}", "note middle"))
    newest = {name: run["rates"][name] for run in runs for name in run["rates"]}
    below = float(TOP - LABEL_HEIGHT)
    for name in sorted(newest, key=lambda name: -newest[name]):
        kind = " ours" if name == OURS else ""
        points = [(x, height(run["rates"][name])) for x, run in zip(across, runs, strict=True) if name in run["rates"]]
        if len(points) > 1:
            line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            body.append(f'<path class="rate{kind}" d="M{line}"/>')
        body += [f'<circle class="dot{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
        below = max(below + LABEL_HEIGHT, points[-1][1] + 5)
        body.append(text(RIGHT + 14, round(below, 1), f"{name}: {newest[name]:,}", "name" if kind else "note"))
    body.append(f'<path class="axis" d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}"/>')
    height_of_all = max(BOTTOM + 52, round(below) + 20)
    first, last = runs[0]["rates"], runs[-1]["rates"]
    description = (
        f"{len(runs)} runs of the benchmarks. django_fairque: {first[OURS]:,} tasks a second in the first run, "
        f"{last[OURS]:,} in the newest one. Newest rates of all queues: "
        f"{', '.join(f'{name} {newest[name]:,}' for name in sorted(newest, key=lambda name: -newest[name]))}."
    )
    return picture(height_of_all, "Tasks a second over time", description, body, STYLE)
