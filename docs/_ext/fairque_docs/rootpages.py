"""Pages of the site whose text is a file at the root of the source, where code hosts look for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .outside import ROOT, ROOT_PAGES

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"\]\((?![a-z]+:|#)(?P<target>[^)\s]+)")


def with_root_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the text of the file in place of the page's, with links that lead to the same places from there."""
    if docname in ROOT_PAGES:
        file = ROOT / f"{ROOT_PAGES[docname]}.md"
        app.env.note_dependency(file)
        source[0] = LINK.sub(_from_docs, file.read_text())


def _from_docs(link: re.Match[str]) -> str:
    target = link["target"]
    return f"]({target.removeprefix('docs/') if target.startswith('docs/') else f'../{target}'}"
