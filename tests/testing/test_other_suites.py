"""Test suites of projects, as their own runners run them: tasks are captured, each test begins with none, and no server is used.

The project is written into a directory and run by separate processes. Its server, if it names one, stays empty.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis import Redis

    from tests.conftest import MakeServer
    from tests.servers import Server


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """One that no worker of another test writes to, to see that it stays empty."""
    return make_server()


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with server.client() as client:
        yield client


MANAGE = """
import multiprocessing, os, sys
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    if method := os.environ.get("START_METHOD"):
        multiprocessing.set_start_method(method)
    execute_from_command_line(sys.argv)
"""

SETTINGS = """
import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "x"
DEBUG = True
ALLOWED_HOSTS = []
INSTALLED_APPS = ["django.contrib.contenttypes", "django_fairque", "kiosk"]
ROOT_URLCONF = "kiosk.urls"
USE_TZ = True
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
if "KEPT" in os.environ:
    DATABASES["default"]["TEST"] = {"NAME": os.environ["KEPT"]}
TASKS = {"default": {"BACKEND": "django_fairque.backends.FairqueBackend"}}
FAIRQUE = {"QUEUES": {"mail": {}}, "OUTBOX": "OUTBOX" in os.environ}
if "SERVER" in os.environ:
    FAIRQUE["REDIS"] = {"URL": os.environ["SERVER"]}
"""

MODELS = """
from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=20)
"""

TASKS = """
from django_fairque import task
from django_fairque.backends.compat import task as django_task


@task(user="customer")
def receipt(customer, order):
    return f"{customer} has paid for {order}"


@django_task
def greet(name):
    if not name:
        raise ValueError("nobody")
    return f"hello {name}"
"""

EVENTS = """
from django_fairque.events import on_create
from kiosk.models import Order
from kiosk.tasks import receipt

on_create(Order).enqueue(receipt, "customer", "pk")
"""

URLS = """
from django.http import HttpResponse
from django.urls import path
from kiosk.models import Order


def order(request):
    return HttpResponse(str(Order.objects.create(customer="acme").pk))


urlpatterns = [path("order", order)]
"""

TESTS = """
import urllib.request

from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

from django_fairque import FairQueue, FairQueueError, Priority, Task, chain
from django_fairque.conf import get_config, get_queue
from django_fairque.testing import FairqueTestMixin, assert_enqueued, capture_tasks, eager, enqueued
from kiosk.models import Order
from kiosk.tasks import greet, receipt

RAW = Task.create("user", Priority.NORMAL, [5])


class Orders:
    def test_one(self):
        self.assertEqual(len(enqueued), 0)
        order = Order.objects.create(customer="acme")
        self.assertEqual([(entry.name, entry.args) for entry in enqueued], [(receipt.name, ["acme", order.pk])])

    def test_two(self):
        self.assertEqual(len(enqueued), 0)
        with transaction.atomic():
            Order.objects.create(customer="acme")
            receipt.enqueue("acme", 7)
            self.assertEqual(len(enqueued), 2)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            receipt.enqueue("acme", 8)
            1 / 0
        self.assertEqual([entry.args[1] for entry in enqueued][1:], [7])
        self.assertEqual(enqueued.run(), 2)
        self.assertEqual(enqueued[1].result, "acme has paid for 7")

    def test_many_ways(self):
        receipt.using(queue="mail").enqueue("a", 1)
        receipt.enqueue_many([(("b", 2), {}), (("c", 3), {})])
        result = greet.enqueue("d")
        get_queue("mail").push(RAW)
        self.assertEqual([entry.args[-1] for entry in enqueued], [1, 2, 3, "d", [5]])
        self.assertEqual(enqueued[4].queue, "mail")
        self.assertEqual(result.status.name, "READY")

    def test_a_pipeline(self):
        run = chain(receipt.s("a", 1), receipt.s("a", 2)).enqueue()
        self.assertEqual(len(enqueued), 2)
        self.assertEqual(enqueued.run(), 2)
        self.assertEqual(run.state, "finished")

    def test_mail_may_be_emptied(self):
        from django.core import mail

        receipt.enqueue("a", 1)
        mail.outbox = []
        assert_enqueued(receipt, count=1)

    def test_a_server_is_never_used(self):
        with self.assertRaisesRegex(FairQueueError, "private_server"):
            get_queue().get_stats()
        with self.assertRaisesRegex(FairQueueError, "private_server"):
            config = get_config().queue_config().model_copy(update={"request_timeout": 0.0})
            FairQueue(get_config().create_redis_client(), "default", config).push(RAW)

    def test_blocks(self):
        receipt.enqueue("a", 1)
        with capture_tasks() as captured:
            receipt.enqueue("a", 2)
            with eager():
                self.assertEqual(receipt.enqueue("a", 3).result(), "a has paid for 3")
                self.assertEqual(greet.enqueue("you").return_value, "hello you")
                with self.assertRaises(ValueError):
                    greet.enqueue("")
            with eager(raise_errors=False):
                failed = greet.enqueue("")
            self.assertEqual((failed.status.name, failed.errors[0].exception_class), ("FAILED", ValueError))
        self.assertEqual(len(captured), 5)
        self.assertEqual(len(enqueued), 6)


