"""Generate the asynchronous classes of the engine from the synchronous ones: ``python -m tests.async_classes [--check]``.

`FairQueue` and its parts differ from `AsyncFairQueue` only by ``async``, ``await`` and names. So each class ``AsyncX`` is
written from the source of ``X`` (`CLASSES`), with its annotations and docstrings. ``--check`` writes nothing,
and exits with 1 if a class is not up to date.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "django_fairque"


class AsyncClass(NamedTuple):
    """A class, the module in which it is, and the module in which its asynchronous twin is."""

    name: str
    module: str
    written_to: str


CLASSES = (
    AsyncClass("FairQueue", "engine/queue/queue.py", "engine/queue/async_queue.py"),
    AsyncClass("DeadLetterQueue", "engine/dead_letters/facade.py", "engine/dead_letters/facade.py"),
    AsyncClass("Schedules", "engine/schedules/schedules.py", "engine/schedules/schedules.py"),
    AsyncClass("UserQueue", "engine/users/users.py", "engine/users/users.py"),
    AsyncClass("OrganizationQueue", "engine/users/organizations.py", "engine/users/organizations.py"),
    AsyncClass("XCom", "engine/dependencies/xcom.py", "engine/dependencies/xcom.py"),
)
AWAITED_CALLBACKS = frozenset({"_run", "_read_all_shards", "_write_all_shards", "send", "recheck_nodes"})
"""Methods, functions and attributes whose calls are awaited, besides the methods that await something themselves."""
NAMES = {
    **{each.name: f"Async{each.name}" for each in CLASSES},
    **{name: f"Async{name}" for name in ("Driver", "AllShardsReader", "AllShardsWriter", "Transport")},
    "SyncClient": "AsyncClient",
    "create_redis_client": "create_async_redis_client",
    "recheck_nodes": "recheck_nodes_async",
}
TEXTS = {
    "a ``redis.Redis`` or ``RedisCluster`` client": "a client of ``redis.asyncio``",
    "Thread-safe; holds": "Every method is a coroutine. It holds",
    "is_awaited=False": "is_awaited=True",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.async_classes", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a class is not up to date")
    is_check = parser.parse_args().check
    outdated = {path: text for path, text in generated().items() if text != path.read_text()}
    for path, text in outdated.items():
        if is_check:
            sys.stdout.writelines(
                difflib.unified_diff(
                    path.read_text().splitlines(keepends=True), text.splitlines(keepends=True), str(path)
                )
            )
        else:
            path.write_text(text)
    if is_check and outdated:
        sys.exit("run python -m tests.async_classes: an asynchronous class is not what its synchronous class says")


def generated() -> dict[Path, str]:
    """The text that each module with an asynchronous class should have."""
    texts: dict[Path, str] = {}
    for each in CLASSES:
        module = (PACKAGE / each.module).read_text()
        source = async_source(module, each.name)
        target = PACKAGE / each.written_to
        if each.written_to == each.module:
            texts[target] = _replace_class(texts.get(target, module), f"Async{each.name}", source)
        else:
            texts[target] = _module(module, each.name, source)
    return {path: _formatted(path, text) for path, text in texts.items()}


def async_source(module: str, name: str) -> str:
    """The source of the asynchronous twin of a class in this module."""
    found = _class(ast.parse(module), name)
    source = "\n".join(module.splitlines()[found.lineno - 1 : found.end_lineno]) + "\n"
    tree = ast.parse(source)
    inserted: list[tuple[int, int, str]] = []
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
    return _renamed(f"{head}:\n    # Generated from ORIGINAL by python -m tests.async_classes.\n{body}").replace(
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
    return [each for each in found.body if isinstance(each, ast.FunctionDef) and each.name in names]


def _awaited_names(found: ast.ClassDef) -> frozenset[str]:
    """`AWAITED_CALLBACKS`, and the methods that await one of these or each other."""
    methods = [each for each in found.body if isinstance(each, ast.FunctionDef)]
    names = AWAITED_CALLBACKS
    while True:
        more = {each.name for each in methods if any(True for _ in _awaited_calls(each, names))} - names
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


def _module(module: str, name: str, source: str) -> str:
    """A module with nothing but this class, which imports what the module of its synchronous class does."""
    tree = ast.parse(module)
    imports = module.splitlines(keepends=True)[tree.body[0].end_lineno : _class(tree, name).lineno - 1]
    return f'"""`Async{name}`, generated from `{name}` by python -m tests.async_classes."""\n{_renamed("".join(imports))}{source}'


def _replace_class(module: str, name: str, source: str) -> str:
    lines = module.splitlines(keepends=True)
    found = _class(ast.parse(module), name)
    return "".join(lines[: found.lineno - 1]) + source + "".join(lines[found.end_lineno :])


def _formatted(path: Path, text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(path), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    main()
