"""System checks: each kind of mistake has its number, its hint and its place in the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.core import checks, mail
from django.core.checks import run_checks
from django.core.checks.registry import registry

from django_fairque.conf import reset_config
from tests import house

if TYPE_CHECKING:
    from django.core.checks import CheckMessage
    from pytest_django import Settings

ROOT = Path(house.__file__).parent.parent
DJANGO_CACHE = "django.core.cache.backends.redis.RedisCache"


def handle(payload: object) -> None:
    """A handler that can be imported."""


@pytest.fixture
def check(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    def check(fairque: Any, *, deploy: bool = False, **environment: str) -> list[CheckMessage]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings.FAIRQUE = fairque
        found = run_checks(tags=["fairque"], include_deployment_checks=deploy)
        assert all(message.hint and message.id in documented() for message in found)
        return found

    return check


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id) for message in messages]


def documented() -> set[str]:
    return set(re.findall(r"fairque\.[EW]\d{3}", (ROOT / "docs" / "configuration.md").read_text()))


HERE = {"HOST": "localhost"}


def test_a_good_configuration_has_no_message(check: Any) -> None:
    assert check({"REDIS": HERE}, deploy=True) == []


@pytest.mark.parametrize(
    ("fairque", "number"),
    [
        ({"REDIS": HERE, "QUEU": {}}, "fairque.E001"),
        ({"REDIS": {"PORT": "x"}}, "fairque.E002"),
        ({"REDIS": HERE, "WORKER": {"ASSIGNED_USERS": ["a"], "STEAL_TARGETS": ["a"]}}, "fairque.E003"),
        ({"REDIS": HERE, "CONFIG_FILE": "nowhere.yaml"}, "fairque.E004"),
        ({"REDIS": {"CACHE": "nowhere"}}, "fairque.E006"),
        ({"REDIS": HERE, "WORKER": {"HANDLER": "nowhere.handle"}}, "fairque.E007"),
        ({"REDIS": HERE, "WORKER": {"HANDLER": "django_fairque.checks.TAG"}}, "fairque.E007"),
    ],
)
def test_each_kind_of_mistake_has_a_number(check: Any, fairque: Any, number: str) -> None:
    (message,) = check(fairque)
    assert isinstance(message, checks.Error)
    assert message.id == number


def test_each_mistake_is_a_message_of_its_own(check: Any) -> None:
    messages = check({"REDIS": HERE, "QUEUE": {"PREFX": 1, "SHARDS": 2}}, FAIRQUE_WORKER__PROCESSES="x")
    assert sorted(ids(messages)) == ["fairque.E001", "fairque.E002", "fairque.E002"]
    assert {message.msg for message in messages if message.id == "fairque.E001"} == {
        'settings.FAIRQUE["QUEUE"]["PREFX"]: unknown key; did you mean PREFIX?'
    }


def test_a_handler_that_can_be_imported(check: Any) -> None:
    assert check({"REDIS": HERE, "WORKERS": {"w": {"HANDLER": f"{__name__}.handle"}}}) == []


class TestNoServer:
    def test_in_production(self, check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(mail, "outbox")  # what Django's test environment leaves to be seen
        assert ids(check({})) == ["fairque.E005"]

    def test_in_development(self, check: Any, settings: Settings) -> None:
        settings.DEBUG = True
        assert check({}) == []

    def test_in_a_test_run_only_who_uses_one_is_told(self, check: Any) -> None:
        assert check({}) == []
        assert ids(check({"QUEU": {}})) == ["fairque.E001"]


class TestWarnings:
    def test_a_variable_with_one_underscore(self, check: Any) -> None:
        others = {"FAIRQUE_REDIS_PORT": "tcp://10.0.0.1:6379", "FAIRQUE_SERVER_BIN": "/bin/x"}
        (message,) = check({"REDIS": HERE}, FAIRQUE_REDIS_URL="redis://:hunter2@h", **others)
        assert isinstance(message, checks.Warning)
        assert message.id == "fairque.W001"
        assert "FAIRQUE_REDIS_URL" in message.msg
        assert "did you mean FAIRQUE_REDIS__URL?" in str(message.hint)
        assert "hunter" not in str(message)

    @pytest.mark.parametrize(
        ("fairque", "location", "shared"),
        [
            ({"URL": "redis://localhost/1"}, "redis://127.0.0.1:6379/1", True),
            ({"HOST": "h", "PORT": 7, "DB": 1}, "redis://:p@h:7/1", True),
            ({"UNIX_SOCKET_PATH": "/s.sock"}, "unix:///s.sock", True),
            ({"URL": "unix:///s.sock?db=1"}, "unix:///s.sock?db=1", True),
            ({"CACHE": "default"}, "redis://h", True),
            ({"CACHE": "default", "DB": 5}, "redis://h", False),
            ({"URL": "redis://h/1"}, "redis://h/2", False),
            ({"URL": "redis://h/1"}, "redis://i/1", False),
            ({"URL": "embedded://"}, "redis://i/1", False),
        ],
    )
    def test_a_database_shared_with_a_cache(
        self, check: Any, settings: Settings, fairque: Any, location: str, shared: bool
    ) -> None:
        settings.CACHES = {
            "default": {"BACKEND": DJANGO_CACHE, "LOCATION": location},
            "other": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        }
        assert ids(check({"REDIS": fairque})) == (["fairque.W002"] if shared else [])

    def test_an_alias_made_for_the_queue_is_not_shared(self, check: Any, settings: Settings) -> None:
        settings.CACHES = {
            "default": {"BACKEND": DJANGO_CACHE, "LOCATION": "redis://h/0"},
            "queues": {"BACKEND": DJANGO_CACHE, "LOCATION": "redis://h/1"},
        }
        assert check({"REDIS": {"CACHE": "queues"}}) == []

    @pytest.mark.parametrize(("lease", "found"), [(15, ["fairque.W003"]), (15.5, [])])
    def test_a_lease_that_one_lost_answer_outlasts(self, check: Any, lease: float, found: list[str]) -> None:
        assert ids(check({"REDIS": HERE, "WORKER": {"LEASE_SECONDS": lease}})) == found


class TestDeployment:
    @pytest.mark.parametrize(
        ("redis", "found"),
        [
            ({"URL": "redis://db.example"}, ["fairque.E008"]),
            ({"SENTINEL": {"SERVICE": "m", "NODES": ["db.example"]}}, ["fairque.E008"]),
            ({"URL": "rediss://db.example"}, []),
            ({"URL": "rediss://db.example", "SSL_CERT_REQS": "none"}, ["fairque.E009"]),
            ({"URL": "rediss://db.example?ssl_check_hostname=false"}, ["fairque.E009"]),
            ({"URL": "redis://[::1]"}, []),
            ({"URL": "redis://127.0.0.2"}, []),
            ({"UNIX_SOCKET_PATH": "/s"}, []),
            ({"URL": "embedded://"}, []),
            ({"PORT": "x"}, ["fairque.E002"]),
        ],
    )
    def test_the_connection_is_encrypted(self, check: Any, redis: Any, found: list[str]) -> None:
        assert ids(check({"REDIS": redis}, deploy=True)) == found

    def test_only_when_asked_for(self, check: Any) -> None:
        assert check({"REDIS": {"URL": "redis://db.example"}}) == []

    def test_of_a_cache_s_server(self, check: Any, settings: Settings) -> None:
        settings.CACHES = {"queues": {"BACKEND": DJANGO_CACHE, "LOCATION": "redis://db.example"}}
        assert ids(check({"REDIS": {"CACHE": "queues"}}, deploy=True)) == ["fairque.E008"]


def test_every_number_in_the_code_is_documented() -> None:
    source = (ROOT / "django_fairque" / "checks.py").read_text()
    numbers = set(re.findall(r"fairque\.[EW]\d{3}", source))
    assert numbers == documented()
    assert len(numbers) == 13


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
    SILENCED_SYSTEM_CHECKS=["security.W"],
)
django.setup()
call_command("check", deploy=True, tags=["fairque"])
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


@pytest.fixture(autouse=True)
def afresh() -> None:
    reset_config()