class InTestCase(Orders, TestCase):
    @classmethod
    def setUpTestData(cls):
        Order.objects.create(customer="earlier")

    async def test_in_a_coroutine(self):
        self.assertEqual(len(enqueued), 0)
        await receipt.aenqueue("acme", 1)
        result = await greet.aenqueue("you")
        await sync_to_async(Order.objects.create)(customer="acme")
        self.assertEqual(len(enqueued), 3)
        self.assertEqual(result.status.name, "READY")
        with eager():
            self.assertEqual((await greet.aenqueue("you")).return_value, "hello you")


class InTransactionTestCase(Orders, TransactionTestCase):
    pass


class WithoutDatabase(SimpleTestCase):
    def test_enqueue(self):
        self.assertEqual(len(enqueued), 0)
        receipt.enqueue("a", 1)
        self.assertEqual(len(enqueued), 1)


class WithMixin(FairqueTestMixin, TestCase):
    def test_both_have_it(self):
        self.assertNothingEnqueued()
        Order.objects.create(customer="acme")
        self.assertEnqueued(receipt, user_id="acme")
        self.assertEqual((len(self.tasks), len(enqueued)), (1, 1))
        self.runTasks()


class InLiveServer(LiveServerTestCase):
    def test_its_threads(self):
        with urllib.request.urlopen(f"{self.live_server_url}/order") as answer:
            order = int(answer.read())
        assert_enqueued(receipt, args=["acme", order], count=1)
"""

WITH_PYTEST = """
import pytest

from django_fairque.testing import enqueued, run_tasks
from kiosk.models import Order
from kiosk.tasks import receipt


@pytest.fixture
def order(db):
    return Order.objects.create(customer="acme")


@pytest.mark.parametrize("n", range(3))
def test_captured(order, n):
    assert [entry.args for entry in enqueued] == [["acme", order.pk]]
    assert run_tasks() == 1


@pytest.mark.django_db
def test_the_fixture_has_what_follows(order, fairque):
    assert (len(fairque), len(enqueued)) == (0, 1)
    receipt.enqueue("a", 1)
    assert (len(fairque), len(enqueued)) == (1, 2)


@pytest.mark.django_db(transaction=True)
def test_a_private_server(fairque_server, live_server):
    Order.objects.create(customer="acme")
    assert len(enqueued) == 0
    assert fairque_server.get_stats().states["queued"] == 1
    assert run_tasks() == 1
