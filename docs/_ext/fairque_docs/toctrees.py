"""A folder may stand in a table of contents before its first page is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

TOCTREE = re.compile(r"^```\{toctree\}\n(?P<body>.*?)^```\n", re.MULTILINE | re.DOTALL)


def without_empty_globs(app: Sphinx, docname: str, source: list[str]) -> None:
    """Drop the patterns that match no page, and tables that are left without one: Sphinx warns of both."""

    def kept(toctree: re.Match[str]) -> str:
        lines = [line for line in toctree["body"].splitlines() if "*" not in line or _matches(app, docname, line)]
        is_empty = all(not line or line.startswith(":") for line in lines)
        return "" if is_empty else "\n".join(["```{toctree}", *lines, "```", ""])

    source[0] = TOCTREE.sub(kept, source[0])


def _matches(app: Sphinx, docname: str, pattern: str) -> bool:
    return any(Path(app.srcdir, docname).parent.glob(f"{pattern}.md"))
