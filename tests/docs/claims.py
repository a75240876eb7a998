"""The rows of claims.md, and the change of the code that makes each claim false (claim_changes.yaml)."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.docs.blocks import ROOT

PAGE = Path(__file__).parent / "claims.md"
CHANGES = Path(__file__).parent / "claim_changes.yaml"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Change:
    """A text of a file of the package, and the text that replaces it."""

    file: str
    before: str
    after: str

    def count(self, root: Path = ROOT) -> int:
        """Return how often the text is in its file."""
        return (root / self.file).read_text(encoding="utf-8").count(self.before)

    def apply(self, root: Path) -> str:
        """Replace the text in a copy of the checkout. Return what the file had before."""
        file = root / self.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")
        return text


@dataclass(frozen=True)
class Claim:
    text: str
    page: str
    tests: str
    """The cell of the table."""

    @property
    def named_tests(self) -> list[tuple[str, str]]:
        """The files below ``tests`` and the functions that the cell names."""
        return re.findall(r"`([\w/]+\.py)::(test_\w+)`", self.tests)

    @property
    def test_ids(self) -> list[str]:
        """The named tests as pytest's arguments, which also have the classes. Raises `LookupError` if one does not exist."""
        return [find_test(f"tests/{file}", function) for file, function in self.named_tests]


def find_test(file: str, function: str) -> str:
    module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for node in (module, *module.body):
        if any(isinstance(one, FUNCTIONS) and one.name == function for one in getattr(node, "body", ())):
            return "::".join((file, *([node.name] if isinstance(node, ast.ClassDef) else []), function))
    raise LookupError(f"{file} has no test {function}")


def read_claims() -> list[Claim]:
    rows = re.findall(r"^\| (.+) \| \[\w+\]\((\S+)\) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Claim(*row) for row in rows]


def read_changes() -> dict[str, Change]:
    """Return the change of each claim, by the claim's text."""
    found = yaml.safe_load(CHANGES.read_text(encoding="utf-8"))
    return {claim: Change(**change) for claim, change in found.items()}
