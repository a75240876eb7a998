"""A Wagtail site as ``wagtail start`` makes it, with the settings of its page and a worker process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from django_fairque.conf import get_queue
from tests.docs.examples import examples
from tests.worker.conftest import WorkerProcess, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

pytest.importorskip("wagtail")

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "guides" / "wagtail-and-django-tenants.md"
INDEX_TASKS = ["modelsearch.tasks.insert_or_update_object_task", "wagtail.tasks.update_reference_index_task"]

SETTINGS = """
import os
from mysite.settings.base import *

SECRET_KEY = "of a site that lives as long as a test"
INSTALLED_APPS = [*INSTALLED_APPS, "django_fairque"]
TASKS = {}
ALLOWED_HOSTS = ["testserver"]
DATABASES["default"]["OPTIONS"] = {
    "init_command": "PRAGMA synchronous = OFF",  # a test needs no data after a power failure
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
}
"""

OURS = """
FAIRQUE = {"REDIS": {"URL": os.environ["TEST_SERVER"]}}
"""

EDITOR = """
import json, sys
import django
django.setup()
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, override_settings
from home.models import HomePage
from wagtail.models import Page

call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING", stdout=sys.stderr)
home = HomePage.objects.get(slug="home")
client = Client()
client.force_login(User.objects.create(username="editor", is_superuser=True, is_staff=True))

def publish(path, title, slug):
    answer = client.post(f"/admin/pages/{path}/", {"title": title, "slug": slug, "action-publish": "1"})
    assert answer.status_code == 302, answer.content.decode()

for line in sys.stdin:
    kind, *words = json.loads(line)
    if kind == "publish":
        publish(f"add/home/homepage/{home.pk}", *words)
    elif kind == "change":
        publish(f"{HomePage.objects.get(slug=words[1]).pk}/edit", *words)
    elif kind == "leave out the options":
        override_settings(TASKS={"default": {"BACKEND": "django_fairque.backends.FairqueBackend"}}).enable()
    found = Page.objects.live().search(words[0]) if kind == "search" else []
    print(json.dumps([page.title for page in found]), flush=True)
"""


class Site:
    """A project in a directory, and its editor: a process that publishes pages with the forms of Wagtail's admin."""

    def __init__(self, directory: Path, server: Server) -> None:
        directory.mkdir()
        start = [str(Path(sys.executable).parent / "wagtail"), "start", "mysite", str(directory)]
        subprocess.run(start, check=True, capture_output=True)
        settings = directory / "mysite" / "settings" / "queue.py"
        settings.write_text(SETTINGS + examples(PAGE, "python")[0] + OURS)
        (directory / "editor.py").write_text(EDITOR)
        self.environment = {
            "DJANGO_SETTINGS_MODULE": "mysite.settings.queue",
            "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)]),
            "TEST_SERVER": server.url,
        }
        self._editor = subprocess.Popen(
            [sys.executable, "editor.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=directory,
            env={**os.environ, **self.environment},
            text=True,
        )

    def edit(self, *command: str) -> Any:
        """Let the editor carry out a command; returns its answer."""
        assert self._editor.stdin is not None
        assert self._editor.stdout is not None
        print(json.dumps(command), file=self._editor.stdin, flush=True)
        return json.loads(self._editor.stdout.readline())

    def close(self) -> None:
        with self._editor:
            self._editor.terminate()


@pytest.fixture
def site(server: Server, redis: Redis, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path / "site", server)
    yield site
    site.close()


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    return get_queue()


@pytest.fixture
def worker(site: Site, server: Server, tmp_path: Path) -> Iterator[WorkerProcess]:
    assert site.edit("search", "nothing") == []  # the site has its tables
    process = WorkerProcess(server, tmp_path, **site.environment)
    yield process
    process.close()


def names_of(queue: FairQueue, state: Any) -> list[str]:
    return sorted(task.name for task in queue.tasks(state).items)


# One test: making a site takes longer than everything else here.
def test_published_pages_are_indexed_by_a_worker_once_for_each_publication(
    site: Site, queue: FairQueue, worker: WorkerProcess
) -> None:
    worker.wait_ready()
    slugs = ["one", "two", "three", "four"]
    for slug in slugs:
        site.edit("publish", f"Queues and waits {slug}", slug)

    def is_done() -> bool:
        states = queue.get_stats().states
        return states["finished"] > 0 and not states["scheduled"] + states["queued"] + states["started"]

    eventually(is_done)
    assert queue.dlq.count() == 0, worker.log
    assert names_of(queue, "finished") == sorted(INDEX_TASKS * len(slugs))
    assert sorted(site.edit("search", "queues")) == sorted(f"Queues and waits {slug}" for slug in slugs)
    site.edit("change", "Turns and fairness", "one")
    assert site.edit("search", "turns") == []  # not yet: its task waits for further changes
    eventually(is_done)
    assert site.edit("search", "turns") == ["Turns and fairness"]
    assert queue.dlq.count() == 0, worker.log
    assert worker.stop() == 0, worker.log
    site.edit("leave out the options")
    site.edit("publish", "Without options", "without")
    assert names_of(queue, "queued") == sorted(INDEX_TASKS * 3)  # the cause of the errors that the page explains
