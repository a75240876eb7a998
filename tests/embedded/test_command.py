"""`manage.py fairque_server`, as somebody at a terminal sees it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command

from tests.embedded.helpers import ROOT, kill, only_server_of, servers_of, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django import Settings

    from django_fairque.embedded import EmbeddedServer
    from tests.embedded.conftest import MakeEmbedded


def run(action: str, directory: Path | None = None) -> str:
    output = io.StringIO()
    call_command("fairque_server", action, dir=directory, stdout=output)
    return output.getvalue()


class TestActions:
    def test_the_start_action_starts_a_server_or_reports_a_running_one(self, embedded: EmbeddedServer) -> None:
        assert run("start", embedded.directory) == f"started, listening on {embedded.socket}\n"
        assert run("start", embedded.directory) == f"was running already, listening on {embedded.socket}\n"
        only_server_of(embedded.directory)

    def test_the_stop_action_stops_a_server_or_reports_that_none_runs(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        assert run("stop", embedded.directory) == "stopped\n"
        assert run("stop", embedded.directory) == f"was not running in {embedded.directory}\n"
        assert servers_of(embedded.directory) == []

    def test_the_restart_action_replaces_the_server_process(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        before = only_server_of(embedded.directory)
        assert run("restart", embedded.directory) == f"restarted, listening on {embedded.socket}\n"
        assert only_server_of(embedded.directory) != before

    def test_the_status_action_shows_the_facts_of_the_server(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        expected = [
            rf"running +yes, as process {only_server_of(embedded.directory)}",
            rf"directory +{embedded.directory}",
            r"server +\w+ \d+\.\d+\.\d+, /.+",
            rf"socket +{embedded.socket}",
            r"up for +0:00:\d\d",
            r"clients +0",
            r"memory +\d.* [KM]B",
            r"file +\d.* bytes, .* when last rewritten, synced every second",
        ]
        lines = run("status", embedded.directory).splitlines()
        assert len(lines) == len(expected)
        for line, pattern in zip(lines, expected, strict=True):
            assert re.fullmatch(pattern, line)

    def test_the_status_shows_advice(self, make_embedded: MakeEmbedded) -> None:
        embedded = make_embedded(appendfsync="always")
        embedded.ensure()
        assert "note         it runs with appendfsync always" in run("status", embedded.directory)


class TestFailures:
    def test_the_status_action_without_a_server_exits_with_3(self, embedded: EmbeddedServer) -> None:
        with pytest.raises(CommandError, match=f"no server is running in {embedded.directory}") as raised:
            run("status", embedded.directory)
        assert raised.value.returncode == 3

    def test_the_server_command_explains_a_directory_that_can_not_be_used(self, embedded: EmbeddedServer) -> None:
        embedded.directory.touch()
        with pytest.raises(CommandError, match="expected a directory"):
            run("start", embedded.directory)

    def test_failures_of_the_server_command_are_one_line_with_an_exit_status(self, place: Path) -> None:
        command = [sys.executable, "-m", "django", "fairque_server", "start", "--dir", str(place / "missing" / "dir")]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.embedded.settings"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("CommandError: ")
        assert "does not exist: create that first, or correct the path" in line


class TestDirectory:
    def test_the_server_command_uses_the_url_s_directory(self, embedded: EmbeddedServer, settings: Settings) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": f"embedded://{embedded.directory}"}}
        assert embedded.socket in run("start")
        assert run("stop") == "stopped\n"

    def test_the_default_directory_of_the_server_is_inside_the_project(
        self, make_embedded: MakeEmbedded, place: Path, settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": "embedded://"}}
        settings.BASE_DIR = place
        assert make_embedded(".fairque").socket in run("start")

    def test_the_server_command_refuses_a_project_whose_server_is_not_embedded(self, settings: Settings) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": "redis://:secret@localhost/0"}}
        with pytest.raises(CommandError, match="expected embedded://") as raised:
            run("stop")
        assert "secret" not in str(raised.value)

    def test_the_directory_can_be_given_to_the_server_command_regardless_of_the_settings(
        self, embedded: EmbeddedServer, settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": {"URL": "redis://localhost/0"}, "NONSENSE": 1}
        assert embedded.socket in run("start", embedded.directory)


def test_the_projects_client_survives_its_server(embedded: EmbeddedServer, settings: Settings) -> None:
    from django_fairque.conf import get_config

    settings.FAIRQUE = {"REDIS": {"URL": f"embedded://{embedded.directory}"}}
    with get_config().redis.create_redis_client() as client:
        client.set("k", "v")
        before = kill(embedded.directory)
        wait_until(lambda: not embedded.status().running)  # the client finds its connection closed, not broken
        assert client.get("k") == b"v"
    assert only_server_of(embedded.directory) != before
