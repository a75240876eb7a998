"""Six nodes, three of them replicas: what is asked of them and done to them in tests."""

from __future__ import annotations

from typing import Any

import redis
from redis.crc import key_slot

from tests.conftest import MakeServer
from tests.servers import Server
from tests.topologies import add_replicas, make_cluster, wait_for

OPTIONS = (
    *("--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"),
    # always: with everysec what is acknowledged while a sync is in progress is written later, and a kill loses it.
    *("--cluster-replica-validity-factor", "0", "--appendonly", "yes", "--appendfsync", "always"),
)


def slot_of(shard: int, queue: str = "default") -> int:
    return key_slot(f"fq:{{{queue}:{shard}}}:".encode())


class Six:
    """The nodes by their port. Any of them may be killed: what is asked is asked of one that lives."""

    def __init__(self, make_server: MakeServer) -> None:
        primaries = make_cluster(make_server, 3, *OPTIONS)
        self.nodes: dict[int, Server] = dict(primaries)
        self.nodes.update(add_replicas(make_server, primaries, *OPTIONS))
        wait_for(lambda: all(len(self.replicas_of(port)) == 1 for port, _ in primaries))

    def primary_of(self, shard: int) -> int:
        """The port of the node that has this shard, as the living agree."""
        slot = slot_of(shard)
        for begin, end, primary, *_ in self._slots():
            if begin <= slot <= end:
                return int(primary[1])
        raise AssertionError(f"nobody has the slot of shard {shard}")

    def wait_whole(self) -> None:
        """Until everyone lives for everyone, so that no replica asks for votes any more.

        Nodes that come back are held for failed by the others for two seconds more (twice the timeout). Until then a replica
        that came back with its primary may take its place, and what the primary acknowledged meanwhile goes with it.
        """
        wait_for(self._is_whole)

    def replicas_of(self, port: int) -> list[int]:
        return sorted({int(replica[1]) for slots in self._slots() if slots[2][1] == port for replica in slots[3:]})

    def _slots(self) -> list[Any]:
        alive = [server for server in self.nodes.values() if server.alive]
        newest: list[Any] = []
        epoch = -1
        for server in alive:
            with server.client() as client:
                found = int(client.execute_command("CLUSTER INFO")["cluster_my_epoch"])
                if found > epoch:
                    epoch, newest = found, client.execute_command("CLUSTER", "SLOTS")
        return newest

    def url(self, but: int = 0) -> str:
        """Return the address of a running node whose port is not ``but``."""
        return f"redis://127.0.0.1:{next(port for port, node in self.nodes.items() if node.alive and port != but)}"

    def client(self, port: int) -> redis.Redis:
        return self.nodes[port].client()

    def empty(self) -> None:
        """Restore the first state: all nodes run, each primary has a replica in step, no keys and functions exist."""
        for server in self.nodes.values():
            server.start()
        wait_for(self._is_complete)
        for port, server in self.nodes.items():
            with server.client() as client:
                if self.replicas_of(port):
                    client.flushall()
                    client.function_flush()

    def _is_complete(self) -> bool:
        if not self._is_whole():
            return False
        primaries = {int(slots[2][1]) for slots in self._slots()}
        return len(primaries) == 3 and all(self._is_in_step(port) for port in primaries)

    def _is_whole(self) -> bool:
        return all(self._takes_work(port) and self._sees_all(port) for port in self.nodes)

    def _takes_work(self, port: int) -> bool:  # not at once after a start
        with self.client(port) as client:
            return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")

    def _sees_all(self, port: int) -> bool:
        with self.client(port) as client:
            known = client.execute_command("CLUSTER NODES").values()
        return len(known) == len(self.nodes) and not any(
            "fail" in node["flags"] or not node["connected"] for node in known
        )

    def _is_in_step(self, port: int) -> bool:
        with self.client(port) as client:
            return bool(client.execute_command("WAIT", 1, 50)) and len(self.replicas_of(port)) == 1
