"""The pages Tasks and Task, as staff use them."""

from __future__ import annotations

import re
import time
from html import unescape
from typing import Any

import pytest
from django.urls import reverse

from django_fairque.admin.pages import tasks as module
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.page_reader import led_to, log_in, messages_of, page_url, post, read
from tests.counting import counted
from tests.fixture_types import Client, FairQueue, Redis
from tests.lab.benchmarks.admin import cost
from tests.leases import pop
from tests.stored_tasks import replace_payload

pytestmark = pytest.mark.django_db

LIST = "/admin/django_fairque/queue/tasks/"
HOSTILE = ["<script>alert(1)</script>", "a/b?c#d&e=f", "..", "%41", "ünï \"quoted\" 'x'", "_2F", "a\nb"]


def page(task_id: str) -> str:
    return page_url("task", task_id)


def push(queue: FairQueue, task_id: str | None = None, user: str = "ann", **options: Any) -> str:
    payload = options.pop("payload", None)
    return queue.push(Task.create(user, 3, payload, task_id=task_id, **options)).task_id


def ids(text: str) -> list[str]:
    """Return the ids of the tasks in the list that can be selected."""
    return re.findall(r'name="task" value="(.*?)"', text)


def rows_of(text: str) -> list[str]:
    """The ids of the rows, also of tasks that can't be selected."""
    return re.findall(r'<th scope="row" class="fq-id"><a href="[^"]*">(.*?)</a>', text)


def follow(client: Client, text: str, which: str) -> str:
    """Return the page to which the link ``next`` or ``prev`` leads."""
    (link,) = re.findall(rf'href="([^"]*)" rel="{which}"', text)
    return read(client, unescape(link))


def act(client: Client, url: str, action: str, **fields: Any) -> str:
    return str(post(client, url, action=action, **fields).content.decode())


def yes(text: str) -> dict[str, str]:
    """Return the fields that the button of a confirmation page posts."""
    return {"confirm": "yes", **dict(re.findall(r'name="(done|left)" value="(\d+)"', text))}


def logged() -> list[tuple[str, str]]:
    return [(str(entry), entry.text) for entry in AuditEntry.objects.order_by("id")]


def state(queue: FairQueue, task_id: str) -> TaskState:
    return queue.get_task(task_id).state


def test_tasks_are_filtered_by_state_user_and_name(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "a", "ann", name="mail")
    push(queue, "b", "bob", name="mail")
    push(queue, "c", "ann", name="report")
    push(queue, "d", "ann", execute_after=4e9)
    assert ids(read(admin_client, LIST)) == ["a", "b", "c"], "queued ones unless the query names another state"
    assert ids(read(admin_client, LIST, state="scheduled")) == ["d"]
    assert ids(read(admin_client, LIST, user="ann")) == ["a", "c"]
    assert ids(read(admin_client, LIST, user="ann", name="mail")) == ["a"]
    text = read(admin_client, LIST, user="nobody")
    assert "No tasks." in text
    assert "3 tasks were looked at" in text


def test_each_state_has_a_count(admin_client: Client, queue: FairQueue) -> None:
    for due in (None, 4e9, 4e9):
        push(queue, execute_after=due)
    text = read(admin_client, LIST)
    assert re.search(r">scheduled <span[^>]*>2<", text)
    assert re.search(r'aria-current="true">queued <span[^>]*>1<', text)


def test_the_list_has_pages(admin_client: Client, queue: FairQueue) -> None:
    made = [push(queue) for _ in range(module.TASKS_PER_PAGE + 5)]
    first = read(admin_client, LIST)
    assert ids(first) == made[: module.TASKS_PER_PAGE]
    queue.cancel(made[0])
    second = follow(admin_client, first, "next")
    assert ids(second) == made[module.TASKS_PER_PAGE :]
    assert 'rel="next"' not in second
    assert "First page" in second


