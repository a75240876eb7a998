"""Start real clusters, replicas and sentinels."""

from __future__ import annotations

import secrets
import socket
import subprocess
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import redis

from tests.servers import server_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import MakeServer
    from tests.servers import Server

DEADLINE = 60.0
SERVICE = "main"
"""The name that sentinels give to the primary."""


def free_port() -> int:
    """Below those (32,768 and up) that systems give to clients' connections: one of them may sit on any a moment later."""
    return _draw(range(22_000, 32_000))


def cluster_port() -> int:
    """For a node of a cluster, whose bus listens 10,000 above."""
    return _draw(range(11_000, 22_000), bus=10_000)


def _draw(ports: range, bus: int = 0) -> int:
    while True:
        port = secrets.choice(ports)  # the tests' own random numbers are alike in processes side by side
        if _is_free(port) and _is_free(port + bus):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def make_cluster(make_server: MakeServer, nodes: int, *args: str) -> list[tuple[int, Server]]:
    """Primaries that share the slots, each with its port. They take writes two seconds after their start, a constant of the
    server's."""
    started = [(port, _node(make_server, port, *args)) for port in (cluster_port() for _ in range(nodes))]
    for number, (_, server) in enumerate(started):
        with server.client() as client:
            slots = (16384 * number // nodes, 16384 * (number + 1) // nodes - 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", *slots)
            if number:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", started[0][0])
    for _, server in started:
        wait_for(partial(_is_whole, server))
    return started


def add_replicas(make_server: MakeServer, primaries: list[tuple[int, Server]], *args: str) -> list[tuple[int, Server]]:
    """A replica for each of a cluster's primaries, in step with it."""
    started = []
    for _, primary in primaries:
        port, replica = join(make_server, primaries[0][0], *args)
        with replica.client() as client, primary.client() as above:
            name = above.execute_command("CLUSTER MYID")
            wait_for(partial(_accepts, client, "CLUSTER", "REPLICATE", name))
            wait_for(lambda client=client: client.info("replication").get("master_link_status") == "up")  # type: ignore[misc]
        started.append((port, replica))
    return started


def join(make_server: MakeServer, member: int, *args: str) -> tuple[int, Server]:
    """A new node that has met the cluster of the member at this port, and has no slots."""
    port = cluster_port()
    server = _node(make_server, port, *args)
    with server.client() as client:
        client.execute_command("CLUSTER", "MEET", "127.0.0.1", member)
        wait_for(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        name = client.execute_command("CLUSTER MYID")
        for address in client.execute_command("CLUSTER NODES"):
            with redis.Redis(port=int(address.rpartition(":")[2])) as other:
                wait_for(
                    partial(_accepts, other, "CLUSTER", "COUNT-FAILURE-REPORTS", name)
                )  # fails until the nodes have met
    return port, server


def _accepts(client: redis.Redis, *command: object) -> bool:
    """Nodes that have just met don't know each other yet."""
    try:
        client.execute_command(*command)
    except redis.ResponseError:
        return False
    return True


def _is_whole(server: Server) -> bool:
    with server.client() as client:
        return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _node(make_server: MakeServer, port: int, *args: str) -> Server:
    return make_server("--port", str(port), "--bind", "127.0.0.1", "--cluster-enabled", "yes", *args)


def make_replica(make_server: MakeServer, primary: Server, *args: str) -> Server:
    """A replica of a primary that has a port, in step with it."""
    with primary.client() as client:
        replica = make_server("--replicaof", f"127.0.0.1 {client.config_get('port')['port']}", *args)
        wait_for(partial(_has_it, client))
    return replica


def _has_it(client: redis.Redis) -> bool:
    client.set("written", "and waited for")  # without a write there is nothing to confirm, and all do
    return bool(client.wait(1, 100))


@contextmanager
def sentinels(directory: Path, primary: int, number: int = 3, replicas: int = 0) -> Iterator[list[int]]:
    """Sentinels of the primary at this port, as `SERVICE`, and their ports. They know each other and its replicas.

    Start them when the replicas are in step: otherwise they find them ten seconds later.
    """
    ports = [free_port() for _ in range(number)]
    processes = [_sentinel(directory / f"sentinel-{port}.conf", port, primary, number // 2 + 1) for port in ports]
    try:
        for port in ports:
            wait_for(partial(_knows, port, replicas, number - 1))
        yield ports
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _sentinel(file: Path, port: int, primary: int, quorum: int) -> subprocess.Popen[bytes]:
    lines = [
        *(f"port {port}", "bind 127.0.0.1", f"dir {file.parent}"),
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}",
        f"sentinel down-after-milliseconds {SERVICE} 500",
        f"sentinel failover-timeout {SERVICE} 3000",
    ]
    file.write_text("\n".join([*lines, ""]))
    return subprocess.Popen([server_binary(), file, "--sentinel"], stdout=subprocess.DEVNULL)


def _knows(port: int, replicas: int, others: int) -> bool:
    try:
        with redis.Redis(port=port, protocol=2) as client:
            known = client.sentinel_masters().get(SERVICE, {})
    except redis.ConnectionError:
        return False
    return bool(known) and (int(known["num-slaves"]), int(known["num-other-sentinels"])) == (replicas, others)
