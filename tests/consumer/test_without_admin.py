"""A project without the admin, and without `django.contrib.auth`: everything but the admin's pages works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.servers import Server

ROOT = Path(__file__).parent.parent.parent
SETTINGS = """
import os

SECRET_KEY = "x" * 50
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["django_fairque", "shop"]
ROOT_URLCONF = "shop.urls"
MIDDLEWARE = []
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
FAIRQUE = {"REDIS": {"URL": os.environ["TEST_SERVER"]}}
"""
TASKS = """
from django_fairque import task


@task
def add(left, right):
    return left + right
"""
URLS = """
from django.shortcuts import render
from django.urls import include, path

urlpatterns = [
    path("", lambda request: render(request, "page.html", {"word": "rendered"})),
    path("fairque/", include("django_fairque.urls")),
]
"""
USE = """
import django
django.setup()
from django.template import engines
from django.test import Client
page = Client().get("/")
assert page.content == b"rendered", page.content
Client().get("/fairque/ready/").status_code
engines["django"].from_string("{% load fairque_admin %}")
from shop.tasks import add
print(add.enqueue(1, 2).id)
"""


@pytest.mark.thorough
def test_a_project_without_the_admin_checks_migrates_renders_and_runs_tasks(server: Server, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / "templates").mkdir(parents=True)
    (shop / "__init__.py").touch()
    (shop / "settings.py").write_text(SETTINGS)
    (shop / "tasks.py").write_text(TASKS)
    (shop / "urls.py").write_text(URLS)
    (shop / "templates" / "page.html").write_text("{{ word }}")

    def run(*command: str) -> str:
        paths = os.pathsep.join([str(tmp_path), str(ROOT)])
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "PYTHONPATH": paths,
            "TEST_SERVER": server.url,
        }
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "django", "check")
    run("-m", "django", "migrate", "-v0")
    task_id = run("-c", USE).split()[-1]
    run("-m", "django", "fairque_worker", "--burst", "--concurrency", "1", "--processes", "1")
    assert "finished" in run("-m", "django", "fairque_task", "show", task_id)
