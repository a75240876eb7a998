"""The queues as pages see them: a server that is down or hangs is a banner within two seconds, never a page that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.conf import get_config
from django_fairque.conf.current import on_reset
from django_fairque.conf.redis import close_client
from django_fairque.engine.model.ids import PerProcess
from django_fairque.monitoring.probe import client_with_timeout, queue_without_retries

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

PAGE_TIMEOUT_SECONDS = 1.0
"""Seconds for an answer, and for a connection; nothing is repeated."""


_clients = PerProcess(lambda: client_with_timeout(get_config(), PAGE_TIMEOUT_SECONDS))


def page_client() -> Any:
    """The client of this process's pages. Another one after a change of the configuration."""
    return _clients.get()


def close_connections() -> None:
    """Close the connections of this process's pages; the next page opens others."""
    client = _clients.take()
    if client is not None:
        close_client(client)


on_reset(close_connections)


def queue_names() -> list[str]:
    """The declared queues, `default` first."""
    return sorted(get_config().queues, key=lambda name: (name != "default", name))


def page_queue(name: str) -> FairQueue:
    """A declared queue, for one page.

    Raises:
        ConfigurationError: it is not declared, or the configuration has mistakes.
    """
    return queue_without_retries(get_config(), page_client(), name)
