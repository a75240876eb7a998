"""Exported metrics are well-formed and right, and their cost does not depend on the size of the queues."""

from __future__ import annotations

import math
import re
import threading
import time
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from django_fairque.conf import get_queue
from django_fairque.engine.inspection.worker_activity import short_name
from django_fairque.engine.model.outcome import Outcome
from django_fairque.engine.model.task import Task
from django_fairque.engine.statistics.queue_stats import Distribution
from django_fairque.engine.statistics.task_names import MAX_TASK_NAMES
from django_fairque.engine.users.fairness import SAMPLED_TASKS
from django_fairque.monitoring import prometheus
from django_fairque.monitoring.probe import Probe
from django_fairque.monitoring.prometheus import (
    BUCKET_BOUNDS,
    USERS_EXAMINED_PER_SCRAPE,
    FairqueCollector,
    Figures,
    cumulative,
    exposition,
)
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings
from tests.lane_tasks import push_in_all_states
from tests.leases import pop, run_attempts

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
KNOWN_LABELS = {"queue", "shard", "state", "priority", "type", "status", "kind", "le", "task", "lane"}
"""None of them grows with the use of a queue; ``task`` has at most 101 values.

The parsers name counters without ``_total``."""


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"mail": {}}}
    return get_queue()


def families() -> dict[str, Metric]:
    return {family.name: family for family in parse(exposition("")[0].decode())}


def values(queue: str = "default") -> dict[tuple[str, ...], float]:
    """Return the samples of one queue by name without prefix and by the values of the other labels."""
    return {
        (
            sample.name.removeprefix("fairque_"),
            *(v for label, v in sample.labels.items() if label != "queue"),
        ): sample.value
        for family in families().values()
        for sample in family.samples
        if sample.labels.get("queue") == queue
    }


def series() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in families().values()
        for sample in family.samples
    }


def task(user: str = "u", priority: int = 3, **options: float) -> Task:
    return Task.create(user, priority, None, **options)  # type: ignore[arg-type]


def everything_happens(queue: FairQueue) -> None:
    """Let tasks end in every way that has a counter."""
    now = time.time() - 200_000
    queue.push_batch([task(), task(), task(), task(), task(), task("v", 1, sla=0.5)], now=now)
    done, retried, dead, crashed, given_up, late = queue.pop_batch(6, "w", lease=1000, now=now + 1)
    queue.settle(
        [
            Outcome.finish(done, took=0.5),
            Outcome.finish(late, took=2),
            Outcome.crash(crashed, "killed"),
            Outcome.release(given_up),
        ],
        now=now + 2,
    )
    queue.fail(retried, "x", delay=10, now=now + 2)
    queue.fail(dead, "x", retry=False, now=now + 2)
    (letter,) = queue.dlq.list().items
    queue.dlq.requeue(letter.entry_id, now=now + 3)
    queue.push_batch([task("old", 1), task("old", 3, expires_at=now + 20)], now=now + 4)
    for at in range(0, 150_000, 10_000):
        while queue.sweep(now=now + at).more:
            pass
    queue.cancel(queue.push(task(), now=now + 150_000).task_id, now=now + 150_001)
    parent = queue.push(task(), now=now + 150_002).task_id
    queue.push(Task.create("u", 3, None, depends_on=[parent]), now=now + 150_003)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_exported_text_is_well_formed(queue: FairQueue, *, openmetrics: bool) -> None:
    everything_happens(queue)
    content, kind = exposition(OPENMETRICS if openmetrics else "")
    assert ("openmetrics" in kind) == openmetrics
    found = list((parse_openmetrics if openmetrics else parse)(content.decode()))
    assert len({family.name for family in found}) == len(found) > 30
    for family in found:
        assert family.name.startswith("fairque_")
        assert family.documentation.endswith("."), family.name
        assert family.type in {"gauge", "counter", "histogram"}
        assert family.samples, family.name
        names = {sample.name for sample in family.samples}
        ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}[family.type]
        assert names == {family.name + end for end in ends}
        if family.type != "counter":
            assert not family.name.endswith(("_total", "_count", "_sum", "_bucket"))
        for sample in family.samples:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", sample.name)
            assert set(sample.labels) <= KNOWN_LABELS


