"""The fairness page: what it says of users, and what it does to them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone

from django_fairque.admin.pages import base as purging
from django_fairque.admin.pages.users import USERS_PER_PAGE
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import led_to, messages_of, said

if TYPE_CHECKING:
    from django.http import HttpResponse
    from django.test import Client
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

pytestmark = pytest.mark.django_db

HOSTILE = '<script>alert("1")</script>'


def url(**query: str) -> str:
    return reverse("admin:django_fairque_users", query=query)


def shown(client: Client, **query: str) -> str:
    answer = client.get(url(**query))
    assert answer.status_code == 200
    return answer.content.decode()


def act(client: Client, user: str, action: str, **fields: Any) -> HttpResponse:
    return client.post(url(user=user), {"user": user, "action": action, **fields}, follow=True)  # type: ignore[return-value]


def push(queue: FairQueue, user: str, count: int, **options: Any) -> None:
    queue.push_batch([Task.create(user, 3, n, **options) for n in range(count)])


def work(queue: FairQueue, user: str, *, waited: float, took: float) -> None:
    """One task of this user, from its push to its end."""
    client: Any = queue.client
    clock = client.hget("fq:{default:0}:stats", "clock")
    now = max(2e9, int(clock or 0) / 1e6) + 1  # the engine's time never goes back
    queue.push(Task.create(user, 3, None), now=now)
    lease = queue.pop("w", [user], now=now + waited)
    assert lease is not None
    queue.finish(lease, took=took, now=now + waited + took)


def engine_time(queue: FairQueue) -> float:
    """At most a second before what the engine takes for now."""
    client: Any = queue.client
    return max(time.time(), int(client.hget("fq:{default:0}:stats", "clock") or 0) / 1e6)


def limits(**changes: Any) -> dict[str, Any]:
    return {"weight": "1", "organization": "", "max_running": "", "rate": "", "max_backlog": "", "sla": "", **changes}


class TestTable:
    def test_members_share_what_is_fair_for_their_organization(self, admin_client: Client, queue: FairQueue) -> None:
        for name in ("ann", "bob", "carol"):
            work(queue, name, waited=1, took=1)
        for name, weight in (("bob", 1), ("carol", 3)):
            queue.user(name).set_organization("ann")  # an organization may have a user's name
            queue.user(name).set_weight(weight)
        queue.organization("ann").set_weight(4)
        for name in ("ann", "bob", "carol"):
            push(queue, name, 1)
        rows = {row.user_id: row for row, _ in admin_client.get(url()).context["table"]}
        assert [rows[name].fair for name in ("ann", "bob", "carol")] == pytest.approx([0.2, 0.2, 0.6])
        assert "organization ann" in shown(admin_client)

    def test_a_member_is_told_what_its_organization_has_to_do_with_it(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        for name, organization in (("ann", "paused"), ("bob", "full"), ("carol", "full")):
            queue.user(name).set_organization(organization)
            push(queue, name, 2)
        queue.organization("paused").pause()
        queue.organization("full").set_max_running(1)
        queue.pop("w", ["carol"])
        verdicts = {row.user_id: row.verdict for row, _ in admin_client.get(url()).context["table"]}
        full = "waits for running tasks of its organization"
        assert verdicts == {"ann": "its organization is paused", "bob": full, "carol": full}
        for user, organization in (("ann", "paused"), ("bob", "full")):
            assert f'organization {organization}</bdi></a> <span class="fq-flag">{organization}</span></p>' in shown(
                admin_client, user=user
            )

    def test_shares_received_stand_beside_fair_ones(self, admin_client: Client, queue: FairQueue) -> None:
        work(queue, "ann", waited=2, took=3)
        work(queue, "bob", waited=1, took=1)
        queue.user("ann").set_weight(4)
        for name in ("ann", "bob"):
            push(queue, name, 1)
        rows = {row.user_id: row for row, _ in admin_client.get(url()).context["table"]}
        assert (rows["ann"].received, rows["ann"].fair) == (0.75, 0.8)
        assert (rows["bob"].received, rows["bob"].fair) == (0.25, 0.2)
        assert [f"{rows[name].wait.p50:.2g}" for name in ("ann", "bob")] == ["1.4", "1.4"]
        text = shown(admin_client)
        assert 'aria-label="75 %, share if everyone were busy 80 %"' in text
        assert [rows[name].verdict for name in ("ann", "bob")] == [
            "has its share",
            "more than its share: others left it",
        ]

    def test_a_noisy_user_is_named_and_how_the_others_fare(self, admin_client: Client, queue: FairQueue) -> None:
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

    def test_a_noisy_user_is_found_on_whatever_page_it_would_be(self, admin_client: Client, queue: FairQueue) -> None:
        queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(300) for _ in range(3)])
        push(queue, "zulu", 400)
        push(queue, "zebra", 90)
        push(queue, "zz later", 90, execute_after=4e9)
        assert {"zebra", "zulu"}.isdisjoint(queue.users(None, USERS_PER_PAGE, busy_first=True).items)
        answer = admin_client.get(url())
        told = {remark.partition(".")[0] for remark in answer.context["remarks"]}
        assert told == {"User zulu has 400 tasks waiting", "User zebra has 90 tasks waiting"}
        assert "zz later" not in answer.context["fairness"].noisy_users, "its tasks are for tomorrow"
        listed = [row.user_id for row, _ in answer.context["table"]]
        assert listed[:2] == ["zulu", "zebra"]
        assert listed[2:] == [f"u{n:03}" for n in range(USERS_PER_PAGE)], "nobody else who was looked at"
        assert answer.content.decode().count('<span class="fq-flag">noisy</span>') == 2

    def test_many_users_with_much_are_not_noisy(self, admin_client: Client, queue: FairQueue) -> None:
        queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(300) for _ in range(5)])
        answer = admin_client.get(url())
        assert answer.context["remarks"] == []
        assert [row.user_id for row, _ in answer.context["table"]] == [f"u{n:03}" for n in range(USERS_PER_PAGE)]

    def test_others_that_do_suffer_are_not_passed_over(self, admin_client: Client, queue: FairQueue) -> None:
        work(queue, "ann", waited=90, took=1)
        work(queue, "bulk", waited=1, took=1)
        push(queue, "bulk", 40)
        (remark,) = admin_client.get(url()).context["remarks"]
        assert remark.endswith(
            "of 1 other user started within about 1 min 54 s, of this one's within about 1.4 s: they wait longer than it does."
        )

    def test_a_wait_that_nobody_notices_is_no_suffering(self, admin_client: Client, queue: FairQueue) -> None:
        work(queue, "ann", waited=0.5, took=1)
        work(queue, "bulk", waited=0, took=1)
        push(queue, "bulk", 40)
        assert "they did not suffer from it" in shown(admin_client)

    def test_who_waits_for_its_own_limits_does_not_suffer_from_others(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        for user in ("capped", "rated", "paused"):
            work(queue, user, waited=600, took=1)
        queue.user("capped").set_max_running(1)
        queue.user("rated").set_rate("1/m")
        queue.user("paused").pause()
        work(queue, "bulk", waited=2, took=1)
        push(queue, "bulk", 40)
        assert "is not known yet" in shown(admin_client)
        work(queue, "ann", waited=2, took=1)
        assert "1 other user started within about 1.4 s" in shown(admin_client)

    def test_only_the_last_hour_counts(self, admin_client: Client, queue: FairQueue) -> None:
        queue.user("ann").set_weight(2)  # or it would be forgotten
        work(queue, "ann", waited=600, took=900)
        queue.push(Task.create("bob", 3, None), now=2e9 + 7200)
        work(queue, "bob", waited=0, took=5)
        rows = {row.user_id: row for row, _ in admin_client.get(url()).context["table"]}
        assert (rows["ann"].received, rows["ann"].fair, rows["ann"].wait) == (0, None, None)
        assert (rows["bob"].received, rows["bob"].fair) == (1, 1)
        assert rows["ann"].verdict == "had no tasks"
        assert rows["ann"].stats.last_hour.busy_seconds == 0

    def test_before_anything_has_started_nothing_is_claimed(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 1)
        push(queue, "bulk", 40)
        assert "is not known yet" in shown(admin_client)

    def test_nobody_is_noisy_alone_or_among_equals(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 40)
        assert admin_client.get(url()).context["remarks"] == []
        push(queue, "bob", 30)
        assert admin_client.get(url()).context["remarks"] == []
        assert '<span class="fq-flag">noisy</span>' not in shown(admin_client)

    def test_who_has_little_waiting_beside_idle_users_is_not_noisy(
        self, admin_client: Client, queue: FairQueue
    ) -> None:
        for user in ("idle1", "idle2", "idle3", "idle4"):
            work(queue, user, waited=0, took=1)
        for user, count in (("ann", 22), ("bob", 22), ("bulk", 400)):
            push(queue, user, count)
        rows = {row.user_id: row.is_noisy for row, _ in admin_client.get(url()).context["table"]}
        assert [user for user, is_noisy in rows.items() if is_noisy] == ["bulk"]

    def test_each_verdict(self, admin_client: Client, queue: FairQueue) -> None:
        work(queue, "rich", waited=0, took=8)
        work(queue, "even", waited=0, took=3)
        work(queue, "poor", waited=0, took=1)
        for user in ("rich", "even", "poor", "capped", "paused"):
            push(queue, user, 3)
        queue.user("capped").set_max_running(1)
        queue.pop("w", ["capped"])
        queue.user("paused").pause()
        queue.user("new").set_weight(0.001)

        def verdicts() -> dict[str, str]:
            return {row.user_id: row.verdict for row, _ in admin_client.get(url()).context["table"]}

        assert verdicts() == {
            "rich": "more than its share: others left it",
            "even": "has its share",
            "poor": "waits for its turn",
            "capped": "waits for its own running tasks",
            "paused": "paused",
            "new": "had no tasks",
        }
        queue.heartbeat("w", {}, ttl=3600, now=engine_time(queue) + 15)
        assert verdicts()["poor"] == "less than its share", "it has waited longer than its part of the workers explains"
        assert admin_client.get(url()).context["summary"] == (
            "1 user waits longer than expected because workers are busy."
        )
        assert verdicts()["even"] == "has its share"

    def test_who_has_nothing_ready_is_not_accused(self, admin_client: Client, queue: FairQueue) -> None:
        """A user with one task due in an hour, and one with 40 for tomorrow."""
        work(queue, "busy", waited=0, took=50)
        push(queue, "busy", 5)
        push(queue, "hour", 1, execute_after=engine_time(queue) + 3600)
        push(queue, "tomorrow", 40, execute_after=engine_time(queue) + 86_400)
        queue.heartbeat("w", {}, ttl=3600, now=engine_time(queue) + 600)
        page = admin_client.get(url()).context
        rows = {row.user_id: row for row, _ in page["table"]}
        assert {user: (rows[user].waiting, rows[user].fair, rows[user].is_noisy) for user in ("hour", "tomorrow")} == {
            "hour": (0, None, False),
            "tomorrow": (0, None, False),
        }
        assert {rows[user].verdict for user in ("hour", "tomorrow")} == {"received all it needed"}
        assert page["remarks"] == []

    def test_shares_are_of_all_users_and_not_of_the_page(self, admin_client: Client, queue: FairQueue) -> None:
        for user in ("u000", "zz"):
            work(queue, user, waited=0, took=10)
        queue.push_batch([Task.create(f"u{n:03}", 3, None) for n in range(USERS_PER_PAGE + 150)])
        ((row, _), *others) = admin_client.get(url()).context["table"]
        assert len(others) == USERS_PER_PAGE - 1
        assert (row.received, row.fair) == (pytest.approx(0.5, rel=0.01), pytest.approx(1 / (USERS_PER_PAGE + 150)))

    def test_the_page_begins_with_whether_others_suffer(self, admin_client: Client, queue: FairQueue) -> None:
        work(queue, "noisy", waited=0, took=83)
        work(queue, "quiet", waited=0, took=17)
        push(queue, "noisy", 60)
        for user in ("a", "b", "c", "d"):
            push(queue, user, 1)
        now = engine_time(queue)
        queue.heartbeat("w", {}, ttl=7200, now=now)
        noisy = "noisy has 83 % of the work time and holds nobody back"
        assert admin_client.get(url()).context["summary"] == f"No user waits longer than expected; {noisy}."
        assert queue.pop("w", ["noisy"], lease=7200) is not None
        queue.heartbeat("w", {}, ttl=7200, now=now + 600)
        assert admin_client.get(url()).context["summary"] == (
            f"4 users wait longer than expected because workers are busy; {noisy}."
        )
        assert len(queue.pop_batch(2, "w", ["noisy"], lease=7200)) == 2
        assert "4 users wait longer" in admin_client.get(url()).context["summary"]
        assert (
            admin_client.get(url())
            .context["summary"]
            .endswith("noisy has 83 % of the work time and runs 3 of 3 tasks, more than its share.")
        )

    def test_without_a_worker_that_is_the_reason(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 1)
        push(queue, "bob", 1)
        queue.push(Task.create("late", 3, None, execute_after=4e9), now=engine_time(queue) + 60)
        expected = "2 users wait longer than expected because no worker runs."
        assert admin_client.get(url()).context["summary"] == expected

    def test_it_shows_noisy_users_quiet_waits_and_the_index(self, admin_client: Client, queue: FairQueue) -> None:
        for user, took in (("ann", 10), ("bob", 30)):
            work(queue, user, waited=0, took=took)
            push(queue, user, 1)
        text = said(shown(admin_client))
        assert "active users 2 noisy users 0 oldest wait of quiet users" in text
        assert "fairness (Jain’s index, 1 is fair) 0.80" in text

    def test_it_can_be_sorted(self, admin_client: Client, queue: FairQueue) -> None:
        for user, took, count in (("ann", 1, 2), ("bob", 30, 1), ("cid", 5, 9)):
            work(queue, user, waited=0, took=took)
            push(queue, user, count)

        def order(sort: str) -> list[str]:
            return [row.user_id for row, _ in admin_client.get(url(sort=sort)).context["table"]]

        assert order("waiting") == ["cid", "ann", "bob"]
        assert order("time") == ["bob", "cid", "ann"]
        assert order("wait") == ["ann", "bob", "cid"]
        assert "Users can be sorted by" in led_to(admin_client, url(sort="<b>"), "users")

    def test_a_sorted_list_has_pages(self, admin_client: Client, queue: FairQueue) -> None:
        queue.push_batch([Task.create(f"u{n:03}", 3, n) for n in range(USERS_PER_PAGE + 5)])
        first = admin_client.get(url(sort="waiting"))
        second = admin_client.get(first.context["next"])
        assert [len(page.context["table"]) for page in (first, second)] == [USERS_PER_PAGE, 5]
        assert second.context["next"] == ""

    def test_users_are_listed_by_prefix(self, admin_client: Client, queue: FairQueue) -> None:
        for user in ("acme/1", "acme/2", "bolt", "acm"):
            push(queue, user, 1)
        answer = admin_client.get(url(prefix="acme/"))
        assert [row.user_id for row, _ in answer.context["table"]] == ["acme/1", "acme/2"]
        assert "Users whose id begins with acme/" in said(answer.content.decode())
        assert "No user has an id that begins with zz" in said(shown(admin_client, prefix="zz"))
        assert 'class="fq-error" role="alert"' in shown(admin_client, prefix="x" * 300)

    def test_settings_are_told_in_words(self, admin_client: Client, queue: FairQueue) -> None:
        user = queue.user("ann")
        user.set_max_running(2)
        user.set_rate("100/m")
        user.set_max_backlog(5000)
        user.set_sla(90)
        ((row, _),) = admin_client.get(url()).context["table"]
        assert row.limits == ["at most 2 at once", "rate 100/60s", "backlog 5,000", "starts within 1 min 30 s"]

    def test_pages_follow_each_other(self, admin_client: Client, queue: FairQueue) -> None:
        queue.push_batch([Task.create(f"u{n:03}", 3, n) for n in range(USERS_PER_PAGE + 5)])
        first = admin_client.get(url())
        assert [row.user_id for row, _ in first.context["table"]] == [f"u{n:03}" for n in range(USERS_PER_PAGE)]
        second = admin_client.get(first.context["next"])
        assert [row.user_id for row, _ in second.context["table"]] == [f"u{USERS_PER_PAGE + n:03}" for n in range(5)]
        assert second.context["next"] == ""
        assert second.context["first"] == url(queue="default")
        assert "There is no such page" in led_to(admin_client, url(cursor="nonsense"), "users")
        assert "No user has" in shown(admin_client, cursor="0:900")

    def test_who_may_only_look_sees_nothing_to_press(self, client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 1)
        queue.user("ann").set_rate("1/m")
        looker: User = User.objects.create_user("looker", is_staff=True)
        looker.user_permissions.add(
            Permission.objects.get(codename="view_user", content_type__app_label="django_fairque")
        )
        client.force_login(looker)
        for text in (shown(client), shown(client, user="ann")):
            content = text[text.index('id="fq-content"') :]
            assert 'method="post"' not in content[: content.index("</main>")]
        assert "rate 1/60s" in shown(client, user="ann")
        for action in ("pause", "resume", "limits", "purge"):
            assert client.post(url(), {"user": "ann", "action": action, "confirm": "yes"}).status_code == 403
        assert not queue.user("ann").stats().paused
        assert queue.get_queue_sizes("ann").ready == 1


class TestOne:
    def test_is_found_by_its_exact_id(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 3)
        push(queue, "anna", 5)
        row = admin_client.get(url(user="ann")).context["row"]
        assert (row.user_id, row.waiting) == ("ann", 3)

    def test_is_not_renewed_while_its_form_is_there(self, admin_client: Client, queue: FairQueue) -> None:
        assert "data-refresh" in shown(admin_client)
        assert "data-refresh" not in shown(admin_client, user="ann")

    def test_may_be_unknown(self, admin_client: Client, queue: FairQueue) -> None:
        assert "Nothing is known of this user" in shown(admin_client, user="nobody")

    def test_an_id_that_can_not_be_one_is_explained(self, admin_client: Client, queue: FairQueue) -> None:
        assert 'class="fq-error" role="alert"' in shown(admin_client, user="x" * 300)

    def test_names_are_escaped(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, HOSTILE, 40)
        push(queue, "ann", 1)
        for text in (
            shown(admin_client),
            shown(admin_client, user=HOSTILE),
            act(admin_client, HOSTILE, "purge").content.decode(),
            act(admin_client, HOSTILE, "pause").content.decode(),
        ):
            assert "<script>alert" not in text
            assert "&lt;script&gt;" in text


class TestHistory:
    def test_what_ended_today_and_last_is_shown(self, admin_client: Client, queue: FairQueue) -> None:
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
        assert "finished today 2 dead letters today 1 canceled today 1" in said(text)
        assert "&lt;b&gt;late&lt;/b&gt;" in text
        latest = [
            (each.name, each.state, took) for each, _url, took in admin_client.get(url(user="ann")).context["latest"]
        ]
        assert latest[0] == ("<b>late</b>", "canceled", None)
        assert sorted((state, took) for _name, state, took in latest[1:]) == [
            *[("failed", pytest.approx(2))] * 2,
            *[("finished", pytest.approx(2))] * 3,
        ]
        assert "Counted among" not in text

    def test_how_many_tasks_started_in_the_last_hour_is_shown(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 3)
        queue.pop_batch(2, "w")
        assert "started, last hour 2 " in said(shown(admin_client, user="ann"))

    def test_a_bounded_number_of_ended_tasks_is_examined(self, queue: FairQueue) -> None:
        for user in ("ann", *["bob"] * 4):
            work(queue, user, waited=0, took=1)
        assert [each.state for each in queue.user("ann").ended_tasks().tasks] == ["finished"]
        few = queue.user("ann").ended_tasks(9)
        assert (few.tasks, few.examined, few.is_whole) == ([], 3, False)
        assert queue.user("bob").ended_tasks(9).examined == 3
        for wrong in (2, 1001):
            with pytest.raises(TaskValidationError, match="examined"):
                queue.user("ann").ended_tasks(wrong)

    def test_what_operators_changed_is_shown(self, admin_client: Client, queue: FairQueue) -> None:
        for user in ("ann", "anna"):
            act(admin_client, user, "pause")
        act(admin_client, "ann", "resume")
        entries = admin_client.get(url(user="ann")).context["changes"]
        assert [entry.change_message for entry in entries] == [
            "User ann is resumed.",
            "User ann is paused: none of its tasks start; what runs goes on.",
        ]
        assert "Nothing was changed in the admin." in shown(admin_client, user="bob")

    def test_tasks_are_shown_to_those_who_may_see_tasks(self, client: Client, queue: FairQueue) -> None:
        work(queue, "ann", waited=0, took=1)
        looker: User = User.objects.create_user("looker", is_staff=True)
        looker.user_permissions.add(
            Permission.objects.get(codename="view_user", content_type__app_label="django_fairque")
        )
        client.force_login(looker)
        assert client.get(url(user="ann")).context["latest"] == []
        looker.user_permissions.add(
            Permission.objects.get(codename="view_task", content_type__app_label="django_fairque")
        )
        assert len(client.get(url(user="ann")).context["latest"]) == 1


class TestLastDay:
    def test_waits_and_ready_tasks_are_charted(self, admin_client: Client, queue: FairQueue) -> None:
        begin = time.time() // 1800 * 1800
        queue.push_batch([Task.create("ann", 3, None), Task.create("ann", 3, None)], now=begin - 1800)
        queue.sweep(now=begin - 1700)
        waits, ready = admin_client.get(url(user="ann")).context["charts"]
        assert (waits.lines["Longest wait"][-2:], ready.lines["Ready"][-2:]) == ([100, None], [2, None])
        text = shown(admin_client, user="ann")
        assert f"{begin:.0f}], &quot;zone&quot;" in text
        assert "Longest wait in each half hour" in text
        assert "charts.js" in text
        assert "Gaps: the user was not among" in text

    def test_deployments_are_marked(self, admin_client: Client, queue: FairQueue) -> None:
        now = time.time()
        queue.push(Task.create("ann", 3, None), now=now - 3600)
        queue.heartbeat("w", {"code_version": "abc1234"}, now=now - 3500)
        queue.sweep(now=now - 3500)
        assert shown(admin_client, user="ann").count("<bdi>deployment abc1234, ") == 1

    def test_of_who_did_not_wait_nothing_is_recorded(self, admin_client: Client, queue: FairQueue) -> None:
        text = shown(admin_client, user="bob")
        assert "No chart: once a minute" in text
        assert "charts.js" not in text


class TestWeightPreview:
    def preview(self, client: Client, weight: str, user: str = "ann") -> str:
        return shown(client, user=user, weight=weight, preview="1")

    def test_shares_and_waits_of_the_user_and_of_others(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 2)
        push(queue, "bob", 2)
        push(queue, "carol", 2)
        assert queue.pop("w", ["bob"]) is not None
        text = self.preview(admin_client, "2")
        assert "Share if everyone were busy: 33.3 % now, 50 % with this weight." in text
        # Before a task has ended, 0.1 seconds are expected: 0.1 / (1/3 of one task) and 0.1 / (1/2 of one).
        assert "Expected wait for its turn: about 300 ms now, about 200 ms with this weight." in text
        assert "The shares of all others become 25 % smaller, and their expected waits 33.3 % longer." in text
        queue.user("ann").set_weight(2)
        text = self.preview(admin_client, "0.5")
        assert "Share if everyone were busy: 50 % now, 20 % with this weight." in text
        assert "The shares of all others become 60 % larger, and their expected waits 37.5 % shorter." in text
        queue.user("ann").set_weight(0.5)
        found = {each.user_id: each.share_if_busy for each in queue.fairness().examined}
        assert found == pytest.approx({"ann": 0.2, "bob": 0.4, "carol": 0.4}), "as it was previewed"

    def test_members_share_among_each_other(self, admin_client: Client, queue: FairQueue) -> None:
        for user in ("ann", "bob"):
            queue.user(user).set_organization("acme")
        push(queue, "ann", 1)
        push(queue, "bob", 1)
        push(queue, "carol", 1)
        text = self.preview(admin_client, "3")
        assert "25 % now, 37.5 % with this weight" in text
        assert "become 50 % smaller, and their expected waits 100 % longer" in text
        assert "nothing changes for other users" in text
        queue.user("bob").purge()
        assert "No other member of its organization is active" in self.preview(admin_client, "3")

    def test_alone_or_without_tasks(self, admin_client: Client, queue: FairQueue) -> None:
        assert "No other user is active" in self.preview(admin_client, "3")
        push(queue, "bob", 1)
        assert "50 % now, 75 % with this weight" in self.preview(admin_client, "3")

    def test_its_own_weight_changes_nothing(self, admin_client: Client, queue: FairQueue) -> None:
        assert self.preview(admin_client, "1").strip() == ""

    @pytest.mark.parametrize("weight", ["", "x", "0", "-1", "1001", "nan", "inf", "9" * 400])
    def test_a_mistake_is_explained(self, admin_client: Client, queue: FairQueue, weight: str) -> None:
        assert "fq-error" in self.preview(admin_client, weight)

    @pytest.mark.parametrize("user", ["", "u" * 300])
    def test_a_user_that_can_not_be_is_explained(self, admin_client: Client, queue: FairQueue, user: str) -> None:
        assert "fq-error" in self.preview(admin_client, "2", user)

    def test_is_for_those_who_may_change_users(self, client: Client, queue: FairQueue) -> None:
        viewer = User.objects.create_user("viewer", is_staff=True)
        viewer.user_permissions.add(
            Permission.objects.get(codename="view_user", content_type__app_label="django_fairque")
        )
        client.force_login(viewer)
        assert client.get(url(user="ann", weight="2", preview="1")).status_code == 403
        assert "form_preview.js" not in shown(client, user="ann")

    def test_the_form_names_where_it_is(self, admin_client: Client, queue: FairQueue) -> None:
        text = shown(admin_client, user="ann")
        assert "form_preview.js" in text
        assert 'data-fields="weight"' in text
        assert admin_client.get(url(queue="none", user="ann", weight="2", preview="1")).status_code == 404


class TestLabel:
    def test_users_are_called_as_the_setting_names_them(
        self, admin_client: Client, queue: FairQueue, settings: Settings
    ) -> None:
        menu = '<a href="/admin/django_fairque/queue/users/?queue=default" aria-current="page">%s</a>'
        assert menu % "Users" in shown(admin_client)
        settings.FAIRQUE = {**settings.FAIRQUE, "USERS_LABEL": "<i>Customers"}
        text = shown(admin_client)
        assert menu % "&lt;i&gt;Customers" in text
        assert "<h1>&lt;i&gt;Customers</h1>" in text
        assert "<i>" not in text


class TestActs:
    def test_pause_and_resume(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 1)
        assert "User ann is paused" in messages_of(act(admin_client, "ann", "pause"))
        assert queue.pop("w") is None
        assert "User ann is resumed" in messages_of(act(admin_client, "ann", "resume"))
        assert queue.pop("w") is not None
        assert [(e.object_id, e.change_message[:18]) for e in LogEntry.objects.order_by("pk")] == [
            ("default: ann", "User ann is paused"),
            ("default: ann", "User ann is resume"),
        ]

    def test_a_pause_has_a_note_and_an_end(self, admin_client: Client, queue: FairQueue) -> None:
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
        (entry,) = LogEntry.objects.all()
        assert entry.change_message.startswith(
            "User ann is paused: none of its tasks start; what runs goes on. It ends at 2"
        )
        assert entry.change_message.endswith(f" Note: {note}")
        assert "expected an age such as 90s" in messages_of(act(admin_client, "ann", "pause", pause_for="soon"))
        assert "at most 200 characters" in messages_of(act(admin_client, "ann", "pause", note="x" * 201))
        assert queue.user("ann").stats().pause == pause

    def test_all_limits_at_once(self, admin_client: Client, queue: FairQueue) -> None:
        fields = limits(weight="2.5", organization="acme", max_running="3", rate="100/m", max_backlog="500", sla="30")
        assert "Changed for user ann: " in messages_of(act(admin_client, "ann", "limits", **fields))
        stats = queue.user("ann").stats()
        assert (stats.weight, stats.max_running, stats.max_backlog, stats.sla) == (2.5, 3, 500, 30)
        assert (stats.rate, stats.organization) == ("100/60s", "acme")
        assert "Changed for user ann: Rate." in messages_of(
            act(admin_client, "ann", "limits", **{**fields, "rate": ""})
        )
        assert queue.user("ann").stats().rate is None
        for given, burst in (("7", 7), ("", 1)):
            page = act(admin_client, "ann", "limits", **{**fields, "rate": "5/s", "burst": given})
            assert "Changed for user ann: " in messages_of(page)
            stats = queue.user("ann").stats()
            assert (stats.rate, stats.burst) == ("5/1s", burst)

    def test_what_did_not_change_is_left_alone(self, admin_client: Client, queue: FairQueue) -> None:
        assert "Nothing was changed for user ann." in messages_of(act(admin_client, "ann", "limits", **limits()))

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
    def test_a_mistake_stands_next_to_its_field_and_the_rest_is_kept(
        self, admin_client: Client, queue: FairQueue, field: str, value: str, words: str
    ) -> None:
        fields = limits(**{"weight": "3", "max_running": "7", field: value})
        answer = act(admin_client, "ann", "limits", **fields)
        form = answer.context["form"]  # type: ignore[attr-defined]
        assert list(form.errors) == [field]
        assert words in form.errors[field][0]
        text = answer.content.decode()
        assert 'class="fq-error" role="alert"' in text
        for name in {"max_running", "weight"} - {field}:
            assert f'value="{fields[name]}"' in text
        assert "data-refresh" not in text
        assert queue.user("ann").stats().weight == 1, "all or nothing"
        assert not LogEntry.objects.exists()

    def test_a_purge_asks_with_the_count_and_then_does_it(self, admin_client: Client, queue: FairQueue) -> None:
        push(queue, "ann", 3)
        push(queue, "ann", 2, execute_after=4e9)
        push(queue, "bob", 1)
        queue.pop("w", ["ann"])
        question = act(admin_client, "ann", "purge")
        text = question.content.decode()
        assert "All 4 tasks that user ann has waiting will be canceled." in text
        assert '<input type="hidden" name="confirm" value="yes">' in text
        assert queue.get_queue_sizes("ann").total == 5
        assert not LogEntry.objects.exists()
        fields = dict(question.context["pairs"])  # type: ignore[attr-defined]
        answer = admin_client.post(url(user="ann"), {**fields, "action": "purge", "confirm": "yes"}, follow=True)
        assert "4 tasks of user ann were canceled." in messages_of(answer)
        sizes = queue.get_queue_sizes("ann")
        assert (sizes.total, sizes.running) == (1, 1)
        assert queue.get_queue_sizes("bob").ready == 1
        assert LogEntry.objects.get().object_id == "default: ann"

    def test_a_large_purge_goes_on_in_slices(
        self, admin_client: Client, queue: FairQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(purging, "PURGES_PER_REQUEST", 3)
        push(queue, "ann", 5)
        push(queue, "ann", 2, execute_after=4e9)
        asked = said(act(admin_client, "ann", "purge").content.decode())
        assert "At most 3 tasks are canceled at once" in asked
        for left in (4, 1):
            text = said(act(admin_client, "ann", "purge", confirm="yes").content.decode())
            assert "Go on? 3 tasks of user ann were canceled." in text
            assert queue.get_queue_sizes("ann").total == left
        answer = act(admin_client, "ann", "purge", confirm="yes")
        assert "1 task of user ann was canceled." in messages_of(answer)
        assert queue.get_queue_sizes("ann").total == 0
        assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
            *(["3 tasks of user ann were canceled."] * 2),
            "1 task of user ann was canceled.",
        ]

    def test_there_may_be_nothing_to_purge(self, admin_client: Client, queue: FairQueue) -> None:
        assert "nothing waiting" in messages_of(act(admin_client, "ann", "purge", confirm="yes"))

    def test_a_user_that_can_not_be_is_refused(self, admin_client: Client, queue: FairQueue) -> None:
        for action in ("pause", "resume", "limits", "purge"):
            answer = admin_client.post(url(), {"user": "", "action": action, **limits(), "confirm": "yes"}, follow=True)
            assert "user_id" in messages_of(answer)
        assert not LogEntry.objects.exists()
