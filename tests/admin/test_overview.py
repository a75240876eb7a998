"""The Overview says how a queue is."""

from __future__ import annotations

import cProfile
import json
import re
import time
from html import unescape

import pytest

from django_fairque.admin.pages import overview
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.monitoring.report import queue_lines, with_figures_of_users
from tests.admin.page_reader import led_to, page_url, read, words_of
from tests.counting import counted
from tests.fixture_types import Client, FairQueue, Redis
from tests.leases import pop

pytestmark = pytest.mark.django_db

URL = page_url("overview")


def shown(client: Client, **query: str) -> str:
    """Return the page's own content."""
    answer = client.get(URL, query, headers={"X-Fairque-Fragment": "1"})
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_tiles_show_the_counts_of_the_queue(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, 1, task_id=f"t{n}") for n in range(5)], now=now - 120)
    queue.push(Task.create("b", 6, 1, execute_after=now + 900), now=now - 120)
    queue.push(Task.create("c", 1, 1, depends_on=["t4"]), now=now - 120)
    running, failed = queue.pop_batch(2, "w", lease=900, now=now - 110)
    queue.fail(failed, "boom", retry=False, now=now - 110)
    for name in ("default", "mail"):
        get_queue(name).heartbeat("w", {}, ttl=900, now=now)
    _status, _found, text = words_of(shown(admin_client)).partition("look at it ")
    assert text.startswith("Queued 3 Running 1 Scheduled 1 Deferred 1 Dead letters 1 Workers 1 Oldest wait ")
    assert re.search(r"Oldest wait (1 min 5\d s|2 min|2 min \d s) Users with work 1 / 3", text)
    queue.release(running)


def test_charts_show_an_hour_or_a_day(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 5, n) for n in range(90)], now=now - 7200)
    for lease in queue.pop_batch(90, "w", now=now - 7198):
        queue.finish(lease, took=0.5, now=now - 7198)
    queue.push(Task.create("a", 3, 1), now=now - 300)
    (lease,) = queue.pop_batch(1, "w", now=now - 296)
    queue.fail(lease, "no", retry=False, now=now - 296)
    hour, day = shown(admin_client), shown(admin_client, hours="24")
    assert "Pushed: at most 1 /min, 0 /min at last" in hour
    assert "Failed attempts: at most 1 /min" in hour
    assert "Pushed: at most 6 /min" in day, "90 tasks in 15 minutes"
    assert "NORMAL 0 about 4 s about 4 s about 4 s" in words_of(hour), "right to 9 %"
    assert "VERY_HIGH 0 – – –" in words_of(hour)
    assert "VERY_HIGH 0 about 1.9 s" in words_of(day)
    assert counted(redis, lambda: shown(admin_client, hours="24"))["hgetall"]["calls"] < 1440 + 200
    page = read(admin_client, URL, hours="24")
    assert 'data-refresh="60"' in page, "a day is not read every five seconds"
    assert 'data-refresh="5"' in read(admin_client, URL)
    assert re.search(r'<a href="[^"]*queue=default&amp;hours=24" aria-current="true">last 24 hours</a>', day)


@pytest.mark.parametrize("hours", ["0", "25", "x", "<b>", ""])
def test_an_unknown_time_span_is_replaced_by_the_default(admin_client: Client, queue: FairQueue, hours: str) -> None:
    assert "hours must be 1, 6, 24 or 168" in led_to(admin_client, URL, "overview", {"hours": hours})
    assert b"got <b>" not in admin_client.get(URL, {"hours": hours}, follow=True).content


