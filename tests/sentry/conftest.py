from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_fairque import signals
from django_fairque.conf import close_queues
from django_fairque.conf.current import _current, reset_config
from django_fairque.integrations.sentry import FairqueIntegration, _flush
from django_fairque.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis
    from sentry_sdk.envelope import Envelope

    from tests.servers import Server


class Sent(Transport):
    """Keeps in memory what would be sent."""

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(str(item.headers.get("type")), item.payload.json) for item in envelope.items]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [content for kind, content in self.items if kind == "event"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [content for kind, content in self.items if kind == "transaction"]

    def spans(self, op: str) -> list[dict[str, Any]]:
        """Return the spans of all transactions."""
        return [span for transaction in self.transactions for span in transaction["spans"] if span["op"] == op]

    @property
    def event(self) -> dict[str, Any]:
        """The only one."""
        (event,) = self.events
        return event


class StartSentry(Protocol):
    def __call__(self, *, integration: FairqueIntegration | None = None, **options: Any) -> Sent: ...


@pytest.fixture
def start_sentry(
    server: Server, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartSentry]:
    """Set sentry-sdk up as a project does; at the end of the test nothing of it is left."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"RETRY_BASE_SECONDS": 0.01}}
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(_current, "installed_middleware", [])

    def start(*, integration: FairqueIntegration | None = None, **options: Any) -> Sent:
        sent = Sent()
        sentry_sdk.init(
            dsn="https://key@localhost/1",
            transport=sent,
            default_integrations=False,  # the default ones would change this process for good
            integrations=[integration or FairqueIntegration(), LoggingIntegration(), DedupeIntegration()],
            **{"traces_sample_rate": 1.0, **options},
        )
        FairqueIntegration.setup_once()  # sentry-sdk calls it once in a process
        return sent

    yield start
    signals.worker_stopped.disconnect(_flush, dispatch_uid="django_fairque.integrations.sentry")
    sentry_sdk.get_global_scope().client.close(timeout=0)  # closing the client ends its threads
    sentry_sdk.get_global_scope().set_client(None)
    close_queues()
    reset_config()


@pytest.fixture
def sent(start_sentry: StartSentry) -> Sent:
    return start_sentry()
