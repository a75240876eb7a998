"""The rules that keep the package readable. Each function returns the violations in a source tree.

Each answer is a list of sentences, `"file:line: what is wrong"`, empty when all is well.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = "django_fairque"
MAX_LINES = 800
COUNTED_SUFFIXES = {".py", ".lua", ".html", ".css", ".js", ".md"}
GENERATED_FILES = {"django_fairque/engine/queue/async_queue.py"}
"""Files that are written by a program (`tests/tools/async_classes.py`): nobody reads or edits them as a whole."""

# The part of the package directly under its root -> its layer. A part may import from itself and from lower layers;
# parts on one layer don't know each other.
LAYERS = {
    "safely": -1,
    "documentation": 0,
    "engine": 0,
    "early_signals": 0,
    "lazy": 0,
    "version": 0,
    "embedded": 1,
    "conf": 2,
    "migrations": 1,
    "models": 1,
    "hooks": 3,
    "audit": 2,
    "outbox": 4,
    "signals": 1,
    "tasks": 5,
    "backends": 6,
    "events": 6,
    "middleware": 6,
    "monitoring": 8,
    "worker": 6,
    "integrations": 7,
    "admin": 9,
    "checks": 9,
    "testing": 9,
    "web": 9,
    "management": 10,
    "templatetags": 10,
    "apps": 10,
    "urls": 10,
    "__init__": 11,
}
WITHOUT_DJANGO = {"engine", "embedded"}
# Configuration must be usable before Django is set up: it looks at Django only when it is asked for the settings.
DJANGO_ONLY_IN_FUNCTIONS = {"conf"}


@dataclass(frozen=True)
class Import:
    """One imported module, and whether it is imported when its importer is (rather than later, or only for types)."""

    module: str
    line: int
    at_once: bool


@cache
def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a module, parsed once in a process: many rules read the same files."""
    return ast.parse(source)


def misplaced_imports(package: Path) -> list[str]:
    """Imports that go up, sideways, or to Django from where it must not be known."""
    found = []
    for file in sorted(package.rglob("*.py")):
        part = _part(file, package)
        if part not in LAYERS:
            found.append(f"{_name(file, package)}:1: {part!r} has no layer: give it one in LAYERS")
            continue
        tree = tree_of(file.read_text())
        for imported in _imports(tree, file, package):
            if complaint := _complaint(part, imported):
                found.append(f"{_name(file, package)}:{imported.line}: {complaint}")
    return found


def circular_imports(package: Path) -> list[str]:
    """Return the circles among the parts of each folder. A part is a module or a folder; imports for types count."""
    found = []
    names = {file: list(_imported_names(file, package)) for file in package.rglob("*.py")}
    for folder in sorted(path for path in package.rglob("*") if path.is_dir()):
        inside = [PACKAGE, *folder.relative_to(package).parts]
        imports = {
            file: {module[len(inside)] for module in names[file] if module[: len(inside)] == inside}
            for file in names
            if folder in file.parents
        }
        graph: dict[str, set[str]] = {}
        for file, targets in imports.items():
            graph.setdefault(_part(file, folder), set()).update(targets)
        parts = set(graph)
        sorter = TopologicalSorter({part: (targets & parts) - {part} for part, targets in graph.items()})
        try:
            sorter.prepare()
        except CycleError as error:
            found.append(f"{_name(folder, package)}:1: its parts import each other: {' -> '.join(error.args[1])}")
    return found


