"""Users' plans in the admin: on the list of users, and on a user's page."""

from __future__ import annotations

from functools import partial

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import page_url, read
from tests.fixture_types import Client, FairQueue, Settings
from tests.tasks.plans import PLAN

pytestmark = pytest.mark.django_db

url = partial(page_url, "users")


@pytest.fixture
def planned(queue: FairQueue, settings: Settings) -> FairQueue:
    """A queue with two plans, and ann with plan pro."""
    plans = {"free": {"MAX_RUNNING": 2}, "pro": {"WEIGHT": 5, "MAX_BACKLOG": 100}}
    settings.FAIRQUE = {**settings.FAIRQUE, "PLANS": plans, "PLAN_OF": "tests.tasks.plans.plan_of"}
    PLAN.clear()
    PLAN["ann"] = "pro"
    queue = get_queue()
    queue.push_batch([Task.create(user, 3, None) for user in ("ann", "bob")])
    return queue


def test_users_are_shown_with_their_plans_and_listed_by_plan(admin_client: Client, planned: FairQueue) -> None:
    text = read(admin_client, url())
    assert f'<a href="{url(queue="default", plan="pro")}">plan pro</a>'.replace("&", "&amp;") in text
    answer = admin_client.get(url(plan="free"))
    assert [row.user_id for row, _ in answer.context["table"]] == ["bob"]
    assert "Users of plan free, those with something to do first" in answer.content.decode()
    assert "No user has plan gold" in read(admin_client, url(plan="gold"))


def test_the_page_of_a_user_shows_its_plan_and_its_own_limits(admin_client: Client, planned: FairQueue) -> None:
    planned.user("ann").set_max_backlog_bytes(5_000)
    planned.user("ann").set_weight(7)
    text = read(admin_client, url(user="ann"))
    assert "plan pro</bdi></a>" in text
    assert "set for this user: Backlog in bytes, Weight" in text
    assert "<option selected>pro</option>" in text


def test_an_operator_sets_the_plan_of_a_user_and_restores_its_usual_plan(
    admin_client: Client, planned: FairQueue
) -> None:
    admin_client.post(url(), {"action": "plan", "user": "bob", "plan": "pro"})
    stats = planned.user("bob").stats()
    assert (stats.plan, stats.weight, stats.explicit) == ("pro", 5, ("plan",))
    text = admin_client.post(url(), {"action": "plan", "user": "bob", "plan": "gold"}, follow=True).content.decode()
    assert "There is no plan &#x27;gold&#x27; in the setting PLANS" in text
    admin_client.post(url(), {"action": "plan", "user": "bob", "plan": ""})
    stats = planned.user("bob").stats()
    assert (stats.plan, stats.max_running, stats.explicit) == ("free", 2, ())