def test_series_do_not_come_and_go_with_use(queue: FairQueue) -> None:
    """A series that begins at 1 hides its first event; one for each user or task would be kept for ever."""
    empty = series()
    everything_happens(queue)
    assert series() == empty


def test_attempts_by_task_name_are_counters(queue: FairQueue) -> None:
    names = [f'shop."mail{number:03}\n' + "é" * 150 for number in range(MAX_TASK_NAMES + 2)]
    run_attempts(queue, names[0], 1, now=time.time() - 3 * 86_400)
    for number, name in enumerate(names):
        run_attempts(queue, name, 3, failed=1, took=1 + number)
    found = values()
    attempts = {
        label: value for (name, *labels), value in found.items() if name == "task_attempts_total" for label in labels
    }
    assert len(attempts) == MAX_TASK_NAMES + 1
    assert (attempts[short_name(names[0])], attempts["other"]) == (4, 6)
    assert (found["task_failures_total", short_name(names[0])], found["task_failures_total", "other"]) == (1, 2)
    assert found["task_run_p95_seconds", "other"] == pytest.approx(102, rel=0.2)
    assert found["task_retrying", "other"] == 0
    assert max(map(len, attempts)) == 100
    before = {key: value for key, value in found.items() if key[0].startswith(("task_attempts", "task_failures"))}
    for name in names[-5:]:
        run_attempts(queue, name, 50)
    after = values()
    assert all(after[key] >= value for key, value in before.items()), "counters never fall while the server has them"


def test_counters_are_those_of_the_queue(queue: FairQueue) -> None:
    everything_happens(queue)
    found = values()
    stats = queue.get_stats()
    assert found["tasks_pushed_total",] == stats.totals["pushed"] == 11
    assert found["tasks_started_total",] == 6
    assert found["tasks_finished_total",] == 2
    assert found["tasks_failed_total",] == 2
    assert found["tasks_retried_total",] == 1
    assert found["tasks_canceled_total",] == 1
    assert found["tasks_dead_total", "failed"] == 1
    assert found["tasks_dead_total", "expired"] == 1
    assert found["tasks_returned_total", "crashed"] == found["tasks_returned_total", "released"] == 1
    assert found["tasks_promoted_total", "VERY_LOW"] == stats.totals["promoted:1"] >= 1
    assert found["dead_letters", "expired"] == 1
    assert found["dead_letters_requeued_total",] == 1
    for kind in ("violated", "overdue", "at_risk"):
        by_priority = sum(found[f"sla_{kind}_total", name] for name in stats.depth)
        assert by_priority == stats.totals[f"sla_{kind}"] >= 1
    assert found["tasks", "deferred"] == found["dependency_edges",] == 1
    assert found["tasks", "queued"] == sum(found["ready_tasks", name] for name in stats.depth) > 0
    assert found["users_with_work",] == stats.users_ready == 3
    assert found["queue_health", "degraded"] == 1
    assert found["queue_health", "good"] == found["queue_health", "down"] == 0
    assert found["oldest_wait_seconds",] == pytest.approx(200_000, abs=1000)
    assert {value for (name, *_), value in values("mail").items() if name.endswith("_total")} == {0}


def test_the_oldest_wait_ignores_a_younger_task_that_is_checked_earlier(queue: FairQueue) -> None:
    queue.push(Task.create("old", 3, 1, sla=5), now=time.time() - 90)
    queue.sweep()
    queue.push(Task.create("young", 3, 1, sla=5))
    assert values()["oldest_wait_seconds",] >= 90


