"""Generate the asynchronous classes of the engine from the synchronous ones: ``python -m tests.tools.async_classes [--check]``.

`FairQueue` and its parts differ from `AsyncFairQueue` only by ``async``, ``await`` and names. So each class ``AsyncX`` is
written from the source of ``X`` (`CLASSES`), with its annotations and docstrings, all of them into one module (`GENERATED`).
``--check`` writes nothing, and exits with 1 if a class is not up to date.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PACKAGE = Path(__file__).parents[2] / "django_fairque"
GENERATED = PACKAGE / "engine/queue/async_queue.py"
CLASSES = {
    "FairQueue": "engine/queue/queue.py",
    "DeadLetterQueue": "engine/dead_letters/dead_letters.py",
    "Schedules": "engine/schedules/schedules.py",
    "UserQueue": "engine/users/users.py",
    "OrganizationQueue": "engine/users/organizations.py",
    "LimitQueue": "engine/limits/limits.py",
    "XCom": "engine/dependencies/dependencies.py",
    "TaskLogs": "engine/inspection/task_logs.py",
    "Incidents": "engine/statistics/incidents.py",
    "Acts": "engine/acts/acts.py",
}
"""Each synchronous class with the module in which it is."""
HEAD = '''"""`AsyncFairQueue` and its parts, generated from the synchronous classes by python -m tests.tools.async_classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

