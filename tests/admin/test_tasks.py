"""The pages Tasks and Task, as staff use them."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_fairque.admin.pages import tasks as module
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to, messages_of
from tests.counting import counted
from tests.lab.benchmarks.admin import cost
from tests.stored_tasks import replace_payload

if TYPE_CHECKING:
    from django.test import Client
    from redis import Redis

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

LIST = "/admin/django_fairque/queue/tasks/"
HOSTILE = ["<script>alert(1)</script>", "a/b?c#d&e=f", "..", "%41", "ünï \"quoted\" 'x'", "_2F", "a\nb"]


def page(task_id: str) -> str:
    return reverse("admin:django_fairque_task", args=[quote(task_id)])


def push(queue: FairQueue, task_id: str | None = None, user: str = "ann", **options: Any) -> str:
    payload = options.pop("payload", None)
    return queue.push(Task.create(user, 3, payload, task_id=task_id, **options)).task_id


def shown(client: Client, url: str, **query: str) -> str:
    answer = client.get(url, query)
    assert answer.status_code == 200
    return answer.content.decode()


def ids(text: str) -> list[str]:
    """Of the rows of the list."""
    return re.findall(r'name="task" value="(.*?)"', text)


def rows_of(text: str) -> list[str]:
    """The ids of the rows, also of tasks that can't be selected."""
    return re.findall(r'<th scope="row" class="fq-id"><a href="[^"]*">(.*?)</a>', text)


def follow(client: Client, text: str, which: str) -> str:
    """The page to which the link ``next`` or ``prev`` leads."""
    link = re.search(rf'href="([^"]*)" rel="{which}"', text)
    assert link is not None
    return client.get(unescape(link[1])).content.decode()