def test_a_slower_release_is_exported_for_an_alert(queue: FairQueue, settings: Settings) -> None:
    for release, took, failed in (("v1", 0.1, 0), ("v2", 0.4, 12)):
        settings.FAIRQUE = {**settings.FAIRQUE, "CODE_VERSION": release}
        run_attempts(get_queue(), "export", 60, failed, took)
        run_attempts(get_queue(), "mail", 60, 0, 0.1)
    found = values()
    assert found["task_release_slowdown", "export"] == pytest.approx(4, rel=0.2)
    assert found["task_release_failures", "export"] == pytest.approx(0.2)
    usual = ("mail", "other")
    assert {found["task_release_slowdown", name] for name in usual} == {1}
    assert {found["task_release_failures", name] for name in usual} == {0}


def test_fairness_is_exported(queue: FairQueue) -> None:
    now = time.time() - 600
    for user, took in (("ann", 10), ("bob", 30)):
        queue.push(task(user), now=now)
        queue.finish(pop(queue, "w", [user], now=now), took=took, now=now)
    assert math.isnan(values()["fairness_index",])
    assert values()["active_users",] == 0
    queue.push_batch([task("ann"), task("bob"), *(task("noisy") for _ in range(40))], now=now)
    found = values()
    assert (found["active_users",], found["noisy_users",]) == (3, 1)
    assert found["quiet_users_oldest_wait_seconds",] == pytest.approx(600, abs=30)
    # The noisy one has waited for more than a minute without worker time.
    assert found["fairness_index",] == pytest.approx(40**2 / (3 * (10**2 + 30**2)))


def test_figures_of_the_server_and_the_workers_are_exported(queue: FairQueue, redis: Redis) -> None:
    queue.heartbeat("w", {})
    queue.pause()
    redis.config_set("maxmemory", 500_000_000)
    try:
        of_server = {name: family.samples[0].value for name, family in families().items()}
    finally:
        redis.config_set("maxmemory", 0)
    assert of_server["fairque_server_up"] == 1
    assert of_server["fairque_scrape_errors"] == 0
    assert 0 < of_server["fairque_scrape_duration_seconds"] < 2
    assert of_server["fairque_server_memory_limit_bytes"] == 500_000_000
    assert 0 < of_server["fairque_server_memory_used_bytes"] < 500_000_000
    assert (values()["workers",], values()["paused",], values("mail")["paused",]) == (1, 1, 0)
    assert values()["queue_up",] == 1


def test_an_attempt_counts_in_its_bucket_and_all_larger_ones(queue: FairQueue) -> None:
    now = time.time() - 100
    for seconds in (0.0001, 0.5, 0.5, 3.0, 500_000.0):
        queue.push(task(), now=now)
        queue.finish(pop(queue, now=now), took=seconds, now=now)
    found = values()
    counts = [(float(key[1]), count) for key, count in found.items() if key[0] == "task_run_seconds_bucket"]
    for bound, count in counts:
        seen = sum(seconds <= bound for seconds in (0.0001, 0.5, 0.5, 3.0, 500_000.0))
        assert count == seen or abs(bound - 0.5) < 0.09 * 0.5 or abs(bound - 3) < 0.09 * 3, bound
    assert counts == sorted(counts)
    assert counts[-1] == (float("inf"), 5) == (float("inf"), found["task_run_seconds_count",])
    assert found["task_run_seconds_sum",] == pytest.approx(500_004.0001)
    assert found["task_wait_seconds_count",] == 5


def test_the_engines_buckets_are_neither_lost_nor_counted_twice() -> None:
    every = Distribution(dict.fromkeys(range(200), 1), 1.0)
    counts = [count for _, count in cumulative(every)]
    assert (counts[0], counts[-2], counts[-1]) == (44, 136, 200)
    assert {later - sooner for sooner, later in pairwise(counts[:-1])} == {4}


