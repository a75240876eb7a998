"""The page of organizations: what it says of them, and what it does to them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_fairque.admin.pages.organizations import ORGANIZATIONS_PER_PAGE
from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import assert_mistake, content_of, messages_of, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue, Redis, Server, Settings
from tests.lab.benchmarks.admin import cost
from tests.leases import pop

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script>'


url = partial(page_url, "organizations")


def shown(client: Client, **query: str) -> str:
    return content_of(read(client, url(**query)))


def act(client: Client, organization: str, action: str, **fields: Any) -> Any:
    return post(client, url(organization=organization), organization=organization, action=action, **fields)


def form(**changes: str) -> dict[str, str]:
    return {"weight": "1", "max_running": "", "share": "", **changes}


def join(queue: FairQueue, organization: str, *users: str) -> None:
    for user in users:
        queue.user(user).set_organization(organization)


def lines(client: Client, **query: str) -> list[str]:
    """The words of each row of the table."""
    return [words_of(row) for row in shown(client, **query).split("<tbody>")[1].split("</tr>")[:-1]]


def test_organizations_are_listed_with_their_figures_and_settings(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann", "bob", "cid")
    join(queue, "bolt", "dan")
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", "ann", "bob", "dan") for _ in range(2)])
    for _ in range(2):
        pop(queue, "w", ["ann"])
    queue.organization("acme").set_weight(2.5)
    queue.organization("acme").set_max_running(1000)
    queue.organization("bolt").pause()
    assert lines(admin_client) == ["acme 3 2 2 2 2.500 1,000 Pause", "bolt paused 1 1 0 0 1 – Resume"]
    text = shown(admin_client, organization="acme")
    assert 'value="2.5"' in text
    assert 'value="1000"' in text
    assert "shard" not in text


def test_the_list_shows_organizations_of_the_chosen_queue(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann")
    join(get_queue("mail"), "bolt", "ann")
    assert [line.split()[0] for line in lines(admin_client)] == ["acme"]
    assert [line.split()[0] for line in lines(admin_client, queue="mail")] == ["bolt"]


def test_an_empty_list_explains_how_to_create_an_organization(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None))
    text = words_of(shown(admin_client))
    assert "No user of this queue belongs to an organization. An organization begins with its first member" in text
    assert 'queue.user("ann").set_organization("acme")' in text
    queue.user("ann").set_organization("acme")
    assert lines(admin_client), "the code that the page shows must create an organization"


def test_the_list_of_organizations_has_pages(admin_client: Client, queue: FairQueue) -> None:
    names = [f"g{number:03}" for number in range(ORGANIZATIONS_PER_PAGE + 5)]
    for name in names:
        queue.organization(name).set_weight(2)
    first = admin_client.get(url())
    assert [stats.organization for stats, _ in first.context["table"]] == names[:ORGANIZATIONS_PER_PAGE]
    second = admin_client.get(first.context["next"])
    assert [stats.organization for stats, _ in second.context["table"]] == names[ORGANIZATIONS_PER_PAGE:]
    assert (second.context["next"], second.context["first"]) == ("", url(queue="default"))


def test_after_the_last_organization_there_are_no_more(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann")
    text = words_of(shown(admin_client, cursor="zzz"))
    assert "There are no more organizations." in text
    assert "No user of this queue" not in text
    assert "There are no more organizations." in shown(admin_client, cursor="\ufffd\0'\"")


def test_the_list_reads_each_organization_of_the_page_once(
    admin_client: Client, queue: FairQueue, redis: Redis
) -> None:
    admin_client.get(url())  # the first request reads some things that later ones don't
    commands, trips = cost(redis, lambda: admin_client.get(url()))
    for number in range(ORGANIZATIONS_PER_PAGE):
        join(queue, f"g{number:02}", f"u{number:02}")
    for number in range(2 * ORGANIZATIONS_PER_PAGE):
        join(queue, f"h{number:02}", f"v{number}")
        join(queue, "g00", f"w{number}")
    found = cost(redis, lambda: admin_client.get(url()))
    assert found[0] <= 1.1 * (commands + ORGANIZATIONS_PER_PAGE), "neither members nor later pages are read"
    assert found[1] <= 1.1 * (trips + 1)


def test_an_organization_on_several_shards_has_one_row(
    admin_client: Client, server: Server, redis: Redis, settings: Settings
) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"default": {"SHARDS": 4}}}
    queue = get_queue()
    users = [f"u{number}" for number in range(20)]
    join(queue, "acme", *users)
    assert sum(bool(shard.organizations().items) for shard in queue.shards) == 4
    assert [line.split()[:2] for line in lines(admin_client)] == [["acme", "20"]]
    assert "hold on each shard of this queue" in shown(admin_client)
    act(admin_client, "acme", "settings", **form(weight="3", max_running="2"))
    assert {shard.organization("acme").stats().weight for shard in queue.shards} == {3}


def test_an_organization_is_found_by_its_exact_name(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann", "bob")
    join(queue, "acmes", "cid")
    assert admin_client.get(url(organization="acme")).context["stats"].members == 2
    assert "members 2 members with work 0" in words_of(shown(admin_client, organization="acme"))


def test_the_page_is_not_renewed_while_a_form_is_shown(admin_client: Client, queue: FairQueue) -> None:
    assert "data-refresh" in shown(admin_client)
    assert "data-refresh" not in shown(admin_client, organization="acme")


def test_an_unknown_organization_gets_a_weight_before_its_first_member(admin_client: Client, queue: FairQueue) -> None:
    assert "Nothing is known of this organization" in shown(admin_client, organization="acme")
    act(admin_client, "acme", "settings", **form(weight="4"))
    assert "Nothing is known of this organization" not in shown(admin_client, organization="acme")
    join(queue, "acme", "ann")
    assert queue.organization("acme").stats().weight == 4


def test_an_impossible_name_of_an_organization_is_explained(admin_client: Client, queue: FairQueue) -> None:
    text = shown(admin_client, organization="x" * 300)
    assert 'class="fq-error" role="alert"' in text
    assert "organization must be a non-empty string of at most 256 bytes, got 300 bytes" in text


def test_an_organization_is_guaranteed_a_share(admin_client: Client, queue: FairQueue) -> None:
    done = messages_of(act(admin_client, "acme", "settings", **form(share="0.2")))
    assert "Organization acme has weight 1 and no limit. It is guaranteed 20 % of the worker time." in done
    assert queue.organization("acme").stats().share == 0.2
    assert AuditEntry.objects.get().text.endswith("It is guaranteed 20 % of the worker time.")
    assert lines(admin_client)[0].startswith("acme 0 0 0 0 1, at least 20 %")
    assert 'value="0.2"' in shown(admin_client, organization="acme")
    act(admin_client, "acme", "settings", **form())
    assert queue.organization("acme").stats().share is None


def test_a_share_that_makes_the_sum_too_large_changes_nothing(admin_client: Client, queue: FairQueue) -> None:
    queue.organization("acme").set_share(0.2)
    refused = act(admin_client, "bolt", "settings", **form(share="0.8", weight="3"))
    assert_mistake(refused, "share", "may be 0.9 together, got 1: 'bolt' 0.8, 'acme' 0.2", "3", "0.8")
    assert not queue.organization("bolt").stats().is_known


def test_an_organization_is_paused_and_resumed(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann")
    queue.push(Task.create("ann", 3, None))
    assert "Organization acme is paused: no task of its members starts" in messages_of(
        act(admin_client, "acme", "pause")
    )
    assert queue.pop("w") is None
    assert "paused" in words_of(shown(admin_client, organization="acme"))
    assert "Organization acme is resumed." in messages_of(act(admin_client, "acme", "resume"))
    assert queue.pop("w") is not None
    assert [(str(e), e.text[:26]) for e in AuditEntry.objects.order_by("pk")] == [
        ("default: acme", "Organization acme is pause"),
        ("default: acme", "Organization acme is resum"),
    ]


def test_a_pause_may_have_a_note_and_an_end(admin_client: Client, queue: FairQueue) -> None:
    assert "Note: moves" in messages_of(act(admin_client, "acme", "pause", note="moves", pause_for="1d"))
    pause = queue.organization("acme").stats().pause
    assert pause is not None
    assert pause.until is not None
    assert "paused ends in" in words_of(shown(admin_client, organization="acme"))
    assert "moves" in words_of(shown(admin_client))


def test_the_weight_and_the_limit_are_set_together(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann")
    message = messages_of(act(admin_client, "acme", "settings", **form(weight="2.5", max_running="1000")))
    assert message == "Organization acme has weight 2.5 and runs at most 1,000 tasks at once."
    stats = queue.organization("acme").stats()
    assert (stats.weight, stats.max_running) == (2.5, 1000)
    assert AuditEntry.objects.get().text == message
    message = messages_of(act(admin_client, "acme", "settings", **form(weight="0.001")))
    assert message == "Organization acme has weight 0.001 and no limit."
    stats = queue.organization("acme").stats()
    assert (stats.weight, stats.max_running) == (0.001, None)


def test_a_limit_counts_the_tasks_of_all_members(admin_client: Client, queue: FairQueue) -> None:
    join(queue, "acme", "ann", "bob")
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", "bob")])
    act(admin_client, "acme", "settings", **form(max_running="1"))
    assert len(queue.pop_batch(5, "w")) == 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("weight", "0", "greater than or equal to 0.001"),
        ("weight", "1001", "less than or equal to 1000"),
        ("weight", "nan", "Enter a number"),
        ("weight", "", "required"),
        ("max_running", "many", "whole number"),
        ("max_running", "0", "greater than or equal to 1"),
        ("max_running", "9" * 30, "less than or equal to"),
    ],
)
def test_a_mistake_is_shown_next_to_its_field_and_other_input_is_kept(
    admin_client: Client, queue: FairQueue, field: str, value: str, words: str
) -> None:
    fields = form(**{"weight": "3", "max_running": "7", field: value})
    (other,) = {"max_running", "weight"} - {field}
    assert_mistake(act(admin_client, "acme", "settings", **fields), field, words, fields[other])
    assert not queue.organization("acme").stats().is_known, "all or nothing"


def test_an_action_on_an_impossible_name_changes_nothing(admin_client: Client, queue: FairQueue) -> None:
    for action in ("pause", "resume", "settings"):
        for name in ("", "x" * 300):
            fields = {"organization": name, "action": action, "confirm": "yes", **form()}
            assert "organization must be" in messages_of(admin_client.post(url(), fields, follow=True))
    assert not AuditEntry.objects.exists()
    assert queue.organizations().items == []
