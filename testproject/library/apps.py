from __future__ import annotations

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    name = "library"

    def ready(self) -> None:
        from . import receivers  # noqa: F401 - importing connects them
