"""Users' plans on the command line."""

from __future__ import annotations

import json

import pytest
from django.core.management import CommandError

from django_fairque.conf import get_queue
from tests.fixture_types import FairQueue, Redis, Server, Settings
from tests.tasks.plans import PLAN

from .conftest import Push, Run


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    PLAN.clear()
    settings.FAIRQUE = {
        "REDIS": {"URL": server.url},
        "PLANS": {"free": {"MAX_RUNNING": 2}, "pro": {"WEIGHT": 5}},
        "PLAN_OF": "tests.tasks.plans.plan_of",
    }
    return get_queue()


def test_users_are_listed_with_their_plans_and_by_plan(run: Run, push: Push) -> None:
    for user in ("ann", "bob"):
        push(user)
    run("fairque_user", "plan", "ann", "pro")
    lines = [line.split() for line in run("fairque_user", "list", "--sort", "user").splitlines()]
    plan = lines[0].index("plan")
    assert [line[plan] for line in lines[1:3]] == ["pro", "free"]
    (line,) = run("fairque_user", "list", "--plan", "pro", "--json").splitlines()
    user = json.loads(line)
    assert (user["user_id"], user["plan"], user["weight"], user["explicit"]) == ("ann", "pro", 5, ["plan"])
    with pytest.raises(CommandError, match="--organization does not go with --plan"):
        run("fairque_user", "list", "--plan", "pro", "--organization", "acme")


def test_the_usual_plan_of_a_user_is_restored(run: Run, push: Push) -> None:
    push("ann")
    run("fairque_user", "plan", "ann", "pro")
    run("fairque_user", "weight", "ann", "7")
    shown = run("fairque_stats", "--user", "ann")
    assert "user 'ann': plan pro, weight 7" in shown
    assert "set for this user, whatever its plan is: weight, plan" in shown.replace("plan, weight", "weight, plan")
    run("fairque_user", "plan", "ann", "none")
    shown = run("fairque_stats", "--user", "ann")
    assert "user 'ann': plan free, weight 1, running 2" in shown
    assert "set for this user" not in shown


def test_an_unknown_plan_is_named_on_the_command_line(run: Run, push: Push) -> None:
    push("ann")
    with pytest.raises(CommandError, match=r"there is no plan 'por' in the setting PLANS; did you mean 'pro'\?"):
        run("fairque_user", "plan", "ann", "por")
