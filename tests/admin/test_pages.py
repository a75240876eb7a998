"""These tests hold for every page. They find the pages in the URL patterns, so that none is forgotten."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from typing import Any

import pytest
from django.urls import get_resolver, reverse

from django_fairque.admin.pages.base import FRAGMENT_HEADER
from django_fairque.admin.pages.users import PAGE_USERS_EXAMINED
from django_fairque.admin.site import PAGES
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.admin.page_reader import content_of, led_to, log_in, messages_of, page_url, read
from tests.fixture_types import Client, FairQueue, MakeServer, Settings
from tests.leases import pop

pytestmark = pytest.mark.django_db

CHANGELIST = "admin:django_fairque_queue_changelist"
SIMPLE = [page for page in PAGES if "<" not in page.path]
"""Pages whose URL needs no argument."""


def url(name: str, **query: str) -> str:
    return page_url(name, *(["none"] if "<" in path_of(name) else []), **query)


def path_of(name: str) -> str:
    return next((page.path for page in PAGES if page.name == name), "")


def names() -> list[str]:
    """Every URL of ours in the admin."""
    found = [name for name in get_resolver().namespace_dict["admin"][1].reverse_dict if isinstance(name, str)]
    return sorted(name.removeprefix("django_fairque_") for name in found if name.startswith("django_fairque_"))


def test_every_url_is_a_page_or_the_outbox() -> None:
    ours = {name for name in names() if not name.startswith("outboxentry_")}
    assert ours == {page.name for page in PAGES} | {"queue_changelist"}


@pytest.mark.parametrize("method", ["get", "post"])
def test_staff_without_permissions_see_and_change_nothing(client: Client, queue: FairQueue, method: str) -> None:
    log_in(client)
    for page in PAGES:
        assert getattr(client, method)(url(page.name)).status_code == 403, page.name
    assert "django_fairque" not in client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_has_a_permission_of_its_own(client: Client, queue: FairQueue, page: Any) -> None:
    log_in(client, page.permission)
    allowed = {shown.name for shown in PAGES if client.get(url(shown.name)).status_code != 403}
    assert allowed == {shown.name for shown in PAGES if shown.permission == page.permission}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_action_needs_its_permission_a_post_and_a_token(client: Client, queue: FairQueue, page: Any) -> None:
    staff = log_in(client, page.permission)
    for name, action in page.actions.items():
        if action.permission != page.permission:
            assert client.post(url(page.name), {"action": name}).status_code == 403, name
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(staff)
    assert strict.post(url(page.name), {"action": next(iter(page.actions), "any")}).status_code == 403


@pytest.fixture
def filled(queue: FairQueue) -> FairQueue:
    """A queue with something on each page that an operator could change."""
    queue.push_graph(
        [Task.create("ann", 3, None, task_id="a"), Task.create("ann", 3, None, task_id="b", depends_on=["a"])]
    )
    queue.push(Task.create("ann", 3, None, task_id="later", execute_after=4e9))
    queue.push(Task.create("bob", 3, None, task_id="ended"))
    queue.finish(pop(queue, "w", ["bob"]))
    bury(queue, task_id="dead")
    queue.user("ann").set_organization("acme")
    queue.schedules.add("s", task=Task.create("ann", 3, None), every=60)
    queue.heartbeat("w", {})
    return queue


@pytest.mark.parametrize(
    ("page", "args", "query"),
    [
        ("queues", [], {}),
        ("users", [], {}),
        ("users", [], {"user": "ann"}),
        ("organizations", [], {}),
        ("organizations", [], {"organization": "acme"}),
        ("limits", [], {"limit": "k"}),
        ("workers", [], {}),
        ("schedules", [], {}),
        ("schedules", [], {"add": "1"}),
        ("schedules", [], {"edit": "s"}),
        ("dead_letters", [], {}),
        ("dead_letters", [], {"show": "letters"}),
        ("dead_letter", ["dead~1"], {}),
        ("tasks", [], {"state": "scheduled"}),
        ("task", ["a"], {}),
        ("task", ["ended"], {}),
        ("dependencies", [], {"task": "b"}),
    ],
)
def test_staff_with_view_permissions_see_no_buttons_and_change_nothing(
    client: Client, admin_client: Client, filled: FairQueue, page: str, args: list[str], query: dict[str, str]
) -> None:
    where = page_url(page, *args, **query)
    assert re.search('name="action"|type="checkbox"', content_of(read(admin_client, where)))
    viewed = {page.name: page for page in PAGES}[page]
    viewer = Client()
    log_in(viewer, viewed.permission)
    assert not re.search('name="action"|type="checkbox"', content_of(read(viewer, where)))
    before = filled.get_stats(0)
    for action in viewed.actions:
        fields = {"action": action, "confirm": "yes", "user": "ann", "organization": "acme", "worker": "w", "name": "s"}
        assert viewer.post(where, {**fields, "task": "later", "entry": "dead~1", "payload": "1"}).status_code == 403
    assert (filled.get_stats(0).states, filled.heartbeat("w", {}).command) == (before.states, None)
    assert (filled.user("ann").stats().paused, filled.schedules.get("s").enabled) == (False, True)


def test_breadcrumbs_have_the_markup_of_the_installed_django(admin_client: Client, queue: FairQueue) -> None:
    def breadcrumbs(where: str) -> str:
        found = re.search('<(\\w+) class="breadcrumbs"', admin_client.get(where).content.decode())
        assert found
        return found[1]

    assert breadcrumbs(url("overview")) == breadcrumbs(reverse("admin:auth_user_changelist"))


def test_an_unknown_action_is_not_found(admin_client: Client, queue: FairQueue) -> None:
    for page in SIMPLE:
        assert admin_client.post(url(page.name), {"action": "surprise"}).status_code == 404


@pytest.mark.parametrize("page", SIMPLE, ids=lambda page: page.name)
class TestSimple:
    def test_a_page_of_an_empty_queue_is_shown(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        answer = admin_client.get(url(page.name))
        text = answer.content.decode()
        assert re.search(f"<title>(Good|Degraded) \\| {page.title}", text), "the status first: tabs are narrow"
        assert 'aria-current="page"' in text or "<" in page.path
        assert answer["Cache-Control"].startswith("private")
        # A page has no inline script or style.
        ours = text[text.index('class="fq-menu"') : text.index('id="footer"') if 'id="footer"' in text else None]
        for banned in ("<script", "<style", " style=", " onclick=", "javascript:"):
            assert banned not in ours

    def test_a_fragment_contains_only_the_content_of_its_page(
        self, admin_client: Client, queue: FairQueue, page: Any
    ) -> None:
        text = admin_client.get(url(page.name), headers={FRAGMENT_HEADER: "1"}).content.decode()
        assert "<html" not in text
        assert "fq-menu" not in text

    def test_a_page_shows_the_chosen_queue(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        assert '<option value="mail" selected>' in admin_client.get(url(page.name), {"queue": "mail"}).content.decode()
        assert admin_client.get(url(page.name), {"queue": "nowhere"}).status_code == 404

    @pytest.mark.parametrize("query", [{}, {"add": "1"}])
    def test_a_configuration_with_mistakes_is_a_banner(
        self, admin_client: Client, page: Any, query: dict[str, str], settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": {"URI": "redis://127.0.0.1:1/0"}}
        text = read(admin_client, url(page.name), **query)
        assert 'class="fq-trouble" role="alert"' in text
        assert "mistakes in the configuration" in text


@pytest.mark.usefixtures("real_page_timeout")
@pytest.mark.parametrize(
    ("pages", "is_hung"), [(SIMPLE, False), ([page for page in SIMPLE if page.name in ("tasks", "audit")], True)]
)
def test_a_server_that_does_not_answer_is_a_banner(
    admin_client: Client, pages: list[Any], is_hung: bool, make_server: MakeServer, settings: Settings
) -> None:
    server = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    if is_hung:
        os.kill(server.pid, signal.SIGSTOP)
    else:
        server.stop()
    for page in pages:
        begun = time.monotonic()
        answer = admin_client.get(url(page.name))
        took = time.monotonic() - begun
        assert answer.status_code == 200
        sign = 'data-status="down"' if page.name == "audit" else 'class="fq-trouble" role="alert"'
        assert sign in answer.content.decode(), "the audit page reads the database only"
        assert took < 10, "a page never waits for a server: two seconds by design, and a slow machine"


def test_a_page_sends_a_bounded_number_of_commands(admin_client: Client, queue: FairQueue, redis: Any) -> None:
    def commands(page: Any) -> int:
        admin_client.get(url(page.name))
        before = int(redis.info("stats")["total_commands_processed"])
        admin_client.get(url(page.name))
        return int(redis.info("stats")["total_commands_processed"]) - before

    def fill(first: int) -> dict[str, int]:
        queue.push_batch([Task.create(f"u{n}", 1 + n % 6, n) for n in range(first, first + 2000)])
        return {page.name: commands(page) for page in SIMPLE}

    many, more = fill(0), fill(2000)
    for name in many:
        compares_users = name in ("overview", "users")
        # The record and the oldest tasks of each user that is compared, and the tasks by which some are chosen.
        assert many[name] <= 320 + (3 * PAGE_USERS_EXAMINED if compares_users else 0), name
        drawn = 200 if compares_users else 0
        assert more[name] <= many[name] + 10 + drawn, (name, "users and tasks add no commands; a minute may begin")


def test_the_index_leads_to_the_first_page(admin_client: Client, queue: FairQueue) -> None:
    index = admin_client.get(reverse("admin:index")).content.decode()
    assert reverse(CHANGELIST) in index
    assert admin_client.get(reverse(CHANGELIST)).status_code == 200


@pytest.mark.parametrize("page", SIMPLE, ids=lambda page: page.name)
def test_the_index_leads_to_the_first_page_that_the_user_may_see(client: Client, queue: FairQueue, page: Any) -> None:
    log_in(client, page.permission)
    assert reverse(CHANGELIST) in client.get(reverse("admin:index")).content.decode()
    answer: Any = client.get(reverse(CHANGELIST), {"queue": "mail"}, follow=True)
    assert answer.status_code == 200
    first = next(shown for shown in PAGES if shown.permission == page.permission)
    assert answer.redirect_chain == ([] if first is PAGES[0] else [(f"{url(first.name)}?queue=mail", 302)])


def test_staff_without_any_permission_are_refused_by_the_index(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_outboxentry")
    assert client.get(reverse(CHANGELIST)).status_code == 403


def test_an_impossible_id_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    for name, others in (("task", "tasks"), ("dead_letter", "dead_letters")):
        for text in ("x" * 300, f"{'x' * 300}~1"):
            where = reverse(f"admin:django_fairque_{name}", args=[text])
            assert led_to(admin_client, where, others)
            for action in {page.name: page for page in PAGES}[name].actions:
                answer = admin_client.post(where, {"action": action, "confirm": "yes"}, follow=True)
                assert answer.redirect_chain[-1] == (f"{url(others)}?queue=default", 302), (name, action)
    assert "256 bytes" in messages_of(admin_client.get(url("tasks"), {"id": "x" * 300}, follow=True))


@pytest.mark.parametrize("page", SIMPLE, ids=lambda page: page.name)
def test_a_page_accepts_any_query_string(admin_client: Client, queue: FairQueue, page: Any) -> None:
    long = [(key, "x" * 300) for key in ("organization", "run", "edit", "name", "worker", "fingerprint")]
    for key, value in [*long, *itertools.product(("user", "task", "after", "cursor", "id"), ["x" * 300, "~1\0"])]:
        answer = admin_client.get(url(page.name), {key: value, "show": "letters"}, follow=True)
        assert answer.status_code in (200, 404), key
