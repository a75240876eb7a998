"""Reading a page as a person does."""

from __future__ import annotations

import html
import re


def said(text: str) -> str:
    """The words of some HTML, each cell and line parted by a space."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())