def test_a_search_without_a_result_continues(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS_EXAMINED", 3)
    for _ in range(4):
        push(queue)
    push(queue, "rare", "bob")
    text = read(admin_client, LIST, user="bob")
    assert ids(text) == []
    assert "Look further" in text
    assert ids(follow(admin_client, text, "next")) == ["rare"]


@pytest.mark.parametrize("task_id", HOSTILE)
def test_an_id_leads_to_its_task(admin_client: Client, queue: FairQueue, task_id: str) -> None:
    push(queue, task_id)
    answer = admin_client.get(LIST, {"id": task_id}, follow=True)
    assert answer.redirect_chain[-1][0].startswith(page(task_id))
    assert answer.context["task"].task_id == task_id


@pytest.mark.parametrize("query", [{"state": "lost"}, {"cursor": "x"}])
def test_an_invalid_query_of_tasks_is_reported(admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
    push(queue, "a")
    text = read(admin_client, LIST, **query)
    assert 'class="error"' in text
    assert "one of scheduled, deferred" in text or "Cursor must be" in text
    assert ids(text) == ["a"]


def test_the_list_reads_a_bounded_number_of_records(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    for _ in range(300):
        push(queue)
    stats = counted(redis, lambda: read(admin_client, LIST))
    assert stats["get"]["calls"] <= module.TASKS_PER_PAGE + 3, (
        "three more: the number of the queue's shards, and twice for the status line"
    )
    assert stats["hmget"]["calls"] <= module.TASKS_PER_PAGE + 7
    stats = counted(redis, lambda: read(admin_client, LIST, user="nobody"))
    assert stats["hmget"]["calls"] <= module.TASKS_EXAMINED + 5


def test_the_list_reads_no_large_payload(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    push(queue, payload={"args": ["x" * module.PAYLOAD_MAX_BYTES_READ], "kwargs": {}})
    stats = counted(redis, lambda: read(admin_client, LIST))
    assert stats.get("get", {"calls": 0})["calls"] <= 3, "none is of a payload"
    assert re.search(r"<bdi>4,\d+ bytes are not read here</bdi>", read(admin_client, LIST))


def test_arguments_are_shown_without_secrets(admin_client: Client, queue: FairQueue) -> None:
    push(queue, payload={"args": [7, "<i>"], "kwargs": {"to": "acme", "api_token": "s3cr3t"}})
    push(queue, payload={"args": ["y" * 200], "kwargs": {}})
    push(queue, payload={"password": "s3cr3t", "n": 1})
    text = read(admin_client, LIST)
    assert "s3cr3t" not in text
    found = re.findall(r'<td class="fq-text"><bdi>(.*?)</bdi></td>', text)
    assert found[0] == "7, &quot;&lt;i&gt;&quot;, to=&quot;acme&quot;, api_token=&quot;••••••&quot;"
    assert found[1].endswith("yyy…")
    assert found[2] == "{&quot;password&quot;: &quot;••••••&quot;, &quot;n&quot;: 1}"


def test_the_run_time_of_a_task_is_shown(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    for task_id in ("slow", "quick"):
        queue.push(Task.create("ann", 3, None, task_id=task_id, timeout=100), now=now - 60)
    slow, _quick = (queue.pop("w:1", now=now - passed) for passed in (51, 40))
    text = read(admin_client, LIST, state="started")
    assert re.search(r'fq-slow">5\d.* s <span class="visually-hidden">\(slow\)', text)
    assert re.search(r'<td class="fq-number">4\d.* s</td>', text)
    assert text.count("fq-slow") == 1
    assert slow is not None
    queue.finish(slow)
    assert re.search(r'<td class="fq-number">5\d.* s</td>', read(admin_client, LIST, state="finished"))


def test_the_page_of_a_task_has_times_of_day_and_how_long_ago_they_were(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, None, task_id="slow"), now=time.time() - 3600)
    page = admin_client.get(reverse("admin:django_fairque_task", args=["slow"]))
    assert re.search(r"\d\d:\d\d:\d\d \(<time [^>]*>1 h ago</time>\)", page.content.decode())


def test_a_task_without_a_limit_is_slow_at_ten_times_the_p95(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    for _ in range(3):
        queue.push(Task.create("ann", 3, None), now=now - 30)
    queue.finish(pop(queue, "w:1", now=now - 30), took=1, now=now - 29)
    queue.pop("w:1", now=now - 20)
    queue.pop("w:1", now=now - 3)
    assert read(admin_client, LIST, state="started").count("fq-slow") == 1


def test_ended_tasks_are_listed_newest_first(admin_client: Client, queue: FairQueue) -> None:
    made = [push(queue, f"t{n:03}") for n in range(module.TASKS_PER_PAGE + 5)]
    for number, task_id in enumerate(made):
        queue.cancel(task_id, now=2e9 + number)
    made.reverse()
    first = read(admin_client, LIST, state="canceled")
    assert rows_of(first) == made[: module.TASKS_PER_PAGE]
    second = follow(admin_client, first, "next")
    assert rows_of(second) == made[module.TASKS_PER_PAGE :]
    assert rows_of(follow(admin_client, second, "prev")) == made[: module.TASKS_PER_PAGE]


def test_the_list_can_be_read_backward(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASKS_PER_PAGE", 2)
    made = [push(queue) for _ in range(9)]
    pages = [read(admin_client, LIST, user="ann")]
    assert 'rel="prev"' not in pages[0]
    while 'rel="next"' in pages[-1]:
        pages.append(follow(admin_client, pages[-1], "next"))
    assert [task_id for text in pages for task_id in ids(text)] == made
    text = pages.pop()
    while pages:
        text = follow(admin_client, text, "prev")
        assert ids(text) == ids(pages.pop())
    assert 'rel="prev"' not in text


def test_addresses_of_pages_stay_short(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TASKS_PER_PAGE", 1)
    for number in range(8):
        push(queue, f"{number}{'é' * 90}")
    text = read(admin_client, LIST)
    while 'rel="next"' in text:
        assert all(len(address) < 4000 for address in re.findall(r'href="([^"]*)" rel=', text))
        text = follow(admin_client, text, "next")
    assert 'rel="prev"' in text


def test_tasks_of_all_states_are_listed_together(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "done", "bob")
    queue.finish(pop(queue, "w:1"))
    push(queue, "waits", "bob")
    push(queue, "later", "bob", execute_after=4e9)
    push(queue, "other", "ann")
    assert sorted(rows_of(read(admin_client, LIST, state="all"))) == ["done", "later", "other", "waits"]
    text = read(admin_client, LIST, state="all", user="bob")
    assert sorted(rows_of(text)) == ["done", "later", "waits"]
    assert "Only the newest records of each state were read, at most 1,000 in all." in text
    assert "cancel_all" not in text
    assert "Choose one state first." in act(admin_client, f"{LIST}?state=all", "cancel_all")


def test_tasks_are_found_by_a_text_in_their_arguments(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "a", payload={"args": ["Order-7"], "kwargs": {}})
    push(queue, "b", payload={"args": [], "kwargs": {"order": "8"}})
    text = read(admin_client, LIST, argument="order-7")
    assert ids(text) == ["a"]
    assert "Only the newest 1,000 records were searched" in text
    assert sorted(ids(read(admin_client, LIST, state="all", argument="ORDER"))) == ["a", "b"]


def test_a_hidden_value_can_not_be_searched(admin_client: Client, queue: FairQueue) -> None:
    push(queue, payload={"args": [], "kwargs": {"password": "s3cr3t"}})
    text = read(admin_client, LIST, argument="s3cr3t")
    assert ids(text) == []
    assert "s3cr3t" not in text.replace('value="s3cr3t"', "").replace("argument=s3cr3t", "")


def test_tasks_found_by_an_argument_are_only_changed_if_selected(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "a")
    url = f"{LIST}?argument=zzz"
    assert "can only be changed by selecting them" in act(admin_client, url, "cancel_all", confirm="yes")
    assert state(queue, "a") is TaskState.QUEUED


def test_a_search_by_argument_covers_the_newest_tasks(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS_EXAMINED", 3)
    made = [push(queue, payload={"args": ["x"], "kwargs": {}}) for _ in range(5)]
    assert sorted(ids(read(admin_client, LIST, argument="x"))) == sorted(made[2:])


def test_selected_tasks_are_canceled_after_a_question(admin_client: Client, queue: FairQueue) -> None:
    for task_id in "abc":
        push(queue, task_id)
    question = act(admin_client, LIST, "cancel", task=["a", "c"])
    assert "2 tasks are canceled, and what depends on them." in question
    assert ([state(queue, task_id).value for task_id in "abc"], logged()) == (["queued"] * 3, [])
    assert "2 tasks were canceled." in act(admin_client, LIST, "cancel", task=["a", "c"], confirm="yes")
    assert [state(queue, task_id).value for task_id in "abc"] == ["canceled", "queued", "canceled"]
    assert queue.history("a")[-1].error == "canceled by admin"
    assert logged() == [("default: a, c", "2 tasks were canceled.")]


@pytest.mark.parametrize("action", ["cancel", "run_now"])
def test_tasks_that_changed_before_the_action_are_counted(admin_client: Client, queue: FairQueue, action: str) -> None:
    for task_id in "abc":
        push(queue, task_id, execute_after=4e9)
    queue.cancel_many(["a", "b"])
    text = act(admin_client, LIST, action, task=["a", "b", "c"], confirm="yes")
    assert "The others (2) had moved on before." in text
    text = act(admin_client, LIST, action, task=["a", "b"], confirm="yes")
    assert "Nothing was done: all of them had moved on before." in text
    assert len(logged()) == 1


def test_the_admin_history_names_each_task_of_an_action(admin_client: Client, queue: FairQueue) -> None:
    ids = [f"some-long-id-{n:03}" for n in range(50)]
    queue.push_batch([Task.create("u", 3, n, task_id=task_id) for n, task_id in enumerate(ids)])
    admin_client.post(LIST, {"action": "cancel", "task": ids, "confirm": "yes"})
    ((name, message),) = logged()
    assert len(name) == len("default: ") + 256
    assert name.startswith("default: some-long-id-000, some-long-id-001, ")
    assert message == f"50 tasks were canceled. {', '.join(ids)}"


def test_selected_scheduled_tasks_are_run_now(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "a", execute_after=4e9)
    push(queue, "b", execute_after=4e9)
    text = act(admin_client, f"{LIST}?state=scheduled", "run_now", task=["a"])
    assert "1 task was queued." in text
    assert ids(text) == ["b"], "the same list is shown again"
    assert state(queue, "a") is TaskState.QUEUED


@pytest.mark.parametrize("action", ["cancel", "run_now"])
def test_an_action_without_a_selection_changes_nothing(admin_client: Client, queue: FairQueue, action: str) -> None:
    assert "Select the tasks first." in act(admin_client, LIST, action)
    assert logged() == []


def test_all_matching_tasks_are_counted_and_then_canceled(admin_client: Client, queue: FairQueue) -> None:
    for n in range(5):
        push(queue, f"a{n}", "ann")
    push(queue, "b", "bob")
    url = f"{LIST}?state=queued&user=ann"
    text = act(admin_client, url, "cancel_all")
    assert "5 queued tasks match." in text
    assert (state(queue, "a0"), logged()) == (TaskState.QUEUED, [])
    assert "5 tasks were changed." in act(admin_client, url, "cancel_all", **yes(text))
    assert [task.task_id for task in queue.tasks("queued").items] == ["b"]
    assert logged() == [("default: queued, ann", "5 tasks were changed.")]


def test_tasks_that_are_added_after_the_confirmation_are_not_changed(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TASKS_PER_REQUEST", 2)
    counted_before = [push(queue) for _ in range(3)]
    text = act(admin_client, LIST, "cancel_all")
    late = [push(queue) for _ in range(5)]
    text = act(admin_client, LIST, "cancel_all", **yes(text))
    assert "2 of 3 tasks are done. Go on?" in text
    assert "3 tasks were changed." in act(admin_client, LIST, "cancel_all", **yes(text))
    assert {state(queue, task_id) for task_id in counted_before} == {TaskState.CANCELED}
    assert {state(queue, task_id) for task_id in late} == {TaskState.QUEUED}


def test_an_action_on_all_tasks_without_their_number_changes_no_task(admin_client: Client, queue: FairQueue) -> None:
    task_id = push(queue)
    for fields in ({}, {"done": "0"}, {"done": "0", "left": "-1"}, {"done": "x", "left": "1"}):
        text = act(admin_client, LIST, "cancel_all", confirm="yes", **fields)
        assert "The form was not complete" in text
    assert state(queue, task_id) is TaskState.QUEUED


def test_many_tasks_are_changed_in_slices_with_their_progress(
    admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
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


def test_a_count_of_tasks_has_a_limit(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_action_that_does_not_fit_the_state_changes_nothing(
    admin_client: Client, queue: FairQueue, query: str, action: str, words: str
) -> None:
    assert words in act(admin_client, f"{LIST}?{query}", action)
    assert logged() == []


def test_a_task_is_shown_while_it_runs_and_afterwards(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t", name="mail", payload={"to": "x@example.com", "api_key": "s3cr3t"}, max_retries=2)
    lease = pop(queue, "w:1")
    queue.set_progress(lease, 3, 10, "pages")
    running = read(admin_client, page("t"))
    shown = ("It runs: worker w:1", "x@example.com", "3 of 10", "pages", "kept", "0 of 2", "started", "••••••")
    for words in shown:
        assert words in running
    queue.finish(lease, {"token": "s3cr3t", "rows": 5})
    ended = read(admin_client, page("t"))
    assert "Why is it waiting?" not in ended
    assert re.search(r"<li>It waited for [^,]+, then a worker had it for ", ended)
    assert "&quot;rows&quot;: 5" in ended
    assert "s3cr3t" not in running + ended


def test_each_attempt_is_shown_with_its_traceback(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t")
    lease = pop(queue, "w:1")
    try:
        raise OSError("<b>gone</b>")  # noqa: TRY301
    except OSError as error:
        queue.fail(lease, error, delay=60)
    text = read(admin_client, page("t"))
    assert "Attempt 1 failed; it is tried again at" in text
    assert "&lt;b&gt;gone&lt;/b&gt;" in text
    assert "<b>gone" not in text
    assert "Traceback (most recent call last)" in text


def test_a_missed_start_deadline_is_shown(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t", sla=10)
    queue.pop("w:1", now=queue.wait_reason("t").now + 70)
    assert "missed by 1" in read(admin_client, page("t"))


def test_a_task_is_shown_with_its_dependencies_and_dependents(admin_client: Client, queue: FairQueue) -> None:
    tasks = [Task.create("ann", 3, None, task_id="a"), Task.create("ann", 3, None, task_id="b", depends_on=["a"])]
    queue.push_graph(tasks, "run-1")
    text = read(admin_client, page("b"))
    assert "It waits for 1 task: a (queued)." in text
    for words in ("Waits for", "Declared to depend on", page("a"), "/runs/id-run-1/", "Show the graph"):
        assert words in text
    assert "Waited for by" in read(admin_client, page("a"))


def test_a_long_list_of_related_tasks_is_shortened(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "a")
    for _ in range(25):
        push(queue, depends_on=["a"])
    assert "and 5 more" in read(admin_client, page("a"))


def test_a_task_has_no_link_to_a_graph_without_the_permission(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_task")
    queue.push_graph([Task.create("ann", 3, None, task_id="a", run_id="r")], "r")
    assert "/dependencies/" not in read(client, page("a"))


def test_canceling_a_task_with_dependents_asks_first(admin_client: Client, queue: FairQueue) -> None:
    tasks = [Task.create("ann", 3, None, task_id="a")]
    tasks += [Task.create("ann", 3, None, task_id=f"b{n}", depends_on=["a"]) for n in range(3)]
    queue.push_graph([*tasks, Task.create("ann", 3, None, task_id="c", depends_on=["b0"])])
    assert "a is canceled, and 4 tasks that depend on it." in act(admin_client, page("a"), "cancel")
    assert state(queue, "a") is TaskState.QUEUED
    assert "The task was canceled" in act(admin_client, page("a"), "cancel", confirm="yes")
    assert (state(queue, "a"), len(logged())) == (TaskState.CANCELED, 1)


def test_the_question_of_a_long_chain_is_cheap(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    chain = [Task.create("ann", 3, None, task_id=f"t{n}", depends_on=[f"t{n - 1}"] if n else []) for n in range(200)]
    queue.push_graph(chain)
    read(admin_client, page("t0"))  # reads the status, which the next page shows again
    _commands, trips = cost(redis, lambda: act(admin_client, page("t0"), "cancel"))
    assert trips <= 20
    text = act(admin_client, page("t0"), "cancel")
    assert "t0 is canceled, and 10 tasks that depend on it. There may be more, which are canceled too." in text


def test_a_task_is_canceled_from_its_page(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t")
    assert "The task was canceled" in act(admin_client, page("t"), "cancel")
    assert state(queue, "t") is TaskState.CANCELED
    assert "had ended before" in act(admin_client, page("t"), "cancel")
    assert logged() == [("default: t", "The task was canceled, and so were the tasks that depend on it.")]


def test_an_unknown_name_is_the_first_reason_for_a_wait(admin_client: Client, queue: FairQueue) -> None:
    queue.heartbeat("w:1", {"users": "*", "unknown_tasks": '["gone"]'})
    queue.push(Task.create("ann", 3, None, name="gone", task_id="t", execute_after=4e9))
    text = read(admin_client, page("t"))
    assert 0 < text.index("No worker knows a task named gone: deploy its code") < text.index("It is scheduled for")


def test_a_scheduled_task_is_run_now(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t", execute_after=4e9)
    assert "It is scheduled for 2096-" in read(admin_client, page("t"))
    assert "The task was queued." in act(admin_client, page("t"), "run_now")
    assert state(queue, "t") is TaskState.QUEUED
    assert "not scheduled (any more)" in act(admin_client, page("t"), "run_now")
    assert len(logged()) == 1


def test_a_dead_letter_is_retried_from_its_task(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "t")
    queue.fail(pop(queue, "w:1"), "no", retry=False)
    assert "waits for someone to requeue or discard it: no" in read(admin_client, page("t"))
    assert "fresh retry budget" in act(admin_client, page("t"), "retry")
    assert state(queue, "t") is TaskState.QUEUED
    assert "no dead letter (any more)" in act(admin_client, page("t"), "retry")


def test_an_unknown_task_leads_to_the_list(admin_client: Client, queue: FairQueue) -> None:
    assert "'nobody'" in led_to(admin_client, page("nobody"), "tasks")
    found = admin_client.get(reverse("admin:django_fairque_tasks"), {"id": "nobody"}, follow=True)
    assert "'nobody'" in messages_of(found)


def test_a_payload_that_is_no_json_is_not_shown(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    push(queue, "t")
    replace_payload(redis, "t", b'{"password": "x')
    assert "15 bytes that are not shown" in read(admin_client, page("t"))


def test_the_page_of_a_task_reads_few_records(admin_client: Client, queue: FairQueue, redis: Redis) -> None:
    push(queue, "a")
    for _ in range(500):
        push(queue, depends_on=["a"])
    stats = counted(redis, lambda: read(admin_client, page("a")))
    assert sum(stat["calls"] for stat in stats.values()) <= 150
