"""Asking before something that can't be undone: with a page of its own, so that it works without JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.template.response import TemplateResponse
from django.utils.cache import patch_cache_control

from django_fairque.admin.pages.base import APP, Page
from django_fairque.models import Queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.http import HttpRequest, HttpResponse


class Question(Exception):  # noqa: N818 - it is no error
    """Raised by an action's method in place of acting: what is asked, and what a "yes" posts beside ``confirm=yes``.

    Args:
        text: a paragraph, or several of which empty ones are left out.
        yes: what the button says.
        fields: what is posted, a value or several of a name.
        progress: how many are done already, and of how many.
    """

    def __init__(
        self,
        text: str | Sequence[str],
        yes: str,
        fields: Mapping[str, str | Sequence[str]],
        *,
        title: str = "",
        progress: tuple[int, int] | None = None,
    ) -> None:
        self.paragraphs = [text] if isinstance(text, str) else [each for each in text if each]
        super().__init__(*self.paragraphs)
        self.title, self.yes, self.fields, self.progress = title, yes, fields, progress

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Of the form."""
        values = {name: [value] if isinstance(value, str) else value for name, value in self.fields.items()}
        return [(name, each) for name, several in values.items() for each in several]


def is_confirmed(request: HttpRequest) -> bool:
    return request.POST.get("confirm") == "yes"


def ask_first(request: HttpRequest, text: str | Sequence[str], yes: str, title: str = "") -> None:
    """Raise a `Question` that posts the same again, unless this is its answer."""
    if not is_confirmed(request):
        own = ("csrfmiddlewaretoken", "action", "confirm")
        fields = {name: [str(each) for each in values] for name, values in request.POST.lists() if name not in own}
        raise Question(text, yes, fields, title=title)


class ConfirmingPage(Page):
    """A page whose actions may raise a `Question`: nothing but a POST with ``confirm=yes`` answers it."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except Question as question:
            return self._ask(request, question)

    def _ask(self, request: HttpRequest, question: Question) -> HttpResponse:
        request.current_app = self.model_admin.admin_site.name
        context = {
            **self.model_admin.admin_site.each_context(request),
            "opts": Queue._meta,
            "title": self.title,
            "base": f"admin/{APP}/page.html",
            "menu": self.menu(),
            "queues": [self.queue_name],
            "queue": self.queue_name,
            "question": question,
            "action": request.POST["action"],
            "back": self.back_to(request),
        }
        response = TemplateResponse(request, f"admin/{APP}/confirm.html", context)
        patch_cache_control(response, private=True, no_cache=True, no_store=True)
        return response
