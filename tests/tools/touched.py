"""Run the tests for the functions and files that a change touches.

``python -m tests.tools.touched [--since COMMIT] [--list] [PYTEST OPTION ...]`` compares the working tree with COMMIT (``HEAD``
by default) and runs, in this order:

1. test files that have changed;
2. test files that import a changed module and name a function, class or constant whose lines have changed;
3. test files that only import a changed module, or have its name in the same folder of tests;
4. test files with the name of a module that imports a changed one and names what has changed.

The first `MOST_FILES` run, the others are printed: a run of a small change takes less than two minutes.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
PACKAGE = "django_fairque"
MOST_FILES = 12
NO_PYTHON = {
    "django_fairque/engine/lua/": ("tests/engine/scripting", "tests/engine/leasing", "tests/engine/pushing"),
    "django_fairque/templates/": ("tests/admin/test_pages.py", "tests/admin/test_hostile_text.py"),
    "django_fairque/static/": ("tests/admin/test_static_files.py",),
    "django_fairque/locale/": ("tests/test_translation.py",),
    "docs/": ("tests/docs", "tests/test_documented_interfaces.py"),
    "README.md": ("tests/test_readme.py", "tests/test_packaging.py"),
    ".ci/": ("tests/test_build.py",),
    ".github/": ("tests/test_build.py",),
}
"""Tests of files that no test imports, by the beginning of their path."""


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def changed_lines(commit: str) -> dict[str, set[int]]:
    """Return the numbers of the changed lines of each file that differs from a commit; all lines of a new file."""
    lines: dict[str, set[int]] = {}
    path = ""
    for line in git("diff", "--unified=0", "--no-renames", commit).splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif line.startswith("--- "):
            path = line.removeprefix("--- ").removeprefix("a/")
        elif hunk := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + max(count, 1)))
    for path in git("ls-files", "--others", "--exclude-standard").splitlines():
        lines[path] = set(range(1, len((ROOT / path).read_bytes().splitlines()) + 1))
    return {path: numbers for path, numbers in lines.items() if path != "/dev/null"}


def changed_names(source: str, lines: set[int]) -> set[str]:
    """Return the functions, classes and module variables of a module that have a line among ``lines``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if lines.intersection(range(node.lineno, (node.end_lineno or node.lineno) + 1)):
                names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.lineno in lines:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return {name for name in names if not name.startswith("__")}


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def imports_of(path: str) -> set[str]:
    """Return the modules of the package that a module imports, at its beginning or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = list(Path(path).parts[: -node.level]) if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found.add(module)
            found.update(f"{module}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith(PACKAGE)}


def expand(places: Iterable[str]) -> list[str]:
    """Return the test files among files and folders."""
    files: list[str] = []
    for place in places:
        path = ROOT / place
        files += [str(file.relative_to(ROOT)) for file in sorted(path.rglob("test_*.py"))] or [place]
    return [file for file in files if (ROOT / file).is_file()]


def users_of(changed: dict[str, set[str]]) -> list[str]:
    """Return the modules of the package that import a changed module and name one of its changed names."""
    users = []
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        source = file.read_text()
        path = str(file.relative_to(ROOT))
        for module, names in changed.items():
            if any(re.search(rf"\b{re.escape(name)}\b", source) for name in names) and module in imports_of(path):
                users.append(path)
    return users


def find_tests(lines: dict[str, set[int]]) -> list[str]:
    """Return the test files for changed lines, those of which a change is most likely noticed first."""
    first = [path for path in lines if Path(path).name.startswith("test_") and (ROOT / path).exists()]
    second: list[str] = []
    third: list[str] = []
    changed: dict[str, set[str]] = {}
    modules = {path: module_of(path) for path in lines if path.startswith(PACKAGE) and path.endswith(".py")}
    sources = {file: (ROOT / file).read_text() for file in expand(["tests"])}
    imports = {file: imports_of(file) for file in sources}
    for path, module in modules.items():
        names = changed_names((ROOT / path).read_text(), lines[path]) if (ROOT / path).exists() else set()
        changed[module] = names
        folder = f"tests/{Path(path).parent.relative_to(PACKAGE)}/"
        for file, source in sources.items():
            mentions = any(re.search(rf"\b{re.escape(name)}\b", source) for name in names)
            is_neighbor = file.startswith(folder) and folder != "tests/./"
            if (module in imports[file] or is_neighbor) and mentions:
                second.append(file)
            elif module in imports[file] or (is_neighbor and Path(path).stem in Path(file).stem):
                third.append(file)
    for user in users_of(changed):
        third += expand([f"tests/{Path(user).parent.relative_to(PACKAGE)}/test_{Path(user).stem}.py"])
    for path in lines:
        for beginning, places in NO_PYTHON.items():
            if path.startswith(beginning) and path not in modules:
                third += expand(places)
    return list(dict.fromkeys([*first, *second, *third]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.touched", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="what to compare with (default: HEAD)")
    parser.add_argument("--list", action="store_true", help="print the test files and run none")
    options, rest = parser.parse_known_args()
    files = find_tests(changed_lines(options.since))
    if not files:
        print("no test is known for this change: run the folder of the tests yourself")
        return 1
    chosen, others = files[:MOST_FILES], files[MOST_FILES:]
    print("\n".join(chosen), flush=True)
    if others:
        print(f"not run, also of this change: {' '.join(others)}", flush=True)
    if options.list:
        return 0
    os.chdir(ROOT)
    return subprocess.run([sys.executable, "-m", "pytest", "-n", "auto", "-q", *chosen, *rest], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
