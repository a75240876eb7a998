from __future__ import annotations

from django.apps import AppConfig


class LibraryConfig(AppConfig):
    name = "library"
