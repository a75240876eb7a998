"""The settings that are shown pass the checks that they are to pass, on a server that is set as valkey.conf sets it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import django_fairque
from django_fairque.conf import get_config
from tests.deployment import files

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.conftest import MakeServer
    from tests.servers import Server

ROOT = Path(django_fairque.__file__).parent.parent
SERVERS = (ROOT / "docs" / "guides" / "servers.md").read_text()
SNIPPETS = re.findall(r"^## ([^\n]+)\n(?:(?!^##? ).)*?```python\n(.+?)```", SERVERS, flags=re.MULTILINE | re.DOTALL)


def server_options() -> list[str]:
    """valkey.conf as options of the command, but for where the data is."""
    lines = (files.FOLDER / "docker" / "valkey.conf").read_text().splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    return [part for name, value in pairs if name != "dir" for part in (f"--{name}", value)]


def check(server: Server, tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "settings.py").write_text((files.FOLDER / "project" / "settings.py").read_text())
    (tmp_path / "shop" / "urls.py").write_text(
        "from django.urls import include, path\nurlpatterns = [path('fairque/', include('django_fairque.urls'))]\n"
    )
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQUE_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "-m", "django", *words],
        cwd=tmp_path,
        env={
            **plain,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "SECRET_KEY": "x" * 20 + "0123456789abcdefghijklmnopqrstuvwxyz",
            "DATABASE_PASSWORD": "secret",
            "FAIRQUE_REDIS__URL": server.url,
            "FAIRQUE_MONITOR__TOKEN": "0123456789abcdef0123",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_settings_pass_on_the_server_of_the_compose_file(make_server: MakeServer, tmp_path: Path) -> None:
    server = make_server(*server_options())
    done = check(server, tmp_path, "check", "--deploy", "--tag", "fairque", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # the test takes 6 seconds
def test_the_settings_fail_the_check_on_a_server_without_persistence(make_server: MakeServer, tmp_path: Path) -> None:
    done = check(make_server(), tmp_path, "check", "--deploy", "--tag", "fairque", "--fail-level", "WARNING")
    assert done.returncode == 1
    assert "fairque.W004" in done.stderr


@pytest.mark.thorough
def test_the_release_step_reports_only_a_missing_worker(make_server: MakeServer, tmp_path: Path) -> None:
    done = check(make_server(*server_options()), tmp_path, "fairque_health")
    assert done.returncode == 1, done.stdout + done.stderr
    status, *reasons = [line for line in done.stdout.splitlines() if line == "degraded" or line.startswith("- ")]
    assert status == "degraded"
    assert [reason.split(",")[0] for reason in reasons] == ["- no worker is running"]


@pytest.mark.parametrize(("title", "source"), SNIPPETS, ids=[title for title, _ in SNIPPETS])
def test_each_server_s_settings_are_valid(
    title: str, source: str, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    for name in re.findall(r'os\.environ\["(\w+)"\]', source):
        monkeypatch.setenv(name, "secret")
    found: dict[str, Any] = {"FAIRQUE": {}}
    exec(f"import os\n{source}", found)
    settings.FAIRQUE = found["FAIRQUE"]
    config = get_config()
    assert not config.redis.is_embedded
    assert config.redis.cluster is ("CLUSTER" in source)


def test_each_kind_of_server_has_an_example_of_settings() -> None:
    assert [title for title, _ in SNIPPETS] == ["One machine", "Another machine", "Sentinel", "Cluster"]
