"""The Python examples of a page: read, and run one after the other as one program.

A block that can't run is marked by a comment in the line before it, which says why: `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import aclose_queues

if TYPE_CHECKING:
    from collections.abc import Coroutine

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?P<mark><!-- not run:(?P<reason>.*?)-->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Example:
    """One block of a page. ``line`` is that of its first line of code; ``reason`` says why it is not run, None if it is."""

    page: Path
    line: int
    code: str
    reason: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    def run(self, names: dict[str, Any]) -> None:
        """Run it in ``names``. It may await, as at a prompt of asyncio's."""
        source = "\n" * (self.line - 1) + self.code  # so that a traceback points into the page
        code = compile(source, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # a prompt allows the same
                asyncio.run(_to_its_end(eval(code, names)))
        else:
            exec(code, names)


async def _to_its_end(example: Coroutine[Any, Any, None]) -> None:
    """Its loop ends with it, as a prompt's does not."""
    try:
        await example
    finally:
        await aclose_queues()


def pages() -> list[Path]:
    """README and every page of docs/ with an example."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if examples(page)]


def examples(page: Path, text: str | None = None) -> list[Example]:
    """The page's examples in their order, those that are marked too."""
    text = page.read_text() if text is None else text
    return [
        Example(
            page,
            text.count("\n", 0, found.start("code")) + 1,
            found["code"],
            found["reason"] and found["reason"].strip(),
        )
        for found in BLOCK.finditer(text)
    ]


def name(page: Path) -> str:
    """Return a page's name in the tests: `tutorial.md`, `guides/pipelines.md`, `README.md`."""
    return page.relative_to(DOCS if DOCS in page.parents else ROOT).as_posix()
