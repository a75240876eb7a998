"""Plans of users in settings: their limits come with the users' tasks."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from django_fairque import BacklogFullError, TaskValidationError, chain, get_queue, task
from django_fairque.conf import get_config, reset_config
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.tasks.schedules import sync_schedules
from django_fairque.worker.common.options import WorkerOptions
from django_fairque.worker.leases.heartbeat import worker_info
from tests.counting import commands
from tests.engine.conftest import sweep_all
from tests.fixture_types import Redis, Server, Settings
from tests.leases import pop

from .helpers import awaited, noop
from .plans import CALLS, PLAN

FREE = {"WEIGHT": 1, "MAX_RUNNING": 2, "RATE": "60/m", "MAX_BACKLOG": 10}
PRO = {"WEIGHT": 5, "MAX_RUNNING": 20}
PATH = "tests.tasks.plans.plan_of"


class Configure(Protocol):
    """Replace the settings, as a process that starts with them has them, and return its queue."""

    def __call__(self, plans: dict[str, Any] | None = None, **options: Any) -> FairQueue: ...


@pytest.fixture
def configure(server: Server, redis: Redis, settings: Settings) -> Iterator[Configure]:
    def change(plans: dict[str, Any] | None = None, **options: Any) -> FairQueue:
        declared = {"free": FREE, "pro": PRO} if plans is None else plans
        settings.FAIRQUE = {"REDIS": {"URL": server.url}, "PLANS": declared, "PLAN_OF": PATH, **options}
        return get_queue()

    yield change
    PLAN.clear()
    CALLS.clear()
    assert get_queue().check_invariants() == []


@pytest.fixture
def queue(configure: Configure) -> FairQueue:
    return configure()


def limits(queue: FairQueue, user: str = "acme") -> tuple[Any, ...]:
    stats = queue.user(user).stats()
    return (stats.plan, stats.weight, stats.max_running, stats.rate, stats.max_backlog)


def declare() -> Any:
    """Declare a task whose user is its argument."""

    @task(user="customer", name="work")
    def work(customer: str) -> None: ...

    return work


LIMITS_OF_FREE = ("free", 1.0, 2, "60/60s", 10)
LIMITS_OF_PRO = ("pro", 5.0, 20, None, None)
NO_LIMITS = (None, 1.0, None, None, None)


def change_plan(user: str, plan: Any) -> None:
    """Change a user's plan, and let this process look it up again."""
    PLAN[user] = plan
    reset_config()


def test_a_user_has_the_limits_of_its_plan_from_its_first_task_on(queue: FairQueue) -> None:
    PLAN["acme"] = "pro"
    work = declare()
    work.enqueue(customer="acme")
    work.enqueue(customer="bob")
    assert limits(queue) == LIMITS_OF_PRO
    assert limits(queue, "bob") == LIMITS_OF_FREE


def test_an_emptied_server_has_the_limits_at_the_next_task(queue: FairQueue, redis: Redis) -> None:
    noop().using(user_id="acme").enqueue()
    redis.flushall()
    noop().using(user_id="acme").enqueue()
    assert limits(queue) == LIMITS_OF_FREE


def test_the_backlog_of_a_plan_counts_for_the_first_call(queue: FairQueue) -> None:
    with pytest.raises(BacklogFullError) as refused:
        noop().using(user_id="acme").enqueue_many([((number,), {}) for number in range(12)])
    assert len(refused.value.refused) == 2


def test_a_higher_limit_of_a_new_plan_lets_waiting_tasks_start(queue: FairQueue) -> None:
    work = noop().using(user_id="acme")
    work.enqueue_many([((number,), {}) for number in range(5)])
    queue.user("acme").set_rate(None)
    assert len(queue.pop_batch(10, "w")) == 2
    change_plan("acme", "pro")
    work.enqueue()
    assert len(queue.pop_batch(10, "w")) == 4


