"""The fairness page: what it says of users, and what it does to them."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from django_fairque.admin.pages import base as purging
from django_fairque.admin.pages.users import USERS_PER_PAGE
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.queue_stats import wait_bucket_middle
from django_fairque.models import AuditEntry
from tests.admin.page_reader import allow, assert_mistake, led_to, log_in, messages_of, page_url, post, read, words_of
from tests.fixture_types import Client, FairQueue, Settings
from tests.leases import pop

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script>'


url = partial(page_url, "users")


def shown(client: Client, **query: str) -> str:
    return read(client, url(**query))


def rows(client: Client, **query: str) -> dict[str, Any]:
    """The rows of the table by user."""
    return {row.user_id: row for row, _ in client.get(url(**query)).context["table"]}


def act(client: Client, user: str, action: str, **fields: Any) -> Any:
    return post(client, url(user=user), user=user, action=action, **fields)


def push(queue: FairQueue, user: str, count: int, **options: Any) -> None:
    queue.push_batch([Task.create(user, 3, n, **options) for n in range(count)])


def work(queue: FairQueue, user: str, *, waited: float, took: float) -> None:
    """One task of this user, from its push to its end."""
    client: Any = queue.client
    clock = client.hget("fq:{default:0}:stats", "clock")
    now = max(2e9, int(clock or 0) / 1e6) + 1  # the engine's time never goes back
    queue.push(Task.create(user, 3, None), now=now)
    queue.finish(pop(queue, "w", [user], now=now + waited), took=took, now=now + waited + took)


def engine_time(queue: FairQueue) -> float:
    """At most a second before what the engine takes for now."""
    client: Any = queue.client
    return max(time.time(), int(client.hget("fq:{default:0}:stats", "clock") or 0) / 1e6)


def limits(**changes: Any) -> dict[str, Any]:
    return {"weight": "1", "organization": "", "max_running": "", "rate": "", "max_backlog": "", "sla": "", **changes}


def test_members_divide_the_fair_share_of_their_organization(admin_client: Client, queue: FairQueue) -> None:
    for name in ("ann", "bob", "carol"):
        work(queue, name, waited=1, took=1)
    for name, weight in (("bob", 1), ("carol", 3)):
        queue.user(name).set_organization("ann")  # an organization may have a user's name
        queue.user(name).set_weight(weight)
    queue.organization("ann").set_weight(4)
    for name in ("ann", "bob", "carol"):
        push(queue, name, 1)
    found = {user.user_id: user for user in queue.fairness().examined}
    assert [found[name].share_if_busy for name in ("ann", "bob", "carol")] == pytest.approx([0.2, 0.2, 0.6])
    assert "organization ann" in shown(admin_client)


def test_a_member_is_shown_how_its_organization_holds_it_back(admin_client: Client, queue: FairQueue) -> None:
    for name, organization in (("ann", "paused"), ("bob", "full"), ("carol", "full")):
        queue.user(name).set_organization(organization)
        push(queue, name, 2)
    queue.organization("paused").pause()
    queue.organization("full").set_max_running(1)
    queue.pop("w", ["carol"])
    full = "waits for running tasks of its organization"
    verdicts = {"ann": "its organization is paused", "bob": full, "carol": full}
    assert {name: row.verdict for name, row in rows(admin_client).items()} == verdicts
    for user, flag in (("ann", "paused"), ("bob", "full")):
        assert f'organization {flag}</bdi></a> <span class="fq-flag">{flag}</span>' in shown(admin_client, user=user)


def test_received_shares_are_shown_next_to_weights(admin_client: Client, queue: FairQueue) -> None:
    work(queue, "ann", waited=2, took=3)
    work(queue, "bob", waited=1, took=1)
    queue.user("ann").set_weight(4)
    for name in ("ann", "bob"):
        push(queue, name, 1)
    found = rows(admin_client)
    assert (found["ann"].received, found["bob"].received) == (0.75, 0.25)
    assert [f"{found[name].wait.p50:.2g}" for name in ("ann", "bob")] == ["1.4", "1.4"]
    text = shown(admin_client)
    assert 'aria-label="75 %"' in text
    assert '<td class="fq-number">4</td>' in text
    assert "everyone" not in text


def test_worker_time_of_a_running_task_counts_as_received(admin_client: Client, queue: FairQueue) -> None:
    """No text accuses the queue of unfairness to it, also if more of its tasks are ready."""
    work(queue, "bob", waited=0, took=200)
    push(queue, "ann", 1)
    at = engine_time(queue)
    queue.pop("w", ["ann"], lease=3600, now=at)
    queue.heartbeat("w", {}, ttl=3600, now=at + 600)
    ann = rows(admin_client)["ann"]
    assert (ann.received, ann.stats.last_hour.busy_seconds) == (
        pytest.approx(0.75, rel=0.01),
        pytest.approx(600, rel=0.01),
    )
    assert ann.verdict == "all its ready tasks run"
    assert "share received, last hour 75 % weight 1" in words_of(shown(admin_client, user="ann"))
    push(queue, "ann", 3)
    queue.heartbeat("w", {}, ttl=3600, now=at + 1200)
    assert rows(admin_client)["ann"].verdict == "waits for its turn"


def test_a_noisy_user_is_named_with_the_waits_of_the_other_users(admin_client: Client, queue: FairQueue) -> None:
    for user in ("ann", "bob", "cid"):
        work(queue, user, waited=1, took=1)
    work(queue, "bulk", waited=60, took=1)
    push(queue, "bulk", 40)
    push(queue, "ann", 1)
    (remark,) = admin_client.get(url()).context["remarks"]
    assert remark == (
        "User bulk has 40 tasks waiting. "
        "In the last hour 95 % of the tasks of 3 other users started within about 1.4 s, of this one's within about 37.9 s: "
        "they did not suffer from it."
    )
    assert '<span class="fq-flag">noisy</span>' in shown(admin_client)


def test_a_noisy_user_of_another_page_is_named(admin_client: Client, queue: FairQueue) -> None:
    queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(300) for _ in range(3)])
    push(queue, "zulu", 400)
    push(queue, "zebra", 90)
    push(queue, "zz later", 90, execute_after=4e9)
    assert {"zebra", "zulu"}.isdisjoint(queue.users(None, USERS_PER_PAGE, busy_first=True).items)
    answer = admin_client.get(url())
    noisy = {remark.partition(".")[0] for remark in answer.context["remarks"]}
    assert noisy == {"User zulu has 400 tasks waiting", "User zebra has 90 tasks waiting"}
    assert "zz later" not in answer.context["fairness"].noisy_users, "its tasks are for tomorrow"
    listed = [row.user_id for row, _ in answer.context["table"]]
    assert listed[:2] == ["zulu", "zebra"]
    assert listed[2:] == [f"u{n:03}" for n in range(USERS_PER_PAGE)], "nobody else who was looked at"
    assert answer.content.decode().count('<span class="fq-flag">noisy</span>') == 2


def test_many_users_with_many_tasks_are_not_noisy(admin_client: Client, queue: FairQueue) -> None:
    queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(300) for _ in range(5)])
    answer = admin_client.get(url())
    assert answer.context["remarks"] == []
    assert [row.user_id for row, _ in answer.context["table"]] == [f"u{n:03}" for n in range(USERS_PER_PAGE)]


def test_users_that_wait_longer_than_a_noisy_user_are_counted(admin_client: Client, queue: FairQueue) -> None:
    work(queue, "ann", waited=90, took=1)
    work(queue, "bulk", waited=1, took=1)
    push(queue, "bulk", 40)
    (remark,) = admin_client.get(url()).context["remarks"]
    assert remark.endswith(
        "of 1 other user started within about 1 min 54 s, of this one's within about 1.4 s: they wait longer than it does."
    )


def test_users_with_a_short_wait_do_not_count_as_affected(admin_client: Client, queue: FairQueue) -> None:
    work(queue, "ann", waited=0.5, took=1)
    work(queue, "bulk", waited=0, took=1)
    push(queue, "bulk", 40)
    assert "they did not suffer from it" in shown(admin_client)


def test_users_at_their_own_limits_do_not_count_as_affected(admin_client: Client, queue: FairQueue) -> None:
    for user in ("capped", "rated", "paused"):
        work(queue, user, waited=600, took=1)
    queue.user("capped").set_max_running(1)
    queue.user("rated").set_rate("1/m")
    queue.user("paused").pause()
    work(queue, "bulk", waited=2, took=1)
    push(queue, "bulk", 40)
    assert "is not known yet" in shown(admin_client), "nothing is claimed about others before one of them has started"
    work(queue, "ann", waited=2, took=1)
    assert "1 other user started within about 1.4 s" in shown(admin_client)


def test_only_the_last_hour_counts_for_the_shares(admin_client: Client, queue: FairQueue) -> None:
    queue.user("ann").set_weight(2)  # or it would be forgotten
    work(queue, "ann", waited=600, took=900)
    queue.push(Task.create("bob", 3, None), now=2e9 + 7200)
    work(queue, "bob", waited=0, took=5)
    found = rows(admin_client)
    assert (found["ann"].received, found["ann"].wait) == (0, None)
    assert found["bob"].received == 1
    assert (found["ann"].verdict, found["ann"].stats.last_hour.busy_seconds) == ("had no tasks", 0)


def test_a_single_user_and_users_with_equal_backlogs_are_not_noisy(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 40)
    assert admin_client.get(url()).context["remarks"] == []
    push(queue, "bob", 30)
    assert admin_client.get(url()).context["remarks"] == []
    assert '<span class="fq-flag">noisy</span>' not in shown(admin_client)


def test_a_user_with_little_waiting_next_to_idle_users_is_not_noisy(admin_client: Client, queue: FairQueue) -> None:
    for user in ("idle1", "idle2", "idle3", "idle4"):
        work(queue, user, waited=0, took=1)
    for user, count in (("ann", 22), ("bob", 22), ("bulk", 400)):
        push(queue, user, count)
    assert [user for user, row in rows(admin_client).items() if row.is_noisy] == ["bulk"]


def test_each_verdict_about_a_user_has_its_sentence(admin_client: Client, queue: FairQueue) -> None:
    for user, took in (("rich", 8), ("even", 3), ("poor", 1)):
        work(queue, user, waited=0, took=took)
    for user in ("rich", "even", "poor", "capped", "paused"):
        push(queue, user, 3)
    queue.user("capped").set_max_running(1)
    queue.pop("w", ["capped"])
    queue.user("paused").pause()
    queue.user("new").set_weight(0.001)
    assert {user: row.verdict for user, row in rows(admin_client).items()} == {
        "rich": "waits for its turn",
        "even": "waits for its turn",
        "poor": "waits for its turn",
        "capped": "waits for its own running tasks",
        "paused": "paused",
        "new": "had no tasks",
    }
    queue.heartbeat("w", {}, ttl=3600, now=engine_time(queue) + 15)
    found = rows(admin_client)
    assert found["poor"].verdict == "waits longer than expected", "its share of the workers does not explain its wait"
    assert found["even"].verdict == "waits for its turn"
    summary = admin_client.get(url()).context["summary"]
    assert summary == "1 user waits longer than expected because workers are busy."


def test_a_user_without_ready_tasks_is_not_called_noisy(admin_client: Client, queue: FairQueue) -> None:
    """A user with one task due in an hour, and one with 40 for tomorrow."""
    work(queue, "busy", waited=0, took=50)
    push(queue, "busy", 5)
    push(queue, "hour", 1, execute_after=engine_time(queue) + 3600)
    push(queue, "tomorrow", 40, execute_after=engine_time(queue) + 86_400)
    queue.heartbeat("w", {}, ttl=3600, now=engine_time(queue) + 600)
    found = rows(admin_client)
    for row in (found["hour"], found["tomorrow"]):
        assert (row.stats.waiting, row.is_noisy) == (0, False)
        assert row.verdict == "received all it needed"
    assert admin_client.get(url()).context["remarks"] == []


def test_shares_are_computed_for_all_users_and_not_only_for_the_page(admin_client: Client, queue: FairQueue) -> None:
    for user in ("u000", "zz"):
        work(queue, user, waited=0, took=10)
    queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(USERS_PER_PAGE + 150)])
    ((row, _), *others) = admin_client.get(url()).context["table"]
    assert len(others) == USERS_PER_PAGE - 1
    assert row.received == pytest.approx(0.5, rel=0.01)


def test_the_page_begins_with_the_users_that_wait_too_long(admin_client: Client, queue: FairQueue) -> None:
    def summary() -> str:
        return str(admin_client.get(url()).context["summary"])

    work(queue, "noisy", waited=0, took=83)
    work(queue, "quiet", waited=0, took=17)
    push(queue, "noisy", 60)
    for user in ("a", "b", "c", "d"):
        push(queue, user, 1)
    now = engine_time(queue)
    queue.heartbeat("w", {}, ttl=7200, now=now)
    assert summary() == "No user waits longer than expected; noisy has 83 % of the work time and holds nobody back."
    pop(queue, "w", ["noisy"], lease=7200)
    queue.heartbeat("w", {}, ttl=7200, now=now + 600)
    waiting = "4 users wait longer than expected because workers are busy"
    noisy = "noisy has 97.6 % of the work time and"  # its task has run for ten minutes
    assert summary() == f"{waiting}; {noisy} holds nobody back."
    assert len(queue.pop_batch(2, "w", ["noisy"], lease=7200)) == 2
    assert summary() == f"{waiting}; {noisy} runs 3 of 3 tasks, more than its share."


def test_users_wait_too_long_because_no_worker_runs(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 1)
    push(queue, "bob", 1)
    queue.push(Task.create("late", 3, None, execute_after=4e9), now=engine_time(queue) + 60)
    expected = "2 users wait longer than expected because no worker runs."
    assert admin_client.get(url()).context["summary"] == expected


def test_the_page_shows_the_fairness_index_and_the_noisy_users(admin_client: Client, queue: FairQueue) -> None:
    for user, took in (("ann", 10), ("bob", 30)):
        work(queue, user, waited=0, took=took)
        push(queue, user, 1)
    text = words_of(shown(admin_client))
    assert "active users 2 noisy users 0 oldest wait of quiet users" in text
    assert "fairness (Jain’s index, 1 is fair) 0.80" in text


def test_the_table_can_be_sorted(admin_client: Client, queue: FairQueue) -> None:
    for user, took, count in (("ann", 1, 2), ("bob", 30, 1), ("cid", 5, 9)):
        work(queue, user, waited=0, took=took)
        push(queue, user, count)
    assert {sort: " ".join(rows(admin_client, sort=sort)) for sort in ("waiting", "time", "wait")} == {
        "waiting": "cid ann bob",
        "time": "bob cid ann",
        "wait": "ann bob cid",
    }
    assert "Users can be sorted by" in led_to(admin_client, url(sort="<b>"), "users")


def test_users_are_listed_by_prefix(admin_client: Client, queue: FairQueue) -> None:
    for user in ("acme/1", "acme/2", "bolt", "acm"):
        push(queue, user, 1)
    answer = admin_client.get(url(prefix="acme/"))
    assert [row.user_id for row, _ in answer.context["table"]] == ["acme/1", "acme/2"]
    assert "Users whose id begins with acme/" in words_of(answer.content.decode())
    assert "No user has an id that begins with zz" in words_of(shown(admin_client, prefix="zz"))
    assert 'class="fq-error" role="alert"' in shown(admin_client, prefix="x" * 300)


def test_limits_of_users_are_described_in_words(admin_client: Client, queue: FairQueue) -> None:
    user = queue.user("ann")
    user.set_max_running(2)
    user.set_rate("100/m")
    user.set_max_backlog(5000)
    user.set_sla(90)
    ((row, _),) = admin_client.get(url()).context["table"]
    assert row.limits == ["at most 2 at once", "rate 100/60s", "backlog 5,000", "starts within 1 min 30 s"]


@pytest.mark.parametrize("query", [{}, {"sort": "waiting"}])
def test_the_list_of_users_has_pages(admin_client: Client, queue: FairQueue, query: dict[str, str]) -> None:
    users = [f"u{n:03}" for n in range(USERS_PER_PAGE + 5)]
    queue.push_batch([Task.create(user, 3, None) for user in users])
    first = admin_client.get(url(**query))
    second = admin_client.get(first.context["next"])
    pages = [[row.user_id for row, _ in page.context["table"]] for page in (first, second)]
    assert [len(page) for page in pages] == [USERS_PER_PAGE, 5]
    assert sorted(pages[0] + pages[1]) == users
    assert second.context["next"] == ""


def test_a_page_that_does_not_exist_leads_to_the_first(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 1)
    assert "There is no such page" in led_to(admin_client, url(cursor="nonsense"), "users")
    text = read(admin_client, url(cursor="0:900"))
    assert "No user has" in text
    assert f'href="{url(queue="default")}"' in text


def test_a_user_is_found_by_its_exact_id(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 3)
    push(queue, "anna", 5)
    row = admin_client.get(url(user="ann")).context["row"]
    assert (row.user_id, row.stats.waiting) == ("ann", 3)
    assert "Nothing is known of this user" in shown(admin_client, user="nobody")
    assert 'class="fq-error" role="alert"' in shown(admin_client, user="x" * 300)


def test_the_page_is_not_renewed_while_a_form_is_shown(admin_client: Client, queue: FairQueue) -> None:
    assert "data-refresh" in shown(admin_client)
    assert "data-refresh" not in shown(admin_client, user="ann")


def test_tasks_that_ended_today_are_counted_and_the_latest_are_listed(admin_client: Client, queue: FairQueue) -> None:
    now = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    for at, count in ((now - 3600, 2), (now, 3)):
        queue.push_batch([Task.create("ann", 3, n, name="shop.send", max_retries=0) for n in range(count)], now=at)
        for n, lease in enumerate(queue.pop_batch(9, "w", now=at)):
            if n:
                queue.finish(lease, now=at + 2)
            else:
                queue.fail(lease, "no", retry=False, now=at + 2)
    canceled = queue.push(Task.create("ann", 3, None, name="<b>late</b>", execute_after=4e9), now=now + 5)
    queue.cancel(canceled.task_id, now=now + 6)
    push(queue, "bob", 1)
    text = shown(admin_client, user="ann")
    assert "finished today 2 failed attempts today 1 dead letters today 1 SLA kept today 100 %" in words_of(text)
    assert "&lt;b&gt;late&lt;/b&gt;" in text
    latest = [(task.name, task.state, took) for task, _url, took in admin_client.get(url(user="ann")).context["latest"]]
    assert latest[0] == ("<b>late</b>", "canceled", None)
    assert sorted((state, took) for _name, state, took in latest[1:]) == [
        *[("failed", pytest.approx(2))] * 2,
        *[("finished", pytest.approx(2))] * 3,
    ]


def test_figures_of_today_do_not_depend_on_the_load_of_other_users(admin_client: Client, queue: FairQueue) -> None:
    """1,000 tasks of others ended after this user's: its latest tasks are not found any more, its figures are."""
    now = max(time.time(), timezone.localtime().replace(hour=0, minute=0, second=1).timestamp())
    counted = {"ann": 0, "loud": 0}
    for user, count in (("ann", 7), ("loud", 350), ("loud", 350), ("loud", 350)):
        queue.push_batch([Task.create(user, 3, n) for n in range(count)], now=now)
        leases = queue.pop_batch(count, "w", now=now)
        queue.settle([Outcome.finish(lease, took=0.01) for lease in leases], 0, worker="w", now=now)
        counted[user] += len(leases)
    assert counted == {"ann": 7, "loud": 1050}
    answer = admin_client.get(url(user="ann"))
    text = words_of(answer.content.decode())
    assert "finished today 7 failed attempts today 0" in text
    assert "it is forgotten 1 h after the user's last task" in text.replace("\u2019", "'").replace("&#x27;", "'")
    assert "is of this user" in text
    assert answer.context["charts"][0].lines["Finished"][-1] == 7
    assert "finished today 1,050" in words_of(shown(admin_client, user="loud"))


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "Pacific/Auckland", "America/New_York"])
def test_today_begins_at_midnight_of_the_viewer(
    admin_client: Client, queue: FairQueue, settings: Settings, zone: str
) -> None:
    settings.TIME_ZONE = zone
    midnight = timezone.localtime().replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
    first_hour = -(-midnight // 3600) * 3600
    for at in (first_hour - 1, first_hour, first_hour + 1):
        queue.push(Task.create("ann", 3, None), now=at)
        queue.finish(pop(queue, "w", now=at), now=at)
    text = words_of(shown(admin_client, user="ann"))
    begin = "00:30" if zone == "Asia/Kolkata" else "00:00"
    assert f"Today, since {begin} finished today 2 " in text


def test_a_bounded_number_of_ended_tasks_is_examined(queue: FairQueue) -> None:
    for user in ("ann", *["bob"] * 4):
        work(queue, user, waited=0, took=1)
    assert [task.state for task in queue.user("ann").ended_tasks().tasks] == ["finished"]
    few = queue.user("ann").ended_tasks(9)
    assert (few.tasks, few.examined, few.is_whole) == ([], 3, False)
    assert queue.user("bob").ended_tasks(9).examined == 3
    for wrong in (2, 1001):
        with pytest.raises(TaskValidationError, match="examined"):
            queue.user("ann").ended_tasks(wrong)


def test_changes_by_operators_are_shown(admin_client: Client, queue: FairQueue) -> None:
    for user in ("ann", "anna"):
        act(admin_client, user, "pause")
    act(admin_client, "ann", "resume")
    entries = admin_client.get(url(user="ann")).context["changes"]
    assert [row["done"] for row in entries] == [
        "User ann is resumed.",
        "User ann is paused: none of its tasks start; what runs goes on.",
    ]
    assert "The audit has no entry." in shown(admin_client, user="bob")


def test_ended_tasks_need_the_permission_to_see_tasks(client: Client, queue: FairQueue) -> None:
    work(queue, "ann", waited=0, took=1)
    user = log_in(client, "view_user")
    assert client.get(url(user="ann")).context["latest"] == []
    allow(user, "view_task")
    assert len(client.get(url(user="ann")).context["latest"]) == 1


def test_the_ended_tasks_and_the_waits_of_a_user_are_charted_by_hour(admin_client: Client, queue: FairQueue) -> None:
    begin = time.time() // 3600 * 3600
    for at, waited in ((begin - 7000, 0), (begin - 3500, 1), (begin - 3400, 1)):
        queue.push(Task.create("ann", 3, None), now=at)
        queue.finish(pop(queue, "w", now=at + waited), now=at + waited)
    ended, waits = admin_client.get(url(user="ann")).context["charts"]
    assert (ended.lines["Finished"][-4:], len(ended.lines["Finished"])) == ([0, 1, 2, 0], 24)
    assert waits.lines["Wait p95"][-4:] == [None, wait_bucket_middle(0), wait_bucket_middle(5), None]
    text = shown(admin_client, user="ann")
    assert f"{begin:.0f}], &quot;zone&quot;" in text
    assert "charts.js" in text
    assert "Gaps: no attempt ended in these hours." in text


def test_deployments_are_marked_in_the_charts_of_a_user(admin_client: Client, queue: FairQueue) -> None:
    now = time.time()
    queue.push(Task.create("ann", 3, None), now=now - 3600)
    queue.heartbeat("w", {"code_version": "abc1234"}, now=now - 3500)
    queue.finish(pop(queue, "w", now=now - 3500), now=now - 3500)
    assert shown(admin_client, user="ann").count("<bdi>deployment abc1234, ") == 1


def test_a_user_without_ended_tasks_has_no_chart(admin_client: Client, queue: FairQueue) -> None:
    text = shown(admin_client, user="bob")
    assert "No task of this user has ended in this time." in text
    assert "charts.js" not in text


def preview(client: Client, weight: str, user: str = "ann") -> str:
    return shown(client, user=user, weight=weight, preview="1")


def test_the_preview_shows_shares_and_waits_of_all_users(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 2)
    push(queue, "bob", 2)
    push(queue, "carol", 2)
    pop(queue, "w", ["bob"])
    text = preview(admin_client, "2")
    assert "If all users that are active now stay busy, its share is 33.3 % now, 50 % with this weight." in text
    # Before a task has ended, 0.1 seconds are expected: 0.1 / (1/3 of one task) and 0.1 / (1/2 of one).
    assert "Expected wait for its turn: about 300 ms now, about 200 ms with this weight." in text
    assert "The shares of all others become 25 % smaller, and their expected waits 33.3 % longer." in text
    queue.user("ann").set_weight(2)
    text = preview(admin_client, "0.5")
    assert "If all users that are active now stay busy, its share is 50 % now, 20 % with this weight." in text
    assert "The shares of all others become 60 % larger, and their expected waits 37.5 % shorter." in text
    queue.user("ann").set_weight(0.5)
    found = {user.user_id: user.share_if_busy for user in queue.fairness().examined}
    assert found == pytest.approx({"ann": 0.2, "bob": 0.4, "carol": 0.4}), "the shares must equal those in the preview"


def test_a_preview_of_a_member_is_about_its_organization(admin_client: Client, queue: FairQueue) -> None:
    for user in ("ann", "bob"):
        queue.user(user).set_organization("acme")
    for user in ("ann", "bob", "carol"):
        push(queue, user, 1)
    text = preview(admin_client, "3")
    assert "25 % now, 37.5 % with this weight" in text
    assert "become 50 % smaller, and their expected waits 100 % longer" in text
    assert "nothing changes for other users" in text
    queue.user("bob").purge()
    assert "No other member of its organization is active" in preview(admin_client, "3")


def test_a_preview_without_a_change_of_shares_shows_this(admin_client: Client, queue: FairQueue) -> None:
    assert "No other user is active" in preview(admin_client, "3")
    assert preview(admin_client, "1").strip() == ""
    push(queue, "bob", 1)
    assert "50 % now, 75 % with this weight" in preview(admin_client, "3")


@pytest.mark.parametrize(
    ("weight", "user"),
    [
        *((weight, "ann") for weight in ("", "x", "0", "-1", "1001", "nan", "inf", "9" * 400)),
        ("2", ""),
        ("2", "u" * 300),
    ],
)
def test_an_invalid_weight_or_user_is_explained(admin_client: Client, queue: FairQueue, weight: str, user: str) -> None:
    assert "fq-error" in preview(admin_client, weight, user)


def test_a_preview_needs_the_permission_to_change_users(client: Client, queue: FairQueue) -> None:
    log_in(client, "view_user")
    assert client.get(url(user="ann", weight="2", preview="1")).status_code == 403
    assert "form_preview.js" not in shown(client, user="ann")


def test_the_form_has_a_preview_of_the_weight(admin_client: Client, queue: FairQueue) -> None:
    text = shown(admin_client, user="ann")
    assert "form_preview.js" in text
    assert 'data-fields="weight"' in text
    assert admin_client.get(url(queue="none", user="ann", weight="2", preview="1")).status_code == 404


def test_users_are_called_as_the_setting_names_them(admin_client: Client, queue: FairQueue, settings: Settings) -> None:
    menu = '<a href="/admin/django_fairque/queue/users/?queue=default" aria-current="page">%s</a>'
    assert menu % "Users" in shown(admin_client)
    settings.FAIRQUE = {**settings.FAIRQUE, "USERS_LABEL": "<i>Customers"}
    text = shown(admin_client)
    assert menu % "&lt;i&gt;Customers" in text
    assert "<h1>&lt;i&gt;Customers</h1>" in text
    assert "<i>" not in text


def test_a_user_is_paused_and_resumed(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 1)
    assert "User ann is paused" in messages_of(act(admin_client, "ann", "pause"))
    assert queue.pop("w") is None
    assert "User ann is resumed" in messages_of(act(admin_client, "ann", "resume"))
    assert queue.pop("w") is not None
    assert [(str(e), e.text[:18]) for e in AuditEntry.objects.order_by("pk")] == [
        ("default: ann", "User ann is paused"),
        ("default: ann", "User ann is resume"),
    ]


def test_waits_of_the_queue_are_shown_only_if_tasks_have_run(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 1)
    for text in (shown(admin_client), shown(admin_client, user="ann")):
        assert "half of the tasks waited" not in words_of(text)
    queue.finish(pop(queue))
    for text in (shown(admin_client), shown(admin_client, user="ann")):
        assert "In the whole queue, in the last hour, half of the tasks waited at most" in words_of(text)


@pytest.mark.parametrize("page", ["users", "organizations"])
def test_a_pause_from_a_list_is_confirmed_first(admin_client: Client, queue: FairQueue, page: str) -> None:
    queue.user("acme").set_organization("acme")
    paused = (queue.user if page == "users" else queue.organization)("acme")
    fields = {"action": "pause", page.removesuffix("s"): "acme"}
    question = words_of(post(admin_client, page_url(page), **fields).content.decode())
    assert "acme: until it is resumed, none of its tasks start; running tasks go on." in question
    assert not paused.stats().paused
    assert "acme is paused" in messages_of(post(admin_client, page_url(page), **fields, confirm="yes"))
    assert paused.stats().paused


def test_a_pause_may_have_a_note_and_an_end(admin_client: Client, queue: FairQueue) -> None:
    note = "<script>alert(1)</script>"
    answer = act(admin_client, "ann", "pause", note=f"  {note}\n", pause_for="2h")
    assert f"Note: {note}" in messages_of(answer)
    pause = queue.user("ann").stats().pause
    assert pause is not None
    assert pause.note == note
    assert pause.until == pytest.approx(time.time() + 7200, abs=60)
    for text in (shown(admin_client), shown(admin_client, user="ann")):
        assert "ends <time" in text
        assert '<bdi class="fq-quiet">&lt;script&gt;' in text
    (entry,) = AuditEntry.objects.all()
    assert entry.text.startswith("User ann is paused: none of its tasks start; what runs goes on. It ends at 2")
    assert entry.text.endswith(f" Note: {note}")
    assert "expected an age such as 90s" in messages_of(act(admin_client, "ann", "pause", pause_for="soon"))
    assert "at most 200 characters" in messages_of(act(admin_client, "ann", "pause", note="x" * 201))
    assert queue.user("ann").stats().pause == pause


def test_all_limits_of_a_user_are_changed_at_once(admin_client: Client, queue: FairQueue) -> None:
    assert "Nothing was changed for user ann." in messages_of(act(admin_client, "ann", "limits", **limits()))
    fields = limits(weight="2.5", organization="acme", max_running="3", rate="100/m", max_backlog="500", sla="30")
    assert "Changed for user ann: " in messages_of(act(admin_client, "ann", "limits", **fields))
    stats = queue.user("ann").stats()
    assert (stats.weight, stats.max_running, stats.max_backlog, stats.sla) == (2.5, 3, 500, 30)
    assert (stats.rate, stats.organization) == ("100/60s", "acme")
    assert "Changed for user ann: Rate." in messages_of(act(admin_client, "ann", "limits", **{**fields, "rate": ""}))
    assert queue.user("ann").stats().rate is None
    for given, burst in (("7", 7), ("", 1)):
        page = act(admin_client, "ann", "limits", **{**fields, "rate": "5/s", "burst": given})
        assert "Changed for user ann: " in messages_of(page)
        stats = queue.user("ann").stats()
        assert (stats.rate, stats.burst) == ("5/1s", burst)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("weight", "0", "greater than or equal to 0.001"),
        ("weight", "", "required"),
        ("max_running", "many", "whole number"),
        ("rate", "often", "a rate is written"),
        ("organization", "\U0001f600" * 65, "organization must be a non-empty string of at most 256 bytes"),
        ("max_backlog", "0", "greater than or equal to 1"),
        ("sla", "-1", "sla must be a number of seconds"),
        ("sla", "0", "sla must be more than 0 seconds"),
    ],
)
def test_a_mistake_is_shown_next_to_its_field_and_other_input_is_kept(
    admin_client: Client, queue: FairQueue, field: str, value: str, words: str
) -> None:
    fields = limits(**{"weight": "3", "max_running": "7", field: value})
    answer = act(admin_client, "ann", "limits", **fields)
    assert_mistake(answer, field, words, *(fields[name] for name in {"max_running", "weight"} - {field}))
    assert queue.user("ann").stats().weight == 1, "all or nothing"


