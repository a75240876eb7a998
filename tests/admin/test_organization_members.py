"""The users page with the members of one organization."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db


def url(**query: str) -> str:
    return reverse("admin:django_fairque_users", query=query)


def test_members_are_listed_alone(admin_client: Client, queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme")
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", "cid", "dan")])
    answer = admin_client.get(url(organization="acme"))
    assert [row.user_id for row, _ in answer.context["table"]] == ["ann", "bob"]
    text = answer.content.decode()
    assert "Members of organization acme, those with something to do first" in text
    assert (
        reverse("admin:django_fairque_organizations", query={"queue": "default", "organization": "acme"}).replace(
            "&", "&amp;"
        )
        in text
    )


def test_members_are_found_behind_any_number_of_others(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_fairque.admin.pages.users.MEMBERS_PER_READ", 3)
    queue.push_batch([Task.create(f"u{number:02}", 3, None) for number in range(40)])
    for number in range(1, 40, 2):
        queue.user(f"u{number:02}").set_organization("odd")
    queue.user("zoe").set_organization("last")
    found, at = [], url(organization="odd")
    while at:
        answer = admin_client.get(at)
        found += [row.user_id for row, _ in answer.context["table"]]
        at = answer.context["next"]
    assert sorted(found) == [f"u{number:02}" for number in range(1, 40, 2)]
    first = admin_client.get(url(organization="last"))
    assert "None of the 30 users looked at belongs to organization last." in first.content.decode()
    second = admin_client.get(first.context["next"])
    assert [row.user_id for row, _ in second.context["table"]] == ["zoe"]
    assert second.context["first"] == url(queue="default", organization="last")


def test_there_may_be_none(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None))
    assert "No user belongs to organization nobody" in admin_client.get(url(organization="nobody")).content.decode()


def test_an_organization_that_can_not_be_is_explained_and_leads_back(admin_client: Client, queue: FairQueue) -> None:
    text = admin_client.get(url(organization="x" * 300)).content.decode()
    assert "at most 256 bytes" in text
    assert f'<a href="{url(queue="default")}">All users</a>' in text


def test_a_page_of_members_that_can_not_be_leads_to_the_first(admin_client: Client, queue: FairQueue) -> None:
    assert "There is no such page" in led_to(admin_client, url(organization="acme", cursor="x"), "users")


def test_an_organization_leads_to_its_members(admin_client: Client, queue: FairQueue) -> None:
    queue.user("ann").set_organization("a&b")
    of_organization = url(queue="default", organization="a&b").replace("&", "&amp;")
    for page in ({}, {"organization": "a&b"}):
        assert (
            of_organization
            in admin_client.get(reverse("admin:django_fairque_organizations", query=page)).content.decode()
        )