"""

FILES = {
    "manage.py": MANAGE,
    "settings.py": SETTINGS,
    "kiosk/__init__.py": "",
    "kiosk/models.py": MODELS,
    "kiosk/tasks.py": TASKS,
    "kiosk/events.py": EVENTS,
    "kiosk/urls.py": URLS,
    "kiosk/tests.py": TESTS,
    "kiosk/test_with_pytest.py": WITH_PYTEST,
    "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = settings\npythonpath = .\npython_files = tests.py test_*.py\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *command: str, **variables: str) -> str:
    """Run a program in the project's directory. Returns what it prints."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "DJANGO", "COV"))
    }
    program = [sys.executable, "-W", "error", *command]
    variables = environment | variables
    done = subprocess.run(program, cwd=project, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


DJANGO = ("manage.py", "test", "kiosk.tests")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "pytest_django.plugin")


def test_a_django_test_suite_without_a_server_captures_tasks(project: Path) -> None:
    assert "Ran 18 tests" in run(project, *DJANGO)
    assert not (project / ".fairque").exists(), "the embedded server was started"


def test_parallel_tests_pass_with_kept_databases(project: Path, server: Server, redis: Redis) -> None:
    variables = {"SERVER": server.url, "KEPT": str(project / "kept.sqlite3"), "START_METHOD": "fork", "OUTBOX": "1"}
    assert "Ran 18 tests" in run(project, *DJANGO, "--parallel", "2", "--keepdb", **variables)
    assert redis.dbsize() == 0


@pytest.mark.slow  # the test takes 10 seconds
def test_parallel_tests_pass_in_spawned_processes(project: Path, server: Server, redis: Redis) -> None:
    program = [*DJANGO, "--parallel", "2"]
    assert "Ran 18 tests" in run(project, *program, SERVER=server.url, START_METHOD="spawn")
    assert redis.dbsize() == 0


@pytest.mark.slow
def test_a_pytest_suite_with_a_named_server_captures_tasks(project: Path, server: Server, redis: Redis) -> None:
    """The environment names a server, too, and it has the last word."""
    named = {"SERVER": "redis://127.0.0.1:1/0", "FAIRQUE_REDIS__URL": server.url}
    # Other plugins that are installed take seconds to start.
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p django_fairque.testing.plugin"}
    assert "23 passed" in run(project, *PYTEST, "-n", "2", **plugins, **named)
    assert redis.dbsize() == 0


def test_a_setting_lets_tests_use_the_server(project: Path, server: Server, redis: Redis) -> None:
    variables = {"SERVER": server.url, "FAIRQUE_CAPTURE_IN_TESTS": "false"}
    (project / "kiosk" / "tests.py").write_text(
        "from django.test import SimpleTestCase\nfrom kiosk.tasks import receipt\n\n\n"
        "class Tests(SimpleTestCase):\n"
        "    def test_it(self):\n"
        '        receipt.using(on_commit=False).enqueue("acme", 1)\n'
    )
    run(project, *DJANGO, **variables)
    assert redis.dbsize() > 0


LOADED = """
import sys

import pytest


@pytest.mark.parametrize("n", range(2))
def test_without_a_fixture(n):
    ours = {name for name in sys.modules if name.startswith("django_fairque.")}
    assert ours == {f"django_fairque.{name}" for name in ("early_signals", "lazy", "testing", "testing.plugin")}
    assert not {"django", "redis", "pydantic", "yaml", "asyncio"} & sys.modules.keys()


def test_with_a_fixture(fairque):
    assert len(fairque) == 0
    assert "django" in sys.modules
"""


def test_the_pytest_plugin_imports_neither_django_nor_redis_until_a_fixture_is_used(project: Path) -> None:
    (project / "test_loaded.py").write_text(LOADED)
    plugin = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "DJANGO_SETTINGS_MODULE": "settings"}
    words = ("-m", "pytest", "-q", "-p", "fairque", "-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning")
    assert "3 passed" in run(project, *words, "test_loaded.py", **plugin)
