"""All messages of the package: the texts of its errors, and its log lines from WARNING on.

Two pages are completed from here, by the build of the site, by the build of the wheel (``.ci/hatch_build.py``), and by
``manage.py fairque_docs`` in a checkout: ``contributing/messages.md`` from the source, and ``contributing/log-messages.md`` from
the explanations in ``log_messages.md``. The wheel is built without the package's dependencies, so this module imports only the
standard library.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent.parent / "django_fairque"
EXPLANATIONS = HERE / "log_messages.md"
MESSAGES_MARK = "<!-- generated: messages -->\n"
EXPLANATIONS_MARK = "<!-- generated: explanations of log lines -->\n"
LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
OF_OTHERS = {"CommandError": "Django's error of a management command."}
NOT_FOR_USERS = {"AssertionError", "AttributeError", "ImportError", "NotImplementedError"}
LEAST_WORDS = 3


class Message(NamedTuple):
    kind: str
    """The name of the error's class, or the level of the line."""
    text: str

    @property
    def is_logged(self) -> bool:
        return self.kind in LEVELS.values()


def complete_messages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Complete a page before Sphinx reads it."""
    source[0] = completed(source[0])


def completed(page: str) -> str:
    """Return a page with the generated part in the place of its mark. Other pages are returned unchanged."""
    if MESSAGES_MARK in page:
        return page.replace(MESSAGES_MARK, messages_by_kind())
    if EXPLANATIONS_MARK in page:
        # Links of the explanations lead from their own folder.
        return page.replace(EXPLANATIONS_MARK, EXPLANATIONS.read_text(encoding="utf-8").replace("](../../", "](../"))
    return page


def messages_by_kind() -> str:
    """Return a section for each level of log lines, and for each class of errors."""
    found = messages()
    kinds = sorted({message.kind for message in found}, key=lambda kind: (kind not in LEVELS.values(), kind))
    sections = []
    for kind in kinds:
        lines = "\n".join(message.text for message in found if message.kind == kind)
        sections.append(f"## {kind}\n\n{_description(kind)}```text\n{lines}\n```\n")
    return "\n".join(sections)


@cache
def messages() -> list[Message]:
    """Return the messages of the package, sorted, with ``…`` for the parts that vary."""
    found: set[Message] = set()
    for module in _modules():
        constants = _constants(module)
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                found.update(_messages_of_call(node, constants))
    return sorted(found)


@cache
def _modules() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py")))


def _constants(module: ast.Module) -> dict[str, str]:
    """Return the texts that have a name in the module."""
    assigned = [node for node in module.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    return {ast.unparse(node.targets[0]): text for node in assigned if (text := _text(node.value))}


def _messages_of_call(call: ast.Call, constants: dict[str, str]) -> Iterator[Message]:
    name = ast.unparse(call.func).split(".")
    texts = (_text(argument) or constants.get(ast.unparse(argument), "") for argument in call.args)
    text = next(filter(None, texts), "")
    if len(text.replace("…", "").split()) < LEAST_WORDS:
        return
    if "log" in "".join(name[:-1]).lower() and name[-1] in LEVELS:
        yield Message(LEVELS[name[-1]], re.sub(r"%[-.\w]*[a-z]", "…", text))
    elif re.fullmatch(r"[A-Z]\w*Error|Discard", name[-1]) and name[-1] not in NOT_FOR_USERS:
        yield Message(name[-1], text)


def _text(node: ast.expr) -> str:
    """Return the text of a literal, with ``…`` for the values that are filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
        return "".join(parts)
    return ""


def _description(kind: str) -> str:
    """Return the first sentence of the docstring of an error's class."""
    if kind in LEVELS.values():
        return "Log lines of this level.\n\n"
    text = _docstrings().get(kind) or OF_OTHERS.get(kind, "")
    if text:
        return re.split(r"(?<=\.)\s", text.replace("``", "`"))[0].replace("\n", " ") + "\n\n"
    return "An error of Python itself.\n\n" if hasattr(builtins, kind) else ""


@cache
def _docstrings() -> dict[str, str]:
    """Return the docstrings of the package's classes of errors."""
    classes = [node for module in _modules() for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
    return {node.name: ast.get_docstring(node) or "" for node in classes}
