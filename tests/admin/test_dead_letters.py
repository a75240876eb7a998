"""Dead letters in the admin: groups, the letters of one, and what is done to some of them or all that match."""

from __future__ import annotations

import re
from functools import partial
from html import unescape
from typing import Any

import pytest

from django_fairque.admin.pages import dead_letters
from django_fairque.engine.dead_letters import dead_letters as dead_letter_operations
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin import page_reader
from tests.admin.dead_letters import bury
from tests.admin.page_reader import page_url, read, words_of
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db


url = partial(page_url, "dead_letters")


def page(client: Client, **query: str) -> str:
    return unescape(read(client, url(**query)))


def post(client: Client, where: str, **fields: Any) -> str:
    return unescape(page_reader.post(client, where, **fields).content.decode())


def hidden(text: str) -> dict[str, str]:
    """The form that asks, or goes on, as a browser sends it."""
    form = text[text.index('class="fq-asks') :]
    pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form[: form.index("</form>")])
    return {name: value for name, value in pairs if name != "csrfmiddlewaretoken"}


def test_dead_letters_of_the_same_error_are_grouped(admin_client: Client, queue: FairQueue) -> None:
    """Under the message of the newest, in which nothing is replaced."""
    for number in range(3):
        bury(queue, f"no order {number}")
    bury(queue, "time is up", name="shop.fetch")
    text = page(admin_client)
    assert re.search(r'<td class="fq-number">3</td>\s*<th scope="row"><a [^>]*><bdi>no order 2</bdi>', text)
    assert "shop.fetch" in text
    assert re.search(r"failed</a></dt><dd>4</dd>", text)


def test_a_group_links_to_its_dead_letters(admin_client: Client, queue: FairQueue) -> None:
    one, other = bury(queue, "no order 1"), bury(queue, "time is up")
    link = re.search(r'<th scope="row"><a href="([^"]*fingerprint[^"]*)"><bdi>no order', page(admin_client))
    assert link is not None
    text = admin_client.get(link[1]).content.decode()
    assert one in text
    assert other not in text


def test_dead_letters_have_pages(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_PER_PAGE", 2)
    entries = [bury(queue) for _ in range(5)]
    text, seen = page(admin_client, show="letters"), []
    while True:
        seen += re.findall(r'name="entry" value="([^"]+)"', text)
        following = re.search(r'<a href="([^"]+)" rel="next">', text)
        if following is None:
            break
        text = unescape(admin_client.get(following[1]).content.decode())
    assert sorted(seen) == sorted(entries)
    assert "First</a>" in text


@pytest.mark.parametrize(
    "query",
    [
        {"user_id": "bolt"},
        {"name": "shop.other"},
        {"failure_type": "failed", "user_id": "bolt"},
        {"user_id": "bolt", "newer_than": "1h"},
    ],
)
def test_dead_letters_are_filtered(admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
    one, other = bury(queue, user_id="bolt", name="shop.other"), bury(queue)
    text = page(admin_client, show="letters", **query)
    assert one in text
    assert other not in text
    assert "no such address" in page(admin_client, **query)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"failure_type": "lost"}, "failure_type must be one of failed, expired, poisoned, got 'lost'"),
        ({"fingerprint": "xyz"}, "fingerprint must be 12 hexadecimal digits"),
        ({"older_than": "soon"}, "expected an age such as 90s, 10m, 2h or 7d, got 'soon'"),
        ({"newer_than": "99999999d"}, "newer_than must be a number of seconds"),
        ({"user_id": "u" * 257}, "user_id must be a non-empty string of at most 256 bytes"),
        ({"show": "letters", "cursor": "nonsense"}, "cursor must be one that an earlier page returned"),
    ],
)
def test_an_invalid_filter_is_reported_and_changes_nothing(
    admin_client: Client, queue: FairQueue, query: dict[str, str], words: str
) -> None:
    entry = bury(queue)
    text = page(admin_client, **query)
    assert words in text
    assert entry not in text
    text = post(admin_client, url(**query), action="discard_all", confirm="yes", total="1", until="9999999999")
    if "cursor" not in query:
        assert words in text
        assert queue.dlq.count() == 1


