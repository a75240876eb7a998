"""Reading a page as a person does."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from django_fairque.models import AuditEntry


def words_of(text: str) -> str:
    """The words of some HTML, each cell and line parted by a space."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def messages_of(answer: Any) -> str:
    """Return the messages about an action on the page that followed."""
    return " ".join(str(message) for message in answer.context["messages"])


def assert_mistake(answer: Any, field: str, words: str, *kept: str) -> None:
    """The form is shown again: its one mistake stands next to the field, other values are kept, and nothing was changed."""
    assert list(answer.context["form"].errors) == [field]
    assert words in answer.context["form"].errors[field][0]
    text = answer.content.decode()
    for part in ('class="fq-error" role="alert"', *(f'value="{value}"' for value in kept)):
        assert part in text
    assert "data-refresh" not in text
    assert not AuditEntry.objects.exists()


def page_url(page: str, *args: str, **query: str) -> str:
    return reverse(f"admin:django_fairque_{page}", args=[quote(arg) for arg in args], query=query)


def read(client: Client, where: str, **query: str) -> str:
    """Return the HTML of a page that is there."""
    answer = client.get(where, query)
    assert answer.status_code == 200
    return answer.content.decode()


def content_of(html: str) -> str:
    """Return the part of a page that is its own."""
    start = html.index('id="fq-content"')
    return html[start : html.find("</main>", start)]


def post(client: Client, where: str, **fields: Any) -> Any:
    """Return the page that follows a form."""
    answer = client.post(where, fields, follow=True)
    assert answer.status_code == 200
    return answer


def log_in(client: Client, *codenames: str) -> User:
    """Log in staff with these permissions."""
    user: User = User.objects.create_user("staff", is_staff=True)
    allow(user, *codenames)
    client.force_login(user)
    return user


def allow(user: User, *codenames: str) -> None:
    permissions = Permission.objects.filter(codename__in=codenames, content_type__app_label="django_fairque")
    assert len(permissions) == len(codenames)
    user.user_permissions.add(*permissions)


def led_to(client: Client, where: str, page: str, query: dict[str, str] | None = None) -> str:
    """Return the message of the page of this name, which is shown in place of one that does not exist."""
    answer: Any = client.get(where, query or {}, follow=True)
    assert (answer.redirect_chain, answer.status_code) == ([(page_url(page, queue="default"), 302)], 200)
    fragment = client.get(where, query or {}, headers={"X-Fairque-Fragment": "1"})
    assert fragment.status_code == 404, "a page that renews itself goes nowhere"
    (message,) = answer.context["messages"]
    assert message.level_tag == "warning"
    return str(message)
