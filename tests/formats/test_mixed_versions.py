"""Processes of two versions on one server: each refuses the data of the other."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from django_fairque.engine.model.data_format import FORMAT
from tests.tools.make_wheel import HERE, WHEEL

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from tests.servers import Server

OLDER = 1
NEW_PACKAGE = Path(__file__).parents[2]
SETTINGS = """
SECRET_KEY = "the key of the project, long enough to be one"
INSTALLED_APPS = ["django_fairque", "shop"]
USE_TZ = True
FAIRQUE = {{"REDIS": {{"URL": {url!r}}}}}
"""
TASKS = """
import redis
from django_fairque import task
server = redis.Redis.from_url({url!r})

@task(user="user")
def note(user, text):
    server.rpush("ran", text)
"""
SEND = """
import sys, django
django.setup()
from django_fairque import FairQueueError
from shop.tasks import note
try:
    for text in sys.argv[2:]:
        note.using(delay=float(sys.argv[1]) or None).enqueue("user-" + text, text)
except FairQueueError as error:
    sys.exit(str(error))
"""
UNNUMBERED = {
    "engine/lua/lib/base.lua": [("\n  check_format()\n", "\n"), ("if stat.format == 0 then", "if false then")],
    "engine/sharding/resharding.py": [("check_format(shards.name, values)", "pass")],
}
"""The changes that make of the oldest wheel the commit before the format number."""


class Version:
    """The processes of one version of the package, which lies in ``package``."""

    def __init__(self, package: Path, project: Path) -> None:
        path = os.pathsep.join(map(str, (package, project)))
        self._environment = {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "shop.settings"}
        self._project = project

    def _run(self, *words: str) -> str:
        """Return what the process printed, with its last line if it failed."""
        ended = subprocess.run(
            [sys.executable, *words],
            env=self._environment,
            cwd=self._project,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return ended.stdout if ended.returncode == 0 else f"FAILED {ended.stdout[-1500:]}{ended.stderr[-1500:]}"

    def send(self, *texts: str, delay: float = 0.0) -> str:
        return self._run("-c", SEND, str(delay), *texts)

    def manage(self, *words: str) -> str:
        return self._run("-m", "django", *words)

    def work(self) -> str:
        """Run the tasks that wait."""
        return self.manage("fairque_worker", "--burst", "--concurrency", "1", "--processes", "1")


@pytest.fixture
def project(server: Server, redis: Redis, tmp_path: Path) -> Path:
    shop = tmp_path / "project" / "shop"
    shop.mkdir(parents=True)
    (shop / "__init__.py").touch()
    (shop / "settings.py").write_text(SETTINGS.format(url=server.url))
    (shop / "tasks.py").write_text(TASKS.format(url=server.url))
    return shop.parent


@pytest.fixture
def versions(project: Path, tmp_path: Path) -> tuple[Version, Version, Version]:
    """The version before the number, the oldest one with a number, and the present one."""
    for name in ("unnumbered", "old"):
        with zipfile.ZipFile(HERE / WHEEL.format(number=OLDER)) as wheel:
            wheel.extractall(tmp_path / name)
    for file, changes in UNNUMBERED.items():
        path = tmp_path / "unnumbered" / "django_fairque" / file
        text = path.read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        path.write_text(text)
    return Version(tmp_path / "unnumbered", project), Version(tmp_path / "old", project), Version(NEW_PACKAGE, project)


def ran(redis: Redis) -> list[str]:
    return sorted(text.decode() if isinstance(text, bytes) else text for text in redis.lrange("ran", 0, -1))


def manage(*words: str) -> str:
    """Run a command of the present version."""
    out = StringIO()
    call_command(*words, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


@pytest.mark.slow  # the test takes a minute
def test_versions_with_different_formats_refuse_the_data_of_each_other(
    versions: tuple[Version, Version, Version], server: Server, redis: Redis, settings: Settings
) -> None:
    unnumbered, old, new = versions
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    assert unnumbered.send("a") == old.send("b", "c", "d", delay=0.01) == ""
    refusal = f"have format {OLDER} (from django_fairque 0.1.0 on), and this process uses format {FORMAT}"
    assert refusal in new.send("refused")
    assert refusal in new.work()
    assert f"the data of queue 'default' have format {OLDER}\n" in manage("fairque_format")
    assert "FAILED" not in old.work()
    assert ran(redis) == list("abcd")

    redis.flushdb()
    assert new.send("e") == ""
    refusal = f"have format {FORMAT} (from django_fairque 0.1.0 on), and this process uses format {OLDER}"
    assert refusal in old.send("refused")
    assert refusal in old.work()
    assert "FAILED" not in new.work()
    assert ran(redis) == ["e"]
