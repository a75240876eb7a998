"""Reading a page as a person does."""

from __future__ import annotations

import html
import re
from typing import Any


def said(text: str) -> str:
    """The words of some HTML, each cell and line parted by a space."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def messages_of(answer: Any) -> str:
    """What was told of an action on the page that followed."""
    return " ".join(str(each) for each in answer.context["messages"])
