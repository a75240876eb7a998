"""A queue of several shards in the admin: one queue, and what lies on which shard."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from django_fairque.conf import get_queue
from django_fairque.engine.model.ids import compute_bucket
from django_fairque.engine.model.task import Task
from tests.admin.page_reader import words_of
from tests.fixture_types import Client, FairQueue, Redis, Server, Settings
from tests.leases import pop

pytestmark = pytest.mark.django_db

SHARDS = 4


@pytest.fixture
def queue(server: Server, redis: Redis, settings: Settings) -> FairQueue:
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUES": {"default": {"SHARDS": SHARDS}, "mail": {}}}
    queue = get_queue()
    for shard in range(SHARDS):
        user = next(name for name in map("user-{}".format, range(1000)) if compute_bucket(name) % SHARDS == shard)
        queue.push_batch([Task.create(user, 3, None) for _ in range(shard + 1)])
    return queue


def page(client: Client, name: str) -> str:
    answer = client.get(reverse(f"admin:django_fairque_{name}"))
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_the_table_has_the_figures_of_each_shard(admin_client: Client, queue: FairQueue) -> None:
    pop(queue.shards[3])
    rows = [words_of(row) for row in re.findall(r"<tr>.*?</tr>", page(admin_client, "queues"), re.DOTALL)]
    shards = [row for row in rows if re.match(r"default/\d", row)]
    assert [row.split() for row in shards] == [
        ["default/0", "–", "1", "0", "0", "0", "0"],
        ["default/1", "–", "2", "0", "0", "0", "0"],
        ["default/2", "–", "3", "0", "0", "0", "0"],
        ["default/3", "–", "3", "1", "0", "0", "0"],
    ]
    assert not [row for row in rows if row.startswith("mail/")]


def test_the_overview_counts_the_tasks_of_all_shards(admin_client: Client, queue: FairQueue) -> None:
    html = page(admin_client, "overview")
    assert re.search(r"Queued\D*10\b", words_of(html))
    users = {name for shard in queue.shards for name in shard.users().items}
    assert all(name in html for name in users), "the page lists the users with the most waiting tasks of all shards"


@pytest.mark.parametrize(
    "name", ["tasks", "users", "organizations", "workers", "dead_letters", "schedules", "dependencies"]
)
def test_every_page_of_a_queue_with_shards_is_shown(admin_client: Client, queue: FairQueue, name: str) -> None:
    assert "user-" in page(admin_client, name) or name in (
        "organizations",
        "workers",
        "dead_letters",
        "schedules",
        "dependencies",
    )
