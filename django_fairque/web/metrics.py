"""Access to figures over HTTP, both for the project's views and for the port of a worker."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from django_fairque.conf import MonitorConfig, get_config
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.monitoring.probe import MISCONFIGURED


@dataclass(frozen=True)
class MetricsResponse:
    """A response with metrics, independent of the HTTP server that sends it."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text_response(status: int, text: str, **headers: str) -> MetricsResponse:
    """Return a plain text response for people."""
    return MetricsResponse(status, f"{text}\n".encode(), {"Content-Type": "text/plain; charset=utf-8", **headers})


UNAUTHORIZED = text_response(
    401, "expected Authorization: Bearer with a token of FAIRQUE's MONITOR", **{"WWW-Authenticate": "Bearer"}
)
NOT_FOUND = text_response(404, "not found")


def bearer(header: str) -> str:
    """Return the bearer token in an ``Authorization`` header; empty if there is none, or if the header has another
    scheme.
    """
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_known(token: str, config: MonitorConfig) -> bool:
    """Return whether ``token`` is one of the configured tokens. The comparison takes the same time however much of the
    token matches.
    """
    given = token.encode(errors="backslashreplace")
    return any(hmac.compare_digest(given, token.get_secret_value().encode()) for token in config.token)


def metrics(
    authorization: str, accept: str, *, is_open: bool, worker: Callable[[], Mapping[str, float]] | None = None
) -> MetricsResponse:
    """Return the figures of all queues to a client with a token, in the format that the ``Accept`` header asks for.

    ``is_open`` determines who may read the figures while no token is configured: everyone, or (False) nobody. ``worker``
    contains a worker's own figures.
    """
    try:
        config = get_config().monitor
    except ConfigurationError:
        return text_response(503, MISCONFIGURED)
    if not (config.token or is_open):
        return NOT_FOUND
    if config.token and not is_known(bearer(authorization), config):
        return UNAUTHORIZED
    try:
        require_prometheus()
    except ConfigurationError as error:
        return text_response(501, str(error))
    from django_fairque.monitoring.prometheus import exposition

    content, kind = exposition(accept, worker)
    return MetricsResponse(200, content, {"Content-Type": kind})


def require_prometheus() -> None:
    """Raise `ConfigurationError` unless prometheus-client is installed."""
    try:
        import prometheus_client  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise ConfigurationError(
            "metrics need the package prometheus-client, which is not installed: pip install 'django-fairque[prometheus]'"
        ) from error
