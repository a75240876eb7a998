"""The queues as pages see them: a server that is down or hangs is a banner within two seconds, never a page that waits."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from django_fairque.conf import get_config
from django_fairque.conf.current import on_reset
from django_fairque.conf.redis import close_client
from django_fairque.monitoring.probe import client_with_timeout, queue_without_retries

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

PAGE_TIMEOUT_SECONDS = 1.0
"""Seconds for an answer, and for a connection; nothing is repeated."""


@cache
def page_client() -> Any:
    """The client of this process's pages. Another one after a change of the configuration, and in a forked child."""
    return client_with_timeout(get_config(), PAGE_TIMEOUT_SECONDS)


def close_connections() -> None:
    """Close the connections of this process's pages; the next page opens others."""
    if page_client.cache_info().currsize:
        client = page_client()
        page_client.cache_clear()
        close_client(client)


os.register_at_fork(after_in_child=page_client.cache_clear)
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
