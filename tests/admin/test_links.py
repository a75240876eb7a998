"""Names on a page lead to the page of the thing, and never to a page that the user may not see."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.utils import quote
from django.urls import resolve, reverse

from django_fairque.admin.site import PAGES
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.admin.page_reader import log_in, words_of
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

USER = "acme & söhne/1"


@pytest.fixture
def entry(queue: FairQueue) -> str:
    """A dead letter of the user, and one task of it in each state that waits or runs."""
    entry = bury(queue, user_id=USER, task_id="dead")

    def task(name: str, **options: object) -> Task:
        return Task.create(USER, 3, {}, name="shop.send", task_id=name, **options)  # type: ignore[arg-type]

    queue.push(task("started"))
    pop(queue, "w-1")
    queue.push_batch(
        [task("queued"), task("scheduled", execute_after=timedelta(hours=1)), task("deferred", depends_on=["queued"])]
    )
    return entry


def links(client: Client, page: str, *args: str, **query: str) -> dict[str, tuple[str, dict[str, str]]]:
    """By its words, the page that each link in the content leads to, and its query."""
    text = client.get(reverse(f"admin:django_fairque_{page}", args=args), query).content.decode()
    text = text[text.index('id="fq-content"') :]
    found: dict[str, tuple[str, dict[str, str]]] = {}
    for url, words in re.findall(r'<a [^>]*?href="(/[^"]*)"[^>]*>(.*?)</a>', text, re.DOTALL):
        parts = urlsplit(html.unescape(url))
        name = (resolve(parts.path).url_name or "").removeprefix("django_fairque_")
        parameters = {key: values[0] for key, values in parse_qs(parts.query).items() if key != "queue"}
        found.setdefault(words_of(words), (name, parameters))
    return found


def test_the_figures_of_the_overview_link_to_their_lists(admin_client: Client, entry: str) -> None:
    found = links(admin_client, "overview")
    for title, state in (("Queued", "queued"), ("Running", "started"), ("Scheduled", "scheduled")):
        assert found[title] == ("tasks", {"state": state})
    assert found["Deferred"] == ("tasks", {"state": "deferred"})
    assert found["Dead letters"] == ("dead_letters", {})
    assert found["Workers"] == ("workers", {})
    assert found["Users with work"] == ("users", {})
    assert found[USER] == ("users", {"user": USER})


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("tasks", {"state": "scheduled"}),
        ("dead_letters", {"show": "letters"}),
        ("dependencies", {}),
        ("users", {}),
        ("overview", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_name_of_a_user_links_to_its_row_and_the_row_to_its_tasks(
    admin_client: Client, entry: str, page: str, query: dict[str, str]
) -> None:
    found = links(admin_client, page, **query)
    assert found[USER] == ("users", {"user": USER})
    text = admin_client.get(reverse("admin:django_fairque_users"), found[USER][1]).content.decode()
    assert "Settings of this user" in text
    tiles = re.findall(r"<dt>([^<]*)</dt><dd><a href=\"([^\"]*)\"", text)
    assert [title for title, _ in tiles] == [
        *("running", "ready", "scheduled", "wait for others", "finished", "became dead letters")
    ]
    for (_, url), name in zip(tiles, ("started", "queued", "scheduled", "deferred", "", "dead"), strict=True):
        assert name in words_of(admin_client.get(html.unescape(url)).content.decode())


def test_a_user_links_to_its_organization_and_the_organization_to_users(admin_client: Client, entry: str) -> None:
    get_queue().user(USER).set_organization("söhne & co/1")
    for query in ({}, {"user": USER}):
        assert links(admin_client, "users", **query)["organization söhne & co/1"] == (
            "organizations",
            {"organization": "söhne & co/1"},
        )
    assert links(admin_client, "organizations")["söhne & co/1"] == ("organizations", {"organization": "söhne & co/1"})
    for query in ({}, {"organization": "söhne & co/1"}):
        assert links(admin_client, "organizations", **query)["All users"] == ("users", {})


def test_the_page_of_a_task_links_to_its_user_and_name_and_worker(admin_client: Client, entry: str) -> None:
    found = links(admin_client, "task", "started")
    assert found[USER] == ("users", {"user": USER})
    assert found["its tasks"] == ("tasks", {"state": "started", "user": USER})
    assert found["shop.send"] == ("tasks", {"state": "started", "name": "shop.send"})
    assert found["w-1"] == ("tasks", {"state": "started", "worker": "w-1"})
    assert links(admin_client, "task", "dead")["Its dead letter"] == ("dead_letter", {})


def test_the_page_of_a_dead_letter_links_to_its_task_and_its_kind(admin_client: Client, entry: str) -> None:
    found = links(admin_client, "dead_letter", quote(entry))
    assert found["dead"] == ("task", {})
    assert found["shop.send"] == ("tasks", {"state": "failed", "name": "shop.send"})
    assert found["failed"] == ("dead_letters", {"failure_type": "failed", "show": "letters"})
    assert links(admin_client, "dead_letters")["shop.send"] == ("dead_letters", {"name": "shop.send"})


def test_the_page_of_queues_links_to_lists_of_tasks_and_dead_letters(admin_client: Client, entry: str) -> None:
    text = admin_client.get(reverse("admin:django_fairque_queues")).content.decode()
    for url in ("tasks/?queue=default&amp;state=queued", "tasks/?queue=mail&amp;state=started"):
        assert url in text
    assert "dead-letters/?queue=mail" in text


def test_the_page_of_a_worker_links_to_its_running_tasks(admin_client: Client, queue: FairQueue, entry: str) -> None:
    queue.heartbeat("w-1", {"running": "1", "concurrency": "4"})
    queue.push(Task.create("else", 1, {}, task_id="other"))
    pop(queue, "w-2", ["else"])
    found = links(admin_client, "workers")
    assert found["1"] == ("tasks", {"state": "started", "worker": "w-1"})
    text = words_of(admin_client.get(reverse("admin:django_fairque_tasks"), found["1"][1]).content.decode())
    assert "started shop.send" in text
    assert "other" not in text


@pytest.mark.slow  # 20 seconds in all
@pytest.mark.parametrize("permission", sorted({page.permission for page in PAGES}))
def test_links_lead_only_to_pages_that_the_user_may_see(client: Client, entry: str, permission: str) -> None:
    get_queue().user(USER).set_organization("g")
    get_queue().heartbeat("w-1", {"running": "1"})
    log_in(client, permission)
    get_queue().push_graph([Task.create(USER, 3, None)], "run")
    arguments = {"task": "deferred", "dead_letter": quote(entry), "run": "run"}
    for page in (page for page in PAGES if page.permission == permission):
        where = reverse(f"admin:django_fairque_{page.name}", args=[arguments[page.name]] if "<" in page.path else [])
        for query in ({}, {"task": "deferred"}, {"user": USER}, {"show": "letters"}):
            text = client.get(where, query).content.decode()
            for url in set(re.findall(r'<a [^>]*?href="(/[^"]*)"', text)):
                assert client.get(html.unescape(url)).status_code != 403, f"{page.name} {query} leads to {url}"


def test_staff_who_may_see_one_page_get_no_links_to_other_pages(client: Client, entry: str) -> None:
    log_in(client, "view_queue")
    for page in ("overview", "queues"):
        assert {name for name, _ in links(client, page).values()} <= {"overview", "queues"}
    text = client.get(reverse("admin:django_fairque_overview")).content.decode()
    assert html.escape(USER) in text
