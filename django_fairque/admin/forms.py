"""Pages with forms: mistakes stand next to their fields, and what was typed is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .confirming import ConfirmingPage

if TYPE_CHECKING:
    from django.forms import Form
    from django.http import HttpRequest, HttpResponse


class InvalidForm(Exception):  # noqa: N818 - no error of anybody's code: the page is shown again
    """Raised by an action whose form has mistakes; nothing was done."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.errors.as_text())
        self.form = form


class FormPage(ConfirmingPage):
    """A page whose actions may raise `InvalidForm`. The page that is shown then is not renewed by itself."""

    form: Form | None = None
    """With mistakes, as it was posted."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except InvalidForm as invalid:
            self.form = invalid.form
        self.hold()
        return self.get(request, **kwargs)

    def hold(self) -> None:
        """Keep the script from renewing what somebody fills in."""
        self.refreshes = False  # type: ignore[misc]  # of this request's page only