def test_the_busiest_and_the_longest_waiting_users_are_named(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push(Task.create("<i>patient</i>", 1, 1, sla=1), now=now - 3660)
    queue.push_batch([Task.create("busy", 3, n, sla=1) for n in range(60)], now=now - 60)
    queue.push_batch([Task.create(f"u{n}", 3, n) for n in range(300)], now=now)
    queue.push_batch([Task.create(f"u{n}", 3, n, execute_after=now + 99) for n in range(300, 310)], now=now)
    html = shown(admin_client)
    assert "<i>" not in html
    assert "User Waits Why Queued Ready since <i>patient</i> 1 h 1 min waits for its turn 1" in words_of(html)
    row = r'fq-name"><a href="[^"]*"><bdi>([^<]*)</bdi></a></th><td class="fq-number">[^<]*</td><td>waits for its turn'
    assert re.findall(row, html)[:2] == ["&lt;i&gt;patient&lt;/i&gt;", "busy"]
    assert "users examined" not in html, "all are"


def test_the_longest_waits_are_found_behind_many_tasks_of_one_user(admin_client: Client, queue: FairQueue) -> None:
    """Each user once, also if one of them has all of the oldest tasks."""
    now = time.time()
    queue.push_batch([Task.create("bulk", 3, n, sla=1) for n in range(400)], now=now - 600)
    queue.push_batch([Task.create(f"u{n:03}", 3, n) for n in range(30)], now=now - 60)
    for user, reason in (("u003", "paused"), ("u004", "its organization is paused")):
        queue.user(user).pause() if reason == "paused" else queue.user(user).set_organization("acme")
    queue.organization("acme").pause()
    text = words_of(shown(admin_client))
    table = text[text.index("Users who have waited longest") :]
    assert re.search(r"bulk 10 min( \d+ s)? waits for its turn 400", table)
    assert re.findall(
        r"\b(u\d{3}) 1 min(?: \d+ s)? (waits for its turn|paused|its organization is paused) 1", table
    ) == [(f"u{n:03}", {3: "paused", 4: "its organization is paused"}.get(n, "waits for its turn")) for n in range(9)]


def test_the_number_of_examined_users_is_shown(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "PAGE_USERS_EXAMINED", 100)
    queue.push(Task.create("zz patient", 1, 1, sla=1), now=time.time() - 3660)
    queue.push_batch([Task.create(f"u{n}", 3, n) for n in range(300)])
    text = words_of(shown(admin_client))
    assert "Of 100 users examined; 301 have tasks or settings." in text
    assert "zz patient 1 h 1 min waits for its turn 1" in text


def test_the_oldest_wait_is_that_of_the_table_of_users(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push(Task.create("patient", 4, 1, sla=86_400), now=now - 3660)
    queue.push(Task.create("hasty", 4, 1, sla=60), now=now)  # the next that must be looked at
    text = words_of(shown(admin_client))
    assert "Oldest wait 1 h 1 min" in text
    assert "User Waits Why Queued Ready since patient 1 h 1 min waits for its turn 1" in text


def test_tasks_that_are_held_back_have_a_tile_of_their_own(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, 1), now=time.time() - 3660)
    assert "held back" not in words_of(shown(admin_client))
    queue.user("ann").pause()
    text = words_of(shown(admin_client))
    assert "Oldest wait 0 s Oldest wait, held back 1 h 1 min" in text


def test_the_busiest_of_few_users_are_compared(admin_client: Client, queue: FairQueue) -> None:
    assert "No user has a task ready." in shown(admin_client)
    queue.push_batch([Task.create("busy", 3, n) for n in range(40)])
    queue.push_batch([Task.create("quiet", 3, n) for n in range(10)])
    html = shown(admin_client)
    assert "User Ready Bar busy 40 quiet 10" in words_of(html)
    assert re.findall(r'viewBox="0 0 40 1".*?class="fq-got" width="(\d+)"', html) == ["40", "10"]
    assert "looked at" not in html


@pytest.mark.usefixtures("each_page_reads_status")
def test_dangers_for_tasks_are_explained_in_sentences(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    queue.push(Task.create("a", 3, 1))
    text = words_of(shown(admin_client))
    assert "No workers Tasks are waiting, and nothing works on them" in text
    assert "tasks are waiting and no worker is running" in text
    assert "the append-only file is off" in text
    assert "When memory is full noeviction" in text
    redis.config_set("appendonly", "yes")
    try:
        queue.purge()
        for name in ("default", "mail"):
            get_queue(name).heartbeat("w", {})
        text = words_of(shown(admin_client))
        assert "All is well" in text
        assert "Append-only file on" in text
    finally:
        redis.config_set("appendonly", "no")


def test_missed_start_deadlines_are_counted(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, n, sla=10) for n in range(3)], now=now - 100)
    queue.pop_batch(2, "w", lease=900, now=now - 60)
    text = words_of(shown(admin_client))
    assert "At risk – 3 Overdue while waiting – 3 Started late 2 2 Promoted after waiting too long 0 0" in text
    assert "SLA by priority, ever Priority At risk Overdue while waiting Started late NORMAL 3 3 2" in text


