"""The queues as pages see them: a server that is down or hangs is a banner within two seconds, never a page that waits."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from django_fairque.conf import get_config
from django_fairque.conf.current import on_reset
from django_fairque.conf.redis import close_client
from django_fairque.engine.queue.queue import FairQueue

if TYPE_CHECKING:
    from typing import Any

    from django_fairque.conf import FairQueueConfig

PAGE_TIMEOUT_SECONDS = 1.0
"""Seconds for an answer, and for a connection; nothing is repeated."""


class _ServerClient:
    """The client of this process's pages, made from one configuration."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew; in a forked child, whose connections are its parent's."""
        self.lock = threading.Lock()
        self.config: FairQueueConfig | None = None
        self.client: Any = None

    def of(self, config: FairQueueConfig) -> Any:
        with self.lock:
            if self.config is not config:
                outdated, self.client = self.client, _client(config)
                self.config = config
                if outdated is not None:
                    close_client(outdated)
            return self.client

    def close(self) -> None:
        with self.lock:
            client, self.client, self.config = self.client, None, None
        if client is not None:
            close_client(client)


_server_client = _ServerClient()
os.register_at_fork(after_in_child=_server_client.forget)
on_reset(_server_client.close)


def _client(config: FairQueueConfig) -> Any:
    hasty = {
        name: min(getattr(config.redis, name), PAGE_TIMEOUT_SECONDS)
        for name in ("socket_timeout", "socket_connect_timeout")
    }
    return config.redis.model_copy(update={**hasty, "decode_responses": False}).create_redis_client()


def queue_names() -> list[str]:
    """The declared queues, `default` first."""
    return sorted(get_config().queues, key=lambda name: (name != "default", name))


def page_queue(name: str) -> FairQueue:
    """A declared queue, for one page.

    Raises:
        ConfigurationError: it is not declared, or the configuration has mistakes.
    """
    config = get_config()
    options = config.queue_config(name).model_copy(update={"request_timeout": 0.0})
    return FairQueue(_server_client.of(config), name, options)
