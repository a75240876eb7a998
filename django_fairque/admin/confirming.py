"""Asking before something that can't be undone: with a page of its own, so that it works without JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.template.response import TemplateResponse
from django.utils.cache import patch_cache_control

from django_fairque.models import Queue

from .page import APP, Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, HttpResponse


class Question(Exception):  # noqa: N818 - it is no error
    """Raised by an action's method in place of acting: what is asked, and what a "yes" posts beside ``confirm=yes``."""

    def __init__(self, text: str, yes: str, fields: Mapping[str, str]) -> None:
        super().__init__(text)
        self.text, self.yes, self.fields = text, yes, fields


def ask_first(request: HttpRequest, text: str, yes: str) -> None:
    """Raise a `Question` that posts the same again, unless this is its answer."""
    if request.POST.get("confirm") != "yes":
        own = ("csrfmiddlewaretoken", "action", "confirm")
        raise Question(text, yes, {name: str(value) for name, value in request.POST.items() if name not in own})


class ConfirmingPage(Page):
    """A page whose actions may raise a `Question`: nothing but a POST with ``confirm=yes`` answers it."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except Question as question:
            return self._ask(request, question)

    @staticmethod
    def is_confirmed(request: HttpRequest) -> bool:
        return request.POST.get("confirm") == "yes"

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