def test_a_purge_is_confirmed_with_the_number_of_tasks_first(admin_client: Client, queue: FairQueue) -> None:
    push(queue, "ann", 3)
    push(queue, "ann", 2, execute_after=4e9)
    push(queue, "bob", 1)
    queue.pop("w", ["ann"])
    question = act(admin_client, "ann", "purge")
    text = question.content.decode()
    assert "All 4 tasks that user ann has waiting will be canceled." in text
    assert '<input type="hidden" name="confirm" value="yes">' in text
    assert queue.get_queue_sizes("ann").total == 5
    assert not AuditEntry.objects.exists()
    fields = dict(question.context["pairs"])
    answer = admin_client.post(url(user="ann"), {**fields, "action": "purge", "confirm": "yes"}, follow=True)
    assert "4 tasks of user ann were canceled." in messages_of(answer)
    sizes = queue.get_queue_sizes("ann")
    assert (sizes.total, sizes.running) == (1, 1)
    assert queue.get_queue_sizes("bob").ready == 1
    assert str(AuditEntry.objects.get()) == "default: ann"


def test_a_large_purge_runs_in_slices(admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 3)
    push(queue, "ann", 5)
    push(queue, "ann", 2, execute_after=4e9)
    question = words_of(act(admin_client, "ann", "purge").content.decode())
    assert "At most 3 tasks are canceled at once" in question
    for left in (4, 1):
        text = words_of(act(admin_client, "ann", "purge", confirm="yes").content.decode())
        assert "Go on? 3 tasks of user ann were canceled." in text
        assert queue.get_queue_sizes("ann").total == left
    answer = act(admin_client, "ann", "purge", confirm="yes")
    assert "1 task of user ann was canceled." in messages_of(answer)
    assert queue.get_queue_sizes("ann").total == 0
    assert [entry.text for entry in AuditEntry.objects.order_by("pk")] == [
        *(["3 tasks of user ann were canceled."] * 2),
        "1 task of user ann was canceled.",
    ]


