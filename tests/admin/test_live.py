"""The page Live: a minute of all slots, by user, and who is waiting."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from django_fairque.admin.pages.live import OTHERS_CLASS, SLOTS_DRAWN, USERS_COLORED, user_classes
from django_fairque.engine.inspection.worker_activity import encode_activity
from django_fairque.engine.model.task import Task
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info
from tests.admin.page_reader import page_url, read, words_of
from tests.fixture_types import Client, FairQueue
from tests.leases import pop

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert(1)</script>"


URL = page_url("live")


def beat(queue: FairQueue, worker: str, *slots: list[str], age: float = 0.0) -> None:
    """A heartbeat of a worker whose slots ran these users, a second each, until ``age`` seconds ago."""
    activity = encode_activity(time.time() - age, [(samples, None) for samples in slots])
    options = WorkerOptions(worker, queues=("default",), concurrency=len(slots))
    queue.heartbeat(worker, worker_info(options, done=0, running=0, status="working", activity=activity))


def users(client: Client) -> dict[str, Any]:
    return {user.user_id: user for user in client.get(URL).context["users"]}


def test_each_slot_is_drawn_by_user(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, "w1", ["ann"] * 30 + [""] * 10 + ["bob"] * 20, [""] * 60)
    response = admin_client.get(URL)
    (first, paths), (second, second_paths) = response.context["slots"]
    assert (first.worker, first.number, first.utilization, second.utilization) == ("w1", 1, "83.3 %", "0 %")
    (idle,) = (path for path in paths if path[0] == "fq-live-idle")
    busy = [path for path in paths if path != idle]
    colors = user_classes({"ann": 1, "bob": 1})
    assert sorted(busy) == sorted([(colors["ann"], "M0 0h30v1h-30z"), (colors["bob"], "M40 0h20v1h-20z")])
    assert idle == ("fq-live-idle", "M30 0h10v1h-10z")
    assert second_paths == [("fq-live-idle", "M0 0h60v1h-60z")]
    text = response.content.decode()
    assert "busy for 41.7 % of the time" in text
    found = users(admin_client)
    assert [(name, user.seconds, user.part) for name, user in found.items()] == [
        ("ann", 30, "60 %"),
        ("bob", 20, "40 %"),
    ]


def test_the_row_of_an_older_report_ends_earlier(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, "old", ["ann"] * 60, age=10.5)
    beat(queue, "short", ["bob"] * 5)
    (_old, paths), (_short, short_paths) = admin_client.get(URL).context["slots"]
    colors = user_classes({"ann": 1, "bob": 1})
    assert short_paths == [(colors["bob"], "M55 0h5v1h-5z")]
    assert paths in ([(colors["ann"], "M0 0h50v1h-50z")], [(colors["ann"], "M0 0h49v1h-49z")])


def test_a_user_keeps_its_color_when_other_users_appear_or_disappear() -> None:
    """In 400 visits another user has come: fewer than 15 % of the users with a color get another one."""
    rng, changed, compared = random.Random(7), 0, 0
    for _ in range(400):
        some = [f"customer-{rng.randrange(10_000)}" for _ in range(6)]
        before, after = user_classes(dict.fromkeys(some[:5], 9)), user_classes(dict.fromkeys(some, 9))
        assert len(set(after.values())) == len(after)
        compared += len(before)
        changed += sum(after[user] != color for user, color in before.items())
    assert compared >= 1900
    assert changed / compared < 0.15
    assert user_classes({"acme": 1}) == user_classes({"acme": 50})


def test_users_without_a_color_of_their_own_share_one_color(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, "w1", ["noisy"] * 20 + [f"user{n:02}" for n in range(12)] * 3)
    response = admin_client.get(URL)
    ((_slot, paths),) = response.context["slots"]
    classes = [css_class for css_class, _path in paths]
    assert len(classes) == USERS_COLORED + 1
    assert OTHERS_CLASS in classes
    assert response.context["others"] > 0
    assert "all others" in response.content.decode()


def test_waiting_users_are_shown_with_the_reason(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, "w1", ["noisy"] * 60)
    queue.push_batch([Task.create(user, 3, {"args": []}) for user in ("noisy", "noisy", HOSTILE, "capped", "capped")])
    queue.user(HOSTILE).pause()
    queue.user("capped").set_max_running(1)
    queue.user("noisy").set_weight(0.5)
    pop(queue, "w1", users=["capped"])
    found = users(admin_client)
    assert {name: user.waits for name, user in found.items()} == {
        "noisy": "waits for its turn",
        HOSTILE: "paused",
        "capped": "waits for its own running tasks",
    }
    assert next(iter(found)) == "noisy"
    noisy, hostile = found["noisy"], found[HOSTILE]
    assert (noisy.fairness.ready, noisy.css_class, hostile.css_class) == (2, user_classes({"noisy": 60})["noisy"], "")
    assert noisy.fairness.weight == 0.5
    assert "100 % 0.500 " in words_of(admin_client.get(URL).content.decode())
    assert HOSTILE not in admin_client.get(URL).content.decode()


def test_a_forgotten_user_stays_in_the_chart(admin_client: Client, queue: FairQueue) -> None:
    beat(queue, "w1", ["gone"] * 60)
    (gone,) = users(admin_client).values()
    assert (gone.user_id, gone.seconds, gone.waits) == ("gone", 60, "")


def test_slots_that_are_not_drawn_are_counted(admin_client: Client, queue: FairQueue) -> None:
    for number in range(5):
        beat(queue, f"w{number}", *([["ann"] * 60] * 20))
    response = admin_client.get(URL)
    assert len(response.context["slots"]) == SLOTS_DRAWN
    assert response.context["slots_left_out"] == 100 - SLOTS_DRAWN


@pytest.mark.parametrize(
    "activity",
    [
        "",
        "nonsense",
        '{"at": -1e300, "users": [], "slots": []}',
        '{"at": 1e300, "users": [""], "slots": [["a", null]]}',
    ],
)
def test_damaged_reports_are_left_out(admin_client: Client, queue: FairQueue, activity: str) -> None:
    queue.heartbeat("w1", {"activity": activity, "concurrency": "9" * 5000})
    response = admin_client.get(URL)
    assert response.status_code == 200
    assert "No worker has reported" in response.content.decode() or response.context["slots"]


def test_without_workers_the_page_reports_this_and_is_still_refreshed(admin_client: Client, queue: FairQueue) -> None:
    text = read(admin_client, URL)
    for words in ("No worker serves this queue", "No user runs or waits", 'data-refresh="2"'):
        assert words in text


def serve(queue: FairQueue, quiet: str) -> None:
    """One slot, busy for 30 seconds: five tasks of ``noisy`` that were there first, and one of ``quiet`` that starts second."""
    now = time.time()
    queue.push_batch([Task.create("noisy", 3, None) for _ in range(5)], now=now - 50)
    queue.push(Task.create(quiet, 3, None), now=now - 49)
    for number, user in enumerate(["noisy", quiet, "noisy", "noisy", "noisy"]):
        queue.finish(pop(queue, "w1", [user], now=now - 49 + 6 * number), took=6, now=now - 43 + 6 * number)


def test_waits_are_compared_with_those_of_first_come_first_served(admin_client: Client, queue: FairQueue) -> None:
    serve(queue, HOSTILE)
    response = admin_client.get(URL)
    text = response.content.decode()
    assert response.context["comparison_text"] == (
        "Compared with first come, first served: fair turns saved 1 user about 18 s; noisy was delayed by about 4.5 s."
    )
    rows = {user.user_id: (user.tasks, user.waited, user.first_come) for user in response.context["compared"]}
    assert rows == {HOSTILE: pytest.approx((1, 6, 24)), "noisy": pytest.approx((4, 14.5, 10))}
    assert "a replay of samples: the records of 5 of 5 tasks" in text
    assert HOSTILE not in text


def test_no_comparison_is_shown_when_no_users_competed(admin_client: Client, queue: FairQueue) -> None:
    serve(queue, "quiet")
    beat(queue, "w1", *([[""] * 60] * 8))
    response = admin_client.get(URL)
    assert response.context["comparison_text"] == "", "there are slots for all of them"
    assert "first come" not in response.content.decode()


def test_the_heat_map_shows_who_waited_longest_in_the_last_day(admin_client: Client, queue: FairQueue) -> None:
    begin = time.time() // 1800 * 1800
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", HOSTILE)], now=begin - 1800)
    queue.sweep(now=begin - 1740)
    queue.user(HOSTILE).purge(now=begin - 1740)
    queue.sweep(now=begin)
    response = admin_client.get(URL)
    assert response.context["heat_rows"][1:] == [
        ("ann", 1800, [("fq-heat-3", "M46 0h1v1h-1z"), ("fq-heat-4", "M47 0h1v1h-1z")]),
        (HOSTILE, 60, [("fq-heat-3", "M46 0h1v1h-1z"), ("fq-live-idle", "M47 0h1v1h-1z")]),
    ]
    assert response.context["heat_rows"][0][:2] == ("", 1800)
    assert response.context["heat_figures"] == [
        (begin, 1800, [("ann", 1800)]),
        (begin - 1800, 60, [("ann", 60), (HOSTILE, 60)]),
    ]
    text = response.content.decode()
    assert "Longest waits in each half hour" in text
    assert HOSTILE not in text


def test_without_waits_there_is_no_heat_map(admin_client: Client, queue: FairQueue) -> None:
    queue.sweep()
    response = admin_client.get(URL)
    assert response.context["heat_rows"] == []
    assert "Longest waits" not in response.content.decode()
