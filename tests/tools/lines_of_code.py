"""Count lines of code: lines with a token that is no comment and no docstring. Docstrings of attributes are docstrings.

``python -m tests.tools.lines_of_code [FOLDER]`` prints the lines of each part of the package, and of the tests.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

PACKAGE = "django_fairque"
GENERATED = {"engine/queue/async_queue.py"}
"""Written by a program from other files, so it is not counted."""
PARTS = {
    "core": ("engine", "tasks", "conf", "worker", "outbox", "events"),
    "admin": ("admin", "templatetags"),
    "management": ("management",),
    "monitoring, web, integrations": ("monitoring", "web", "integrations"),
    "backends, testing, checks, embedded": ("backends", "testing", "checks", "embedded"),
}
"""The folders of each part. All other modules of Python belong to the package's root, and all of Lua to one part."""
PROGRAMS = {"lab", "tools"}
"""Folders among the tests with benchmarks, campaigns and generators."""
ROOT_PART, LUA_PART = "package root", "Lua"
WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def count_python(source: str) -> int:
    """Return the number of lines of code in a module."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count_lua(source: str) -> int:
    """Return the number of lines with code in a script."""
    without = re.sub(r"--\[(=*)\[.*?\]\1\]", "", source, flags=re.DOTALL)
    return sum(bool(re.sub(r"^#!.*|--.*", "", line).strip()) for line in without.splitlines())


def part_of(path: Path) -> str:
    """Return the part that a file of the package belongs to; ``path`` is relative to the package."""
    if path.suffix == ".lua":
        return LUA_PART
    return next((part for part, folders in PARTS.items() if path.parts[0] in folders), ROOT_PART)


def count_parts(package: Path) -> dict[str, int]:
    """Return the lines of code of each part of the package in this folder."""
    counts = dict.fromkeys([*PARTS, ROOT_PART, LUA_PART], 0)
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.lua")]):
        path = file.relative_to(package)
        if path.as_posix() not in GENERATED:
            counter = count_lua if file.suffix == ".lua" else count_python
            counts[part_of(path)] += counter(file.read_text())
    return counts


def count_tests(folder: Path) -> int:
    """Return the lines of code of the tests in this folder. Programs in `PROGRAMS` don't count, their tests do."""
    return sum(
        count_python(file.read_text())
        for file in folder.rglob("*.py")
        if file.relative_to(folder).parts[0] not in PROGRAMS or file.name.startswith("test_")
    )


if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    counts = {**count_parts(root / PACKAGE), "tests": count_tests(root / "tests")}
    sys.stdout.write("".join(f"{lines:7,}  {part}\n" for part, lines in counts.items()))
