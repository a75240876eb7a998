"""Every message that the package can say: what its errors tell, and what it logs as a warning or worse.

``python -m tests.tools.messages`` writes docs/contributing/messages.md anew; a test says when that is due.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from tests.docs.blocks import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = ROOT / "django_fairque"
PAGE = DOCS / "contributing" / "messages.md"
LEVELS = {"warning": "WARNING", "error": "ERROR", "exception": "ERROR", "critical": "CRITICAL"}
MODULES = ("django_fairque.engine.model.errors", "django_fairque.tasks.errors", "django.core.management.base")
NOT_FOR_USERS = {"AssertionError", "AttributeError", "ImportError", "NotImplementedError"}
LEAST_WORDS = 3

INTRODUCTION = """# Messages

Every error text and every log line from WARNING on, to search in; `…` stands for what differs. Most say themselves what was
expected, what came and what to do; [log messages](log-messages.md) and
[troubleshooting](../guides/troubleshooting.md) explain those that need it. (This page is made from the source.)
"""


@dataclass(frozen=True, order=True)
class Message:
    kind: str
    """The name of the error's class, or the level of the line."""
    text: str

    @property
    def is_logged(self) -> bool:
        return self.kind in LEVELS.values()


@cache
def messages() -> list[Message]:
    found: set[Message] = set()
    for file in PACKAGE.rglob("*.py"):
        module = ast.parse(file.read_text())
        constants = _constants(module)
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                found.update(_said_by(node, constants))
    return sorted(found)


def _constants(module: ast.Module) -> dict[str, str]:
    """The texts that have a name in the module."""
    assigned = [each for each in module.body if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)]
    return {ast.unparse(each.targets[0]): text for each in assigned if (text := _text(each.value))}


def _said_by(call: ast.Call, constants: dict[str, str]) -> Iterator[Message]:
    name = ast.unparse(call.func).split(".")
    text = next((text for each in call.args if (text := _text(each) or constants.get(ast.unparse(each), ""))), "")
    if len(text.replace("…", "").split()) < LEAST_WORDS:
        return
    if "log" in "".join(name[:-1]).lower() and name[-1] in LEVELS:
        yield Message(LEVELS[name[-1]], re.sub(r"%[-.\w]*[a-z]", "…", text))
    elif re.fullmatch(r"[A-Z]\w*Error|Discard", name[-1]) and name[-1] not in NOT_FOR_USERS:
        yield Message(name[-1], text)


def _text(node: ast.expr) -> str:
    """A text as far as it stands in the source, what is filled in as ``…``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        parts = (str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
        return "".join(parts)
    return ""


def page() -> str:
    """docs/contributing/messages.md as it ought to be."""
    found = messages()
    kinds = sorted({each.kind for each in found}, key=lambda kind: (kind not in LEVELS.values(), kind))
    sections = [INTRODUCTION]
    for kind in kinds:
        lines = "\n".join(each.text for each in found if each.kind == kind)
        sections.append(f"## {kind}\n\n{_about(kind)}```text\n{lines}\n```\n")
    return "\n".join(sections)


def _about(kind: str) -> str:
    """The first sentence of what its class says of itself."""
    if kind in LEVELS.values():
        return "Log lines of this level.\n\n"
    for module in MODULES:
        if hasattr(import_module(module), kind):
            text = inspect.getdoc(getattr(import_module(module), kind)) or ""
            return re.split(r"(?<=\.)\s", text.replace("``", "`"))[0].replace("\n", " ") + "\n\n"
    return "" if not hasattr(builtins, kind) else "Python's own.\n\n"


if __name__ == "__main__":
    PAGE.write_text(page())
