"""The parts of a page besides its text: whether it is searched, its description, the link to its Markdown, and its scripts."""

from __future__ import annotations

import html
import textwrap
from typing import TYPE_CHECKING, Any

from docutils import nodes

from .search_index import FILE

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CONTRIBUTORS = ("contributing/", "development", "changes", "versions")
"""Beginnings of the names of pages that the search leaves out."""
LINKED_ONLY = ("examples/", "contributing/index")
"""Beginnings of the names of pages that are linked to, and are in no table of contents: the sidebar has the pages for users."""
CARD_PICTURE = "_static/overview.png"
DESCRIPTION_CHARACTERS = 160
PAGE_SCRIPTS = {"search": (FILE, "search.js"), "playground": ("fair_order.js", "playground.js")}


def with_metadata(app: Sphinx, doctree: nodes.document) -> None:
    docname = app.env.docname
    if docname.startswith(CONTRIBUTORS):
        app.env.metadata[docname]["nosearch"] = "true"
    if docname.startswith(LINKED_ONLY):
        app.env.metadata[docname]["orphan"] = "true"


def with_description(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Add the description of the page for search engines, the card for a shared link, and the address of its Markdown."""
    if doctree is None:
        return
    file = f"{pagename.rpartition('/')[2]}.md"
    text = html.escape(description(doctree))
    card = {
        "type": "article",
        "site_name": app.config.project,
        "title": html.escape(context["title"]),
        "description": text,
    }
    if app.config.html_baseurl:  # both need a whole address
        base = app.config.html_baseurl.rstrip("/")
        card |= {"url": f"{base}/{pagename}.html", "image": f"{base}/{CARD_PICTURE}"}
    of_card = "".join(f'<meta property="og:{name}" content="{value}" />' for name, value in card.items())
    context["metatags"] = (
        f"{context.get('metatags') or ''}"
        f'<meta name="description" content="{text}" />'
        f'<meta name="twitter:card" content="summary_large_image" />'
        f"{of_card}"
        f'<link rel="alternate" type="text/markdown" href="{file}" />'
    )


def with_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Load the scripts of a page that has some. Those of the search run after Sphinx's, one of whose functions they replace."""
    for script in PAGE_SCRIPTS.get(pagename, ()):
        app.add_js_file(script, loading_method="defer")
    if pagename == "playground":
        app.add_css_file("playground.css")


def description(doctree: nodes.document) -> str:
    """The beginning of the page's first paragraph."""
    for paragraph in doctree.findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section):
            return textwrap.shorten(paragraph.astext(), DESCRIPTION_CHARACTERS, placeholder=" …")
    return ""
