"""The development server: a real Valkey server for each project, which the first process that needs it starts.

``EmbeddedServer(directory).ensure()`` starts the server if necessary, and returns the path of its Unix socket. The
connection classes call this for every new connection of a redis-py pool. No module of this package imports Django.
"""

from django_fairque.embedded.binary import find_binary
from django_fairque.embedded.connections import AsyncEmbeddedConnection, EmbeddedConnection, connection_pool_kwargs
from django_fairque.embedded.probe import AofStatus, ServerStatus
from django_fairque.embedded.server import EmbeddedServer, directory_from_url, is_embedded_url

__all__ = [
    "AofStatus",
    "AsyncEmbeddedConnection",
    "EmbeddedConnection",
    "EmbeddedServer",
    "ServerStatus",
    "connection_pool_kwargs",
    "directory_from_url",
    "find_binary",
    "is_embedded_url",
]
