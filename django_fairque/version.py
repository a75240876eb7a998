"""Which version of this package is installed."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


@cache
def version() -> str:
    """As its metadata say; ``unknown`` when it is imported without having been installed."""
    try:
        return installed("django-fairque")
    except PackageNotFoundError:
        return "unknown"
