"""What holds for every page, found by walking the URL patterns, so that none is forgotten."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django.urls import get_resolver, reverse

from django_fairque.admin.pages.base import FRAGMENT_HEADER
from django_fairque.admin.pages.users import USERS_EXAMINED
from django_fairque.admin.site import PAGES
from tests.admin.page_reader import led_to, messages_of

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue
    from tests.conftest import MakeServer

pytestmark = pytest.mark.django_db

CHANGELIST = "admin:django_fairque_queue_changelist"
SIMPLE = [page for page in PAGES if "<" not in page.path]
"""Pages whose URL needs no argument."""


def url(name: str) -> str:
    return reverse(f"admin:django_fairque_{name}", args=["none"] if "<" in path_of(name) else [])


def path_of(name: str) -> str:
    return next((page.path for page in PAGES if page.name == name), "")


@pytest.fixture
def staff(client: Client) -> User:
    user: User = User.objects.create_user("staff", password="x", is_staff=True)
    client.force_login(user)
    return user


def names() -> list[str]:
    """Every URL of ours in the admin."""
    found = [name for name in get_resolver().namespace_dict["admin"][1].reverse_dict if isinstance(name, str)]
    return sorted(name.removeprefix("django_fairque_") for name in found if name.startswith("django_fairque_"))


def test_every_url_is_a_page_or_the_outbox() -> None:
    ours = {name for name in names() if not name.startswith("outboxentry_")}
    assert ours == {page.name for page in PAGES} | {"queue_changelist"}


@pytest.mark.parametrize("method", ["get", "post"])
def test_staff_without_permissions_see_and_do_nothing(
    client: Client, staff: User, queue: FairQueue, method: str
) -> None:
    for page in PAGES:
        assert getattr(client, method)(url(page.name)).status_code == 403, page.name
    assert "django_fairque" not in client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_has_a_permission_of_its_own(client: Client, staff: User, queue: FairQueue, page: Any) -> None:
    staff.user_permissions.add(
        Permission.objects.get(codename=page.permission, content_type__app_label="django_fairque")
    )
    allowed = {each.name for each in PAGES if client.get(url(each.name)).status_code != 403}
    assert allowed == {each.name for each in PAGES if each.permission == page.permission}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_action_needs_its_permission_a_post_and_a_token(
    client: Client, staff: User, queue: FairQueue, page: Any
) -> None:
    staff.user_permissions.add(
        Permission.objects.get(codename=page.permission, content_type__app_label="django_fairque")
    )
    for name, action in page.actions.items():
        if action.permission != page.permission:
            assert client.post(url(page.name), {"action": name}).status_code == 403, name
    from django.test import Client as Browser

    strict = Browser(enforce_csrf_checks=True)
    strict.force_login(staff)
    assert strict.post(url(page.name), {"action": next(iter(page.actions), "any")}).status_code == 403


def test_breadcrumbs_are_what_this_django_styles(admin_client: Client, queue: FairQueue) -> None:
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
    def test_is_shown_empty(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        answer = admin_client.get(url(page.name))
        assert answer.status_code == 200
        text = answer.content.decode()
        assert re.search(f"<title>(Good|Degraded) \\| {page.title}", text), "the status first: tabs are narrow"
        assert 'aria-current="page"' in text or not page.in_menu
        assert answer["Cache-Control"].startswith("private")

    def test_has_no_inline_script_or_style(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        text = admin_client.get(url(page.name)).content.decode()
        ours = text[text.index('class="fq-menu"') : text.index('id="footer"') if 'id="footer"' in text else None]
        for banned in ("<script", "<style", " style=", " onclick=", "javascript:"):
            assert banned not in ours

    def test_a_fragment_is_its_content_alone(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        text = admin_client.get(url(page.name), headers={FRAGMENT_HEADER: "1"}).content.decode()
        assert "<html" not in text
        assert "fq-menu" not in text

    def test_of_another_queue(self, admin_client: Client, queue: FairQueue, page: Any) -> None:
        assert '<option value="mail" selected>' in admin_client.get(url(page.name), {"queue": "mail"}).content.decode()
        assert admin_client.get(url(page.name), {"queue": "nowhere"}).status_code == 404

    @pytest.mark.usefixtures("real_page_timeout")
    @pytest.mark.parametrize("how", ["down", "hung"])
    def test_a_server_that_does_not_answer_is_a_banner(
        self, admin_client: Client, page: Any, how: str, make_server: MakeServer, settings: Settings
    ) -> None:
        server = make_server()
        settings.FAIRQUE = {"REDIS": {"URL": server.url}}
        if how == "down":
            server.stop()
        else:
            os.kill(server.pid, signal.SIGSTOP)
        begun = time.monotonic()
        answer = admin_client.get(url(page.name))
        took = time.monotonic() - begun
        if how == "hung":
            os.kill(server.pid, signal.SIGCONT)
        assert answer.status_code == 200
        sign = 'data-status="down"' if page.name == "audit" else 'class="fq-trouble" role="alert"'
        assert sign in answer.content.decode(), "the audit page reads the database only"
        assert took < 10, "a page never waits for a server: two seconds by design, and a slow machine"

    @pytest.mark.parametrize("query", [{}, {"add": "1"}])
    def test_a_configuration_with_mistakes_is_a_banner(
        self, admin_client: Client, page: Any, query: dict[str, str], settings: Settings
    ) -> None:
        settings.FAIRQUE = {"REDIS": {"URI": "redis://127.0.0.1:1/0"}}
        answer = admin_client.get(url(page.name), query)
        assert answer.status_code == 200
        text = answer.content.decode()
        assert 'class="fq-trouble" role="alert"' in text
        assert "mistakes in the configuration" in text

    def test_sends_a_bounded_number_of_commands(
        self, admin_client: Client, queue: FairQueue, redis: Any, page: Any
    ) -> None:
        from django_fairque.engine.model.task import Task

        def commands() -> int:
            admin_client.get(url(page.name))
            before = int(redis.info("stats")["total_commands_processed"])
            admin_client.get(url(page.name))
            return int(redis.info("stats")["total_commands_processed"]) - before

        def fill(first: int) -> int:
            queue.push_batch([Task.create(f"u{n}", 1 + n % 6, n) for n in range(first, first + 2000)])
            return commands()

        many = fill(0)
        compares_users = page.name in ("overview", "users")
        # The record and the oldest tasks of each user that is compared, and the tasks by which some are chosen.
        assert many <= 320 + (3 * USERS_EXAMINED if compares_users else 0)
        drawn = 200 if compares_users else 0
        assert fill(2000) <= many + 10 + drawn, "it must not grow with users and tasks; a minute may begin in between"


def test_the_index_leads_to_the_first_page(admin_client: Client, queue: FairQueue) -> None:
    index = admin_client.get(reverse("admin:index")).content.decode()
    assert reverse(CHANGELIST) in index
    assert admin_client.get(reverse(CHANGELIST)).status_code == 200


@pytest.mark.parametrize("page", SIMPLE, ids=lambda page: page.name)
def test_the_index_leads_to_the_first_page_that_one_may_see(
    client: Client, staff: User, queue: FairQueue, page: Any
) -> None:
    staff.user_permissions.add(
        Permission.objects.get(codename=page.permission, content_type__app_label="django_fairque")
    )
    assert reverse(CHANGELIST) in client.get(reverse("admin:index")).content.decode()
    answer: Any = client.get(reverse(CHANGELIST), {"queue": "mail"}, follow=True)
    assert answer.status_code == 200
    first = next(each for each in PAGES if each.permission == page.permission)
    assert answer.redirect_chain == ([] if first is PAGES[0] else [(f"{url(first.name)}?queue=mail", 302)])


def test_it_leads_nowhere_who_may_see_no_page(client: Client, staff: User, queue: FairQueue) -> None:
    staff.user_permissions.add(Permission.objects.get(codename="view_outboxentry"))
    assert client.get(reverse(CHANGELIST)).status_code == 403


def test_an_id_that_can_not_be_one_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    for name, others in (("task", "tasks"), ("dead_letter", "dead_letters")):
        for text in ("x" * 300, f"{'x' * 300}~1"):
            where = reverse(f"admin:django_fairque_{name}", args=[text])
            assert led_to(admin_client, where, others)
            for action in {page.name: page for page in PAGES}[name].actions:
                answer = admin_client.post(where, {"action": action, "confirm": "yes"}, follow=True)
                assert answer.redirect_chain[-1] == (f"{url(others)}?queue=default", 302), (name, action)
    assert "256 bytes" in messages_of(admin_client.get(url("tasks"), {"id": "x" * 300}, follow=True))


@pytest.mark.parametrize("page", SIMPLE, ids=lambda page: page.name)
@pytest.mark.parametrize("value", ["x" * 300, "~1\0"])
def test_whatever_is_asked_for_a_page_does_not_fail(
    admin_client: Client, queue: FairQueue, page: Any, value: str
) -> None:
    for key in (
        "user",
        "organization",
        "task",
        "run",
        "edit",
        "name",
        "worker",
        "after",
        "cursor",
        "fingerprint",
        "id",
    ):
        answer = admin_client.get(url(page.name), {key: value, "show": "letters"}, follow=True)
        assert answer.status_code in (200, 404), key