def act(client: Client, url: str, action: str, **fields: Any) -> str:
    answer = client.post(url, {"action": action, **fields}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def yes(text: str) -> dict[str, str]:
    """What the button of a question posts."""
    return {"confirm": "yes", **dict(re.findall(r'name="(done|left)" value="(\d+)"', text))}


def logged() -> list[tuple[str, str]]:
    return [(entry.object_repr, entry.get_change_message()) for entry in LogEntry.objects.order_by("id")]


def state(queue: FairQueue, task_id: str) -> TaskState:
    return queue.get_task(task_id).state


@pytest.fixture
def viewer(client: Client) -> Client:
    """Staff who may see tasks, and do nothing."""
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_task"))
    client.force_login(user)
    return client


def test_the_url_is_where_the_tests_look() -> None:
    assert reverse("admin:django_fairque_tasks") == LIST


class TestList:
    def test_by_state_user_and_name(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a", "ann", name="mail")
        push(queue, "b", "bob", name="mail")
        push(queue, "c", "ann", name="report")
        push(queue, "d", "ann", execute_after=4e9)
        assert ids(shown(admin_client, LIST)) == ["a", "b", "c"], "queued ones unless another state is asked for"
        assert ids(shown(admin_client, LIST, state="scheduled")) == ["d"]
        assert ids(shown(admin_client, LIST, user="ann")) == ["a", "c"]
        assert ids(shown(admin_client, LIST, user="ann", name="mail")) == ["a"]
        text = shown(admin_client, LIST, user="nobody")
        assert "No tasks." in text
        assert "3 tasks were looked at" in text

    def test_counts_of_the_states(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue)
        push(queue, execute_after=4e9)
        push(queue, execute_after=4e9)
        text = shown(admin_client, LIST)
        assert re.search(r">scheduled <span[^>]*>2<", text)
        assert re.search(r'aria-current="true">queued <span[^>]*>1<', text)

    def test_pages(self, admin_client: Client, queue: FairQueue) -> None:
        made = [push(queue) for _ in range(module.TASKS_PER_PAGE + 5)]
        first = shown(admin_client, LIST)
        assert ids(first) == made[: module.TASKS_PER_PAGE]
        following = re.search(r'href="([^"]*)" rel="next"', first)
        assert following is not None
        queue.cancel(made[0])
        second = admin_client.get(following[1].replace("&amp;", "&")).content.decode()
        assert ids(second) == made[module.TASKS_PER_PAGE :]
        assert 'rel="next"' not in second
        assert "First page" in second

    def test_what_is_rare_is_looked_for_further(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_EXAMINED", 3)
        for _ in range(4):
            push(queue)
        push(queue, "rare", "bob")
        text = shown(admin_client, LIST, user="bob")
        assert ids(text) == []
        following = re.search(r'href="([^"]*)" rel="next">Look further', text)
        assert following is not None
        assert ids(admin_client.get(following[1].replace("&amp;", "&")).content.decode()) == ["rare"]

    @pytest.mark.parametrize("task_id", HOSTILE)
    def test_an_id_leads_to_its_task(self, admin_client: Client, queue: FairQueue, task_id: str) -> None:
        push(queue, task_id)
        answer = admin_client.get(LIST, {"id": task_id}, follow=True)
        assert answer.redirect_chain[-1][0].startswith(page(task_id))
        assert answer.context["task"].task_id == task_id

    @pytest.mark.parametrize("query", [{"state": "lost"}, {"cursor": "x"}])
    def test_a_query_that_is_none(self, admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
        push(queue, "a")
        text = shown(admin_client, LIST, **query)
        assert 'class="error"' in text
        assert "one of scheduled, deferred" in text or "Cursor must be" in text
        assert ids(text) == ["a"]

    @pytest.mark.parametrize("hostile", HOSTILE[:1])
    def test_names_are_escaped(self, admin_client: Client, queue: FairQueue, hostile: str) -> None:
        push(queue, hostile, hostile, name=hostile)
        for text in (shown(admin_client, LIST, user=hostile), shown(admin_client, page(hostile))):
            assert "<script>alert" not in text
            assert "&lt;script&gt;alert" in text

    def test_reads_a_bounded_part_and_no_large_payloads(
        self, admin_client: Client, queue: FairQueue, redis: Redis
    ) -> None:
        for _ in range(300):
            push(queue)
        stats = counted(redis, lambda: shown(admin_client, LIST))
        assert stats["get"]["calls"] <= module.TASKS_PER_PAGE + 3, (
            "three more: the number of the queue's shards, and twice for the status line"
        )
        assert stats["hmget"]["calls"] <= module.TASKS_PER_PAGE + 5
        stats = counted(redis, lambda: shown(admin_client, LIST, user="nobody"))
        assert stats["hmget"]["calls"] <= module.TASKS_EXAMINED + 5

    def test_a_large_payload_is_not_read(self, admin_client: Client, queue: FairQueue, redis: Redis) -> None:
        push(queue, payload={"args": ["x" * module.PAYLOAD_MAX_BYTES_READ], "kwargs": {}})
        stats = counted(redis, lambda: shown(admin_client, LIST))
        assert stats.get("get", {"calls": 0})["calls"] <= 3, "none is of a payload"
        assert re.search(r"<bdi>4,\d+ bytes are not read here</bdi>", shown(admin_client, LIST))


class TestColumns:
    def test_arguments(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, payload={"args": [7, "<i>"], "kwargs": {"to": "acme", "api_token": "s3cr3t"}})
        push(queue, payload={"args": ["y" * 200], "kwargs": {}})
        push(queue, payload={"password": "s3cr3t", "n": 1})
        text = shown(admin_client, LIST)
        assert "s3cr3t" not in text
        found = re.findall(r'<td class="fq-text"><bdi>(.*?)</bdi></td>', text)
        assert found[0] == "7, &quot;&lt;i&gt;&quot;, to=&quot;acme&quot;, api_token=&quot;••••••&quot;"
        assert found[1].endswith("yyy…")
        assert found[2] == "{&quot;password&quot;: &quot;••••••&quot;, &quot;n&quot;: 1}"

    def test_how_long_a_task_runs_and_ran(self, admin_client: Client, queue: FairQueue) -> None:
        now = time.time()
        for task_id in ("slow", "quick"):
            queue.push(Task.create("ann", 3, None, task_id=task_id, timeout=100), now=now - 60)
        slow, _quick = (queue.pop("w:1", now=now - passed) for passed in (51, 40))
        text = shown(admin_client, LIST, state="started")
        assert re.search(r'fq-slow">5\d.* s <span class="visually-hidden">\(slow\)', text)
        assert re.search(r'<td class="fq-number">4\d.* s</td>', text)
        assert text.count("fq-slow") == 1
        assert slow is not None
        queue.finish(slow)
        assert re.search(r'<td class="fq-number">5\d.* s</td>', shown(admin_client, LIST, state="finished"))

    def test_ten_times_the_p95_is_slow_without_a_limit(self, admin_client: Client, queue: FairQueue) -> None:
        now = time.time()
        for _ in range(3):
            queue.push(Task.create("ann", 3, None), now=now - 30)
        lease = queue.pop("w:1", now=now - 30)
        assert lease is not None
        queue.finish(lease, took=1, now=now - 29)
        queue.pop("w:1", now=now - 20)
        queue.pop("w:1", now=now - 3)
        assert shown(admin_client, LIST, state="started").count("fq-slow") == 1


class TestOrder:
    def test_ended_tasks_are_listed_newest_first(self, admin_client: Client, queue: FairQueue) -> None:
        made = [push(queue, f"t{n:03}") for n in range(module.TASKS_PER_PAGE + 5)]
        for number, task_id in enumerate(made):
            queue.cancel(task_id, now=2e9 + number)
        made.reverse()
        first = shown(admin_client, LIST, state="canceled")
        assert rows_of(first) == made[: module.TASKS_PER_PAGE]
        second = follow(admin_client, first, "next")
        assert rows_of(second) == made[module.TASKS_PER_PAGE :]
        assert rows_of(follow(admin_client, second, "prev")) == made[: module.TASKS_PER_PAGE]

    def test_the_page_before(self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "TASKS_PER_PAGE", 2)
        made = [push(queue) for _ in range(9)]
        pages = [shown(admin_client, LIST, user="ann")]
        assert 'rel="prev"' not in pages[0]
        while 'rel="next"' in pages[-1]:
            pages.append(follow(admin_client, pages[-1], "next"))
        assert [task_id for each in pages for task_id in ids(each)] == made
        text = pages.pop()
        while pages:
            text = follow(admin_client, text, "prev")
            assert ids(text) == ids(pages.pop())
        assert 'rel="prev"' not in text

    def test_addresses_stay_short(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_PER_PAGE", 1)
        for number in range(8):
            push(queue, f"{number}{'é' * 90}")
        text = shown(admin_client, LIST)
        while 'rel="next"' in text:
            assert all(len(each) < 4000 for each in re.findall(r'href="([^"]*)" rel=', text))
            text = follow(admin_client, text, "next")
        assert 'rel="prev"' in text

    def test_all_states_together(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "done", "bob")
        lease = queue.pop("w:1")
        assert lease is not None
        queue.finish(lease)
        push(queue, "waits", "bob")
        push(queue, "later", "bob", execute_after=4e9)
        push(queue, "other", "ann")
        assert sorted(rows_of(shown(admin_client, LIST, state="all"))) == ["done", "later", "other", "waits"]
        text = shown(admin_client, LIST, state="all", user="bob")
        assert sorted(rows_of(text)) == ["done", "later", "waits"]
        assert "Only the newest records of each state were read, at most 1,000 in all." in text
        assert "cancel_all" not in text
        assert "Choose one state first." in act(admin_client, f"{LIST}?state=all", "cancel_all")


class TestArgument:
    def test_is_found(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a", payload={"args": ["Order-7"], "kwargs": {}})
        push(queue, "b", payload={"args": [], "kwargs": {"order": "8"}})
        text = shown(admin_client, LIST, argument="order-7")
        assert ids(text) == ["a"]
        assert "Only the newest 1,000 records were searched" in text
        assert sorted(ids(shown(admin_client, LIST, state="all", argument="ORDER"))) == ["a", "b"]

    def test_a_hidden_value_is_not_found(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, payload={"args": [], "kwargs": {"password": "s3cr3t"}})
        text = shown(admin_client, LIST, argument="s3cr3t")
        assert ids(text) == []
        assert "s3cr3t" not in text.replace('value="s3cr3t"', "").replace("argument=s3cr3t", "")

    def test_only_selected_tasks_are_changed(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a")
        url = f"{LIST}?argument=zzz"
        assert "can only be changed by selecting them" in act(admin_client, url, "cancel_all", confirm="yes")
        assert state(queue, "a") is TaskState.QUEUED

    def test_the_newest_are_searched(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_EXAMINED", 3)
        made = [push(queue, payload={"args": ["x"], "kwargs": {}}) for _ in range(5)]
        assert sorted(ids(shown(admin_client, LIST, argument="x"))) == sorted(made[2:])


class TestSelected:
    def test_are_canceled(self, admin_client: Client, queue: FairQueue) -> None:
        for task_id in "abc":
            push(queue, task_id)
        assert "2 tasks were canceled." in act(admin_client, LIST, "cancel", task=["a", "c"], confirm="yes")
        assert [state(queue, each).value for each in "abc"] == ["canceled", "queued", "canceled"]
        assert queue.history("a")[-1].error == "canceled by admin"
        assert logged() == [("default: a, c", "2 tasks were canceled.")]

    def test_are_canceled_after_a_question(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a")
        push(queue, "b")
        assert "2 tasks are canceled, and what depends on them." in act(admin_client, LIST, "cancel", task=["a", "b"])
        assert [state(queue, each).value for each in "ab"] == ["queued", "queued"]
        assert logged() == []

    @pytest.mark.parametrize("action", ["cancel", "run_now"])
    def test_those_that_somebody_was_before_at_are_told(
        self, admin_client: Client, queue: FairQueue, action: str
    ) -> None:
        for task_id in "abc":
            push(queue, task_id, execute_after=4e9)
        queue.cancel_many(["a", "b"])
        text = act(admin_client, LIST, action, task=["a", "b", "c"], confirm="yes")
        assert "The others (2) had moved on before." in text
        text = act(admin_client, LIST, action, task=["a", "b"], confirm="yes")
        assert "Nothing was done: all of them had moved on before." in text
        assert len(logged()) == 1

    def test_the_log_names_each_of_them(self, admin_client: Client, queue: FairQueue) -> None:
        ids = [f"some-long-id-{n:03}" for n in range(50)]
        queue.push_batch([Task.create("u", 3, n, task_id=task_id) for n, task_id in enumerate(ids)])
        admin_client.post(LIST, {"action": "cancel", "task": ids, "confirm": "yes"})
        ((name, message),) = logged()
        assert len(name) == 200
        assert name.startswith("default: some-long-id-000, some-long-id-001, ")
        assert message == f"50 tasks were canceled. default: {', '.join(ids)}"

    def test_are_run_now(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a", execute_after=4e9)
        push(queue, "b", execute_after=4e9)
        text = act(admin_client, f"{LIST}?state=scheduled", "run_now", task=["a"])
        assert "1 task was queued." in text
        assert ids(text) == ["b"], "the same list is shown again"
        assert state(queue, "a") is TaskState.QUEUED

    @pytest.mark.parametrize("action", ["cancel", "run_now"])
    def test_must_be_some(self, admin_client: Client, queue: FairQueue, action: str) -> None:
        assert "Select the tasks first." in act(admin_client, LIST, action)
        assert logged() == []

    @pytest.mark.parametrize("action", ["cancel", "run_now", "cancel_all", "run_all_now"])
    def test_needs_the_permission(self, viewer: Client, queue: FairQueue, action: str) -> None:
        push(queue, "a", execute_after=4e9)
        url = f"{LIST}?state=scheduled"
        assert viewer.post(url, {"action": action, "task": "a", "confirm": "yes"}).status_code == 403
        assert state(queue, "a") is TaskState.SCHEDULED
        assert ids(shown(viewer, url)) == [], "nothing to select"


class TestAll:
    def test_are_counted_then_canceled(self, admin_client: Client, queue: FairQueue) -> None:
        for n in range(5):
            push(queue, f"a{n}", "ann")
        push(queue, "b", "bob")
        url = f"{LIST}?state=queued&user=ann"
        text = act(admin_client, url, "cancel_all")
        assert "5 queued tasks match." in text
        assert 'name="confirm" value="yes"' in text
        assert state(queue, "a0") is TaskState.QUEUED
        assert logged() == []
        assert "5 tasks were changed." in act(admin_client, url, "cancel_all", **yes(text))
        assert [each.task_id for each in queue.tasks("queued").items] == ["b"]
        assert logged() == [("default: queued, ann", "5 tasks were changed.")]

    def test_those_that_came_after_the_question_are_left_alone(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_PER_REQUEST", 2)
        asked = [push(queue) for _ in range(3)]
        text = act(admin_client, LIST, "cancel_all")
        late = [push(queue) for _ in range(5)]
        text = act(admin_client, LIST, "cancel_all", **yes(text))
        assert "2 of 3 tasks are done. Go on?" in text
        assert "3 tasks were changed." in act(admin_client, LIST, "cancel_all", **yes(text))
        assert {state(queue, each) for each in asked} == {TaskState.CANCELED}
        assert {state(queue, each) for each in late} == {TaskState.QUEUED}

    def test_nothing_is_done_without_a_count(self, admin_client: Client, queue: FairQueue) -> None:
        task_id = push(queue)
        for fields in ({}, {"done": "0"}, {"done": "0", "left": "-1"}, {"done": "x", "left": "1"}):
            text = act(admin_client, LIST, "cancel_all", confirm="yes", **fields)
            assert "The form was not complete" in text
        assert state(queue, task_id) is TaskState.QUEUED

    def test_in_slices_with_their_progress(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_PER_REQUEST", 4)
        for _ in range(10):
            push(queue, execute_after=4e9)
        url = f"{LIST}?state=scheduled"
        text = act(admin_client, url, "run_all_now")
        for words in ("4 of 10 tasks are done. Go on?", "8 of 10 tasks are done. Go on?", "10 tasks were changed."):
            text = act(admin_client, url, "run_all_now", **yes(text))
            assert words in text
        assert queue.get_queue_sizes("ann").ready == 10
        assert [message for _subject, message in logged()] == [
            "4 tasks were changed.",
            "8 tasks were changed.",
            "10 tasks were changed.",
        ]

    def test_more_than_are_counted_at_once(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "TASKS_EXAMINED", 2)
        monkeypatch.setattr(module, "MAX_RECORDS_READ", 4)
        for _ in range(6):
            push(queue)
        text = act(admin_client, LIST, "cancel_all")
        assert "4 of the first 4 queued tasks match; there are more" in text

    @pytest.mark.parametrize(
        ("query", "action", "words"),
        [
            ("state=queued", "cancel_all", "No task matches"),
            ("state=finished", "cancel_all", "Tasks that have ended can&#x27;t be canceled."),
            ("state=queued", "run_all_now", "Only scheduled tasks"),
            ("state=lost", "cancel_all", "There is no state lost"),
        ],
    )
    def test_what_can_not_be_done(
        self, admin_client: Client, queue: FairQueue, query: str, action: str, words: str
    ) -> None:
        assert words in act(admin_client, f"{LIST}?{query}", action)
        assert logged() == []


class TestTask:
    def test_its_life(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t", name="mail", payload={"to": "x@example.com", "api_key": "s3cr3t"}, max_retries=2)
        lease = queue.pop("w:1")
        assert lease is not None
        queue.set_progress(lease, 3, 10, "pages")
        text = shown(admin_client, page("t"))
        for words in ("It runs: worker w:1", "x@example.com", "3 of 10", "pages", "kept", "0 of 2", "started"):
            assert words in text
        assert "s3cr3t" not in text
        assert "••••••" in text
        queue.finish(lease, {"token": "s3cr3t", "rows": 5})
        text = shown(admin_client, page("t"))
        assert "Why is it waiting?" not in text
        assert re.search(r"<li>It ran for [^,]+, after it had waited for ", text)
        assert "&quot;rows&quot;: 5" in text
        assert "s3cr3t" not in text

    def test_each_attempt_with_its_traceback(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t")
        lease = queue.pop("w:1")
        assert lease is not None
        try:
            raise OSError("<b>gone</b>")  # noqa: TRY301
        except OSError as error:
            queue.fail(lease, error, delay=60)
        text = shown(admin_client, page("t"))
        assert "Attempt 1 failed; it is tried again at" in text
        assert "&lt;b&gt;gone&lt;/b&gt;" in text
        assert "<b>gone" not in text
        assert "Traceback (most recent call last)" in text

    def test_a_start_deadline_that_was_missed(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t", sla=10)
        queue.pop("w:1", now=queue.wait_reason("t").now + 70)
        assert "missed by 1" in shown(admin_client, page("t"))

    def test_what_is_around_it(self, admin_client: Client, queue: FairQueue) -> None:
        tasks = [Task.create("ann", 3, None, task_id="a"), Task.create("ann", 3, None, task_id="b", depends_on=["a"])]
        queue.push_graph(tasks, "run-1")
        text = shown(admin_client, page("b"))
        assert "It waits for 1 task: a (queued)." in text
        for words in ("Waits for", "Declared to depend on", page("a"), "/runs/id-run-1/", "Show the graph"):
            assert words in text
        assert "Waited for by" in shown(admin_client, page("a"))

    def test_a_long_list_is_cut(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "a")
        for _ in range(25):
            push(queue, depends_on=["a"])
        assert "and 5 more" in shown(admin_client, page("a"))

    def test_graphs_are_for_whoever_may_see_them(self, viewer: Client, queue: FairQueue) -> None:
        queue.push_graph([Task.create("ann", 3, None, task_id="a", run_id="r")], "r")
        assert "/dependencies/" not in shown(viewer, page("a"))

    def test_canceling_with_dependents_asks(self, admin_client: Client, queue: FairQueue) -> None:
        tasks = [Task.create("ann", 3, None, task_id="a")]
        tasks += [Task.create("ann", 3, None, task_id=f"b{n}", depends_on=["a"]) for n in range(3)]
        queue.push_graph([*tasks, Task.create("ann", 3, None, task_id="c", depends_on=["b0"])])
        assert "a is canceled, and 4 tasks that depend on it." in act(admin_client, page("a"), "cancel")
        assert state(queue, "a") is TaskState.QUEUED
        assert "The task was canceled" in act(admin_client, page("a"), "cancel", confirm="yes")
        assert (state(queue, "a"), len(logged())) == (TaskState.CANCELED, 1)

    def test_the_question_of_a_long_chain_is_cheap(self, admin_client: Client, queue: FairQueue, redis: Redis) -> None:
        chain = [
            Task.create("ann", 3, None, task_id=f"t{n}", depends_on=[f"t{n - 1}"] if n else []) for n in range(200)
        ]
        queue.push_graph(chain)
        shown(admin_client, page("t0"))  # reads the status, which the next page shows again
        _commands, trips = cost(redis, lambda: act(admin_client, page("t0"), "cancel"))
        assert trips <= 20
        text = act(admin_client, page("t0"), "cancel")
        assert "t0 is canceled, and 10 tasks that depend on it. There may be more, which are canceled too." in text

    def test_canceling(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t")
        assert "The task was canceled" in act(admin_client, page("t"), "cancel")
        assert state(queue, "t") is TaskState.CANCELED
        assert "had ended before" in act(admin_client, page("t"), "cancel")
        assert logged() == [("default: t", "The task was canceled, with what depends on it.")]

    def test_that_no_worker_knows_its_name_comes_first(self, admin_client: Client, queue: FairQueue) -> None:
        queue.heartbeat("w:1", {"users": "*", "unknown_tasks": '["gone"]'})
        queue.push(Task.create("ann", 3, None, name="gone", task_id="t", execute_after=4e9))
        text = shown(admin_client, page("t"))
        assert 0 < text.index("No worker knows a task named gone: deploy its code") < text.index("It is scheduled for")

    def test_running_now(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t", execute_after=4e9)
        assert "It is scheduled for 2096-" in shown(admin_client, page("t"))
        assert "The task was queued." in act(admin_client, page("t"), "run_now")
        assert state(queue, "t") is TaskState.QUEUED
        assert "not scheduled (any more)" in act(admin_client, page("t"), "run_now")
        assert len(logged()) == 1

    def test_retrying(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "t")
        lease = queue.pop("w:1")
        assert lease is not None
        queue.fail(lease, "no", retry=False)
        assert "waits for someone to requeue or discard it: no" in shown(admin_client, page("t"))
        assert "fresh retry budget" in act(admin_client, page("t"), "retry")
        assert state(queue, "t") is TaskState.QUEUED
        assert "no dead letter (any more)" in act(admin_client, page("t"), "retry")

    @pytest.mark.parametrize("action", ["cancel", "run_now", "retry"])
    def test_acts_need_their_permission(self, viewer: Client, queue: FairQueue, action: str) -> None:
        push(queue, "t", execute_after=4e9)
        assert viewer.post(page("t"), {"action": action}).status_code == 403
        assert state(queue, "t") is TaskState.SCHEDULED
        assert "<button" not in shown(viewer, page("t")).split('id="fq-content"')[1].split("</form>")[0]

    def test_a_task_that_is_not_known(self, admin_client: Client, queue: FairQueue) -> None:
        assert "'nobody'" in led_to(admin_client, page("nobody"), "tasks")
        found = admin_client.get(reverse("admin:django_fairque_tasks"), {"id": "nobody"}, follow=True)
        assert "'nobody'" in messages_of(found)

    def test_a_payload_that_is_no_json(self, admin_client: Client, queue: FairQueue, redis: Redis) -> None:
        push(queue, "t")
        replace_payload(redis, "t", b'{"password": "x')
        text = shown(admin_client, page("t"))
        assert "15 bytes that are not shown" in text

    def test_reads_a_bounded_part(self, admin_client: Client, queue: FairQueue, redis: Redis) -> None:
        push(queue, "a")
        for _ in range(500):
            push(queue, depends_on=["a"])
        stats = counted(redis, lambda: shown(admin_client, page("a")))
        assert sum(stat["calls"] for stat in stats.values()) <= 150
