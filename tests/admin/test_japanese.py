"""No page says anything in English to a reader of Japanese."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import translation

from django_fairque.admin.pages.schedules import cron_in_words
from django_fairque.admin.site import PAGES
from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.task import Task
from django_fairque.engine.transport.server_checks import check_server_info
from django_fairque.monitoring.translations import sentence
from tests.admin.dead_letters import bury
from tests.admin.page_reader import page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

NAMES = {
    *("acme", "bolt", "shop", "send", "mail", "default", "order", "work", "nightly", "hourly", "admin"),
    *("no", "such", "address", "library", "Document", "Documents"),
    *("dead", "Dead", "waits", "late", "schedule", "runs", "begun", "first", "over", "gone", "none"),
}
"""The words in the names of this test's users, tasks, queues and schedules."""
TERMS = {
    *("CSV", "JSON", "Ctrl", "INFO", "cron", "Asia", "Tokyo", "UTC", "Python", "KiB", "MiB", "GiB", "min"),
    *("manage", "py", "fairque_worker", "fairque_dlq", "fairque_check", "requeue", "repair", "payload"),
    *("django_fairque", "Valkey", "Redis", "noeviction", "maxmemory", "policy", "force", "true", "events"),
    *("VERY_LOW", "LOW", "NORMAL", "HIGH", "VERY_HIGH", "CRITICAL"),
}
"""Names of things that are the same in every language."""
WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,}")
ATTRIBUTES = re.compile(r'(?:aria-label|title|placeholder|alt)="([^"]*)"')
OTHERS = re.compile(
    r'<header.*?</header>|<nav[^>]*id="nav-sidebar".*?</nav>|<a[^>]*class="skip.*?</a>|<script.*?</script>'
    r"| \| Django[^<]*</title>|\b[0-9a-f]{12}\b",
    re.DOTALL,
)
"""The parts of a page that Django's admin site renders, and fingerprints."""
DATA = re.compile(r"<(pre|code|bdi|time)\b.*?</\1>|<option[^>]*>|<datalist.*?</datalist>", re.DOTALL)


@pytest.fixture(autouse=True)
def japanese() -> Iterator[None]:
    with translation.override("ja"):
        yield


def english(text: str) -> set[str]:
    """The words of a page that no Japanese reader needs to know."""
    text = OTHERS.sub(" ", text[text.index("<title") :])
    reported = " ".join([words_of(DATA.sub(" ", text)), *map(html.unescape, ATTRIBUTES.findall(text))])
    return {word for word in WORD.findall(reported) if word not in NAMES | TERMS}


@pytest.fixture
def filled(queue: FairQueue) -> str:
    """The entry of a dead letter, in a queue with something of everything."""

    def task(name: str, user: str = "acme", **options: Any) -> Task:
        return Task.create(user, 3, {"password": 1}, name="shop.send", task_id=name, **options)

    bury(queue, task_id="gone")
    entry = bury(queue, task_id="dead")
    queue.push(task("over"))
    queue.finish(pop(queue), {"n": 1})
    queue.push(task("runs"))
    running = pop(queue)
    queue.set_progress(running, 1, 2, "mail")
    queue.logs.record(running, [LogLine(1.0, "INFO", "shop.mail", "mail")], 3)
    queue.push_batch(
        [task("late", execute_after=timedelta(hours=1)), task("first"), task("waits", depends_on=["first"])]
    )
    queue.push_batch([Task.create("bolt", 3, n, task_id=f"b{n}") for n in range(25)])
    queue.user("bolt").set_rate("5/m")
    queue.user("bolt").set_max_running(3)
    queue.user("bolt").set_organization("shop")
    queue.organization("shop").set_max_running(9)
    queue.organization("shop").pause()
    queue.user("acme").pause()
    for limit in (TaskLimit("shop", 1, 10_000, 5), TaskLimit("shop", gap=60_000_000, is_of_user=True)):
        queue.limit("shop", "acme" if limit.is_of_user else None).close(3600 if limit.is_of_user else None)
        queue.push(Task.create("acme", 3, None, limits=[limit], task_id=f"{limit.at_once or 0}"))
    queue.heartbeat("w", {"running": "1", "users": "*", "steal": "bolt", "status": "draining", "queues": "default"})
    queue.set_worker_command("w", "stop")
    queue.schedules.add("nightly", task=Task.create("acme", 3, {}, name="shop.send"), cron="0 3 * * 1-5")
    queue.schedules.add("hourly", task=Task.create("acme", 3, {}, name="shop.send"), every=3600, enabled=False)
    queue.schedules.add("shop", task=Task.create("bolt", 3, {}, name="shop.send"), every=60, overlap="skip", now=1e9)
    for late in (60, 121, 600):
        queue.schedules.fire_due(now=1e9 + late)
    return entry


