"""A site that is served, and a browser to look at it with. Whatever a page does wrong fails the test that opened it."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from library.tasks import complexity_of, parse_document, report_on

from django_fairque.conf import get_queue
from django_fairque.engine.inspection.worker_activity import ACTIVITY_FIELD, ReportedTask, encode_activity
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.browser.browser_errors import Watch
from tests.chromium import MISSING, chromium, executable
from tests.testproject.conftest import database, start_demo  # noqa: F401 - fixtures
from tests.worker.conftest import start_method, start_worker, workers  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from django.test import Client
    from playwright.sync_api import Browser, BrowserContext, Page
    from pytest_django import Settings
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue
    from tests.servers import Server

HERE = Path(__file__).parent
KEPT = HERE / "failures"
"""Where the last look of a page stays when its test failed."""
WAIT = 20_000
"""Milliseconds after which something that should be seen at once counts as missing."""
MIDDLEWARE = [
    "tests.browser.content_security_policy.StrictPolicy",
    *django_settings.MIDDLEWARE,
    "django.middleware.locale.LocaleMiddleware",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count all of them as slow ones; with `--dist loadgroup` they run in one process, as they share one browser."""
    missing = executable() is None
    for item in items:
        if HERE not in item.path.parents:
            continue
        item.add_marker(pytest.mark.slow)
        item.add_marker(pytest.mark.xdist_group("browser"))
        item.add_marker(pytest.mark.django_db(transaction=True))
        if missing:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Here and not when the tab's fixture ends, so that the tab can still be looked at."""
    result = yield
    watch = pyfuncitem.funcargs.get("watch")
    if isinstance(watch, Watch):
        assert watch.complaints == []
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and (page := getattr(item, "funcargs", {}).get("page")) is not None and not page.is_closed():
        KEPT.mkdir(exist_ok=True)
        file = KEPT / f"{re.sub(r'[^-_.a-zA-Z0-9]+', '-', item.name)[:100]}.png"
        page.screenshot(path=file, full_page=True)
        report.sections.append(("browser", f"{page.url} looked as in {file}"))
    return report


@pytest.fixture(scope="package")
def browser(address: str) -> Iterator[Browser]:
    """One for all tests here, and none while others run: while it lives, Playwright runs an event loop in this thread."""
    with pytest.MonkeyPatch.context() as patch, chromium() as browser:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        yield browser
    wait_for_requests()


def wait_for_requests() -> None:
    """Wait until the site has answered what closed tabs asked for: the site and the test share a connection to SQLite.

    The tables can't be emptied while a request reads them, nor the site's threads close a connection of a site that is gone.
    A thread ends when the browser closes its connection.
    """
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(10)


@pytest.fixture(scope="package")
def address(django_db_setup: None) -> Iterator[str]:
    """The site, on a free port, under a strict policy and in the visitor's language."""
    from pytest_django.live_server_helper import LiveServer

    with override_settings(MIDDLEWARE=MIDDLEWARE):
        site = LiveServer("localhost")
    yield site.url
    site.stop()


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    """The site's queue, empty."""
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"default": {}, "mail": {}}}
    return get_queue()


def beat(queue: FairQueue) -> None:
    """A worker is alive: repeated, because one that falls silent is forgotten."""
    info = {"host": "web-1.example", "pid": "4711", "users": "*", "status": "working"}
    for task in queue.tasks("started", limit=1):
        line = "shop_backend/orders/management/exports.py:30 wait_for_a_lock_of_the_customer"
        running = ReportedTask(task.task_id, task.name, task.user_id, time.time() - 600, line=line)
        slots = [([task.user_id] * 60, running), ([""] * 60, None)]
        info[ACTIVITY_FIELD] = encode_activity(time.time(), slots).decode()
    queue.heartbeat("web-1.example:4711", info)


@pytest.fixture
def full(queue: FairQueue) -> None:
    """Something of everything."""
    beat(queue)
    queue.schedules.add("nightly-report", task=Task.create("acme", 3, None, name="shop.report"), cron="30 4 * * 1-5")
    for number in range(7):
        bury(queue, ValueError(f"'nobody-{number}@' is no address"), payload={"args": ["x" * 300], "api_token": "t0p"})
    for number in range(5):
        queue.push(Task.create("a-customer-with-a-long-name.example", 3, {"order": 7}, name="shop.orders.tasks.send"))
        (lease,) = queue.pop_batch(1, "web-1.example:4711")
        if number % 2:
            queue.finish(lease, {"sent": number})
        else:
            queue.set_progress(lease, number, 10, "rendered")
    (parse_document.s("json", 1) >> complexity_of.s("json") >> report_on.s("json")).enqueue()
    queue.push_batch([Task.create("noisy", 1 + number % 6, number, name="shop.index") for number in range(60)])
    queue.push(Task.create("acme", 3, None, execute_after=4_000_000_000.0))
    queue.cancel(queue.push(Task.create("acme", 3, None)).task_id, reason="no more wanted")
    queue.user("acme").set_max_running(1)
    queue.user("acme").pause()
    queue.user("acme").set_organization("an-organisation-with-a-long-name.example")
    queue.organization("an-organisation-with-a-long-name.example").set_max_running(1000)
    queue.user("noisy").set_organization("sales")
    queue.organization("sales").pause()
    queue.incidents.open_limit("failures", "12 tasks failed in the last minute")


@pytest.fixture
def visit() -> dict[str, Any]:
    """Return options of the browser's context: tests override them by parameters, such as a narrow screen."""
    return {}


@pytest.fixture
def context(
    browser: Browser, address: str, queue: FairQueue, admin_client: Client, visit: dict[str, Any]
) -> Iterator[BrowserContext]:
    """A visitor who is logged in as an administrator."""
    context = browser.new_context(**{"base_url": address, "viewport": {"width": 1280, "height": 800}, **visit})
    context.set_default_timeout(WAIT)
    session = admin_client.cookies["sessionid"].value
    context.add_cookies([{"name": "sessionid", "value": session, "url": address}])
    yield context
    context.close()
    wait_for_requests()


@pytest.fixture
def watch(context: BrowserContext, address: str) -> Watch:
    return Watch(context, address)


@pytest.fixture
def page(context: BrowserContext, watch: Watch) -> Page:
    """A tab. The test fails if a page in it complained, ran what it should not, or asked anybody else for anything."""
    return context.new_page()


@pytest.fixture
def index(page: Page) -> Page:
    """The tab, where a person begins: at the queues, by way of the admin's index."""
    page.goto("/admin/")
    page.get_by_role("link", name="Queues", exact=True).first.click()
    page.wait_for_url("**/django_fairque/queue/**")
    return page
