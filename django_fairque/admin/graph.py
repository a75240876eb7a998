"""A graph of tasks laid out for a page: what depends on nothing first, each layer after what it depends on.

Only arithmetic; the template draws it. Lengths are pixels at the drawing's own size.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.dependencies.dependencies import DependencyGraph, Node

MOST_DRAWN = 200
"""Tasks; a larger graph is counted instead."""
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 168, 40, 56, 12, 8
TALLEST = 20
"""Tasks in one column: a wider layer takes several columns."""
MOST_LETTERS = 22


@dataclass(frozen=True)
class Box:
    """A task in the drawing."""

    node: Node
    label: str
    state: str
    x: int
    y: int


@dataclass(frozen=True)
class Drawing:
    """``paths`` are the edges as SVG path data."""

    boxes: tuple[Box, ...]
    paths: tuple[str, ...]
    width: int
    height: int


def layers(graph: DependencyGraph) -> list[list[str]]:
    """The ids by how many steps they are from what depends on nothing (the longest way), each layer sorted."""
    parents, children = _neighbours(graph)
    depth = {each: 0 for each in graph.nodes if not parents[each]}
    left = {each: len(parents[each]) for each in graph.nodes}
    reached = list(depth)
    for each in reached:  # grows while it is walked
        for child in children[each]:
            depth[child] = max(depth.get(child, 0), depth[each] + 1)
            left[child] -= 1
            if not left[child]:
                reached.append(child)
    found: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for each in sorted(graph.nodes):
        found[depth.get(each, 0)].append(each)
    return found


def draw(graph: DependencyGraph) -> Drawing:
    """Columns from left to right; in each, tasks near the height of what they depend on."""
    parents, _children = _neighbours(graph)
    places: dict[str, tuple[int, int]] = {}
    column = 0
    for layer in layers(graph):
        ordered = sorted(layer, key=lambda each: (_height(places, parents[each]), each))
        for index, each in enumerate(ordered):
            places[each] = (column + index // TALLEST, index % TALLEST)
        column += (len(layer) - 1) // TALLEST + 1
    boxes = tuple(_box(graph.nodes[each], *place) for each, place in places.items())
    at = {box.node.task_id: box for box in boxes}
    paths = tuple(_path(at[parent], at[child]) for parent, child in graph.edges if parent in at and child in at)
    rows = max((row for _column, row in places.values()), default=0) + 1
    return Drawing(
        boxes, paths, column * (WIDTH + GAP_X) - GAP_X + 2 * MARGIN, rows * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    )


def counts(graph: DependencyGraph) -> list[dict[str, int]]:
    """How many tasks of each state there are, layer by layer."""
    return [dict(sorted(Counter(state_of(graph.nodes[each]) for each in layer).items())) for layer in layers(graph)]


def state_of(node: Node) -> str:
    return node.state.value if node.state else "unknown"


def _neighbours(graph: DependencyGraph) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    parents: dict[str, list[str]] = {each: [] for each in graph.nodes}
    children: dict[str, list[str]] = {each: [] for each in graph.nodes}
    for parent, child in dict.fromkeys(graph.edges):
        if parent in parents and child in parents:
            parents[child].append(parent)
            children[parent].append(child)
    return parents, children


def _height(places: Mapping[str, tuple[int, int]], parents: Sequence[str]) -> float:
    rows = [places[each][1] for each in parents if each in places]
    return sum(rows) / len(rows) if rows else 0.0


def _box(node: Node, column: int, row: int) -> Box:
    label = node.name or node.task_id
    if len(label) > MOST_LETTERS:
        label = f"…{label[1 - MOST_LETTERS :]}"
    x, y = MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)
    return Box(node, label, state_of(node), x, y)


def _path(parent: Box, child: Box) -> str:
    x, y, to_x, to_y = parent.x + WIDTH, parent.y + HEIGHT // 2, child.x, child.y + HEIGHT // 2
    bend = GAP_X // 2
    return f"M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"
