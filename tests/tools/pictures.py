"""Draw the pictures that show figures, and write the figures of README: ``python -m tests.tools.pictures``.

The rates come from ``users.json`` (`tests.tools.figures`), the other figures from the file that this command wrote::

    python -m tests.lab.benchmarks noisy kills --write tests/lab/benchmarks/results/readme.json

The other pictures in docs/images are drawn by hand.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from tests.docs.blocks import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RESULTS = ROOT / "tests" / "lab" / "benchmarks" / "results" / "readme.json"
README = ROOT / "README.md"
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*?(?=\n<!-- end of the figures -->)", re.DOTALL)

TASKS = {"acme": 7, "beta": 2, "carol": 1}
"""The tasks in the picture of turns, by user, in the order in which the users push them."""
FIRST_COME = [user for user, number in TASKS.items() for _ in range(number)]
IN_TURN = ["acme", "beta", "carol", "acme", "beta", *["acme"] * 5]
"""The order in which the engine serves them, which `test_pictures.py` compares with a server."""

LANE_TASKS = {
    "bulk": ["acme", "beta", "carol"],
    "normal": ["acme", "acme", "acme", "beta", "beta"],
    "urgent": ["carol"],
}
"""The tasks in the picture of lanes, in the order in which the users push them."""
IN_LANES = ["carol", "acme", "beta", "acme", "beta", "acme", "carol", "beta", "acme"]
"""The order in which the engine serves them, as above."""

STYLE = """\
    .paper { fill: #ffffff; stroke: #c8ccd2 }
    .axis { fill: none; stroke: #5b6672; stroke-width: 1.5 }
    .grid { stroke: #dfe3e8 }
    .open { fill: none; stroke: #97a3b0; stroke-dasharray: 4 3 }
    .acme { fill: #f8dfcd; stroke: #b3541e; stroke-width: 1.5 }
    .beta { fill: #dbe7f8; stroke: #2b5fa8; stroke-width: 1.5 }
    .carol { fill: #e3f0e8; stroke: #2e7d4f; stroke-width: 1.5 }
    .slow { fill: #d9824a }
    .fast { fill: #2e7d4f }
    text { font: 14px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1d2329 }
    .name { font-weight: 600 }
    .note { font-size: 13px; fill: #47515c }
    .middle { text-anchor: middle }
    .end { text-anchor: end }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #14181d; stroke: #3b444e }
      .axis { stroke: #97a3b0 }
      .grid { stroke: #2c343d }
      .open { stroke: #5b6672 }
      .acme { fill: #4a2a14; stroke: #f0a374 }
      .beta { fill: #1b2f4a; stroke: #8fb7ee }
      .carol { fill: #17331f; stroke: #6bc08c }
      .slow { fill: #e0935e }
      .fast { fill: #6bc08c }
      text { fill: #e8ecf0 }
      .note { fill: #b3bdc8 }
    }
"""
WIDTH = 720


def picture(height: int, title: str, description: str, body: Sequence[str], style: str = "", width: int = WIDTH) -> str:
    """Return an SVG of ``width`` × ``height`` for light and dark pages, with texts for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title desc">'
    )
    lines = [
        head,
        "  <!-- Drawn by python -m tests.tools.pictures. -->",
        f'  <title id="title">{title}</title>',
        f'  <desc id="desc">{description}</desc>',
        f"  <style>\n{STYLE}{style}  </style>",
        f'  <rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f"  {line}" for line in body),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<text{attribute} x="{x:g}" y="{y:g}">{words}</text>'


# --- the figures ---


def results() -> dict[str, Any]:
    """Return the figures that the benchmarks wrote."""
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def values(found: Mapping[str, Any], part: str, name: str) -> list[float]:
    """The values of all figures of this part whose name contains ``name``."""
    return [value for figure in found["parts"][part] if name in figure["name"] for value in figure["values"]]


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def waits(found: Mapping[str, Any], order: str) -> list[float]:
    """The seconds that the single tasks waited, in the order of their arrival."""
    return [value / 1000 for value in values(found, "noisy", f"10,000 tasks, {order}")]


def readme_figures(found: Mapping[str, Any], many_users: Mapping[str, Any]) -> str:
    """The three figures of README, in sentences.

    Args:
        found: the results of ``noisy kills``.
        many_users: the results of ``users``.
    """
    fair, first_come = median(waits(found, "fair")), median(waits(found, "first come"))
    rate = "tasks/s, one worker process"
    figures = {figure["name"]: figure["median"] for figure in many_users["parts"]["users"]}
    of_many, of_one = (
        next(f"{round(figures[name], -2):,.0f}" for name in figures if re.match(f"{load}.*{rate}$", name))
        for load in ("10,000 users", "one user")
    )
    killed, lost = (int(sum(values(found, "kills", name))) for name in ("children killed under load", "tasks lost"))
    on, machine, versions = (
        datetime.fromisoformat(found["at"].replace("Z", "+00:00")),
        found["machine"],
        found["versions"],
    )
    return f"""\
- **{seconds(fair)} instead of {seconds(first_come)}**: the median wait of a single task behind another customer's 10,000 tasks \
([how](docs/contributing/performance.md#a-single-task-behind-10000-others)).
- **{of_many} tasks per second** of 10,000 customers with two tasks each, and {of_one} of one customer, \
for tasks that do nothing, with one worker process ([other queues](docs/explanation/comparison.md#figures)).
- **{lost} tasks lost** while {killed} worker processes were killed with `kill -9` under load \
([how](docs/contributing/performance.md#kills)).

Measured on {on:%B} {on.day}, {on.year}, on a virtual machine with {machine["cores"]} shared cores \
(load {found["load"]:.1f} before, {found["load_afterwards"]:.1f} afterwards), \
Python {versions["python"]}, {versions["server"].title()}."""


# --- the pictures ---

NARROW = 404
"""The width of two pictures side by side in README."""


def title(*lines: str) -> list[str]:
    return [text(20, 30 + 20 * number, line, "name") for number, line in enumerate(lines)]


def bar(x: float, y: float, width: float, height: int, kind: str, words: str, words_kind: str) -> list[str]:
    """A bar with words behind it."""
    return [
        f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{max(2.0, width):.1f}" height="{height}" rx="2"/>',
        text(round(x + max(2.0, width) + 6, 1), y + height / 2 + 5, words, words_kind),
    ]


def noisy_neighbor(found: Mapping[str, Any]) -> str:
    """Draw in two bars the wait of each customer's single task behind 10,000 tasks of another customer."""
    fair, first_come = waits(found, "fair"), waits(found, "first come")
    left, top, row, most = 112, 116, 30, max(first_come)
    scale = (NARROW - left - 62) / most
    bottom = top + row * len(fair)
    body = [
        *title("How long a customer’s single task waits", "behind another customer’s 10,000 tasks"),
        '<rect class="slow" x="20" y="66" width="13" height="13" rx="2"/>',
        text(39, 77, "first come, first served", "note"),
        '<rect class="fast" x="20" y="86" width="13" height="13" rx="2"/>',
        text(39, 97, "django_fairque: each customer has its turn", "note"),
    ]
    for second in range(0, int(most) + 1, 2):
        x = left + scale * second
        body.append(f'<path class="grid" d="M{x:.1f} {top - 6}V{bottom}"/>')
        body.append(text(round(x, 1), bottom + 20, f"{second} s", "note middle"))
    for index, (short, long) in enumerate(zip(fair, first_come, strict=True)):
        y = top + row * index
        body += [
            text(left - 10, y + 15, f"sent {index + 1} s later", "note end"),
            *bar(left, y, scale * long, 11, "slow", seconds(long), "note"),
            *bar(left, y + 12, scale * short, 11, "fast", seconds(short), "name"),
        ]
    body += [
        f'<path class="axis" d="M{left} {top - 6}V{bottom}H{NARROW - 20}"/>',
        text(20, bottom + 42, "One worker with 8 slots, tasks of 10 ms.", "note"),
        text(20, bottom + 59, "Both orders: on one server, the same arrivals.", "note"),
    ]
    description = (
        f"{len(fair)} customers send one task each, a second apart, behind 10,000 tasks of another customer. "
        f"First come, first served, they wait {seconds(max(first_come))} to {seconds(min(first_come))}. "
        f"With django_fairque they wait {seconds(min(fair))} to {seconds(max(fair))}."
    )
    heading = "A customer’s single task behind another customer’s 10,000 tasks"
    return picture(bottom + 74, heading, description, body, width=NARROW)


BOX, STEP, LEFT = 48, 57, 138
ROUND_SECONDS, FIRST_SECONDS, CYCLE_SECONDS = 1.0, 1.5, 16.0


def turns() -> str:
    """Ten tasks of three users: served from one queue, and in turn. Moving, where the reader allows movement."""
    body = [text(24, 32, "Ten rounds: acme pushes seven tasks, then beta two, then carol one", "name")]
    body += _panel(56, "First come, first served: one queue for all", FIRST_COME, {"waiting": FIRST_COME})
    queues = {f"{user} waits": [user] * number for user, number in TASKS.items()}
    body += _panel(232, "django_fairque: a queue for each user, served in turn", IN_TURN, queues)
    description = (
        f"First come, first served, the tasks start in the order {', '.join(FIRST_COME)}: carol waits for nine tasks. "
        f"With django_fairque they start in the order {', '.join(IN_TURN)}: carol waits for two."
    )
    return picture(482, "A first-come queue and the ring, for ten rounds", description, body, _moves(len(IN_TURN)))


def lanes() -> str:
    """Nine tasks in three lanes, and the order in which they start."""
    body = [text(24, 32, "A nightly job sends bulk tasks, acme and beta work, then carol asks for a code", "name")]
    queues = {lane: LANE_TASKS[lane] for lane in ("urgent", "normal", "bulk")}
    note = "carol’s urgent task came last and starts first. Among bulk tasks, those of users who had less start first."
    body += _panel(50, "Three lanes across all users", IN_LANES, queues, note)
    description = (
        "Waiting: an urgent task of carol, three normal tasks of acme and two of beta, and a bulk task of each. "
        f"They start in this order: {', '.join(IN_LANES)}."
    )
    return picture(302, "Nine tasks in three lanes", description, body, _moves(len(IN_LANES)))


def _moves(rounds: int) -> str:
    """The style that moves each task from its queue in its round."""
    frames = "".join(
        f"      @keyframes round{number} {{ 0%, {_percent(number)} {{ transform: translate(var(--x), var(--y)) }} "
        f"{_percent(number + 0.6)}, 100% {{ transform: none }} }}\n"
        for number in range(rounds)
    )
    return (
        "    @media (prefers-reduced-motion: no-preference) {\n"
        f"      .task {{ animation: {CYCLE_SECONDS:g}s ease-in-out infinite }}\n{frames}    }}\n"
    )


def _percent(rounds: float) -> str:
    return f"{(FIRST_SECONDS + ROUND_SECONDS * rounds) / CYCLE_SECONDS:.2%}"


def _panel(
    top: int, title: str, order: Sequence[str], queues: Mapping[str, Sequence[str]], note: str = ""
) -> list[str]:
    """The queues with their tasks, and below the tasks that have started, by round. A task moves from its queue."""
    started = top + 40 + 40 * len(queues)
    body = [text(24, top + 16, title, "name")]
    places: dict[str, list[tuple[int, int]]] = {user: [] for user in TASKS}
    for row, (label, queue) in enumerate(queues.items()):
        y = top + 30 + 40 * row
        body.append(text(24, y + 20, label, "note"))
        for index, user in enumerate(queue):
            x = LEFT + STEP * index
            places[user].append((x, y))
            body.append(f'<rect class="open" x="{x}" y="{y}" width="{BOX}" height="30" rx="4"/>')
    body.append(text(24, started + 20, "started in round", "note"))
    for index, user in enumerate(order):
        x, (from_x, from_y) = LEFT + STEP * index, places[user].pop(0)
        body.append(text(x + BOX / 2, started + 48, str(index + 1), "note middle"))
        body.append(
            f'<g class="task" style="--x:{from_x - x}px;--y:{from_y - started}px;animation-name:round{index}">'
            f'<rect class="{user}" x="{x}" y="{started}" width="{BOX}" height="30" rx="4"/>'
            f"{text(x + BOX / 2, started + 20, user, 'middle')}</g>"
        )
    note = note or f"carol’s only task starts in round {order.index('carol') + 1}."
    body.append(text(24, started + 72, note, "note"))
    return body


def files() -> dict[Any, str]:
    """Return the text of each file that this command writes."""
    found, many_users = results(), json.loads(RESULTS.with_name("users.json").read_text())
    return {
        DOCS / "images" / "noisy-neighbor.svg": noisy_neighbor(found),
        DOCS / "images" / "turns.svg": turns(),
        DOCS / "images" / "lanes.svg": lanes(),
        README: FIGURES.sub(lambda _: readme_figures(found, many_users), README.read_text()),
    }


if __name__ == "__main__":
    for file, content in files().items():
        file.write_text(content)
