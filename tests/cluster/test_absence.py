"""A node of the cluster is away: what the others know is told, and that it is not all."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.urls import reverse

from django_fairque.conf import RedisConfig
from django_fairque.conf.clients import aclose_client
from django_fairque.engine import nodes as cluster_nodes
from django_fairque.engine.aio import AsyncFairQueue
from django_fairque.engine.errors import ConfigurationError, RedisConnectionError, ShardsAwayError
from django_fairque.engine.finding import Search
from django_fairque.engine.ids import bucket_of
from django_fairque.engine.models import Task
from django_fairque.engine.options import QueueConfig
from django_fairque.engine.queue import FairQueue
from django_fairque.engine.records import TaskState
from django_fairque.monitoring.health import judged
from django_fairque.monitoring.lookout import Lookout
from django_fairque.monitoring.monitor import MonitorAlert, Rule, StatsMonitor
from django_fairque.monitoring.prometheus import exposition
from tests.engine.conftest import task
from tests.worker.conftest import eventually

from .conftest import SHARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_fairque.engine.listing import Listed

    from .six import Six

pytestmark = pytest.mark.xdist_group("cluster")

VICTIM = 3
DEADLINE = 0.5
"""Seconds for which calls are repeated in these tests, and for which one reply is waited for."""
SLOWEST = 3.0
"""Seconds for what takes a few of these at most; one after the other, the victim's shards would take more."""
CONFIG = QueueConfig(shards=SHARDS, pipeline_timeout=DEADLINE)
USERS = [f"user-{number}" for number in range(60)]


def shard_of(user: str) -> int:
    return bucket_of(user) % SHARDS


class Away:
    """One of the three primaries, and its replica, that can be taken away."""

    def __init__(self, six: Six, shard: int) -> None:
        self.six = six
        self.primary = six.primary_of(shard)
        (self.replica,) = six.replicas_of(self.primary)
        self.shards = tuple(each for each in range(SHARDS) if six.primary_of(each) == self.primary)
        self.users = [user for user in USERS if shard_of(user) in self.shards]
        self.others = [user for user in USERS if shard_of(user) not in self.shards]
        self.alive = next(port for port in six.nodes if port not in (self.primary, self.replica))

    @property
    def url(self) -> str:
        """Of another node."""
        return f"redis://127.0.0.1:{self.alive}"

    def kill(self) -> None:
        for port in (self.replica, self.primary):
            self.six.nodes[port].kill()

    def start(self) -> None:
        for port in (self.primary, self.replica):
            self.six.nodes[port].start()


@pytest.fixture
def away(six: Six) -> Away:
    return Away(six, VICTIM)


@pytest.fixture
def open_queue(away: Away) -> Iterator[Callable[..., FairQueue]]:
    """A queue on a client of its own, as another process has it."""
    opened = []

    def open_queue(shards: int = SHARDS) -> FairQueue:
        config = RedisConfig(url=away.url, cluster=True, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE)
        opened.append(config.create_redis_client())
        return FairQueue(opened[-1], config=CONFIG.model_copy(update={"shards": shards}))

    yield open_queue
    for client in opened:
        client.close()


@pytest.fixture
def queue(open_queue: Callable[..., FairQueue]) -> FairQueue:
    """With a task of each user."""
    queue = open_queue()
    queue.push_batch([task(user) for user in USERS])
    return queue


