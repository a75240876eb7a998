"""A release that made a task slower, on *Overview* and *Task names*."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest

from django_fairque.conf import get_queue
from tests.admin.page_reader import log_in, page_url, words_of
from tests.fixture_types import Client, FairQueue, Settings
from tests.leases import run_attempts

pytestmark = pytest.mark.django_db

HOSTILE = "<b>mail</b>"


def shown(client: Client, page: str, **query: str) -> str:
    answer = client.get(page_url(page), query, headers={"X-Fairque-Fragment": "1"})
    assert answer.status_code == 200
    return answer.content.decode()


def run_with_release(settings: Settings, release: str, name: str, *run: float) -> None:
    settings.FAIRQUE = {**settings.FAIRQUE, "CODE_VERSION": release}
    attempts, failed, took = run
    run_attempts(get_queue(), name, int(attempts), int(failed), took)


def test_the_pages_show_nothing_of_releases_without_a_code_version(admin_client: Client, queue: FairQueue) -> None:
    run_attempts(queue, "export", 50)
    assert "elease" not in words_of(shown(admin_client, "task_names"))
    assert "slower" not in words_of(shown(admin_client, "overview"))


def test_tasks_that_a_release_made_worse_are_named_with_their_figures(
    admin_client: Client, client: Client, queue: FairQueue, settings: Settings
) -> None:
    for name in ("export", HOSTILE, "report"):
        run_with_release(settings, "v1.0.0", name, 60, 0, 0.3)
    run_with_release(settings, "v1.1.0", "export", 60, 0, 1.32)
    run_with_release(settings, "v1.1.0", HOSTILE, 60, 30, 0.3)
    run_with_release(settings, "v1.1.0", "report", 60, 0, 0.3)
    overview, names = shown(admin_client, "overview"), shown(admin_client, "task_names")
    words = words_of(overview)
    assert re.search(r"export about 4\.8 times slower since v1\.1\.0 \(\d\d:\d\d\): 1\.36 s, before 286 ms", words)
    assert re.search(r"<b>mail</b> fails more since v1\.1\.0 \(\d\d:\d\d\): 50 % of its attempts, before 0 %", words)
    assert "report" not in words
    assert HOSTILE not in overview + names
    rows = words_of(names).partition("Worse since ")[2]
    assert re.match(r"export v1\.0\.0 v1\.1\.0 60 → 60 .* → .* 4\.8 0 % → 0 % v1\.1\.0 ", rows)
    assert re.search(r"report v1\.0\.0 v1\.1\.0 60 → 60 .* 1\.0 0 % → 0 % –", rows)
    log_in(client, "view_queue")
    assert "export" not in shown(client, "overview")


def test_a_name_leads_to_its_run_times_and_failures_by_hour(admin_client: Client, queue: FairQueue) -> None:
    run_attempts(queue, HOSTILE, 50, 10, 0.3)
    queue.heartbeat("w", {"code_version": "v1.1.0"})
    html = shown(admin_client, "task_names")
    (url,) = re.findall(r'<a href="([^"]*name=%3Cb[^"]*)"', html)
    page = admin_client.get(unescape(url)).content.decode()
    words = words_of(page)
    for sentence in (
        "Half ran no longer (p50): at most 312 ms, 312 ms at last",
        "Failed, share: at most 20 %, 20 % at last",
        "Attempts: at most 50, 50 at last",
        "deployment v1.1.0, ",
    ):
        assert sentence in words
    (data,) = re.findall(r'data-charts="([^"]*)"', page)
    found = json.loads(unescape(data))
    assert (len(found["times"]), len(found["charts"])) == (24, 3)
    assert HOSTILE not in page
