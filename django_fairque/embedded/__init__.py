"""The development server: a real Valkey per project, started by whichever process needs it first.

``EmbeddedServer(directory).ensure()`` returns the path of a unix socket on which a server answers. The connection
classes do that for every new connection of a redis-py pool. No module here imports Django.
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
