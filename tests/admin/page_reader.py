"""Reading a page as a person does."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

from django.urls import reverse

if TYPE_CHECKING:
    from django.test import Client


def said(text: str) -> str:
    """The words of some HTML, each cell and line parted by a space."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def messages_of(answer: Any) -> str:
    """What was told of an action on the page that followed."""
    return " ".join(str(each) for each in answer.context["messages"])


def led_to(client: Client, where: str, page: str, query: dict[str, str] | None = None) -> str:
    """What is told on the page that comes instead of one that is not there; by its name, and without what was asked."""
    answer: Any = client.get(where, query or {}, follow=True)
    assert answer.redirect_chain == [(f"{reverse(f'admin:django_fairque_{page}')}?queue=default", 302)]
    assert answer.status_code == 200
    fragment = client.get(where, query or {}, headers={"X-Fairque-Fragment": "1"})
    assert fragment.status_code == 404  # a page that renews itself goes nowhere
    (message,) = answer.context["messages"]
    assert message.level_tag == "warning"
    return str(message)