def test_a_paused_queue_is_marked(admin_client: Client, queue: FairQueue) -> None:
    assert "is paused" not in shown(admin_client)
    queue.pause()
    assert "This queue is paused" in shown(admin_client)
    assert "This queue is paused" not in shown(admin_client, queue="mail")
    get_queue("mail").push(Task.create("a", 3, 1))
    assert "CRITICAL 0" in words_of(shown(admin_client, queue="mail"))


def test_during_an_outage_the_backlog_and_the_oldest_wait_are_shown(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, n) for n in range(12)], now=now - 3660)
    text = words_of(shown(admin_client))
    assert "Queued: at most 12, 12 at last" in text
    assert "Oldest wait: at most 1 h 1 min, 1 h 1 min at last" in text
    assert text.count("Gaps: no data was recorded.") == 0


@pytest.mark.parametrize(("hours", "age"), [("1", 600), ("6", 7200), ("24", 40_000), ("168", 260_000)])
def test_the_backlog_of_the_past_is_shown(admin_client: Client, queue: FairQueue, hours: str, age: int) -> None:
    then = time.time() - age
    queue.push_batch([Task.create("a", 3, n) for n in range(40)], now=then)
    queue.sweep(now=then + 120)
    for lease in queue.pop_batch(39, "w", lease=900, now=then + 150):
        queue.fail(lease, "no", retry=False, took=2, now=then + 160)
    queue.sweep(now=then + 200)
    queue.pop("w", lease=1e6)
    text = words_of(shown(admin_client, hours=hours))
    assert "Queued: at most 40, 0 at last" in text
    assert "Oldest wait: at most 3 min 20 s, 0 s at last" in text
    assert ("Average: at most" in text) == (hours == "168")


