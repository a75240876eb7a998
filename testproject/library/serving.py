"""The site with its admin on a free port, which ends when its ``with`` block does."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from .children import Child

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


class Site(Child):
    """Django's development server, for this machine only. It is ready when somebody listens."""

    what = "the site"

    def __init__(self) -> None:
        self.port = free_port()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/admin/"

    @property
    def first_page(self) -> str:
        """The page to look at first."""
        return f"{self.address}django_fairque/queue/live/"

    def arguments(self, directory: Path) -> list[str]:  # noqa: ARG002 - it has no files
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
