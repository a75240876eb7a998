"""Measures of structure. Each function examines the package's source and returns its findings.

`test_conventions.py` compares the results with limits that may only fall.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tests.source_rules import tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = Path(__file__).parent.parent / "django_fairque"
NAME = PACKAGE.name

BANNED_WORDS = frozenset({"told", "said", "asked", "met", "heard", "beside"})
"""Words that no identifier may contain: they do not say what a thing is or does."""
BANNED_NAMES = frozenset({"each"})
"""Words that are no name alone: a loop variable is named after the thing, ``for task in tasks``."""

BANNED_PHRASES = (
    *sorted(BANNED_WORDS),
    *("tell", "tells", "whoever", "mend", "mended", "eldest"),
    *("a look", "so many", "of its own", "none of a cluster", "it lives", "had its turn", "whose work it is"),
)
"""Words and phrases of which texts have fewer each time: a standard word says the same and is understood at once."""
TEXT_KINDS = (".py", ".lua", ".html", ".md", ".txt", ".js", ".po")
DOCS, TESTS, CI = (PACKAGE.parent / name for name in ("docs", "tests", ".ci"))
ROOT_PAGES = ("CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the documentation that are at the root, where code hosts look for them."""


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of each module, by its dotted name; migrations are left out."""
    files = (file for file in sorted(PACKAGE.rglob("*.py")) if "migrations" not in file.parts)
    return {_module(file): tree_of(file.read_text()) for file in files}


def _module(file: Path) -> str:
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _is_folder(module: str) -> bool:
    return (PACKAGE.parent / module.replace(".", "/")).is_dir()


# --- imports ---


@cache
def imports() -> dict[str, set[str]]:
    """Which modules of the package each module imports: at the top, inside functions, and for types."""
    return {module: set(_imported_by(module, tree)) for module, tree in trees().items()}


def _imported_by(module: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in trees() and alias.name != module)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                target = f"{base}.{alias.name}" if f"{base}.{alias.name}" in trees() else base
                if target in trees() and target != module:
                    yield target


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".") if _is_folder(module) else module.split(".")[:-1]
    parts = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parts, *([node.module] if node.module else [])])


def import_cycles() -> list[list[str]]:
    """Groups of modules of which each imports, directly or through others, all others of its group."""
    graph = imports()
    reachable = {module: _reachable_from(module, graph) for module in graph}
    cycles: list[list[str]] = []
    seen: set[str] = set()
    for module in graph:
        if module in seen or module not in reachable[module]:
            continue
        group = sorted(member for member in reachable[module] if module in reachable[member])
        seen.update(group)
        cycles.append(group)
    return cycles


def _reachable_from(module: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        imported = waiting.pop()
        if imported not in found:
            found.add(imported)
            waiting.extend(graph[imported])
    return found


# --- folders and names ---


def modules_per_folder() -> dict[str, int]:
    """Count the modules that lie directly in each folder of the package, without ``__init__.py``."""
    files = (file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py" and "migrations" not in file.parts)
    return dict(Counter(file.parent.relative_to(PACKAGE.parent).as_posix() for file in files))


def classes_with_two_meanings() -> dict[str, list[str]]:
    """Names of classes that several modules define. Django's commands and checks are all called alike, and are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not (node.name == "Command" and ".commands." in module):
                found[node.name].append(module)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def constants_with_two_meanings() -> dict[str, list[str]]:
    """Names of public constants to which several modules assign."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, tree in trees().items():
        for name in sorted(set(_constants(tree))):
            found[name].append(module)
    return {name: modules for name, modules in sorted(found.items()) if len(modules) > 1}


def _constants(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", part.id):
                    yield part.id


def divided_classes() -> dict[str, str]:
    """Classes that a single other class extends, in another file: one class that is divided into two files."""
    where = {
        node.name: module for module, tree in trees().items() for node in tree.body if isinstance(node, ast.ClassDef)
    }
    uses: dict[str, set[str]] = defaultdict(set)
    extended: dict[str, set[str]] = defaultdict(set)
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for base in node.bases:
                    if isinstance(base, ast.Name) and base.id in where:
                        extended[base.id].add(f"{module}.{node.name}")
            elif isinstance(node, ast.Name) and node.id in where and where[node.id] != module:
                uses[node.id].add(module)
    return {
        name: next(iter(children))
        for name, children in sorted(extended.items())
        if len(children) == 1
        and (child_module := next(iter(children)).rsplit(".", 1)[0]) != where[name]
        and uses[name] <= {child_module}
    }


# --- words ---


def banned_identifiers() -> Counter[str]:
    """Count the identifiers of the package that contain a banned word, or are a banned name."""
    found: Counter[str] = Counter()
    for identifier, count in Counter(chain.from_iterable(map(_identifiers, trees().values()))).items():
        banned = [*BANNED_WORDS.intersection(identifier.lower().split("_")), *BANNED_NAMES & {identifier.strip("_")}]
        found.update(dict.fromkeys(banned, count))
    return found


def banned_names_outside_the_package() -> Counter[str]:
    """Count the identifiers that are a banned name, by folder: ``tests/engine``, ``.ci``."""
    found: Counter[str] = Counter()
    for file in (file for folder in (TESTS, CI) for file in folder.rglob("*.py")):
        folder = "/".join(file.relative_to(PACKAGE.parent).parts[:-1][:2])
        identifiers = (identifier.strip("_") for identifier in _identifiers(ast.parse(file.read_text())))
        found[folder] += sum(identifier in BANNED_NAMES for identifier in identifiers)
    return +found


def _identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg | ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.rsplit(".", 1)[-1]


def banned_phrases(folder: Path) -> Counter[str]:
    """Count each of `BANNED_PHRASES` in the texts and comments below a folder; in translations only the originals.
    The pages at the root belong to the documentation.
    """
    root_pages = [DOCS.parent / name for name in ROOT_PAGES] if folder == DOCS else []
    files = [file for file in [*root_pages, *folder.rglob("*")] if file.suffix in TEXT_KINDS]
    return sum((banned_phrases_in(file) for file in files if "migrations" not in file.parts), Counter())


def banned_phrases_in(file: Path) -> Counter[str]:
    """Count each of `BANNED_PHRASES` in a file. Spaces and line breaks are the same."""
    text = " ".join(file.read_text().lower().split())
    return +Counter({phrase: len(re.findall(rf"\b{phrase}\b", text)) for phrase in BANNED_PHRASES if phrase in text})


def user_pages() -> list[Path]:
    """The pages of the documentation that users read, with README; contributors' pages are in docs/contributing."""
    folders = [DOCS / name for name in ("guides", "explanation", "reference")]
    return [
        DOCS.parent / "README.md",
        *DOCS.glob("*.md"),
        *(page for folder in folders for page in folder.rglob("*.md")),
    ]


def names(found: Iterable[str]) -> str:
    """For messages."""
    return ", ".join(sorted(found)) or "none"