SIMPLE = [page.name for page in PAGES if "<" not in page.path]
QUERIES: list[tuple[str, dict[str, str]]] = [
    *((page, {}) for page in SIMPLE),
    *(("tasks", {"state": state}) for state in ("scheduled", "deferred", "started", "failed", "finished")),
    ("overview", {"hours": "24"}),
    ("users", {"user": "bolt"}),
    ("users", {"user": "none"}),
    ("organizations", {"organization": "shop"}),
    ("organizations", {"organization": "none"}),
    ("limits", {"limit": "shop"}),
    ("limits", {"limit": "shop", "user": "acme"}),
    ("tasks", {"name": "shop.send", "user": "acme"}),
    ("dead_letters", {"show": "letters"}),
    ("dead_letters", {"older_than": "x"}),
    ("dependencies", {"task": "first"}),
    ("schedules", {"add": "1"}),
    ("schedules", {"edit": "nightly"}),
    ("schedules", {"runs": "nightly"}),
    ("schedules", {"runs": "shop"}),
]


def leftovers(client: Client, queries: list[tuple[str, dict[str, str]]]) -> dict[str, set[str]]:
    found = {f"{page} {query}": english(read(client, page_url(page, **query))) for page, query in queries}
    return {page: words for page, words in found.items() if words}


def test_pages_of_an_empty_queue_are_in_japanese(admin_client: Client, queue: FairQueue) -> None:
    assert leftovers(admin_client, QUERIES[: len(SIMPLE)]) == {}


def test_pages_of_a_full_queue_are_in_japanese(admin_client: Client, filled: str) -> None:
    assert leftovers(admin_client, QUERIES) == {}


def test_pages_of_tasks_and_dead_letters_are_in_japanese(admin_client: Client, filled: str) -> None:
    pages = [page_url("task", task) for task in ("over", "runs", "late", "first", "waits", "dead")]
    letter = page_url("dead_letter", filled)
    found = [read(admin_client, page) for page in (*pages, letter)]
    assert set().union(*map(english, found)) == set()
    assert english(admin_client.post(letter, {"action": "edit"}).content.decode()) == set()


