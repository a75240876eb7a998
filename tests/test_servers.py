"""The servers that all other tests stand on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from tests.servers import BINARY_VARIABLE, Server, server_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis as AsyncRedis

    from tests.conftest import MakeServer

# Set beside the binary's path when many servers are gone through.
VERSION_VARIABLE = "FAIRQUE_TEST_SERVER_VERSION"
ROOT = Path(__file__).parent.parent


def is_gone(pid: int, within: float = 10.0) -> bool:
    """Whether the process ends in time. A zombie that nobody reaps has ended too."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


class TestSharedServer:
    def test_the_shared_server_reports_its_name_and_version(self, server: Server) -> None:
        assert server.name in {"valkey", "redis"}
        assert re.fullmatch(r"\d+\.\d+\.\d+", server.version)
        assert os.environ.get(VERSION_VARIABLE) in {None, server.version}

    # Twice: whichever runs second sees what the other left.
    @pytest.mark.parametrize("round_", [1, 2])
    def test_every_database_is_empty_at_the_start(self, server: Server, redis: Redis, round_: int) -> None:
        for database in range(2):
            with server.client(db=database) as client:
                assert client.dbsize() == 0
                client.set("left", "behind")

    def test_the_test_client_receives_bytes_over_resp2(self, redis: Redis) -> None:
        redis.zadd("z", {"a": 1.5})
        assert redis.zscore("z", "a") == 1.5
        assert redis.execute_command("ZRANGE", "z", 0, -1) == [b"a"]

    def test_the_shared_server_can_be_reached_by_its_url(self, server: Server, redis: Redis) -> None:
        redis.set("k", "v")
        with Redis.from_url(server.url) as client:
            assert client.get("k") == b"v"

    async def test_the_shared_server_can_be_used_by_coroutines(self, redis: Redis, aredis: AsyncRedis) -> None:
        redis.set("k", "v")
        assert await aredis.get("k") == b"v"


class TestOwnServer:
    def test_options_of_an_own_server_override_the_defaults(self, make_server: MakeServer) -> None:
        with make_server("--maxmemory", "10mb", "--appendonly", "yes").client() as client:
            assert client.config_get("maxmemory", "appendonly") == {"maxmemory": "10485760", "appendonly": "yes"}

    def test_an_own_server_restarts_empty_on_the_same_socket(self, make_server: MakeServer) -> None:
        server = make_server()
        before = server.pid
        with server.client() as client:
            client.set("k", "v")
        server.restart()
        assert server.pid != before
        with server.client() as client:
            assert client.get("k") is None

    def test_an_own_server_keeps_its_persisted_data_after_a_kill(self, make_server: MakeServer) -> None:
        server = make_server("--appendonly", "yes", "--appendfsync", "always")
        with server.client() as client:
            client.set("k", "v")
        server.kill()
        assert not server.alive
        server.start()
        with server.client() as client:
            assert client.get("k") == b"v"

    def test_a_frozen_server_can_be_stopped(self, make_server: MakeServer) -> None:
        server = make_server()
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        server.close()
        assert is_gone(pid)
        assert not server.directory.exists()

    def test_a_server_that_can_not_start_shows_its_log(self) -> None:
        server = Server("--no-such-option", "1")
        with pytest.raises(RuntimeError, match="no-such-option"):
            server.start()
        server.close()

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has died")
    def test_a_server_ends_when_its_starter_is_killed(self) -> None:
        program = (
            "import time; from tests.servers import Server; s = Server(); s.start(); print(s.pid, flush=True)\n"
            "while True: time.sleep(60)"
        )
        starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT, text=True)
        assert starter.stdout is not None
        with starter:
            pid = int(starter.stdout.readline())
            assert not is_gone(pid, within=0.05)
            starter.kill()
        assert is_gone(pid)


class TestBinary:
    @pytest.fixture(autouse=True)
    def _fresh(self) -> Iterator[None]:
        server_binary.cache_clear()
        yield
        server_binary.cache_clear()

    def test_the_server_binary_can_be_named_by_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BINARY_VARIABLE, sys.executable)
        assert server_binary() == Path(sys.executable)

    def test_a_server_binary_must_be_executable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BINARY_VARIABLE, __file__)
        with pytest.raises(RuntimeError, match="expected the path of an executable server"):
            server_binary()

    def test_the_default_binary_is_from_the_wheel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(BINARY_VARIABLE, raising=False)
        assert server_binary().name == "valkey-server"
