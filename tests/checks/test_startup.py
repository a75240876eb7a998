"""Starting an app, and a plain check, ask no server anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from django.apps import apps
from django.core.checks.registry import registry

from tests import source_rules

ROOT = Path(source_rules.__file__).parent.parent


def test_the_checks_are_registered_with_the_app() -> None:
    assert apps.get_app_config("django_fairque").verbose_name == "Fair queue"
    assert registry.tag_exists("fairque", include_deployment_checks=True)


PROGRAM = """
import socket, sys
import django
from django.conf import settings
from django.core.management import call_command

def refuse(*arguments): raise AssertionError(f"the network was asked for: {arguments}")
socket.socket.connect = refuse
settings.configure(
    INSTALLED_APPS=["django_fairque"],
    FAIRQUE={"REDIS": {"URL": "redis://127.0.0.1:1/0"}},
)
django.setup()
call_command("check", tags=["fairque"])
assert "redis" not in sys.modules
"""


def test_starting_and_checking_needs_no_network() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_tasks_of_installed_apps_are_found(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text("FOUND = True\n")
    program = (
        "import sys, django; from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django_fairque', 'shop']); django.setup()\n"
        "assert sys.modules['shop.tasks'].FOUND"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr


def test_the_example_project_passes_all_deployment_checks() -> None:
    command = [sys.executable, "manage.py", "check", "--deploy", "--tag", "fairque", "--fail-level", "WARNING"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQUE_", "DJANGO_"))}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT / "testproject", env=environment
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["System check identified no issues (2 silenced)."])
