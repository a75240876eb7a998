"""Pages with forms: mistakes stand next to their fields and what was typed is kept; what can't be undone is asked about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .page import Page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.forms import Form
    from django.http import HttpRequest, HttpResponse


class InvalidForm(Exception):  # noqa: N818 - no error of anybody's code: the page is shown again
    """Raised by an action whose form has mistakes; nothing was done."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.errors.as_text())
        self.form = form


@dataclass
class Question(Exception):  # noqa: N818 - as above
    """Raised by an action that was not confirmed yet; nothing was done.

    ``sentence`` says exactly what would be done, ``button`` in a word or two; ``fields`` are what is posted again.
    """

    sentence: str
    button: str
    fields: Mapping[str, str] = field(default_factory=dict)


def ask_first(request: HttpRequest, sentence: str, button: str) -> None:
    """Raise a `Question` with what was posted, unless this is its answer."""
    if request.POST.get("confirm") != "yes":
        again = {name: str(value) for name, value in request.POST.items() if name != "csrfmiddlewaretoken"}
        raise Question(sentence, button, {**again, "confirm": "yes"})


class FormPage(Page):
    """A `Page` whose actions may raise `InvalidForm` and `Question`. The page they lead to is not renewed by itself."""

    form: Form | None = None
    """With mistakes, as it was posted."""
    question: Question | None = None

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except InvalidForm as invalid:
            self.form = invalid.form
        except Question as question:
            self.question = question
        self.hold()
        return self.get(request, **kwargs)

    def hold(self) -> None:
        """Keep the script from renewing what somebody fills in."""
        self.refreshes = False  # type: ignore[misc]  # of this request's page only
