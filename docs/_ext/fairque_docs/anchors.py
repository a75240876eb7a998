"""`<a id="name"></a>` in a page is a place to link to, as it is on a code host."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.transforms import SphinxTransform

ANCHOR = re.compile(r'<a id="([\w-]+)">')


class Anchors(SphinxTransform):
    """Makes targets of anchors, before anything looks for targets. Sphinx does not read raw HTML itself."""

    default_priority = 250

    def apply(self, **kwargs: object) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            found = ANCHOR.fullmatch(raw.astext())
            if found and found[1] in self.document.ids:  # the anchor is before a heading of that name
                raw.parent.remove(raw)
            elif found:
                target = nodes.target("", "", ids=[found[1]], names=[found[1]])
                self.document.note_explicit_target(target, target)
                raw.replace_self(target)
                # Names of targets are one for all pages, and two pages may have the same; where a page's headings are
                # written down, anchors are looked for as well.
                self.env.metadata[self.env.docname].setdefault("myst_slugs", {})[found[1]] = (raw.line, found[1], "")
