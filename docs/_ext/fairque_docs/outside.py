"""Links to what is no page of the site, but can be looked at on a code host: pages outside of docs/, and folders."""

from __future__ import annotations

import posixpath
from pathlib import Path

from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[3]
ROOT_PAGES = {"changes": "CHANGELOG", "development": "CONTRIBUTING"}
"""Pages of the site whose text is a file at the root of the source."""
INSTEAD = {
    **{file: page for page, file in ROOT_PAGES.items()},
    "README": "index",
    "django_fairque/engine/lua/README": "contributing/scripts",
}
"""What the site has in place of pages outside of docs/."""


class OutsideLinks(SphinxTransform):
    default_priority = 250

    def apply(self, **kwargs: object) -> None:
        for link in list(self.document.findall(addnodes.pending_xref)):
            target = str(link.get("reftarget", ""))
            if link.get("refdomain") == "doc":
                _lead_inside(link, Path(target))
            elif link.get("reftype") == "myst" and target.endswith("/"):
                self._open(link, target)

    def _open(self, link: addnodes.pending_xref, target: str) -> None:
        """A folder is its first page (``index`` or ``README`` before others); one without pages is only named."""
        folder = Path(self.env.srcdir, posixpath.dirname(self.env.docname), target).resolve()
        pages = sorted(folder.glob("*.md"), key=lambda page: (page.stem not in ("index", "README"), page.name))
        if pages and pages[0].is_relative_to(self.env.srcdir):
            docname = pages[0].relative_to(self.env.srcdir).with_suffix("").as_posix()
            link.attributes |= {"refdomain": "doc", "reftarget": docname, "reftargetid": None}
        elif folder.is_dir():
            link.replace_self(link.children)


def _lead_inside(link: addnodes.pending_xref, target: Path) -> None:
    if target.is_absolute() and target.is_relative_to(ROOT):
        page = target.relative_to(ROOT).as_posix()
        if page not in INSTEAD and target.with_suffix(".md").is_file():
            link.replace_self(link.children)
            return
        link["reftarget"] = INSTEAD.get(page, link["reftarget"])
        if page not in ROOT_PAGES.values():
            link["reftargetid"] = None  # the replacement may have other headings
