"""A Sphinx extension: the parts of the reference that come from the code, and what the site has besides the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    from .anchors import Anchors
    from .directives import CommandDirective, ContractsDirective
    from .markdown_pages import write_markdown
    from .messages import complete_messages
    from .metadata import with_description, with_metadata, with_scripts
    from .options import with_accepted_values
    from .outside import OutsideLinks
    from .rootpages import with_root_pages
    from .search_index import write_search_index
    from .toctrees import without_empty_globs

    app.add_transform(Anchors)
    app.add_transform(OutsideLinks)
    app.add_directive("fairque-command", CommandDirective)
    app.add_directive("fairque-contracts", ContractsDirective)
    app.connect("source-read", with_root_pages)
    app.connect("source-read", without_empty_globs)
    app.connect("source-read", with_accepted_values)
    app.connect("source-read", complete_messages)
    app.connect("doctree-read", with_metadata)
    app.connect("html-page-context", with_description)
    app.connect("html-page-context", with_scripts)
    app.connect("build-finished", write_search_index)
    app.connect("build-finished", write_markdown)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
