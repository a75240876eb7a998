"""The users page with the members of one organization."""

from __future__ import annotations

from functools import partial

import pytest

from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to, page_url, read
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db


url = partial(page_url, "users")


def test_members_of_an_organization_are_listed_alone(admin_client: Client, queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme")
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", "cid", "dan")])
    answer = admin_client.get(url(organization="acme"))
    assert [row.user_id for row, _ in answer.context["table"]] == ["ann", "bob"]
    text = answer.content.decode()
    assert "Members of organization acme, those with something to do first" in text
    assert page_url("organizations", queue="default", organization="acme").replace("&", "&amp;") in text


def test_members_are_found_among_any_number_of_other_users(
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


def test_an_organization_without_members_or_with_an_impossible_name_is_explained(
    admin_client: Client, queue: FairQueue
) -> None:
    queue.push(Task.create("ann", 3, None))
    assert "No user belongs to organization nobody" in read(admin_client, url(organization="nobody"))
    text = read(admin_client, url(organization="x" * 300))
    assert "at most 256 bytes" in text
    assert f'<a href="{url(queue="default")}">All users</a>' in text
    assert "There is no such page" in led_to(admin_client, url(organization="acme", cursor="x"), "users")


def test_an_organization_leads_to_its_members(admin_client: Client, queue: FairQueue) -> None:
    queue.user("ann").set_organization("a&b")
    of_organization = url(queue="default", organization="a&b").replace("&", "&amp;")
    for query in ({}, {"organization": "a&b"}):
        assert of_organization in read(admin_client, page_url("organizations", **query))