def test_actions_on_an_impossible_or_idle_user_change_nothing(admin_client: Client, queue: FairQueue) -> None:
    for action in ("pause", "resume", "limits", "purge"):
        answer = post(admin_client, url(), user="", action=action, **limits(), confirm="yes")
        assert "user_id" in messages_of(answer)
    assert not AuditEntry.objects.exists()
    assert "nothing waiting" in messages_of(act(admin_client, "ann", "purge", confirm="yes"))


def test_the_summary_mentions_waiting_tasks_of_paused_users(admin_client: Client, queue: FairQueue) -> None:
    for user, minutes in (("duff", 21), ("member", 5)):
        queue.push_batch([Task.create(user, 3, None) for _ in range(3)], now=time.time() - 60 * minutes)
    assert "paused user" not in words_of(shown(admin_client))
    queue.user("duff").pause()
    for page in (url(), page_url("overview")):
        text = read(admin_client, page)
        assert "1 paused user has 3 tasks waiting, the oldest for 21 min. duff" in words_of(text)
        assert f'href="{url(queue="default", user="duff")}"' in text.replace("&amp;", "&")
    queue.organization("acme").pause()
    queue.user("member").set_organization("acme")
    assert "2 paused users have 6 tasks waiting, the oldest for 21 min. duff , member" in words_of(shown(admin_client))
