"""Dead letters in the admin: groups, the letters of one, and what is done to some of them or all that match."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages import dead_letters
from django_fairque.admin.pages import dead_letters as bulk
from django_fairque.engine.dead_letters import dead_letters as dead_letter_operations
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury

if TYPE_CHECKING:
    from django.test import Client

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db


def url(**query: str) -> str:
    return reverse("admin:django_fairque_dead_letters", query=query)


def page(client: Client, **query: str) -> str:
    answer = client.get(url(**query))
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def post(client: Client, where: str, **data: Any) -> str:
    answer = client.post(where, data, follow=True)
    assert answer.status_code == 200
    return unescape(answer.content.decode())


def hidden(text: str) -> dict[str, str]:
    """The form that asks, or goes on, as a browser sends it."""
    form = text[text.index('class="fq-asks') :]
    pairs = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form[: form.index("</form>")])
    return {name: value for name, value in pairs if name != "csrfmiddlewaretoken"}


@pytest.fixture
def operator(client: Client) -> Client:
    """Somebody who sees dead letters, and no more."""
    user = User.objects.create_user("operator", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_deadletter"))
    client.force_login(user)
    return client


class TestLooking:
    def test_letters_of_the_same_error_are_together(self, admin_client: Client, queue: FairQueue) -> None:
        """Under the message of the newest, in which nothing is replaced."""
        for number in range(3):
            bury(queue, f"no order {number}")
        bury(queue, "time is up", name="shop.fetch")
        text = page(admin_client)
        assert re.search(r'<td class="fq-number">3</td>\s*<th scope="row"><a [^>]*><bdi>no order 2</bdi>', text)
        assert "shop.fetch" in text
        assert re.search(r"failed</a></dt><dd>4</dd>", text)

    def test_a_group_opens_its_letters(self, admin_client: Client, queue: FairQueue) -> None:
        one, other = bury(queue, "no order 1"), bury(queue, "time is up")
        link = re.search(r'<th scope="row"><a href="([^"]*fingerprint[^"]*)"><bdi>no order', page(admin_client))
        assert link is not None
        text = admin_client.get(link[1]).content.decode()
        assert one in text
        assert other not in text

    def test_letters_come_in_pages(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
    def test_filters(self, admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
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
    def test_a_filter_that_means_nothing_is_told_and_kept(
        self, admin_client: Client, queue: FairQueue, query: dict[str, str], words: str
    ) -> None:
        entry = bury(queue)
        text = page(admin_client, **query)
        assert words in text
        assert entry not in text
        text = post(admin_client, url(**query), action="discard_all", confirm="yes", total="1", until="9999999999")
        if "cursor" not in query:
            assert words in text
            assert queue.dlq.count() == 1

    def test_what_is_asked_of_a_group_leads_back_to_the_groups(self, admin_client: Client, queue: FairQueue) -> None:
        bury(queue, "no order 1", user_id="bolt")
        text = page(admin_client, user_id="bolt")
        form = re.search(r'<form method="post" action="([^"]+)" class="fq-acts">(.*?)</form>', text, re.DOTALL)
        assert form is not None
        group, fields = form[1], {"from": "groups", "action": "requeue_all"}
        assert 'name="from" value="groups"' in form[2]
        question = post(admin_client, group, **fields)
        groups = url(queue="default", user_id="bolt")
        assert f'<a href="{groups}"' in question, "No, take me back"
        done = admin_client.post(group, hidden(question))
        assert done.headers["Location"] == groups
        bury(queue, "no order 2", user_id="bolt")
        done = admin_client.post(group, hidden(post(admin_client, group, action="requeue_all")))
        assert done.headers["Location"] == group, "asked for where the letters are"

    def test_it_says_that_there_are_more(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dead_letters, "LETTERS_GROUPED", 2)
        for _ in range(3):
            bury(queue)
        text = page(admin_client)
        assert "Counted among the 2 oldest; there are more." in text
        assert '<td class="fq-number">2</td>' in text
        assert '<td class="fq-number">3</td>' in page(admin_client, look="more")

    def test_who_may_only_look_sees_no_buttons(self, operator: Client, queue: FairQueue) -> None:
        entry = bury(queue)
        for query in ({}, {"show": "letters"}):
            text = page(operator, **query)
            assert 'name="action"' not in text
            assert "checkbox" not in text
        assert entry in text

    def test_many_letters_cost_a_bounded_number_of_commands(
        self, admin_client: Client, queue: FairQueue, redis: Any
    ) -> None:
        queue.push_batch([Task.create("u", 3, 0, name="n") for _ in range(1500)])
        for lease in queue.pop_batch(1000, "w") + queue.pop_batch(1000, "w"):
            queue.fail(lease, "no", retry=False)

        def commands(**query: str) -> int:
            before = int(redis.info("stats")["total_commands_processed"])
            page(admin_client, **query)
            return int(redis.info("stats")["total_commands_processed"]) - before

        page(admin_client)
        assert commands() <= 2 * dead_letters.LETTERS_GROUPED + 60  # of each its record and its head
        assert commands(show="letters") <= 210
        assert commands(show="letters", user_id="nobody") <= 2050


class TestSelected:
    def test_requeue(self, admin_client: Client, queue: FairQueue) -> None:
        entries = [bury(queue) for _ in range(3)]
        text = post(admin_client, url(show="letters"), action="requeue", entry=entries[:2])
        assert "2 requeued" in text
        assert [letter.entry_id for letter in queue.dlq.letters().items] == entries[2:]
        entry = LogEntry.objects.get()
        assert (entry.change_message, entry.object_repr) == ("2 requeued", f"default: {entries[0]}, {entries[1]}")

    def test_discarding_is_asked_about_first(self, admin_client: Client, queue: FairQueue) -> None:
        entries = [bury(queue) for _ in range(3)]
        asks = post(admin_client, url(show="letters"), action="discard", entry=entries[:2])
        assert "Discard 2 dead letters?" in asks
        assert queue.dlq.count() == 3
        text = post(admin_client, url(show="letters"), action="discard", entry=entries[:2], confirm="yes")
        assert "2 discarded" in text
        assert queue.get_task(entries[0][:-2]).state is TaskState.CANCELED
        assert queue.dlq.count() == 1

    def test_what_has_gone_is_told(self, admin_client: Client, queue: FairQueue) -> None:
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
    def test_mistakes_change_nothing(
        self, admin_client: Client, queue: FairQueue, entries: list[str], words: str
    ) -> None:
        bury(queue)
        assert words in post(admin_client, url(), action="requeue", entry=entries)
        assert queue.dlq.count() == 1
        assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("verb", "done"), [("requeue", "requeued"), ("discard", "discarded")])
class TestAllThatMatch:
    def test_the_exact_count_is_confirmed_first(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str
    ) -> None:
        for number in range(3):
            bury(queue, f"no order {number}")
        other = bury(queue, "time is up")
        (group,) = (each for each in queue.dlq.groups().groups if each.count == 3)
        where = url(fingerprint=group.fingerprint)
        asks = post(admin_client, where, action=f"{verb}_all")
        assert f"{verb.title()} 3 dead letters?" in asks
        assert f"fingerprint {group.fingerprint}" in asks
        assert queue.dlq.count() == 4
        assert not LogEntry.objects.exists()
        assert f"3 of 3 dead letters {done}" in post(admin_client, where, **hidden(asks))
        assert [letter.entry_id for letter in queue.dlq.letters().items] == [other]
        assert LogEntry.objects.get().object_repr == f"default: fingerprint {group.fingerprint}"

    def test_it_goes_on_slice_by_slice(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch, verb: str, done: str
    ) -> None:
        monkeypatch.setattr(bulk, "LETTERS_PER_REQUEST", 2)
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
        assert LogEntry.objects.count() == 3

    def test_what_dies_after_the_question_is_left_alone(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str
    ) -> None:
        first = bury(queue)
        asks = post(admin_client, url(user_id="acme"), action=f"{verb}_all")
        late = bury(queue)
        queue.dlq.requeue(first)
        text = post(admin_client, url(user_id="acme"), **hidden(asks))
        assert f"0 of 1 dead letter {done}; the others were not there any more" in text
        assert [letter.entry_id for letter in queue.dlq.letters().items] == [late]

    def test_nothing_matches(self, admin_client: Client, queue: FairQueue, verb: str, done: str) -> None:
        bury(queue)
        for form in ({}, {"confirm": "yes", "total": "0", "until": "1"}):
            text = post(admin_client, url(user_id="nobody"), action=f"{verb}_all", **form)
            assert "There is nothing to do" in text
            assert 'class="fq-asks' not in text
        assert queue.dlq.count() == 1

    @pytest.mark.parametrize("form", [{}, {"total": "x", "until": "1"}, {"total": "1", "until": ""}])
    def test_a_form_that_is_not_ours(
        self, admin_client: Client, queue: FairQueue, verb: str, done: str, form: dict[str, str]
    ) -> None:
        bury(queue)
        text = post(admin_client, url(), action=f"{verb}_all", confirm="yes", **form)
        assert "The form was not complete" in text
        assert queue.dlq.count() == 1

    def test_only_with_its_permission(self, operator: Client, queue: FairQueue, verb: str, done: str) -> None:
        entry = bury(queue)
        for action in (verb, f"{verb}_all"):
            for confirm in ("", "yes"):
                data = {"action": action, "confirm": confirm, "entry": entry, "total": "1", "until": "9999999999"}
                assert operator.post(url(), data).status_code == 403
        assert queue.dlq.count() == 1


def test_of_very_many_the_oldest_are_meant(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letter_operations, "MAX_DEAD_LETTERS_COUNTED", 2)
    monkeypatch.setattr(dead_letters, "LETTERS_GROUPED", 2)
    entries = [bury(queue) for _ in range(3)]
    asks = post(admin_client, url(user_id="acme"), action="discard_all")
    assert "The count covers the 2 oldest dead letters" in asks
    post(admin_client, url(user_id="acme"), **hidden(asks))
    assert [letter.entry_id for letter in queue.dlq.letters().items] == entries[2:]
