"""The embedded server recovers from crashes, suspensions and deleted files."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from redis import Redis

from django_fairque.embedded import EmbeddedServer, locks, probe, server
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError
from tests.embedded.helpers import ROOT, fill, kill, only_server_of, program, servers_of, starts_in_log, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.embedded.conftest import MakeEmbedded

# 5,000 commands at 0.2 ms each: loading takes a second, and the server looks up every 1,024 commands.
_KEYS = 5000
_LOAD_SLOWLY = "if len(arguments) == 1 and arguments[0] != '--version': arguments += ['--key-load-delay', '200']\n"


def client(embedded: EmbeddedServer) -> Redis:
    return Redis(unix_socket_path=embedded.socket, decode_responses=True)


def count(embedded: EmbeddedServer) -> int:
    with client(embedded) as redis:
        return int(redis.dbsize())


class TestCrash:
    def test_a_crashed_server_is_restarted_with_all_its_data(self, embedded: EmbeddedServer) -> None:
        fill(embedded, 1000)
        before = kill(embedded.directory)
        assert embedded.start() is True
        assert only_server_of(embedded.directory) != before
        assert count(embedded) == 1000

    def test_a_socket_file_left_by_a_crash_does_not_hinder_the_restart(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        kill(embedded.directory)
        assert Path(embedded.socket).is_socket()
        embedded.ensure()
        assert starts_in_log(embedded.directory) == 2

    def test_a_reused_process_id_does_not_hinder_the_restart(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        kill(embedded.directory)
        (embedded.directory / "server.pid").write_text(str(os.getpid()))
        assert embedded.start() is True

    def test_an_incomplete_last_write_loses_no_other_write(self, embedded: EmbeddedServer) -> None:
        fill(embedded, 100)
        kill(embedded.directory)
        (data,) = embedded.directory.glob("data/appendonlydir/*.incr.aof")
        os.truncate(data, data.stat().st_size - 7)
        embedded.ensure()
        assert count(embedded) == 99

    def test_a_server_that_crashed_while_it_rewrote_its_file_is_restarted(self, embedded: EmbeddedServer) -> None:
        fill(embedded, 20000)
        with client(embedded) as redis:
            # The rewriting child lives long enough to outlive its parent.
            redis.config_set("rdb-key-save-delay", 50)
            redis.bgrewriteaof()
        (child,) = psutil.Process(only_server_of(embedded.directory)).children()
        kill(embedded.directory)
        embedded.ensure()
        assert count(embedded) == 20000
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        only_server_of(embedded.directory)


class TestLoading:
    @pytest.fixture
    def loading(self, embedded: EmbeddedServer, make_embedded: MakeEmbedded, place: Path) -> Iterator[list[bool]]:
        """While a starter waits for a server that loads slowly; what its call returns is put in the list."""
        fill(embedded, _KEYS)
        embedded.stop()
        slow = make_embedded(
            binary=program(place / "slow", f"{_LOAD_SLOWLY}os.execv(binary, [binary, *arguments])"), timeout=5
        )
        returned: list[bool] = []
        starter = threading.Thread(target=lambda: returned.append(slow.start()))
        starter.start()
        wait_until(lambda: probe.ping(Path(slow.socket), 1) is probe.PingResult.LOADING)
        yield returned
        starter.join()

    def test_the_status_says_that_a_server_loads_its_file(self, embedded: EmbeddedServer, loading: list[bool]) -> None:
        status = embedded.status()
        assert (status.running, status.pid) == (True, only_server_of(embedded.directory))
        assert "it is loading its file" in status.notes[0]

    def test_a_call_waits_while_the_server_loads_its_file(self, embedded: EmbeddedServer, loading: list[bool]) -> None:
        embedded.ensure()
        assert count(embedded) == _KEYS
        wait_until(lambda: loading == [True])
        assert starts_in_log(embedded.directory) == 2

    def test_a_server_killed_while_loading_is_restarted(self, embedded: EmbeddedServer, loading: list[bool]) -> None:
        os.kill(only_server_of(embedded.directory), signal.SIGKILL)
        wait_until(lambda: loading == [True])
        assert count(embedded) == _KEYS
        assert len(servers_of(embedded.directory)) == 1

    def test_a_server_can_be_stopped_while_loading_data(self, embedded: EmbeddedServer, loading: list[bool]) -> None:
        # The starter holds start.lock until the server is up, so stopping waits for that.
        assert embedded.stop() is True
        assert servers_of(embedded.directory) == []
        wait_until(lambda: loading == [True])


class TestSuspended:
    @pytest.fixture
    def suspended(self, embedded: EmbeddedServer) -> Iterator[int]:
        embedded.ensure()
        pid = only_server_of(embedded.directory)
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        yield pid
        if servers_of(embedded.directory) == [pid]:
            os.kill(pid, signal.SIGCONT)

    def test_no_second_server_starts_while_one_is_suspended(self, suspended: int, make_embedded: MakeEmbedded) -> None:
        embedded = make_embedded(timeout=0.5)
        with pytest.raises(RedisConnectionError, match=rf"no answer for 0.5 s, though process {suspended} lives"):
            embedded.ensure()
        assert only_server_of(embedded.directory) == suspended
        os.kill(suspended, signal.SIGCONT)
        assert embedded.start() is False

    def test_the_status_says_that_a_server_does_not_answer(self, suspended: int, make_embedded: MakeEmbedded) -> None:
        status = make_embedded(timeout=0.2).status()
        assert (status.running, status.answers, status.pid) == (True, False, suspended)
        assert "does not answer" in status.notes[0]

    def test_a_suspended_server_is_stopped_by_a_clean_shutdown(self, suspended: int, embedded: EmbeddedServer) -> None:
        assert embedded.stop() is True
        assert servers_of(embedded.directory) == []
        assert "bye bye" in (embedded.directory / "server.log").read_text()


class TestBusy:
    def test_stop_kills_a_server_that_is_busy(self, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "_TERM_SECONDS", 0.2)
        embedded.ensure()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(embedded.socket)
            connection.sendall(b"EVAL 'while true do end' 0\r\n")
            wait_until(lambda: probe.ping(Path(embedded.socket), 0.1) is probe.PingResult.SILENT)
            assert embedded.stop() is True
        assert servers_of(embedded.directory) == []

    def test_a_server_that_hangs_is_reported_after_the_answer_timeout(self, make_embedded: MakeEmbedded) -> None:
        embedded = make_embedded(answer_timeout=0.3)
        embedded.ensure()
        pid = only_server_of(embedded.directory)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(RedisConnectionError, match=rf"gave no answer for 0.3 s, though process {pid} lives"):
                embedded.ensure()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert embedded.start() is False


class TestDeletedFiles:
    def test_a_deleted_socket_file_is_restored(self, embedded: EmbeddedServer) -> None:
        fill(embedded, 10)
        before = only_server_of(embedded.directory)
        Path(embedded.socket).unlink()
        assert embedded.start() is True
        assert only_server_of(embedded.directory) != before
        assert count(embedded) == 10

    def test_a_server_whose_socket_file_was_deleted_can_be_stopped(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        Path(embedded.socket).unlink()
        assert embedded.stop() is True
        assert servers_of(embedded.directory) == []

    @pytest.mark.skipif(shutil.which("ps") is None, reason="without /proc, ps is asked")
    def test_a_server_whose_socket_file_was_deleted_can_be_stopped_without_proc(
        self, embedded: EmbeddedServer, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(locks, "_PROC", place / "no-proc")
        embedded.ensure()
        Path(embedded.socket).unlink()
        assert embedded.stop() is True
        assert servers_of(embedded.directory) == []

    def test_a_deleted_directory_leaves_no_second_server(self, embedded: EmbeddedServer) -> None:
        fill(embedded, 10)
        before = only_server_of(embedded.directory)
        shutil.rmtree(embedded.directory)
        assert embedded.start() is True
        wait_until(lambda: before not in servers_of(embedded.directory))
        only_server_of(embedded.directory)
        assert count(embedded) == 0

    def test_a_server_whose_directory_was_deleted_can_be_stopped(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        shutil.rmtree(embedded.directory)
        assert embedded.stop() is True
        wait_until(lambda: servers_of(embedded.directory) == [])

    @pytest.mark.parametrize("name", ["start.lock", "server.lock"])
    def test_deleting_the_lock_file_does_not_end_the_server(self, embedded: EmbeddedServer, name: str) -> None:
        embedded.ensure()
        (embedded.directory / name).unlink()
        assert embedded.start() is False
        only_server_of(embedded.directory)

    def test_unreadable_notes_of_the_last_start_are_ignored(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        embedded.stop()
        (embedded.directory / "server.json").write_text("{")
        embedded.ensure()
        assert '"version"' in (embedded.directory / "server.json").read_text()

    def test_a_process_with_another_socket_is_not_ended(
        self, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        embedded.ensure()
        before = only_server_of(embedded.directory)
        Path(embedded.socket).unlink()
        record = embedded.directory / "server.json"
        record.write_text(record.read_text().replace("s.sock", "other.sock"))
        with pytest.raises(ConfigurationError, match=r"other\.sock, expected .*s\.sock"):
            embedded.ensure()
        assert only_server_of(embedded.directory) == before


@pytest.mark.thorough
def test_a_lock_held_by_another_program_is_an_error(
    embedded: EmbeddedServer, make_embedded: MakeEmbedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_TERM_SECONDS", 0.1)
    monkeypatch.setattr(server, "_KILL_SECONDS", 0.1)
    embedded.ensure()
    embedded.stop()
    with (embedded.directory / "server.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RedisConnectionError, match="process that is no server of ours"):
            embedded.ensure()
        with pytest.raises(RedisConnectionError, match="process that is no server of ours"):
            embedded.stop()
    embedded.ensure()


def test_the_error_names_a_hanging_starter_process(embedded: EmbeddedServer, make_embedded: MakeEmbedded) -> None:
    embedded.ensure()
    embedded.stop()
    hasty = make_embedded(timeout=0.2)
    with (embedded.directory / "start.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RedisConnectionError, match="another process was starting or stopping it"):
            hasty.ensure()
        with pytest.raises(RedisConnectionError, match="another process has been starting or stopping"):
            hasty.stop()
    embedded.ensure()


def test_a_server_of_another_mount_namespace_is_not_ended(embedded: EmbeddedServer) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("this user can't give a process separate mounts")
    code = f"from django_fairque.embedded import EmbeddedServer; EmbeddedServer({str(embedded.directory)!r}).ensure()"
    subprocess.run(["unshare", "--mount", sys.executable, "-c", code], cwd=ROOT, check=True)
    before = only_server_of(embedded.directory)
    Path(embedded.socket).unlink()  # pretend that it was made in a private /tmp
    with pytest.raises(RedisConnectionError, match="runs in another container or with a private /tmp"):
        embedded.ensure()
    assert only_server_of(embedded.directory) == before
    assert embedded.stop() is True  # an explicit stop is allowed
