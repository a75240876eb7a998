"""What a Python file defines and imports, found by parsing it, and figures about many of them. Knows no Django."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MOST_COMPLEX = 10
MOST_IMPORTED = 5
BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension, ast.match_case)
"""Each is one more way through a function (McCabe 1976, with comprehensions counted as the loops that they are)."""


class Outline(TypedDict):
    """A file: its module's name, ``[function, complexity, line]`` for each function, the modules that it names in
    imports (absolute), and why it could not be parsed, if so."""

    module: str
    functions: list[tuple[str, int, int]]
    imports: list[str]
    error: str | None


class Complexity(TypedDict):
    """Of all functions of a package; ``most_complex`` are ``[module:function, complexity]``."""

    functions: int
    mean: float
    most_complex: list[tuple[str, int]]


class Imports(TypedDict):
    """Who imports whom among the modules of a package; ``cycle`` is the size of the largest import cycle, else 0."""

    modules: int
    edges: int
    outside: int
    most_imported: list[tuple[str, int]]
    cycle: int


def module_name(title: str) -> str:
    """``json/decoder.py`` -> ``json.decoder``, ``json/__init__.py`` -> ``json``."""
    parts = title.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def outline(title: str, text: str) -> Outline:
    """Parse one file; the same text always gives the same answer."""
    name = module_name(title)
    try:
        tree = ast.parse(text)
    # ValueError: NUL characters; RecursionError, MemoryError: files made to break parsers, of which tests have some.
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Outline(module=name, functions=[], imports=[], error=f"{type(error).__name__}: {error}")
    package = name if title.endswith("__init__.py") else name.rpartition(".")[0]
    return Outline(
        module=name,
        functions=[(label, complexity(node), node.lineno) for label, node in functions(tree)],
        imports=sorted(set(imported(tree, package))),
        error=None,
    )


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[tuple[str, Function]]:
    """Every function with its qualified name, in the order of the file."""
    stack: list[tuple[str, ast.AST]] = [("", tree)]
    while stack:
        prefix, node = stack.pop()
        inner = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{prefix}{node.name}."
            if not isinstance(node, ast.ClassDef):
                yield f"{prefix}{node.name}", node
        stack += [(inner, child) for child in reversed(list(ast.iter_child_nodes(node)))]


def complexity(function: Function) -> int:
    """Independent ways through a function, without the functions defined inside."""
    found, stack = 1, list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, BRANCHES):
            found += 1
        elif isinstance(node, ast.BoolOp):
            found += len(node.values) - 1
        stack += ast.iter_child_nodes(node)
    return found


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The absolute names in import statements; of ``from a import b`` both ``a`` and ``a.b``, which may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: max(0, len(package.split(".")) - node.level + 1)]
                base = ".".join([*parents, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def complexity_figures(outlines: Iterable[Outline]) -> Complexity:
    ranked = sorted(
        ((f"{each['module']}:{name}", number) for each in outlines for name, number, _ in each["functions"]),
        key=lambda pair: (-pair[1], pair[0]),
    )
    total = sum(number for _, number in ranked)
    return Complexity(
        functions=len(ranked),
        mean=round(total / len(ranked), 2) if ranked else 0.0,
        most_complex=ranked[:MOST_COMPLEX],
    )


def import_figures(outlines: Iterable[Outline]) -> Imports:
    found = {each["module"]: each for each in outlines}
    graph = {
        name: sorted(each for each in outline["imports"] if each in found and each != name)
        for name, outline in sorted(found.items())
    }
    outside = {
        name.partition(".")[0]
        for outline in found.values()
        for name in outline["imports"]
        if name and name not in found and name.partition(".")[0] not in {each.partition(".")[0] for each in found}
    }
    times = Counter(name for names in graph.values() for name in names)
    return Imports(
        modules=len(graph),
        edges=sum(map(len, graph.values())),
        outside=len(outside),
        most_imported=sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_IMPORTED],
        cycle=largest_cycle(graph),
    )


def largest_cycle(graph: Mapping[str, list[str]]) -> int:
    """The size of the largest strongly connected component that is a cycle (Kosaraju), else 0."""
    importers: dict[str, list[str]] = {name: [] for name in graph}
    for name, others in graph.items():
        for other in others:
            importers[other].append(name)
    order: list[str] = []
    seen: set[str] = set()
    for name in graph:
        order += reached_from(name, graph, seen)
    seen = set()
    sizes = [len(reached_from(name, importers, seen)) for name in reversed(order)]
    return max((size for size in sizes if size > 1), default=0)


def reached_from(start: str, graph: Mapping[str, list[str]], seen: set[str]) -> list[str]:
    """What can be reached and was not ``seen`` before, each after all that is behind it; without recursion."""
    found: list[str] = []
    stack = [(start, False)]
    while stack:
        name, is_done = stack.pop()
        if is_done:
            found.append(name)
        elif name not in seen:
            seen.add(name)
            stack += [(name, True), *((other, False) for other in graph[name])]
    return found
