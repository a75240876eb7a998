"""The pages show urgent and bulk tasks, in every state."""

from __future__ import annotations

import re
import time

import pytest

from django_fairque.engine.model.lanes import LANES, Lane
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Task
from django_fairque.models import AuditEntry
from tests.admin.dead_letters import bury
from tests.admin.page_reader import content_of, messages_of, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue, Redis
from tests.lane_tasks import OTHER_LANES, USERS, push_in_all_states
from tests.leases import pop

pytestmark = pytest.mark.django_db


@pytest.fixture
def tasks(queue: FairQueue) -> dict[str, Lane]:
    """Tasks of both lanes in every state: the lane of each task by id."""
    found = push_in_all_states(queue)
    queue.heartbeat("w", {}, ttl=900)
    return found


def words(client: Client, page: str, *args: str, **query: str) -> str:
    return words_of(content_of(read(client, page_url(page, *args, **query))))


@pytest.mark.parametrize("state", [*(state.value for state in TaskState), "all"])
def test_the_list_of_tasks_names_their_lanes(admin_client: Client, tasks: dict[str, Lane], state: str) -> None:
    shown = words(admin_client, "tasks", state=state)
    for task_id, lane in tasks.items():
        if task_id.endswith(state):
            assert task_id in shown
            assert f" {lane} " in shown.partition(task_id)[2]
    assert " NORMAL " not in shown


def test_the_page_of_a_task_names_its_lane(admin_client: Client, tasks: dict[str, Lane]) -> None:
    for task_id, lane in tasks.items():
        shown = words(admin_client, "task", task_id)
        assert f" Lane {lane} " in shown
        assert "Priority" not in shown


@pytest.mark.parametrize(
    "page", ["overview", "live", "queues", "users", "organizations", "dead_letters", "runs", "workers", "task_names"]
)
def test_other_pages_are_shown_for_a_queue_with_tasks_in_lanes(
    admin_client: Client, tasks: dict[str, Lane], page: str
) -> None:
    assert words(admin_client, page)


def test_the_overview_the_live_page_and_the_list_of_users_count_by_lane(
    admin_client: Client, tasks: dict[str, Lane]
) -> None:
    for page in ("overview", "live", "users"):
        table = words(admin_client, page).partition("Lane Queued Running Started, ever Wait p50 p95 p99 ")[2]
        assert table.startswith("urgent 2 1 3 about 950 ms about 950 ms about 950 ms normal 0 0 0 – – – bulk 2 1 3 "), (
            page
        )
    overview = words(admin_client, "overview")
    assert "Priority Queued p50 p95 p99 URGENT 2 about 950 ms about 950 ms about 950 ms CRITICAL 0 – – –" in overview
    assert "URGENT 2, BULK 2" in words(admin_client, "queues")


def test_pages_of_a_queue_without_lanes_do_not_mention_them(admin_client: Client, queue: FairQueue) -> None:
    queue.push(Task.create("ann", 3, 1))
    for page in ("overview", "live", "users"):
        shown = words(admin_client, page)
        assert "Lane" not in shown
        assert "urgent" not in shown


def test_the_pages_of_users_count_their_urgent_and_bulk_tasks(admin_client: Client, tasks: dict[str, Lane]) -> None:
    shown = words(admin_client, "users")
    for lane in OTHER_LANES:
        assert f" 2 2 {lane} " in shown
        assert f"ready 2 2 {lane} " in words(admin_client, "users", user=USERS[lane])
    assert "No user waits longer than expected" in shown, "a task of each of these users has run for as long"


def test_the_page_of_a_user_shows_the_longest_wait_of_each_lane(
    admin_client: Client, queue: FairQueue, redis: Redis
) -> None:
    def commands() -> int:
        before = int(redis.info("stats")["total_commands_processed"])
        assert "Longest wait" not in words(admin_client, "users", user="ann")
        return int(redis.info("stats")["total_commands_processed"]) - before

    now = time.time()
    for age, priority in ((9000, 3), (5000, 1)):
        queue.push(Task.create("ann", priority, 1), now=now - age)
    commands()
    plain = commands()
    for number, lane in enumerate((*OTHER_LANES[::-1], *OTHER_LANES[::-1])):
        queue.push(Task.create("ann", 3, 1, lane=lane), now=now - 4000 + 1000 * number)
    before = int(redis.info("stats")["total_commands_processed"])
    table = words(admin_client, "users", user="ann").partition("Lane Queued Longest wait ")[2]
    assert re.match(r"urgent 2 50 min (\d+ s )?normal 2 2 h 30 min bulk 2 1 h [67] min ", table)
    assert int(redis.info("stats")["total_commands_processed"]) - before <= plain + 2