@pytest.mark.parametrize(
    ("page", "query", "fields"),
    [
        ("queues", {}, {"action": "purge"}),
        ("queues", {}, {"action": "pause"}),
        ("users", {"user": "bolt"}, {"action": "purge", "user": "bolt"}),
        ("users", {"user": "bolt"}, {"action": "limits", "user": "bolt", "weight": "2", "rate": "5/m"}),
        ("users", {}, {"action": "resume", "user": "acme"}),
        ("organizations", {}, {"action": "pause", "organization": "mail"}),
        ("organizations", {}, {"action": "pause", "organization": "mail", "confirm": "yes"}),
        ("organizations", {}, {"action": "resume", "organization": "shop"}),
        ("organizations", {}, {"action": "settings", "organization": "shop", "weight": "2", "max_running": ""}),
        ("organizations", {}, {"action": "settings", "organization": "shop", "weight": "2", "max_running": "3"}),
        (
            "organizations",
            {"organization": "shop"},
            {"action": "settings", "organization": "shop", "weight": "0", "max_running": "x"},
        ),
        ("limits", {}, {"action": "close", "limit": "shop"}),
        ("limits", {}, {"action": "open", "limit": "shop"}),
        ("tasks", {}, {"action": "cancel"}),
        ("tasks", {}, {"action": "cancel_all"}),
        ("tasks", {"state": "scheduled"}, {"action": "run_now", "task": "late"}),
        ("dead_letters", {"show": "letters"}, {"action": "discard_all"}),
        ("dead_letters", {"show": "letters"}, {"action": "requeue_all", "confirm": "yes"}),
        ("dead_letters", {"show": "letters"}, {"action": "requeue", "entry": "gone~1"}),
        ("dependencies", {"task": "first"}, {"action": "cancel_subtree"}),
        ("dependencies", {"task": "waits"}, {"action": "release"}),
        ("schedules", {}, {"action": "remove", "name": "nightly"}),
        ("schedules", {}, {"action": "pause", "name": "nightly"}),
        ("workers", {}, {"action": "stop", "worker": "w"}),
        ("workers", {}, {"action": "drain", "worker": "w"}),
    ],
)
def test_questions_and_messages_are_in_japanese(
    admin_client: Client, filled: str, page: str, query: dict[str, str], fields: dict[str, str]
) -> None:
    assert english(post(admin_client, page_url(page, **query), **fields).content.decode()) == set()


def test_the_outbox_is_in_japanese_except_for_the_templates_of_django(admin_client: Client, queue: FairQueue) -> None:
    words = english(read(admin_client, page_url("outboxentry_changelist")))
    assert words <= {"Search", "Pagination", "Select", "option"}


def test_each_sentence_about_the_health_of_a_queue_is_translated(filled: str, queue: FairQueue) -> None:
    bad = {
        "redis_version": "6.2.0",
        "role": "slave",
        "aof_last_write_status": "err",
        "aof_enabled": 0,
        "rdb_last_bgsave_status": "err",
        "maxmemory_policy": "allkeys-lru",
        "maxmemory": 100,
        "used_memory": 95,
    }
    others: list[dict[str, Any]] = [
        {**bad, "redis_version": "7.2.4"},
        {**bad, "used_memory": 103},
        {**bad, "dragonfly_version": "1.24"},
        {**bad, "executable": "/usr/bin/keydb-server"},
    ]
    reported = [text for info in (bad, *others) for _kind, text in check_server_info(info)]
    assert len(set(reported)) == 12
    for text in reported:
        assert re.search("[ぁ-ん]", sentence(text)), text
        for value in ("6.2.0", "7.2.4", "allkeys-lru", "95 ", "103 "):
            assert (value in text) == (value in sentence(text))
    for text in queue.health().reasons:
        assert re.search("[ぁ-ん]", sentence(text)), text
    assert sentence("the sky is falling") == "the sky is falling"


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "毎分"),
        ("*/5 * * * *", "5 分ごと"),
        ("*/7 * * * *", "*/7 * * * *"),
        ("*/0 * * * *", "*/0 * * * *"),
        ("15 * * * *", "毎時 15 分"),
        ("5 3 * * *", "毎日 03:05"),
        ("0 9 * * 1-5", "月曜日、火曜日、水曜日、木曜日、金曜日の 09:00"),
        ("0 9 * * 0,7", "日曜日の 09:00"),
        ("0 9 * * 5-1", "0 9 * * 5-1"),
        ("0 9 1 * *", "毎月 1 日の 09:00"),
        ("0 9 1 * 1", "0 9 1 * 1"),
        ("0 9 * 6 *", "0 9 * 6 *"),
        ("0 9,18 * * *", "0 9,18 * * *"),
        ("* * * * * *", "* * * * * *"),
    ],
)
def test_a_cron_expression_is_described_in_japanese(cron: str, words: str) -> None:
    assert cron_in_words(cron) == words