def _imported_names(file: Path, package: Path) -> Iterator[list[str]]:
    """Yield the parts of each dotted name that the file may import from the package."""
    for node in ast.walk(tree_of(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ([*alias.name.split("."), ""] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ([*_absolute(node, file, package).split("."), alias.name] for alias in node.names)


def registration_hooks(package: Path) -> list[str]:
    """Functions of the engine that replace a global of it: the engine gets values and objects, in its arguments."""
    return [
        f"{_name(file, package)}:{node.lineno}: a function replaces {', '.join(node.names)}: pass it as an argument"
        for file in sorted(package.glob("engine/**/*.py"))
        for node in ast.walk(tree_of(file.read_text()))
        if isinstance(node, ast.Global)
    ]


HOOKED_FILES = {"django_fairque/engine/model/ids.py", "django_fairque/worker/common/process_copies.py"}


def fork_hooks(package: Path) -> list[str]:
    """Hooks of forks outside of the modules for them: forks that C code makes, as uWSGI does, call no hook."""
    return [
        f"{_name(file, package)}:{node.lineno}: forks of C code call no hook: use PerProcess (engine/model/ids.py)"
        for file in sorted(package.rglob("*.py"))
        if _name(file, package) not in HOOKED_FILES
        for node in ast.walk(tree_of(file.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "register_at_fork"
    ]


def long_files(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*")):
        if file.suffix in COUNTED_SUFFIXES and _name(file, package) not in GENERATED_FILES:
            lines = len(file.read_text().splitlines())
            if lines > MAX_LINES:
                found.append(f"{_name(file, package)}:{lines}: longer than {MAX_LINES} lines: split it by purpose")
    return found


def swallowed_exceptions(package: Path) -> list[str]:
    """Handlers of every exception that do nothing about it."""
    return [
        f"{_name(file, package)}:{node.lineno}: any exception is swallowed: name the one that is expected"
        for file in sorted(package.rglob("*.py"))
        for node in ast.walk(tree_of(file.read_text()))
        if isinstance(node, ast.ExceptHandler) and _catches_all(node) and all(map(_does_nothing, node.body))
    ]


def shadowing_comprehensions(package: Path) -> list[str]:
    """Variables of a comprehension with the name of an import that another comprehension of the function uses.

    In Python 3.12.1 the second one raises `UnboundLocalError`.
    """
    found = []
    for file in sorted(package.rglob("*.py")):
        tree = tree_of(file.read_text())
        imported = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            names = [
                _names_in(node)
                for node in ast.walk(function)
                if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp)
            ]
            shadowing = imported & {name for stored, _ in names for name in stored}
            shadowed = sorted(name for name in shadowing if any(name in loaded - stored for stored, loaded in names))
            found += [f"{_name(file, package)}:{function.lineno}: rename the variable {name!r}" for name in shadowed]
    return found


def _names_in(comprehension: ast.expr) -> tuple[set[str], set[str]]:
    names = [node for node in ast.walk(comprehension) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return stored, {node.id for node in names}


def unsorted_exports(package: Path) -> list[str]:
    """`__all__` in another order than constants, classes, the rest, each by name (the linter's order)."""
    found = []
    for file in sorted(package.rglob("*.py")):
        for node in tree_of(file.read_text()).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _target_name(node) == "__all__" and node.value:
                names: list[str] = list(ast.literal_eval(node.value))
                if names != sorted(set(names), key=_export_key):
                    found.append(f"{_name(file, package)}:{node.lineno}: __all__ is not sorted, or repeats a name")
    return found


FORBIDDEN_IN_LUA = {
    r"\b(?:redis|server)\.pcall\b": "an error caught inside a script leaves half a change: let it fail, check before",
    r"\bcjson\b": "it changes numbers and empty lists: payloads are opaque to scripts",
    r"\bcmsgpack\b": "payloads are opaque to scripts",
    r"\bcall\s*\(\s*[\"'](?i:keys|scan)[\"']": "a script's work is bounded: it never looks through the keyspace",
}


ALLOWED_IN_LUA = {"local reply = redis.pcall(command, key, ...)"}
"""One call on one key, whose error is looked at in the next line: ``attempt`` in ``lib/calls.lua``."""


def forbidden_lua(package: Path) -> list[str]:
    found = []
    for file in sorted(package.rglob("*.lua")):
        for number, line in enumerate(_without_comments(file.read_text()).splitlines(), 1):
            for pattern, reason in FORBIDDEN_IN_LUA.items():
                if line.strip() in ALLOWED_IN_LUA:
                    continue
                if match := re.search(pattern, line):
                    found.append(f"{_name(file, package)}:{number}: {match[0]}: {reason}")
    return found


def _complaint(part: str, imported: Import) -> str | None:
    if imported.module.split(".")[0] in {"django", "django_redis"}:
        if part in WITHOUT_DJANGO:
            return f"{part} knows no Django, but imports {imported.module}"
        if part in DJANGO_ONLY_IN_FUNCTIONS and imported.at_once:
            return f"{part} imports {imported.module} at once, not inside the function that needs it"
    if imported.module.split(".")[0] != PACKAGE:
        return None
    target = imported.module.split(".")[1] if "." in imported.module else "__init__"
    if target != part and LAYERS.get(target, 99) >= LAYERS[part]:
        return f"{part} (layer {LAYERS[part]}) imports {imported.module} (layer {LAYERS.get(target, 'unknown')})"
    return None


def _imports(tree: ast.Module, file: Path, package: Path) -> Iterator[Import]:
    at_once = {id(node) for node in _run_at_once(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in at_once)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, file, package)
            # `from package import part` names a part, `from package.part import name` is in one already.
            names = [f"{base}.{alias.name}" for alias in node.names] if base == PACKAGE else [base]
            for module in names:
                known = base != PACKAGE or module.split(".")[1] in LAYERS
                yield Import(module if known else base, node.lineno, id(node) in at_once)


def _run_at_once(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that run when the module is imported."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if not _runs_later(node):
            yield node
            nodes += ast.iter_child_nodes(node)


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _absolute(node: ast.ImportFrom, file: Path, package: Path) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *file.relative_to(package).parent.parts]
    return ".".join([*here[: len(here) - node.level + 1], *([node.module] if node.module else [])])


def _catches_all(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"} for kind in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass | ast.Continue) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _export_key(name: str) -> tuple[int, str]:
    if len(name) > 1 and name.isupper():
        return 0, name
    return (1, name) if name[:1].isupper() else (2, name)


def _target_name(node: ast.Assign | ast.AnnAssign) -> str:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return target.id if isinstance(target, ast.Name) else ""


def _without_comments(lua: str) -> str:
    """Blank the comments out, keeping the line numbers. (A `--` inside a string is taken for one as well.)"""
    lua = re.sub(r"--\[(=*)\[.*?\]\1\]", lambda match: "\n" * match[0].count("\n"), lua, flags=re.DOTALL)
    return re.sub(r"--.*", "", lua)


def _part(file: Path, package: Path) -> str:
    return file.relative_to(package).with_suffix("").parts[0]


def _name(file: Path, package: Path) -> str:
    return f"{package.name}/{file.relative_to(package).as_posix()}"