def test_bounds_of_buckets_have_the_same_text_on_every_machine() -> None:
    assert (BUCKET_BOUNDS[44], BUCKET_BOUNDS[48], BUCKET_BOUNDS[80], BUCKET_BOUNDS[136]) == (
        "0.002048",
        "0.004096",
        "1.049",
        "17180.0",
    )
    assert len(set(BUCKET_BOUNDS.values())) == len(BUCKET_BOUNDS) == 24


def test_a_scrape_sends_the_same_commands_for_any_number_of_tasks(queue: FairQueue, redis: Redis) -> None:
    def cost() -> int:
        redis.config_resetstat()
        exposition("")
        return int(sum(stat["calls"] for stat in redis.info("commandstats").values())) - 1

    queue.push(task())
    before = cost()
    queue.push_batch([task(f"u{i}", i % 6 + 1) for i in range(2000)])
    leases = queue.pop_batch(500, "w")
    queue.settle([Outcome.finish(lease, took=0.001 * i) for i, lease in enumerate(leases)], worker="w")
    queue.push(task())
    many = cost()
    assert before <= 2 * 44 + 2 * 9 + 2
    assert many <= before + 9 * USERS_EXAMINED_PER_SCRAPE + 4 * SAMPLED_TASKS
    queue.push_batch([task(f"v{i}", i % 6 + 1) for i in range(2000)])
    assert abs(cost() - many) <= USERS_EXAMINED_PER_SCRAPE, "the users that are drawn by chance differ"
    many = cost()
    for number in range(50):
        queue.heartbeat(f"w{number}", {})
    assert cost() <= many + 50 + USERS_EXAMINED_PER_SCRAPE, (
        "one read for the record of each worker, which names tasks that it does not know"
    )


def test_a_scrape_distinguishes_a_slow_server_from_one_that_is_gone(
    make_server: MakeServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, is_fast = make_server(), threading.Event()

    def read(queue: FairQueue) -> Figures:
        figures = Figures.read(queue)
        assert is_fast.wait(10)
        return figures

    def scrape() -> list[float]:
        found = {sample.name: sample.value for metric in FairqueCollector().collect() for sample in metric.samples}
        return [found[f"fairque_{name}"] for name in ("server_up", "scrape_timed_out", "queue_up")]

    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    monkeypatch.setattr(prometheus, "probe", Probe(read))
    assert scrape() == [1, 1, 0], "also the first one of a process"
    is_fast.set()
    assert scrape() == [1, 0, 1]
    is_fast.clear()
    assert scrape() == [1, 1, 0]
    is_fast.set()
    server.kill()
    scrape()  # may still get the answer of the read before
    assert scrape() == [0, 0, 0]


def test_registering_does_not_wait_for_the_server(settings: Settings) -> None:
    """Beside one's own metrics, in a registry of one's own, which then knows the names."""
    settings.FAIRQUE = {"REDIS": {"URL": "redis://127.0.0.1:1"}}
    registry = CollectorRegistry(auto_describe=True)
    began = time.monotonic()
    registry.register(FairqueCollector())
    assert time.monotonic() - began < 0.5
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(FairqueCollector())
    assert registry.get_sample_value("fairque_server_up") == 0
    assert registry.get_sample_value("fairque_queue_up", {"queue": "default"}) == 0


def test_tasks_and_waits_are_exported_by_lane(queue: FairQueue) -> None:
    push_in_all_states(queue)
    found = values()
    assert (found["ready_tasks", "URGENT"], found["ready_tasks", "BULK"], found["ready_tasks", "NORMAL"]) == (2, 2, 0)
    for lane, count in (("urgent", 1), ("normal", 0), ("bulk", 1)):
        assert found["lane_ready_tasks", lane] == 2 * count
        assert found["lane_running_tasks", lane] == count
        assert found["lane_tasks_started_total", lane] == 3 * count
        assert found["lane_wait_seconds_count", lane] == 2 * count
    assert found["task_wait_seconds_count",] == 4
