"""Clients of several separate servers: shard number i of every queue is stored on server number i.

These clients have the methods of redis-py's cluster clients that this package calls. So a server is handled like a node
of a cluster, also while it does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from django_fairque.engine.model.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Self


class ListedServer:
    """One of the servers: its ``name``, which may be shown in messages, and the ``client`` of this server alone."""

    def __init__(self, name: str, client: Any) -> None:
        self.name = name
        self.client = client


class BaseServerList:
    """The common part of the clients with and without asyncio.

    ``servers`` are in the order of their shards; at least two.
    """

    def __init__(self, servers: Sequence[ListedServer]) -> None:
        self._servers = list(servers)

    def get_node_from_key(self, key: str) -> ListedServer:
        """Return the server of a ``key``: the number is the last part of its hash tag, ``{queue:number}``. A key without a number
        is on the first server.
        """
        try:
            tag = key[: key.index("}")]
            number = int(tag[tag.rindex(":") + 1 :])
        except ValueError:
            number = 0
        if number >= len(self._servers):
            self._raise_missing(number)
        return self._servers[number]

    def _raise_missing(self, number: int) -> NoReturn:
        raise ConfigurationError(
            f"shard {number} lies on server number {number + 1}, and REDIS.URL names {len(self._servers)} servers: name all "
            "servers on which the queue lies, in the same order as before"
        )

    def get_redis_connection(self, node: ListedServer) -> Any:
        """Return the client of one server."""
        return node.client

    def get_nodes(self) -> list[ListedServer]:
        """Return all servers."""
        return list(self._servers)

    get_primaries = get_nodes

    def get_default_node(self) -> ListedServer:
        """Return the server for commands without a key."""
        return self._servers[0]

    def replace_default_node(self) -> None:
        """Change nothing, because the list of servers is fixed."""

    @property
    def nodes_manager(self) -> Self:
        """This list itself, used like the ``nodes_manager`` of a cluster client; its ``initialize`` changes nothing."""
        return self

    def pipeline(self, transaction: bool = True) -> Any:
        """Return a pipeline of the first server."""
        return self._servers[0].client.pipeline(transaction=transaction)


class ServerList(BaseServerList):
    """A synchronous client of several servers; thread-safe like the clients of its servers."""

    def initialize(self) -> None:
        """Change nothing, because the list of servers is fixed."""

    def execute_command(self, *args: Any, target_nodes: Any = None, **options: Any) -> Any:
        """Send a command to one server, by default the first. With "primaries", all servers get it; returns the replies
        by the servers' names.
        """
        if target_nodes == "primaries":
            return {server.name: server.client.execute_command(*args, **options) for server in self._servers}
        return (target_nodes or self._servers[0]).client.execute_command(*args, **options)

    def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            server.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncServerList(BaseServerList):
    """A client of several servers for coroutines."""

    async def initialize(self) -> None:
        """Change nothing, because the list of servers is fixed."""

    async def execute_command(self, *args: Any, target_nodes: ListedServer | None = None, **options: Any) -> Any:
        """Send a command to one server, by default the first."""
        return await (target_nodes or self._servers[0]).client.execute_command(*args, **options)

    async def aclose(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def separate_servers(client: object) -> list[ListedServer]:
    """Return the servers of a client that has a separate server for each shard; none for other clients."""
    return client.get_nodes() if isinstance(client, BaseServerList) else []
