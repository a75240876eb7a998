"""Collect the errors that a browser reports about pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Request, Response, WebError


class Watch:
    """Collects in `complaints` what no page may cause: words in the console, uncaught errors, dialogs, requests to
    elsewhere, answers that are errors."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.complaints: list[str] = []
        self.requests: list[Request] = []
        self._address = address
        context.on("console", self._console)
        context.on("weberror", self._error)
        context.on("dialog", self._dialog)
        context.on("request", self._request)
        context.on("response", self._response)

    def _console(self, message: ConsoleMessage) -> None:
        self.complaints.append(f"console, {message.type}: {message.text}")

    def _error(self, error: WebError) -> None:
        self.complaints.append(f"uncaught: {error.error}")

    def _dialog(self, dialog: Dialog) -> None:
        self.complaints.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        self.requests.append(request)
        if not request.url.startswith(f"{self._address}/"):
            self.complaints.append(f"asked elsewhere: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.complaints.append(f"{response.status} for {response.url}")
