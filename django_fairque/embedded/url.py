"""``embedded://`` and ``embedded:///absolute/dir``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from django_fairque.engine.model.errors import ConfigurationError, short

SCHEME = "embedded"
DEFAULT_NAME = ".fairque"


def is_embedded_url(url: str) -> bool:
    return url.startswith(f"{SCHEME}:")


def directory_from_url(url: str, base: Path) -> Path:
    """The server's directory that the URL names; without a path in it, ``.fairque`` in ``base``.

    A ``%``, ``?`` or ``#`` in the path is written percent-encoded, as in any URL.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or parts.path == "/" or parts.query or parts.fragment:
        raise ConfigurationError(
            f"expected embedded:// or embedded:///absolute/dir, got {short(url)}: "
            "the path begins with the third slash, and nothing may follow it"
        )
    return Path(unquote(parts.path)) if parts.path else base / DEFAULT_NAME
