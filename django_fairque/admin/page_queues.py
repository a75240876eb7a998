"""Opens queues for pages. If a server is down or hangs, a page shows a banner within two seconds, and does not wait
longer.
"""

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
"""Maximum seconds for an answer and for a connection. Failed requests are not repeated."""


_clients = PerProcess(lambda: client_with_timeout(get_config(), PAGE_TIMEOUT_SECONDS))


def page_client() -> Any:
    """Return the client that the pages of this process share. After a change of the configuration, a new client is
    made.
    """
    return _clients.get()


def close_connections() -> None:
    """Close the connections that the pages of this process share. The next page opens new connections."""
    client = _clients.take()
    if client is not None:
        close_client(client)


on_reset(close_connections)


def queue_names() -> list[str]:
    """Return the names of the declared queues, `default` first."""
    return sorted(get_config().queues, key=lambda name: (name != "default", name))


def page_queue(name: str) -> FairQueue:
    """Return a declared queue with short time-outs, for one page.

    Raises:
        ConfigurationError: the queue is not declared, or the configuration has mistakes.
    """
    return queue_without_retries(get_config(), page_client(), name)
