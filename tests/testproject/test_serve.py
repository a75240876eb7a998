"""``manage.py demo --serve``: the admin with something to see, until Ctrl-C."""

from __future__ import annotations

import html
import re
import signal
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.topologies import free_port

from .conftest import LIMIT
from .test_demo import lives, wait_until

if TYPE_CHECKING:
    import subprocess

    from django_fairque import FairQueue

    from .conftest import StartDemo


def log_in(address: str, login: str) -> urllib.request.OpenerDirector:
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = browser.open(f"{address}login/?next=/admin/", timeout=LIMIT).read().decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    form = {"username": login, "password": login, "csrfmiddlewaretoken": token[1], "next": "/admin/"}
    browser.open(f"{address}login/", urllib.parse.urlencode(form).encode(), timeout=LIMIT)
    return browser


def read_address(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address and the login, as they are printed."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"(http://127\.0\.0\.1:\d+/admin/) as '(\w+)' with the password '\2'", line)
        if found is not None:
            return found[1], found[2]
    raise AssertionError(process.communicate())


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_admin_of_the_demonstration_works_until_all_processes_end(
    start_demo: StartDemo, queue: FairQueue, how: signal.Signals
) -> None:
    process = start_demo("--serve", "--no-browser", "--packages", "json,html")
    address, login = read_address(process)
    browser = log_in(address, login)
    assert "/admin/django_fairque/queue/" in browser.open(address, timeout=LIMIT).read().decode()
    wait_until(lambda: queue.dlq.count() > 0 and queue.get_stats().totals.get("finished", 0) > 0, process)
    letters = browser.open(f"{address}django_fairque/queue/dead-letters/", timeout=LIMIT).read().decode()
    assert "is no address" in letters
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3, "the site, the worker, and the worker's process"
    process.send_signal(how)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")
    assert "Stopped." in out
    wait_until(lambda: not any(map(lives, family)))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=LIMIT)
    assert queue.get_stats().states["started"] == 0
    assert queue.check_invariants() == []


@pytest.mark.thorough
def test_visitors_of_a_hosted_demonstration_may_only_look_and_start_the_nightly_job(
    start_demo: StartDemo, queue: FairQueue
) -> None:
    port = str(free_port())
    variables = {"DEMO_HOST": "localhost", "SECRET_KEY": "a secret of the host", "PORT": port}
    process = start_demo("--serve", "--no-browser", "--packages", "json", **variables)
    assert process.stdout is not None
    assert any("https://localhost/admin/" in line for line in process.stdout)
    address = f"http://localhost:{port}/admin/"
    browser = log_in(address, "demo")
    page = browser.open(f"{address}django_fairque/queue/live/", timeout=LIMIT).read().decode()
    style = re.search(r'href="(/static/[^"]+\.css)"', page)
    assert style is not None
    assert browser.open(f"http://localhost:{port}{style[1]}", timeout=LIMIT).status == 200
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    form = {"csrfmiddlewaretoken": token[1], "action": "stop"}
    answer = browser.open(
        f"{address}library/document/nightly-job/", urllib.parse.urlencode(form).encode(), timeout=LIMIT
    )
    assert re.search("bulk tasks were sent|are still waiting", answer.read().decode())
    assert browser.open(f"{address}password_change/", timeout=LIMIT).url == address
    for path in ("auth/user/", "library/document/add/"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            browser.open(f"{address}{path}", timeout=LIMIT)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        browser.open(f"{address}django_fairque/queue/workers/", urllib.parse.urlencode(form).encode(), timeout=LIMIT)


@pytest.mark.slow
def test_no_admin_page_of_the_demonstration_is_empty(start_demo: StartDemo, queue: FairQueue) -> None:
    process = start_demo("--serve", "--no-browser", "--packages", "json,html")
    address, login = read_address(process)
    browser = log_in(address, login)
    site = address.removesuffix("/admin/")
    first = browser.open(f"{address}django_fairque/queue/overview/", timeout=LIMIT).read().decode()
    menu = re.search(r'<nav class="fq-menu.*?</nav>', first, re.DOTALL)
    assert menu is not None
    empty = {html.unescape(path) for path in re.findall(r'<a href="([^"]+)"', menu[0])}
    assert len(empty) >= 15

    def are_all_filled() -> bool:
        for path in list(empty):
            page = browser.open(f"{site}{path}", timeout=LIMIT).read().decode()
            if re.search(r"<tbody>\s*<tr[^>]*>\s*<t[hd](?! colspan)", page):
                empty.discard(path)
        return not empty

    try:
        wait_until(are_all_filled, process)
    finally:
        assert empty == set()


@pytest.mark.slow
def test_the_demonstration_reports_that_its_site_died(start_demo: StartDemo, queue: FairQueue) -> None:
    process = start_demo("--serve", "--no-browser", "--packages", "json")
    read_address(process)
    (site,) = (child for child in psutil.Process(process.pid).children() if "runserver" in child.cmdline())
    site.kill()
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "the site ended with exit code -9" in err


@pytest.mark.slow
def test_the_demonstration_with_pipelines_begins_with_a_pipeline(start_demo: StartDemo, queue: FairQueue) -> None:
    process = start_demo("--serve", "--no-browser", "--pipeline", "--packages", "json,html")
    read_address(process)
    wait_until(lambda: queue.get_stats().totals.get("finished", 0) > 10, process)
    names = {task.name for task in queue.tasks("finished", limit=1000)}
    assert "library.tasks.parse_document" in names
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (0, "")


@pytest.mark.thorough
def test_the_option_no_browser_needs_the_site(start_demo: StartDemo) -> None:
    process = start_demo("--no-browser")
    _, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "--no-browser goes with --serve" in err