def test_waiting_bulk_tasks_are_not_shown_as_long_waits(admin_client: Client, queue: FairQueue) -> None:
    now = time.time() - 3600
    queue.heartbeat("w", {}, ttl=900)
    queue.push_batch([Task.create("nightly", 3, n, lane="bulk") for n in range(40)], now=now)
    pop(queue, "w", lease=9000, now=now)
    queue.push(Task.create("ann", 3, 1))
    shown = words(admin_client, "users")
    assert shown.count("No user waits longer than expected") == 1
    assert "its bulk tasks wait for the others" in shown
    overview = words(admin_client, "overview")
    assert "Oldest wait 0 s" in overview or "ms Users with work" in overview
    assert "Users with most tasks ready User Ready Bar nightly 39 ann 1" in overview
    assert "nightly" not in overview.partition("Users who have waited longest")[2]
    assert "its bulk tasks wait for the others" in words(admin_client, "live")


FIELD = '<select name="lane"><option value="urgent">urgent</option><option value="normal" selected>normal</option>'


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("action", ["requeue", "requeue_edited"])
def test_a_dead_letter_is_requeued_in_the_chosen_lane(
    admin_client: Client, queue: FairQueue, action: str, lane: Lane
) -> None:
    entry = bury(queue)
    url = page_url("dead_letter", entry)
    assert FIELD in read(admin_client, url)
    assert FIELD in post(admin_client, url, action="edit").content.decode()
    answer = post(admin_client, url, action=action, payload="1", lane=lane).content.decode()
    assert queue.get_task(entry[:-2]).lane == lane
    assert (f"requeued (lane: {lane})" in answer or f"payload (lane: {lane})" in answer) == (lane != "normal")
    assert (f"(lane: {lane})" in AuditEntry.objects.order_by("-pk")[0].text) == (lane != "normal")


def test_a_refused_payload_keeps_the_chosen_lane(admin_client: Client, queue: FairQueue) -> None:
    url = page_url("dead_letter", bury(queue))
    answer = admin_client.post(url, {"action": "requeue_edited", "payload": "{", "lane": "bulk"}).content.decode()
    assert '<option value="bulk" selected>' in answer


def test_selected_and_all_dead_letters_are_requeued_in_the_chosen_lane(admin_client: Client, queue: FairQueue) -> None:
    entries = [bury(queue) for _ in range(3)]
    url = page_url("dead_letters", show="letters")
    assert FIELD in read(admin_client, url)
    assert "1 requeued (lane: bulk)" in words_of(
        post(admin_client, url, action="requeue", entry=entries[0], lane="bulk").content.decode()
    )
    question = post(admin_client, url, action="requeue_all", lane="urgent")
    assert '<option value="urgent" selected>' in question.content.decode()
    assert "lane" not in dict(question.context["pairs"]), "the field has it"
    fields = {**dict(question.context["pairs"]), "confirm": "yes", "action": "requeue_all"}
    assert "(lane: urgent)" in post(admin_client, url, **fields, lane="urgent").content.decode()
    assert [queue.get_task(entry[:-2]).lane for entry in entries] == ["bulk", "urgent", "urgent"]


def test_a_lane_that_is_unknown_is_refused_on_a_page(admin_client: Client, queue: FairQueue) -> None:
    answer = post(admin_client, page_url("dead_letter", bury(queue)), action="requeue", lane="fast")
    assert "lane must be one of urgent, normal, bulk" in messages_of(answer)
    assert queue.dlq.count() == 1


@pytest.mark.parametrize("lane", LANES)
def test_a_task_is_retried_or_run_again_in_the_chosen_lane(admin_client: Client, queue: FairQueue, lane: Lane) -> None:
    entry = bury(queue, priority=5)
    assert FIELD in read(admin_client, page_url("task", entry[:-2]))
    post(admin_client, page_url("task", entry[:-2]), action="retry", lane=lane)
    queue.finish(lease := pop(queue))
    assert lease.lane == lane
    url = page_url("task", lease.task_id)
    assert FIELD in post(admin_client, url, action="edit").content.decode()
    post(admin_client, url, action="run_again", payload="1", lane=lane)
    assert pop(queue).lane == lane