@contextmanager
def stopped(away: Away) -> Iterator[None]:
    """The nodes take what they are sent and answer nothing."""
    for port in (away.replica, away.primary):
        os.kill(away.six.nodes[port].pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for port in (away.replica, away.primary):
            os.kill(away.six.nodes[port].pid, signal.SIGCONT)


@contextmanager
def in_time(seconds: float = SLOWEST) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def test_figures_say_which_shards_are_missing(queue: FairQueue, away: Away) -> None:
    whole = queue.get_stats()
    assert (whole.states["queued"], whole.missing_shards) == (len(USERS), ())
    away.kill()
    stats = queue.get_stats()
    assert (stats.states["queued"], stats.users) == (len(away.others), len(away.others))
    assert stats.missing_shards == away.shards
    activity = queue.get_activity()
    assert sum(span.pushed for span in activity.spans) == len(away.others)
    assert activity.missing_shards == away.shards
    each = queue.get_shard_stats()
    assert [one.shard for one in each if not one.is_up] == list(away.shards)
    assert len(each) == SHARDS
    assert sum(one.depth for one in each) == len(away.others)


def test_health_is_degraded_and_says_so(queue: FairQueue, away: Away) -> None:
    away.kill()
    health = queue.health()
    assert health.status == "degraded"
    assert health.missing_shards == away.shards
    assert f"shards {', '.join(map(str, away.shards))} of {SHARDS} can't be reached" in health.reasons[0]


def test_pages_and_lists_go_on_without_them(queue: FairQueue, away: Away) -> None:
    page = queue.tasks("queued", limit=7)  # with a cursor from before
    away.kill()
    seen: list[Task] = []
    while page.cursor is not None:
        page = queue.tasks("queued", limit=7, cursor=page.cursor)
        seen += page.items
        assert page.missing_shards == away.shards
    assert {each.user_id for each in seen} <= set(away.others)
    users = queue.users(limit=100)
    assert (sorted(users.items), users.missing_shards) == (sorted(away.others), away.shards)
    found = queue.find(Search(TaskState.QUEUED), 100)
    assert ({each.user_id for each in found.tasks}, found.missing_shards) == (set(away.others), away.shards)
    matching = queue.matching(Search(TaskState.QUEUED))
    assert (len(matching.task_ids), matching.is_whole) == (len(away.others), False)
    assert matching.missing_shards == away.shards
    lists: list[Listed[Any]] = [queue.busy_users(), queue.busiest_users(), queue.longest_waits(), queue.workers()]
    assert [each.missing_shards for each in (*lists, queue.check_invariants())] == [away.shards] * 5
    assert set(queue.busy_users()) == set(away.others)


def test_dead_letters_and_schedules(queue: FairQueue, away: Away) -> None:
    for lease in queue.pop_batch(100, "w"):
        queue.fail(lease, "no", retry=False)
    here, there = away.others[0], away.users[0]
    for name, user in (("here", here), ("there", there)):
        queue.schedules.add(name, task=task(user), every=60)
    away.kill()
    page = queue.dlq.list(100)
    assert (len(page.items), page.missing_shards) == (len(away.others), away.shards)
    assert len(queue.dlq.letters(100).items) == len(away.others)
    counts = queue.dlq.counts()
    assert (counts["failed"], counts.missing_shards) == (len(away.others), away.shards)
    groups = queue.dlq.groups()
    assert (groups.groups[0].count, groups.is_whole, groups.missing_shards) == (len(away.others), False, away.shards)
    matching = queue.dlq.matching()
    assert (matching.count, matching.is_whole, matching.missing_shards) == (len(away.others), False, away.shards)
    found = queue.schedules.list()
    assert ([each.name for each in found], found.missing_shards) == (["here"], away.shards)
    queue.schedules.disable("here")
    queue.schedules.add("here", task=task(here), every=30)
    with pytest.raises(ShardsAwayError, match="whether there is a schedule 'new'"):
        queue.schedules.add("new", task=task(here), every=30)


def test_plain_numbers_are_not_told(queue: FairQueue, away: Away) -> None:
    queue.pause()
    away.kill()
    with pytest.raises(ShardsAwayError, match="how many dead letters") as caught:
        queue.dlq.count()
    assert caught.value.shards == away.shards
    with pytest.raises(ShardsAwayError, match="whether all is paused"):
        queue.is_paused()
    with pytest.raises(ShardsAwayError, match="resumed without"):
        queue.resume()
    assert queue.is_paused() is False
    assert {lease.user_id for lease in queue.pop_batch(100, "w")} == set(away.others)


def test_living_users_go_on_and_the_others_get_a_clear_error(queue: FairQueue, away: Away) -> None:
    away.kill()
    here, there = away.others[0], away.users[0]
    assert queue.push(task(here)).status == "accepted"
    with pytest.raises(RedisConnectionError), in_time():
        queue.push(task(there))
    second = task(here)
    with in_time():
        queue.push_graph([second, Task.create(away.others[1], 3, {}, depends_on=[second.task_id])], "run")
    batch = [task(user) for user in USERS]
    with (
        pytest.raises(ShardsAwayError, match=f"{len(away.users)} of {len(USERS)} tasks were not pushed") as caught,
        in_time(),
    ):
        queue.push_batch(batch)
    assert caught.value.shards == away.shards
    assert set(caught.value.task_ids) == {each.task_id for each in batch if each.user_id in away.users}
    assert queue.get_stats(0).states["queued"] == len(away.others) * 2 + 2


@pytest.mark.slow
def test_chosen_ids_are_found_on_living_shards(queue: FairQueue, away: Away) -> None:
    queue.push(Task.create(away.others[0], 3, {}, task_id="mine"))
    away.kill()
    assert queue.get_task("mine").user_id == away.others[0]
    with pytest.raises(ShardsAwayError, match="where task 'other' is"):
        queue.get_task("other")


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_is_missing_is_waited_for_once(queue: FairQueue, away: Away, how: str) -> None:
    """Not for each of its shards, nor for each figure: whoever looks again at once doesn't wait at all."""
    if how == "killed":
        away.kill()
        with in_time(SLOWEST):
            assert queue.get_stats().missing_shards == away.shards
        return
    with stopped(away):
        with in_time(SLOWEST):
            assert queue.get_stats().missing_shards == away.shards
        with in_time(SLOWEST):
            for _ in range(10):
                assert queue.get_stats().missing_shards == away.shards
            assert queue.users().missing_shards == away.shards


@pytest.mark.slow
def test_another_queue_of_the_same_client_knows_it_too(queue: FairQueue, away: Away) -> None:
    with stopped(away):
        queue.get_stats()
        absence = cluster_nodes.absence(queue.client)
        other = FairQueue(queue.client, config=CONFIG)
        assert absence.missing(queue.client, other._shards) == away.shards
        assert other.get_stats().missing_shards == away.shards


def test_who_comes_back_is_seen(queue: FairQueue, away: Away) -> None:
    away.kill()
    assert queue.get_stats().missing_shards == away.shards
    away.start()
    eventually(lambda: not queue.get_stats().missing_shards, 20)
    assert queue.get_stats().states["queued"] == len(USERS)
    assert queue.push(task(away.users[0])).status == "accepted"
    assert queue.check_invariants() == []


@pytest.mark.slow
def test_a_replica_that_takes_over_is_seen_without_patience(queue: FairQueue, away: Away) -> None:
    """As on the admin's pages, which repeat nothing."""
    hasty = queue.repeating_for(0)
    assert hasty.get_stats().missing_shards == ()
    away.six.nodes[away.primary].kill()
    eventually(lambda: away.six.primary_of(VICTIM) == away.replica, 20)
    eventually(lambda: not hasty.get_stats().missing_shards, 20)
    assert hasty.get_stats().states["queued"] == len(USERS)


async def test_coroutines_do_the_same(queue: FairQueue, away: Away) -> None:
    config = RedisConfig(url=away.url, cluster=True, socket_timeout=DEADLINE, socket_connect_timeout=DEADLINE)
    client = config.create_async_redis_client()
    same = AsyncFairQueue(client, config=CONFIG)
    assert (await same.get_stats()).states["queued"] == len(USERS)
    with stopped(away):
        with in_time():
            assert (await same.get_stats()).missing_shards == away.shards
        with in_time():
            assert (await same.get_stats()).missing_shards == away.shards
            assert (await same.users()).missing_shards == away.shards
            assert (await same.health()).missing_shards == away.shards
            assert (await same.schedules.list()).missing_shards == away.shards
            assert (await same.dlq.counts()).missing_shards == away.shards
    await aclose_client(client)


@pytest.mark.slow
def test_all_away_is_the_error_that_it_was(queue: FairQueue, away: Away) -> None:
    for server in away.six.nodes.values():
        server.kill()
    with pytest.raises(RedisConnectionError, match="can't be reached"):
        queue.get_stats()


class TestStart:
    """A process that begins while the first shard's node is away."""

    @pytest.fixture
    def away(self, six: Six) -> Away:
        return Away(six, 0)

    def test_the_others_say_how_many_shards_there_are(self, open_queue: Any, queue: FairQueue, away: Away) -> None:
        away.kill()
        late = open_queue()
        with in_time():
            assert late.push(task(away.others[0])).status == "accepted"
        for part in open_queue().shards:
            if part._shards.home.keys.shard not in away.shards:
                with in_time():
                    part.pop("w")
        with pytest.raises(ConfigurationError, match="lies on 12 shards and is configured to lie on 24"):
            open_queue(24).push(task(away.others[0]))

    def test_where_nobody_knows_it_is_looked_up_later(self, open_queue: Any, queue: FairQueue, away: Away) -> None:
        """A queue of an earlier version has the number on its first shard only."""
        for shard in range(1, SHARDS):
            queue.client.execute_command("DEL", f"fq:{{default:{shard}}}:shards")
        away.kill()
        late = open_queue(24)
        late.get_stats()
        assert not late._is_checked
        away.start()
        late._check_at = 0.0
        with pytest.raises(ConfigurationError, match="lies on 12 shards"):
            eventually(lambda: bool(late.get_stats().missing_shards) and False, 20)

    @pytest.mark.slow
    def test_copies_come_back(self, open_queue: Any, queue: FairQueue) -> None:
        for shard in range(1, SHARDS):
            queue.client.execute_command("DEL", f"fq:{{default:{shard}}}:shards")
        open_queue().get_stats()
        held = [queue.client.execute_command("GET", f"fq:{{default:{shard}}}:shards") for shard in range(SHARDS)]
        assert {int(each) for each in held} == {SHARDS}


class TestShown:
    """What people see of it."""

    @pytest.fixture(autouse=True)
    def configured(self, settings: Any, away: Away) -> None:
        redis = {"URL": away.url, "CLUSTER": True}
        settings.FAIRQUE = {"REDIS": redis, "QUEUE": {"SHARDS": SHARDS, "PIPELINE_TIMEOUT": DEADLINE}}

    def test_commands_have_a_line_about_it(self, queue: FairQueue, away: Away, capsys: Any) -> None:
        away.kill()
        words = f"shards {', '.join(map(str, away.shards))} can't be reached"
        call_command("fairque_stats")
        said = capsys.readouterr()
        assert words in said.out
        assert "away" in said.out
        call_command("fairque_stats", "--json")
        assert json.loads(capsys.readouterr().out)["missing_shards"] == list(away.shards)
        call_command("fairque_user", "list")
        said = capsys.readouterr()
        assert words in said.err
        assert away.others[0] in said.out
        with pytest.raises(SystemExit, match="1"):
            call_command("fairque_check")
        assert words in capsys.readouterr().out
        with pytest.raises(SystemExit, match="1"):
            call_command("fairque_health")
        assert capsys.readouterr().out.startswith("degraded")

    def test_metrics_tell_each_shard(self, queue: FairQueue, away: Away) -> None:
        away.kill()
        lines = exposition("")[0].decode().splitlines()
        up = {shard: f'fairque_shard_up{{queue="default",shard="{shard}"}}' for shard in range(SHARDS)}
        for shard, name in up.items():
            assert f"{name} {'0.0' if shard in away.shards else '1.0'}" in lines
        assert 'fairque_queue_up{queue="default"} 1.0' in lines
        assert f'fairque_tasks{{queue="default",state="queued"}} {len(away.others)}.0' in lines

    def test_probes_stay_ready(self, queue: FairQueue, away: Away) -> None:
        away.kill()
        sight = Lookout(judged).look(within=5)
        assert sight.troubles == {}
        assert sight.seen["default"].status == "degraded"
        assert sight.seen["default"].missing_shards == away.shards

    @pytest.mark.slow
    def test_alerts_are_not_cleared_by_a_part(self, queue: FairQueue, away: Away) -> None:
        told: list[MonitorAlert] = []
        monitor = StatsMonitor(queue, [Rule("depth", len(away.others))], told.append)
        assert [each.state for each in monitor.check()] == ["raised"]
        away.kill()
        assert monitor.check() == []
        away.start()
        eventually(lambda: not queue.get_stats(0).missing_shards, 20)
        queue.purge()
        assert [each.state for each in monitor.check()] == ["cleared"]

    @pytest.mark.django_db
    def test_the_admin_has_a_notice(self, queue: FairQueue, away: Away, admin_client: Any) -> None:
        away.kill()
        notice = f"can't be reached for now: {', '.join(map(str, away.shards))}."
        for name in ("overview", "queues", "tasks", "users", "dead_letters", "schedules", "workers"):
            page = admin_client.get(reverse(f"admin:django_fairque_{name}")).content.decode()
            assert notice in page, name
            assert "Nothing can be shown" not in page, name
        page = admin_client.get(reverse("admin:django_fairque_queues")).content.decode()
        assert page.count("can't be reached for now</td>") == len(away.shards)
