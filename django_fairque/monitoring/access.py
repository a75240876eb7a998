"""Who may read figures by HTTP, and the figures for those: what the views and the worker's port have in common."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from django_fairque.engine.errors import ConfigurationError

if TYPE_CHECKING:
    from django_fairque.conf import MonitorConfig


def bearer(header: str) -> str:
    """The token in an ``Authorization`` header; empty for none, and for another scheme, which is not meant for us."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_known(token: str, config: MonitorConfig) -> bool:
    """Whether it is one of the configured tokens. How long this takes tells nothing of how much of it is right."""
    given = token.encode(errors="backslashreplace")
    return any(hmac.compare_digest(given, each.get_secret_value().encode()) for each in config.token)


def metrics(accept: str) -> tuple[bytes, str]:
    """The figures in the format that the ``Accept`` header asks for, and its content type.

    Raises:
        ConfigurationError: prometheus-client is not installed.
    """
    require_prometheus()
    from .prometheus import exposition

    return exposition(accept)


def require_prometheus() -> None:
    """Raise `ConfigurationError` unless prometheus-client is installed."""
    try:
        import prometheus_client  # noqa: F401 - asked for, not used
    except ImportError as error:
        raise ConfigurationError(
            "metrics need the package prometheus-client, which is not installed: pip install 'django-fairque[prometheus]'"
        ) from error