'''
AWAITED_CALLBACKS = frozenset({"_run", "_read_all_shards", "_write_all_shards", "send"})
"""Methods, functions and attributes whose calls are awaited, besides the methods that await something themselves."""
NAMES = {
    **{name: f"Async{name}" for name in CLASSES},
    **{name: f"Async{name}" for name in ("Driver", "AllShardsReader", "AllShardsWriter", "Transport")},
    "SyncClient": "AsyncClient",
    "create_redis_client": "create_async_redis_client",
}
TEXTS = {
    "a ``redis.Redis`` or ``RedisCluster`` client": "a client of ``redis.asyncio``",
    "Thread-safe; holds": "Every method is a coroutine. It holds",
    "is_awaited=False": "is_awaited=True",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.async_classes", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a class is not up to date")
    before, after = GENERATED.read_text(), generated()
    if not parser.parse_args().check:
        GENERATED.write_text(after)
    elif before != after:
        sys.stdout.writelines(
            difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), str(GENERATED))
        )
        sys.exit(
            "run python -m tests.tools.async_classes: an asynchronous class is not what its synchronous class says"
        )


def generated() -> str:
    """The text that the module of the asynchronous classes should have."""
    names, sources = Names(), []
    for name, file in CLASSES.items():
        text = (PACKAGE / file).read_text()
        names.add(ast.parse(text), name, file)
        sources.append(async_source(text, name, names.prefixes(file)))
    return _formatted("\n\n".join([HEAD + _renamed(names.imports()), *names.variables, *sources]))


class Names:
    """The names that the classes use from their modules: imports, type variables, and definitions of the module.

    Classes of the module are imported by name, functions get a prefix, `prefixes`, because modules may define the same name.
    """

    def __init__(self) -> None:
        self.variables: dict[str, None] = {}
        self._at_once: dict[str, str] = {}
        self._for_types: dict[str, str] = {}
        self._own: dict[str, dict[str, str]] = {}

    def add(self, module: ast.Module, name: str, file: str) -> None:
        used = {used_name.id for used_name in _global_names(_class(module, name))} - CLASSES.keys()
        own = self._own[file] = {}
        package, _, stem = f"django_fairque/{file.removesuffix('.py')}".replace("/", ".").rpartition(".")
        prefix = f"sync_{stem}"
        for node in module.body:
            if isinstance(node, ast.ImportFrom):
                self._import(self._at_once, node, used)
            elif isinstance(node, ast.If):
                for statement in node.body:
                    self._import(self._for_types, statement, used)
            elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar("):
                self.variables.update(dict.fromkeys([ast.unparse(node)] if _defined(node) & used else []))
            elif isinstance(node, ast.ClassDef):
                if node.name in used:
                    self._note(self._at_once, node.name, f"from {package}.{stem} import {node.name}")
            else:
                own.update((defined, f"{prefix}.") for defined in _defined(node) & used)
        if own:
            self._note(self._at_once, prefix, f"from {package} import {stem} as {prefix}")

    def _import(self, into: dict[str, str], node: ast.stmt, used: set[str]) -> None:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            if (alias.asname or alias.name) in used:
                only = ast.ImportFrom(node.module, [alias], node.level)
                self._note(into, alias.asname or alias.name, ast.unparse(only))

    def _note(self, into: dict[str, str], name: str, statement: str) -> None:
        other = self._at_once.get(name) or self._for_types.get(name)
        if other not in (None, statement):
            raise ValueError(f"{name} has two meanings: {other}; {statement}")
        into[name] = statement

    def prefixes(self, file: str) -> dict[str, str]:
        """The prefix of each name that a module defines and its class uses."""
        return self._own[file]

    def imports(self) -> str:
        for_types = [statement for name, statement in self._for_types.items() if name not in self._at_once]
        return "\n".join([*self._at_once.values(), "if TYPE_CHECKING:", *(f"    {line}" for line in for_types)])


def _global_names(found: ast.ClassDef) -> Iterator[ast.Name]:
    """Where a class uses names other than the arguments and variables of the method."""
    for part in [*found.bases, *found.body]:
        names = [node for node in ast.walk(part) if isinstance(node, ast.Name)]
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        local |= {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}
        yield from (node for node in names if node.id not in local)


def _defined(node: ast.stmt) -> set[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def async_source(module: str, name: str, prefixes: Mapping[str, str] = MappingProxyType({})) -> str:
    """The source of the asynchronous twin of a class in this module. ``prefixes`` are put before names that it uses."""
    found = _class(ast.parse(module), name)
    source = "\n".join(module.splitlines()[found.lineno - 1 : found.end_lineno]) + "\n"
    tree = ast.parse(source)
    inserted = [
        (used_name.lineno, used_name.col_offset, prefixes[used_name.id])
        for used_name in _global_names(_class(tree, name))
        if used_name.id in prefixes
    ]
    for function in _async_methods(_class(tree, name)):
        inserted.append((function.lineno, function.col_offset, "async "))
        for call, needs_parentheses in _awaited_calls(function, _awaited_names(_class(tree, name))):
            assert call.end_lineno is not None
            assert call.end_col_offset is not None
            inserted.append((call.lineno, call.col_offset, "(await " if needs_parentheses else "await "))
            if needs_parentheses:
                inserted.append((call.end_lineno, call.end_col_offset, ")"))
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for line, column, text in sorted(inserted, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + text.encode() + lines[line - 1][column:]
    head, body = b"".join(lines).decode().split(":\n", 1)
    return _renamed(f"{head}:\n    # Generated from ORIGINAL by python -m tests.tools.async_classes.\n{body}").replace(
        "ORIGINAL", f"`{name}`", 1
    )


def _renamed(source: str) -> str:
    for before, after in TEXTS.items():
        source = source.replace(before, after)
    return re.sub(rf"\b({'|'.join(NAMES)})\b", lambda match: NAMES[match[1]], source)


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _async_methods(found: ast.ClassDef) -> list[ast.FunctionDef]:
    names = _awaited_names(found)
    return [statement for statement in found.body if isinstance(statement, ast.FunctionDef) and statement.name in names]


def _awaited_names(found: ast.ClassDef) -> frozenset[str]:
    """`AWAITED_CALLBACKS`, and the methods that await one of these or each other."""
    methods = [statement for statement in found.body if isinstance(statement, ast.FunctionDef)]
    names = AWAITED_CALLBACKS
    while True:
        more = {method.name for method in methods if any(True for _ in _awaited_calls(method, names))} - names
        if not more:
            return frozenset(names)
        names = names | more


def _awaited_calls(function: ast.FunctionDef, names: frozenset[str]) -> list[tuple[ast.Call, bool]]:
    """Calls to await, and whether parentheses are needed. Not those in lambdas, which run elsewhere."""
    calls: list[tuple[ast.Call, bool]] = []

    def visit(node: ast.AST, parent: ast.AST | None) -> None:
        if isinstance(node, (ast.Lambda, ast.FunctionDef)) and node is not function:
            return
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_own(node.func)
            and node.func.attr in names
        ):
            calls.append((node, isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node))
        for child in ast.iter_child_nodes(node):
            visit(child, node)

    visit(function, None)
    return calls


def _is_own(function: ast.Attribute) -> bool:
    """Whether it is called on the object, on something that it has, or on the module of nodes."""
    value = function.value
    while isinstance(value, ast.Attribute):
        value = value.value
    return isinstance(value, ast.Name) and value.id in ("self", "nodes")


def _formatted(text: str) -> str:
    for arguments in (["check", "--select", "I,TC", "--fix", "--unsafe-fixes"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--quiet", "--stdin-filename", str(GENERATED), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    main()