def test_an_action_on_a_group_leads_back_to_the_groups(admin_client: Client, queue: FairQueue) -> None:
    bury(queue, "no order 1", user_id="bolt")
    text = page(admin_client, user_id="bolt")
    form = re.search(r'<form method="post" action="([^"]+)" class="fq-acts">(.*?)</form>', text, re.DOTALL)
    assert form is not None
    group, fields = form[1], {"from": "groups", "action": "requeue_all"}
    assert 'name="from" value="groups"' in form[2]
    question = post(admin_client, group, **fields)
    groups = url(queue="default", user_id="bolt")
    assert f'<a href="{groups}"' in question, "No, go back"
    done = admin_client.post(group, hidden(question))
    assert done.headers["Location"] == groups
    bury(queue, "no order 2", user_id="bolt")
    done = admin_client.post(group, hidden(post(admin_client, group, action="requeue_all")))
    assert done.headers["Location"] == group, "the page from which the question came"


def test_a_group_that_was_counted_in_part_is_marked(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ones are counted: an incident's latest error is among them."""
    monkeypatch.setattr(dead_letters, "MAX_DEAD_LETTERS_READ", 2)
    for _ in range(3):
        bury(queue)
    bury(queue, "the new error")
    text = page(admin_client)
    assert "Counted among the 2 newest; there are more." in text
    assert text.count('<td class="fq-number">1</td>') == 2
    assert "the new error" in text


def test_an_error_is_counted_among_thousands_of_newer_ones(admin_client: Client, queue: FairQueue) -> None:
    """Also by the filters, and in the report of its user."""
    bury(queue, "no stock")
    queue.push_batch([Task.create("u", 3, 0, name="n", max_retries=0) for _ in range(4200)])
    while leases := queue.pop_batch(1000, "w"):
        queue.settle([Outcome.fail(lease, "no") for lease in leases])
    text = page(admin_client)
    assert "no stock" in text
    assert '<td class="fq-number">4,200</td>' in text
    assert "no stock" in page(admin_client, show="letters", user_id="acme")
    assert queue.dlq.matching(user_id="u").count == 4200
    assert "no stock" in queue.user("acme").report().errors[0].error


def test_many_dead_letters_cost_a_bounded_number_of_commands(
    admin_client: Client, queue: FairQueue, redis: Any
) -> None:
    queue.push_batch([Task.create("u", 3, 0, name="n") for _ in range(1500)])
    for lease in queue.pop_batch(1000, "w") + queue.pop_batch(1000, "w"):
        queue.fail(lease, "no", retry=False)

    def commands(**query: str) -> int:
        before = int(redis.info("stats")["total_commands_processed"])
        page(admin_client, **query)
        return int(redis.info("stats")["total_commands_processed"]) - before

    page(admin_client)
    assert commands() <= 2 * 1500 + 60  # the page reads a record and a head for each letter
    assert commands(show="letters") <= 210
    assert commands(show="letters", user_id="nobody") <= 3060


def test_selected_dead_letters_are_requeued(admin_client: Client, queue: FairQueue) -> None:
    entries = [bury(queue) for _ in range(3)]
    text = post(admin_client, url(show="letters"), action="requeue", entry=entries[:2])
    assert "2 requeued" in text
    assert [letter.entry_id for letter in queue.dlq.letters().items] == entries[2:]
    entry = AuditEntry.objects.get()
    assert (entry.text, str(entry)) == ("2 requeued", f"default: {entries[0]}, {entries[1]}")


def test_discarding_selected_dead_letters_is_confirmed_first(admin_client: Client, queue: FairQueue) -> None:
    entries = [bury(queue) for _ in range(3)]
    asks = post(admin_client, url(show="letters"), action="discard", entry=entries[:2])
    assert "Discard 2 dead letters?" in asks
    assert queue.dlq.count() == 3
    assert all(f'name="entry" value="{entry}"' in asks for entry in entries[:2])
    text = post(admin_client, url(show="letters"), action="discard", entry=entries[:2], confirm="yes")
    assert "2 discarded" in text
    assert queue.get_task(entries[0][:-2]).state is TaskState.CANCELED
    assert queue.dlq.count() == 1


def test_dead_letters_that_are_gone_are_counted(admin_client: Client, queue: FairQueue) -> None:
    one, other = bury(queue), bury(queue)
    queue.dlq.discard(other)
    text = post(admin_client, url(), action="requeue", entry=[one, other])
    assert "1 requeued; the other 1 was not there any more" in text
    text = post(admin_client, url(), action="requeue", entry=[other])
    assert "None of these dead letters is there any more. Nothing was changed." in text


@pytest.mark.parametrize(
    ("entries", "words"),
    [([], "Select at least one dead letter"), (["nonsense"], "'nonsense' is no dead letter's id")],
)
def test_a_wrong_selection_changes_nothing(
    admin_client: Client, queue: FairQueue, entries: list[str], words: str
) -> None:
    bury(queue)
    assert words in post(admin_client, url(), action="requeue", entry=entries)
    assert queue.dlq.count() == 1
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(("verb", "done"), [("requeue", "requeued"), ("discard", "discarded")])
class TestMatchingTasks:
    def test_the_number_of_matching_dead_letters_is_confirmed_first(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str
    ) -> None:
        for number in range(3):
            bury(queue, f"no order {number}")
        other = bury(queue, "time is up")
        (group,) = (group for group in queue.dlq.groups().groups if group.count == 3)
        where = url(fingerprint=group.fingerprint)
        asks = post(admin_client, where, action=f"{verb}_all")
        assert f"{verb.title()} 3 dead letters?" in asks
        assert f"fingerprint {group.fingerprint}" in asks
        assert queue.dlq.count() == 4
        assert not AuditEntry.objects.exists()
        assert f"3 of 3 dead letters {done}" in post(admin_client, where, **hidden(asks))
        assert [letter.entry_id for letter in queue.dlq.letters().items] == [other]
        assert str(AuditEntry.objects.get()) == f"default: fingerprint {group.fingerprint}"

    def test_many_dead_letters_are_changed_in_slices(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch, verb: str, done: str
    ) -> None:
        monkeypatch.setattr(dead_letters, "LETTERS_PER_REQUEST", 2)
        for _ in range(5):
            bury(queue)
        text = post(admin_client, url(), action=f"{verb}_all")
        for expected in (f"2 of 5 dead letters {done}", f"4 of 5 dead letters {done}"):
            text = post(admin_client, url(), **hidden(text))
            assert expected in text
        text = post(admin_client, url(), **hidden(text))
        assert f"5 of 5 dead letters {done}" in text
        assert 'class="fq-asks' not in text
        assert queue.dlq.count() == 0
        entry = AuditEntry.objects.get()
        assert entry.text == f"5 of 5 dead letters {done}"
        assert (entry.before, entry.after) == ({"dead letters": 5}, {"dead letters": 0, done: 5})

    def test_tasks_that_die_after_the_confirmation_are_not_changed(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str
    ) -> None:
        first = bury(queue)
        asks = post(admin_client, url(user_id="acme"), action=f"{verb}_all")
        late = bury(queue)
        queue.dlq.requeue(first)
        text = post(admin_client, url(user_id="acme"), **hidden(asks))
        assert f"0 of 1 dead letter {done}; the others were not there any more" in text
        assert [letter.entry_id for letter in queue.dlq.letters().items] == [late]

    def test_an_action_without_matching_dead_letters_changes_nothing(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str
    ) -> None:
        bury(queue)
        for form in ({}, {"confirm": "yes", "total": "0", "until": "1"}):
            text = post(admin_client, url(user_id="nobody"), action=f"{verb}_all", **form)
            assert "There is nothing to do" in text
            assert 'class="fq-asks' not in text
        assert queue.dlq.count() == 1

    @pytest.mark.parametrize("form", [{}, {"total": "x", "until": "1"}, {"total": "1", "until": ""}])
    def test_an_incomplete_form_changes_nothing(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str, form: dict[str, str]
    ) -> None:
        bury(queue)
        text = post(admin_client, url(), action=f"{verb}_all", confirm="yes", **form)
        assert "The form was not complete" in text
        assert queue.dlq.count() == 1


def test_an_action_on_too_many_dead_letters_covers_the_oldest(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dead_letters, dead_letter_operations):
        monkeypatch.setattr(module, "MAX_DEAD_LETTERS_READ", 2)
    entries = [bury(queue) for _ in range(3)]
    asks = post(admin_client, url(user_id="acme"), action="discard_all")
    assert "The count covers the 2 newest dead letters" in asks
    post(admin_client, url(user_id="acme"), **hidden(asks))
    assert [letter.entry_id for letter in queue.dlq.letters().items] == entries[2:]


def test_a_search_of_only_the_newest_dead_letters_does_not_claim_that_none_match(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "MAX_DEAD_LETTERS_READ", 2)
    bury(queue, user_id="duff")
    for _ in range(3):
        bury(queue)
    words = words_of(read(admin_client, page_url("dead_letters", user_id="duff")))
    assert "None among the 2 newest." in words
    assert "No dead letters." not in words
    monkeypatch.setattr(dead_letters, "MAX_DEAD_LETTERS_READ", 10)
    assert "No dead letters." in words_of(read(admin_client, page_url("dead_letters", user_id="d")))