def test_failures_have_an_axis_of_their_own(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push_batch([Task.create("a", 3, n) for n in range(900)], now=now - 300)
    for lease in queue.pop_batch(1, "w", now=now - 296):
        queue.fail(lease, "no", retry=False, now=now - 296)
    html = shown(admin_client)
    (failures,) = re.findall(r"<figure[^>]*>\s*<figcaption>Failures a minute</figcaption>.*?</figure>", html, re.DOTALL)
    assert "New dead letters: at most 1 /min" in failures
    data = json.loads(unescape(re.findall(r'data-charts="([^"]*)"', html)[0]))
    assert [chart["levels"][-1][1] for chart in data["charts"]][2:4] == ["1,000 /min", "1 /min"]
    assert "Failed attempts:" not in html.replace(failures, "")


def test_the_overview_estimates_when_the_backlog_is_done(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    queue.push_batch([Task.create("a", 3, n) for n in range(900)], now=now - 300)
    queue.sweep(now=now - 300)
    assert "done in about" not in words_of(shown(admin_client))
    for lease in queue.pop_batch(600, "w", lease=900, now=now - 120):
        queue.finish(lease, now=now - 119)
    assert re.search(
        r"Backlog done in about (2 min 30 s|3 min|3 min 30 s) at [12][.\d]* tasks/s", words_of(shown(admin_client))
    )
    queue.push_batch([Task.create("a", 3, n) for n in range(3600)])
    assert re.search(r"Backlog growing by (8|9|10)[.\d]* tasks/s", words_of(shown(admin_client, hours="24")))


def test_deployments_are_marked_in_the_charts(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    for version, age in (("abc1234", 7200), ("<b>next</b>", 120)):
        queue.heartbeat(version, {"code_version": version}, now=now - age)
    hour, day = shown(admin_client), shown(admin_client, hours="24")
    assert ("deployment abc1234, " in hour, "deployment abc1234, " in day) == (False, True)
    for html in (hour, day):
        assert len(re.findall(r"<bdi>deployment &lt;b&gt;next&lt;/b&gt;, \d\d:\d\d</bdi>", html)) == 1
        assert words_of(html).count(" Deployment ") == 5
        assert "<b>next" not in html


PYTHON_CALLS = 27_000
"""Calls of Python functions for the content of an hour in which tasks ended each minute: ten per cent more than were counted."""


def test_the_charts_of_a_busy_hour_take_few_calls(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    for minute in range(58, 0, -1):
        at = now - 60 * minute
        queue.push_batch([Task.create(f"u{n % 5}", 3, n) for n in range(minute % 7 + 2)], now=at)
        for lease in queue.pop_batch(minute % 5 + 1, "w", now=at + 1 + minute * 0.37):
            if minute % 9:
                queue.finish(lease, took=minute * 0.13, now=at + 3)
            else:
                queue.fail(lease, "no", retry=False, took=minute * 0.13, now=at + 3)
        queue.sweep(now=at + 4)
    shown(admin_client)  # compiles the templates
    profile = cProfile.Profile()
    profile.enable()
    html = shown(admin_client)
    profile.disable()
    assert len(re.findall("<tr><th scope=.row.><time>", html)) == 60
    assert sum(entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str)) < PYTHON_CALLS


def test_missed_start_deadlines_are_unknown_while_no_worker_runs(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None, sla=0.000001))
    note = "No worker is running, so start deadlines that have passed are not counted yet."
    assert note in words_of(shown(admin_client))
    assert note[1:] in "\n".join(queue_lines(queue.get_stats()))
    queue.heartbeat("w", {})
    assert note not in words_of(shown(admin_client))
    assert note[1:] not in "\n".join(queue_lines(queue.get_stats()))


def test_the_estimate_leaves_out_tasks_that_are_paused(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    for user, count in (("a", 900), ("held", 300)):
        queue.push_batch([Task.create(user, 3, n) for n in range(count)], now=now - 300)
    queue.user("held").pause(now=now - 300)
    queue.sweep(now=now - 300)
    for lease in queue.pop_batch(600, "w", ["a"], lease=900, now=now - 120):
        queue.finish(lease, now=now - 119)
    text = words_of(shown(admin_client))
    estimate = r"done in about (2 min 30 s|3 min|3 min 30 s) at [12][.\d]* tasks/s without 300 tasks of paused users"
    assert re.search(estimate, text)
    assert "Users with most tasks ready User Ready Bar a 300" in text
    assert "held 300" not in text.partition("Users with most tasks ready")[2].partition("Users who have")[0]
    queue.pause()
    assert "done in about" not in words_of(shown(admin_client))


def test_a_growing_backlog_includes_tasks_that_are_paused(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    queue.push(Task.create("held", 3, 0), now=now - 120)
    queue.user("held").pause(now=now - 120)
    queue.sweep(now=now - 120)
    queue.push_batch([Task.create("held", 3, n) for n in range(300)], now=now - 60)
    text = words_of(shown(admin_client))
    assert re.search(r"growing by [\d.]+ tasks/\w+ including 301 tasks of paused users", text)


def test_charts_are_drawn_without_a_worker(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    for ago, count in ((3000, 30), (2990, 10), (1200, 5)):
        queue.push_batch([Task.create("a", 3, n) for n in range(count)], now=now - ago)
    (data,) = re.findall(r'data-charts="([^"]*)"', shown(admin_client))
    backlog, waits = (chart["lines"][0]["values"] for chart in json.loads(unescape(data))["charts"][:2])
    assert {value for value in backlog[:8] if value is not None} == set(), "nothing is known before the first task"
    known = [value for value in backlog if value is not None]
    assert len(known) >= 50
    assert sorted(set(known)) == [40, 45]
    known = [value for value in waits if value is not None]
    assert known == sorted(known)
    assert 2900 < known[-1] < 3100


def test_the_estimate_considers_the_limits_of_single_users(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() // 60 * 60
    queue.user("slow").set_max_running(1, now=now - 300)
    queue.push_batch([Task.create("slow", 3, n) for n in range(1000)], now=now - 300)
    queue.push_batch([Task.create("a", 3, n) for n in range(900)], now=now - 300)
    queue.finish(pop(queue, "w", ["slow"], now=now - 299), took=6, now=now - 290)
    queue.sweep(now=now - 300)
    for lease in queue.pop_batch(600, "w", ["a"], lease=900, now=now - 120):
        queue.finish(lease, took=6, now=now - 119)
    words = "done in about 1 h 30 min because of the limits of user slow"
    assert f"Backlog {words}" in words_of(shown(admin_client))
    assert f"backlog  {words}" in "\n".join(queue_lines(with_figures_of_users(queue, queue.get_stats())))
