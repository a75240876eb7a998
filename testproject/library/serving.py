"""The site with its admin on a free port, which ends when its ``with`` block does."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from django.conf import settings

from .children import Child

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


class Site(Child):
    """Django's development server, for this machine only; with `DEMO_HOST` for all, at the port in the variable PORT (8000 by
    default). It is ready when somebody listens."""

    what = "the site"

    def __init__(self) -> None:
        self.is_hosted = bool(settings.DEMO_HOST)
        self.port = int(os.environ.get("PORT", "8000")) if self.is_hosted else free_port()

    @property
    def address(self) -> str:
        return f"https://{settings.DEMO_HOST}/admin/" if self.is_hosted else f"http://{HOST}:{self.port}/admin/"

    @property
    def first_page(self) -> str:
        """The page to look at first."""
        return f"{self.address}django_fairque/queue/live/"

    def arguments(self, directory: Path) -> list[str]:  # noqa: ARG002 - it has no files
        if self.is_hosted:
            return [
                "runserver",
                f"0.0.0.0:{self.port}",
                "--noreload",
                "--insecure",
            ]  # serves the admin's static files too
        return ["runserver", f"{HOST}:{self.port}", "--noreload"]

    def is_ready(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex((HOST, self.port)) == 0


def free_port() -> int:
    """One that nobody listens at; should somebody be faster, the site says so and ends."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port