@pytest.mark.parametrize("way", ["many", "async", "graph", "event", "schedule"])
def test_every_way_to_send_a_task_brings_the_plan(queue: FairQueue, configure: Configure, way: str) -> None:
    work = declare()
    if way == "many":
        work.enqueue_many([((), {"customer": "acme"}) for _ in range(3)])
    elif way == "async":
        awaited(work.aenqueue, "acme")
    elif way == "graph":
        chain(work.s(customer="acme"), work.s(customer="acme")).enqueue()
    elif way == "event":
        queue.deliver([work.s("acme").to_task()], from_outbox=True)
    else:
        every_second = {"TASK": "work", "EVERY": 1, "ARGS": ["acme"]}
        queue = configure(SCHEDULES={"nightly": every_second})
        sync_schedules()
        (schedule,) = queue.schedules.list()
        assert schedule.next_at is not None
        queue.schedules.fire_due(now=schedule.next_at + 1)
    assert limits(queue) == LIMITS_OF_FREE


def test_a_plan_is_looked_up_once_in_a_minute(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    work = noop().using(user_id="acme")
    for _ in range(3):
        work.enqueue()
    assert CALLS == ["acme"]
    monkeypatch.setattr("django_fairque.engine.model.plans.PLAN_CACHE_SECONDS", 0)
    work.enqueue()
    assert CALLS == ["acme", "acme"]


def test_the_plans_of_a_limited_number_of_users_are_kept(queue: FairQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_fairque.engine.model.plans.MAX_CACHED_USERS", 2)
    for user in ("a", "b", "c", "c", "a"):
        noop().using(user_id=user).enqueue()
    assert CALLS == ["a", "b", "c", "a"]


def test_an_error_of_the_function_loses_no_task_and_is_logged_once(
    queue: FairQueue, caplog: pytest.LogCaptureFixture
) -> None:
    noop().using(user_id="acme").enqueue()
    change_plan("acme", ValueError("no database"))
    with caplog.at_level(logging.WARNING, "django_fairque.tasks"):
        for _ in range(3):
            noop().using(user_id="acme").enqueue()
    (line,) = [record.getMessage() for record in caplog.records if "PLAN_OF" in record.getMessage()]
    assert f"PLAN_OF ({PATH}) raised ValueError: no database; tasks of user 'acme'" in line
    assert queue.user("acme").stats().sizes.ready == 4
    assert limits(queue) == LIMITS_OF_FREE


@pytest.mark.parametrize(
    ("name", "hint"), [("fre", "did you mean 'free'?"), (7, "expected the name of a plan, or None")]
)
def test_an_unknown_plan_is_logged_and_changes_nothing(
    queue: FairQueue, caplog: pytest.LogCaptureFixture, name: Any, hint: str
) -> None:
    PLAN["acme"] = name
    noop().using(user_id="acme").enqueue()
    (line,) = [record.getMessage() for record in caplog.records if "PLAN_OF" in record.getMessage()]
    assert f"returned {name!r} for user 'acme', and PLANS has no such plan ({hint})" in line
    assert limits(queue) == NO_LIMITS


def test_a_user_without_a_plan_has_no_limits_any_more(queue: FairQueue) -> None:
    noop().using(user_id="acme").enqueue()
    change_plan("acme", None)
    noop().using(user_id="acme").enqueue()
    assert limits(queue) == NO_LIMITS


class TestVersions:
    """Processes with other settings, and those that looked up a plan earlier."""

    def deploy(self, configure: Configure, version: str, plans: dict[str, Any]) -> FairQueue:
        """Become a process of this version, which workers report."""
        queue = configure(plans, CODE_VERSION=version)
        queue.heartbeat(f"worker-{version}", {"code_version": version})
        return queue

    def test_a_changed_setting_takes_effect_at_the_next_task(self, configure: Configure) -> None:
        self.deploy(configure, "v1", {"free": FREE})
        noop().using(user_id="acme").enqueue()
        queue = self.deploy(configure, "v2", {"free": {"MAX_RUNNING": 3}})
        noop().using(user_id="acme").enqueue()
        assert limits(queue) == ("free", 1.0, 3, None, None)

    def test_a_process_with_older_settings_changes_nothing(self, configure: Configure) -> None:
        self.deploy(configure, "v1", {"free": FREE})
        self.deploy(configure, "v2", {"free": {"MAX_RUNNING": 3}})
        noop().using(user_id="acme").enqueue()
        queue = configure({"free": FREE}, CODE_VERSION="v1")
        noop().using(user_id="acme").enqueue()
        assert limits(queue) == ("free", 1.0, 3, None, None)

    def test_a_version_that_no_worker_runs_yet_is_the_newest(self, configure: Configure) -> None:
        self.deploy(configure, "v1", {"free": FREE})
        queue = configure({"free": {"MAX_RUNNING": 3}}, CODE_VERSION="v2")
        noop().using(user_id="acme").enqueue()
        configure({"free": FREE}, CODE_VERSION="v1")
        noop().using(user_id="acme").enqueue()
        assert limits(queue) == ("free", 1.0, 3, None, None)

    def test_an_older_version_that_is_deployed_again_counts(self, configure: Configure) -> None:
        for version, plans in (("v1", {"free": FREE}), ("v2", {"free": {"MAX_RUNNING": 3}})):
            self.deploy(configure, version, plans)
            noop().using(user_id="acme").enqueue()
        queue = configure({"free": FREE}, CODE_VERSION="v1")
        later = time.time() + 1000
        queue.heartbeat("worker-v1", {"code_version": "v1"}, now=later)
        queue.push(noop().using(user_id="acme").s().to_task(), now=later)
        assert limits(queue) == LIMITS_OF_FREE

    def test_changed_plans_are_a_version_of_their_own_without_a_code_version(self, configure: Configure) -> None:
        versions = []
        for plans in ({"free": FREE}, {"free": PRO}, {"free": FREE}, {}):
            configure(plans, PLAN_OF=PATH if plans else None)
            versions.append(
                worker_info(WorkerOptions.from_config(get_config().worker), done=0, running=0, status="working")[
                    "code_version"
                ]
            )
        assert versions[0] == versions[2]
        assert len(set(versions)) == 3

    def test_a_plan_that_was_looked_up_earlier_changes_nothing(self, queue: FairQueue, redis: Redis) -> None:
        early = FairQueue(redis, config=queue.config)
        work = noop().using(user_id="acme")
        early.push(work.s().to_task())
        change_plan("acme", "pro")
        work.enqueue()
        early.push(work.s().to_task())
        assert limits(get_queue()) == LIMITS_OF_PRO

    def test_a_user_whose_plan_changes_with_each_task_has_the_last_one(self, queue: FairQueue) -> None:
        for number in range(20):
            change_plan("acme", ("pro", "free", None)[number % 3])
            noop().using(user_id="acme").enqueue()
            expected = (LIMITS_OF_PRO, LIMITS_OF_FREE, NO_LIMITS)[number % 3]
            assert limits(get_queue()) == expected
            if number % 4 == 0 and (leases := get_queue().pop_batch(1, "w")):
                get_queue().finish(leases[0])
            if number % 5 == 4:
                get_queue().purge(100)
            assert get_queue().check_invariants() == []


class TestOwnLimits:
    """Limits that a call sets for one user."""

    def test_a_limit_that_was_set_stays_when_the_plan_changes(self, queue: FairQueue) -> None:
        noop().using(user_id="acme").enqueue()
        queue.user("acme").set_weight(9)
        queue.user("acme").set_max_running(None)
        change_plan("acme", "pro")
        noop().using(user_id="acme").enqueue()
        assert limits(get_queue()) == ("pro", 9.0, None, None, None)
        assert set(get_queue().user("acme").stats().explicit) == {"weight", "max_running"}

    def test_limits_from_before_the_first_plan_stay(self, configure: Configure) -> None:
        configure({}, PLAN_OF=None).user("acme").set_max_running(7)
        queue = configure()
        noop().using(user_id="acme").enqueue()
        assert limits(queue) == ("free", 1.0, 7, "60/60s", 10)

    def test_no_plan_removes_own_limits_and_restores_the_usual_plan(self, queue: FairQueue) -> None:
        noop().using(user_id="acme").enqueue()
        user = queue.user("acme")
        user.set_weight(9)
        user.set_rate("5/s", burst=3)
        PLAN["acme"] = "pro"
        user.set_plan(None)  # also looks up the plan, although it is known for a minute
        assert limits(queue) == LIMITS_OF_PRO
        assert user.stats().explicit == ()

    def test_a_chosen_plan_stays_until_none_is_chosen(self, queue: FairQueue) -> None:
        user = queue.user("acme")
        user.set_plan("pro")
        noop().using(user_id="acme").enqueue()
        assert limits(queue) == LIMITS_OF_PRO
        assert user.stats().explicit == ("plan",)
        user.set_plan(None)
        assert limits(queue) == LIMITS_OF_FREE

    def test_a_rate_keeps_its_used_tokens_when_the_plan_is_restored(self, configure: Configure) -> None:
        queue = configure({"free": {"RATE": "1/h"}})
        noop().using(user_id="acme").enqueue_many([((), {})] * 2)
        pop(queue)
        queue.user("acme").set_plan(None)
        assert queue.pop("w") is None

    @pytest.mark.parametrize(
        ("plans", "name", "message"),
        [
            (None, "fre", "there is no plan 'fre' in the setting PLANS; did you mean 'free'?"),
            (None, 7, "there is no plan 7 in the setting PLANS; expected a name, or None"),
            ({}, "free", "there is no plan 'free': the setting PLANS is empty"),
        ],
    )
    def test_an_unknown_plan_is_refused(self, configure: Configure, plans: Any, name: Any, message: str) -> None:
        queue = configure(plans, PLAN_OF=None)
        with pytest.raises(TaskValidationError, match=re.escape(message)):
            queue.user("acme").set_plan(name)
        assert limits(queue) == NO_LIMITS

    def test_a_user_moves_to_another_shard_with_its_plan_and_its_own_limits(self, configure: Configure) -> None:
        queue = configure(PLAN_OF=None)
        for number in range(10):
            queue.user(f"u{number}").set_plan("pro")
            queue.user(f"u{number}").set_weight(9)
        queue.reshard(4)
        queue = configure(QUEUE={"SHARDS": 4})
        for number in range(10):
            assert limits(queue, f"u{number}") == ("pro", 9.0, 20, None, None)
            assert set(queue.user(f"u{number}").stats().explicit) == {"weight", "plan"}
        queue.reshard(1)
        queue = configure(PLAN_OF=None)
        assert {limits(queue, f"u{number}") for number in range(10)} == {("pro", 9.0, 20, None, None)}


def test_the_users_of_a_graph_on_several_shards_have_their_plans(configure: Configure) -> None:
    queue = configure(QUEUE={"SHARDS": 4})
    work = declare()
    users = [f"u{number}" for number in range(12)]
    chain(*(work.s(user) for user in users)).enqueue()
    while queue.carry_messages():
        pass
    assert {limits(queue, user) for user in users} == {LIMITS_OF_FREE}


class TestCosts:
    def test_a_push_takes_more_commands_only_if_the_plan_differs(self, configure: Configure, redis: Redis) -> None:
        work = noop().using(user_id="acme")
        configure({}, PLAN_OF=None)
        work.enqueue()
        without = commands(redis, work.enqueue)
        configure()
        noop().using(user_id="other").enqueue()  # the first call of a client checks the server
        assert (
            commands(redis, work.enqueue) <= without + 3
        )  # the deployments, removed fields, and the user's whole record
        assert commands(redis, work.enqueue) == without
        change_plan("acme", "pro")
        noop().using(user_id="other").enqueue()
        assert commands(redis, work.enqueue) <= without + 3
        assert commands(redis, lambda: work.enqueue_many([((), {})] * 3)) <= without + 6

    @pytest.mark.thorough
    def test_idle_users_with_plans_are_forgotten(self, queue: FairQueue, redis: Redis) -> None:
        work = declare()
        work.enqueue_many([((), {"customer": f"u{number}"}) for number in range(10_000)])
        queue.purge(10_000)
        queue.user("u0").set_max_running(7)
        later = 4_000_000_000.0
        sweep_all(queue, later)
        assert redis.zcard("fq:{default:0}:users") == 1
        assert limits(queue, "u1") == NO_LIMITS
        assert queue.user("u0").stats().max_running == 7

    def test_a_used_rate_is_not_forgotten_with_the_user(self, configure: Configure) -> None:
        queue = configure({"free": {"RATE": "1/d"}})
        now = 4_000_000_000.0
        noop().using(user_id="acme").enqueue()
        queue.sweep(now=now)
        queue.finish(pop(queue, now=now), now=now)
        for moment in (now + 2 * 3600, now + 23 * 3600):
            sweep_all(queue, moment)
            noop().using(user_id="acme").enqueue()
            assert queue.pop("w", now=moment) is None
            queue.purge(10, now=moment)
