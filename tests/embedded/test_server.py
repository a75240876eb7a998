"""Starting, stopping, looking: one process, no accidents."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from redis import Redis

from django_fairque.embedded import EmbeddedServer
from django_fairque.engine.model.errors import ConfigurationError, RedisConnectionError
from tests.embedded.helpers import ROOT, kill, only_server_of, program, servers_of, starts_in_log, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.embedded.conftest import MakeEmbedded


def client(embedded: EmbeddedServer) -> Redis:
    return Redis(unix_socket_path=embedded.socket, decode_responses=True)


class TestRetire:
    def test_a_retired_server_ends_and_this_process_starts_no_other(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        assert embedded.retire()
        for another in (embedded, EmbeddedServer(embedded.directory)):
            with pytest.raises(RedisConnectionError, match="has been ended for good"):
                another.ensure()
        assert servers_of(embedded.directory) == []
        assert not embedded.retire()

    def test_another_process_may_start_a_retired_server(self, embedded: EmbeddedServer) -> None:
        embedded.retire()
        start = (
            f"from django_fairque.embedded import EmbeddedServer; EmbeddedServer({str(embedded.directory)!r}).ensure()"
        )
        subprocess.run([sys.executable, "-c", start], check=True, cwd=ROOT, timeout=60)
        assert embedded.ensure()  # the server runs already, so this process starts none


class TestStart:
    def test_starting_a_server_makes_its_directory(self, embedded: EmbeddedServer) -> None:
        path = embedded.ensure()
        assert path == str(embedded.directory / "s.sock")
        with client(embedded) as redis:
            assert redis.ping()

    def test_a_start_returns_whether_this_call_started_the_server(self, embedded: EmbeddedServer) -> None:
        assert [embedded.start(), embedded.start()] == [True, False]

    def test_starting_leaves_a_running_server_alone(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        before = only_server_of(embedded.directory)
        EmbeddedServer(embedded.directory).ensure()
        assert only_server_of(embedded.directory) == before
        assert starts_in_log(embedded.directory) == 1

    def test_the_server_opens_no_port_and_evicts_no_keys(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        assert not psutil.Process(only_server_of(embedded.directory)).net_connections(kind="inet")
        with client(embedded) as redis:
            assert redis.config_get("appendonly", "appendfsync", "aof-use-rdb-preamble", "maxmemory-policy") == {
                "appendonly": "yes",
                "appendfsync": "everysec",
                "aof-use-rdb-preamble": "no",
                "maxmemory-policy": "noeviction",
            }

    def test_the_server_can_sync_every_write(self, make_embedded: MakeEmbedded) -> None:
        embedded = make_embedded(appendfsync="always")
        embedded.ensure()
        with client(embedded) as redis:
            assert redis.config_get("appendfsync") == {"appendfsync": "always"}

    def test_a_server_outlives_its_starter_and_terminal(self, embedded: EmbeddedServer) -> None:
        code = (
            f"from django_fairque.embedded import EmbeddedServer; EmbeddedServer({str(embedded.directory)!r}).ensure()"
        )
        starter = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, start_new_session=True)
        assert starter.wait(30) == 0
        pid = only_server_of(embedded.directory)
        # Ctrl-C goes to the terminal's process group: the server is in none of its starter's.
        assert psutil.Process(pid).terminal() is None
        assert _session(pid) != starter.pid
        assert embedded.start() is False

    def test_a_large_log_of_the_server_is_renamed(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        embedded.stop()
        log = embedded.directory / "server.log"
        log.write_bytes(b"x" * 5 * 1024 * 1024)
        embedded.ensure()
        assert log.stat().st_size < 1024 * 1024
        assert (embedded.directory / "server.log.1").read_bytes().startswith(b"xxx")

    def test_starting_an_older_server_version_logs_a_warning(
        self, embedded: EmbeddedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        embedded.ensure()
        embedded.stop()
        record = embedded.directory / "server.json"
        record.write_text(record.read_text().replace('"version": "', '"version": "9'))
        embedded.ensure()
        assert "is older" in caplog.text


class TestStop:
    def test_stopping_ends_the_server_and_keeps_its_data(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        with client(embedded) as redis:
            redis.set("k", "v")
        assert embedded.stop() is True
        assert servers_of(embedded.directory) == []
        embedded.ensure()
        with client(embedded) as redis:
            assert redis.get("k") == "v"

    def test_stopping_without_a_server_is_no_error(self, embedded: EmbeddedServer) -> None:
        assert embedded.stop() is False  # there is no directory yet
        assert not embedded.directory.exists()
        embedded.ensure()
        kill(embedded.directory)
        wait_until(lambda: not embedded.status().running)
        assert embedded.stop() is False

    def test_restart_changes_the_process_and_the_options(self, make_embedded: MakeEmbedded) -> None:
        make_embedded().ensure()
        before = only_server_of(make_embedded().directory)
        embedded = make_embedded(appendfsync="always")
        embedded.restart()
        assert only_server_of(embedded.directory) != before
        with client(embedded) as redis:
            assert redis.config_get("appendfsync") == {"appendfsync": "always"}


class TestStatus:
    def test_the_status_without_a_server_makes_no_directory(self, embedded: EmbeddedServer) -> None:
        status = embedded.status()
        assert (status.running, status.answers, status.pid, status.aof) == (False, False, None, None)
        assert not embedded.directory.exists()

    def test_the_status_of_a_running_server_has_its_facts(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        with client(embedded) as redis:
            redis.set("k", "v" * 1000)
            status = embedded.status()
            facts = redis.info("server")
        assert (status.running, status.answers, status.notes) == (True, True, ())
        assert status.pid == only_server_of(embedded.directory)
        assert (status.server, status.version) == ("valkey", facts["valkey_version"])
        assert status.binary == facts["executable"]
        assert str(status.socket) == embedded.socket
        assert status.directory == embedded.directory
        assert status.clients == 1
        assert status.uptime is not None
        assert status.uptime < 60
        assert status.aof is not None
        assert status.aof.size > 1000
        assert (status.aof.appendfsync, status.aof.last_write_ok, status.aof.rewriting) == ("everysec", True, False)

    def test_the_status_names_an_upgrade_that_needs_a_restart(
        self, embedded: EmbeddedServer, make_embedded: MakeEmbedded, place: Path
    ) -> None:
        embedded.ensure()
        newer = program(place / "newer", "print('Valkey server v=99.1.0 sha=0')")
        (note,) = make_embedded(binary=newer).status().notes
        assert f"valkey {embedded.status().version} runs, valkey 99.1.0 is installed" in note
        assert "restart" in note

    def test_the_status_names_an_option_that_needs_a_restart(self, make_embedded: MakeEmbedded) -> None:
        make_embedded().ensure()
        (note,) = make_embedded(appendfsync="always").status().notes
        assert "runs with appendfsync everysec, always is configured" in note

    def test_the_status_reports_a_deleted_server_binary(
        self, make_embedded: MakeEmbedded, embedded: EmbeddedServer, place: Path
    ) -> None:
        embedded.ensure()
        (note,) = make_embedded(binary=place / "gone").status().notes
        assert "can't be started again" in note


class TestRefusals:
    def test_an_unknown_sync_policy_is_refused(self, place: Path) -> None:
        with pytest.raises(ConfigurationError, match="appendfsync is 'sometimes', expected one of everysec, always"):
            EmbeddedServer(place, appendfsync="sometimes")

    def test_a_directory_without_a_parent_is_refused(self, make_embedded: MakeEmbedded) -> None:
        with pytest.raises(ConfigurationError, match="missing does not exist"):
            make_embedded("missing/.fairque").ensure()

    def test_a_server_binary_that_is_too_old_is_refused(self, make_embedded: MakeEmbedded, place: Path) -> None:
        old = program(place / "old", "print('Redis server v=7.0.15 sha=0')")
        with pytest.raises(ConfigurationError, match=r"redis 7\.0\.15, expected at least 7\.2"):
            make_embedded(binary=old).ensure()

    def test_a_program_that_is_no_server_is_refused(self, make_embedded: MakeEmbedded, place: Path) -> None:
        with pytest.raises(ConfigurationError, match="no Valkey or Redis server: --version says 'hello'"):
            make_embedded(binary=program(place / "other", "print('hello')")).ensure()

    def test_a_program_that_can_not_run_is_refused(self, make_embedded: MakeEmbedded, place: Path) -> None:
        broken = place / "broken"
        broken.write_bytes(b"\x7fELF and no more")
        broken.chmod(0o755)
        with pytest.raises(ConfigurationError, match="broken can't be run"):
            make_embedded(binary=broken).ensure()

    def test_a_file_system_whose_locks_a_child_does_not_inherit_is_refused(
        self, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fcntl, "flock", fcntl.lockf)  # network file systems implement flock in this way
        with pytest.raises(ConfigurationError, match="hands no lock to a child process"):
            embedded.ensure()
        assert servers_of(embedded.directory) == []

    def test_a_binary_that_closes_the_file_descriptor_of_the_lock_is_refused(
        self, make_embedded: MakeEmbedded, place: Path
    ) -> None:
        forgetful = program(place / "forgetful", "os.closerange(3, 1000)\nos.execv(binary, [binary, *arguments])")
        embedded = make_embedded(binary=forgetful)
        with pytest.raises(ConfigurationError, match="does not keep the file descriptor"):
            embedded.ensure()
        wait_until(lambda: servers_of(embedded.directory) == [])

    def test_a_failed_start_s_error_has_the_server_s_reason(self, make_embedded: MakeEmbedded, place: Path) -> None:
        body = "if arguments == ['--version']: os.execv(binary, [binary, *arguments])\nsys.exit('no such luck')"
        with pytest.raises(RedisConnectionError, match=r"refused to start \(exit status 1\)[^?]*no such luck"):
            make_embedded(binary=program(place / "unlucky", body)).ensure()

    def test_the_error_about_a_damaged_file_contains_the_server_s_log(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        with client(embedded) as redis:
            for number in range(100):
                redis.set(f"key-{number}", "value")
        embedded.stop()
        (data,) = embedded.directory.glob("data/appendonlydir/*.incr.aof")
        content = bytearray(data.read_bytes())
        content[500:520] = b"?" * 20
        data.write_bytes(content)
        with pytest.raises(RedisConnectionError, match=r"ended 3 times before it answered[^?]*Bad file format"):
            embedded.ensure()


def _session(pid: int) -> int:
    return os.getsid(pid)
