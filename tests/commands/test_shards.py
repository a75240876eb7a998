"""Figures of a queue of several shards: of all, and of each."""

from __future__ import annotations

import json
import re

import pytest

from django_fairque.conf import get_queue
from django_fairque.engine.model.task import Task
from tests.fixture_types import FairQueue, Redis, Server, Settings

from .conftest import Run

SHARDS = 4


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"SHARDS": SHARDS}}
    queue = get_queue()
    queue.push_batch([Task.create(f"user-{number}", 3, None) for number in range(30)])
    return queue


def test_stats_have_the_figures_of_each_shard(queue: FairQueue, run: Run) -> None:
    figures = json.loads(run("fairque_stats", "--json"))
    assert figures["states"]["queued"] == 30
    assert [shard["shard"] for shard in figures["shards"]] == [0, 1, 2, 3]
    assert sum(shard["states"]["queued"] for shard in figures["shards"]) == 30
    assert {shard["node"] for shard in figures["shards"]} == {""}
    depths = [shard.get_stats().depth["NORMAL"] for shard in queue.shards]
    assert [shard.depth for shard in queue.get_shard_stats()] == depths
    lines = re.findall(r"^(\d) +- +(\d+) +(\d+)", run("fairque_stats"), re.MULTILINE)
    assert [number for number, *_ in lines] == ["0", "1", "2", "3"]
    assert sum(int(queued) for *_, queued in lines) == 30


def test_a_queue_of_one_shard_has_no_shard_table(server: Server, redis: Redis, settings: Settings, run: Run) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}}
    get_queue().push(Task.create("ann", 3, None))
    (shard,) = json.loads(run("fairque_stats", "--json"))["shards"]
    assert shard["states"]["queued"] == 1
    assert "shard" not in run("fairque_stats")


def test_the_busiest_users_are_found_on_all_shards(queue: FairQueue, run: Run) -> None:
    queue.push_batch(
        [Task.create(user, 3, None) for user in ("user-3", "user-4", "user-5", "user-6") for _ in range(5)]
    )
    top = json.loads(run("fairque_stats", "--json", "--top", "4"))["top"]
    assert set(top["sizes"]) == {"user-3", "user-4", "user-5", "user-6"}
    assert top["users"] == top["looked_at"] == 30
