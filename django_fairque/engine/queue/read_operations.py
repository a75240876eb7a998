"""What can be read of a queue, over its shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dependencies import dependencies
from django_fairque.engine.inspection import pages as listing
from django_fairque.engine.inspection import search as finding
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.inspection.pages import (
    PartialList,
    ResultPage,
    WorkerRecord,
    parse_shard_cursor,
    read_page,
    shard_cursor,
)
from django_fairque.engine.inspection.search import MatchingTasks, SearchResult, check_search
from django_fairque.engine.maintenance.invariants import check_invariants as check_one
from django_fairque.engine.model.ids import check_ids
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.scripting.operations import read_together
from django_fairque.engine.statistics import queue_stats as waiting
from django_fairque.engine.statistics.health import health
from django_fairque.engine.statistics.queue_stats import stats
from django_fairque.engine.statistics.timeline import activity
from django_fairque.engine.users import users
from django_fairque.engine.users import wait_reason as standings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.dependencies.dependencies import Blockers, DependencyGraph, DependencyView
    from django_fairque.engine.inspection.pages import Sizes
    from django_fairque.engine.inspection.search import Search
    from django_fairque.engine.maintenance.snapshot import Violation
    from django_fairque.engine.model.records import EventCount, TaskState
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.queue_stats import WaitingTask
    from django_fairque.engine.users.users import UserStats
    from django_fairque.engine.users.wait_reason import WaitReason

__all__ = ["activity", "health", "stats"]


def event_counts(shards: Shards) -> Operation[dict[str, EventCount]]:
    return (yield from pushing.event_counts(shards.home))


def find(shards: Shards, search: Search, limit: int, cursor: str | None) -> Operation[SearchResult]:
    """A shard after the other, in ``look_at`` records of all of them."""
    check_search(search)
    at, inner = parse_shard_cursor(shards, cursor)
    tasks: list[Task] = []
    looked_at = 0
    for number in range(at, len(shards)):
        if not shards.is_present(shards.all[number]):
            inner = None
            continue
        left = replace(search, look_at=search.look_at - looked_at)
        found = yield from finding.find(shards.all[number], left, limit - len(tasks), inner)
        tasks += found.tasks
        looked_at += found.looked_at
        if found.cursor is not None:
            return SearchResult(tuple(tasks), looked_at, shard_cursor(shards, number, found.cursor), shards.missing)
        if len(tasks) >= limit or looked_at >= search.look_at:
            return SearchResult(tuple(tasks), looked_at, shard_cursor(shards, number + 1, None), shards.missing)
        inner = None
    return SearchResult(tuple(tasks), looked_at, None, shards.missing)


def matching(shards: Shards, search: Search) -> Operation[MatchingTasks]:
    """Each shard's part of ``look_at``."""
    check_search(search)
    found: list[str] = []
    is_whole = True
    for shard in shards:
        part = yield from finding.matching(shard, replace(search, look_at=max(1, search.look_at // len(shards))))
        found += part.task_ids
        is_whole = is_whole and part.is_whole
    return MatchingTasks(found, is_whole and not shards.missing, shards.missing)


def position(shards: Shards, task_id: str) -> Operation[int | None]:
    return (yield from lookup.position((yield from shards.of_task(task_id)), task_id))


def wait_reason(shards: Shards, task_id: str) -> Operation[WaitReason]:
    return (yield from standings.read_wait_reason((yield from shards.of_task(task_id)), task_id))


def view(shards: Shards, task_id: str, nodes: int) -> Operation[DependencyView]:
    return (yield from dependencies.view((yield from shards.around([task_id])), task_id, nodes))


def blockers(shards: Shards, task_ids: Sequence[str], most: int) -> Operation[dict[str, Blockers]]:
    ids = check_ids(task_ids, "task ids")
    return (yield from dependencies.blockers((yield from shards.around(ids)), ids, most))


def parent_results(shards: Shards, task_id: str) -> Operation[dict[str, Any]]:
    there = yield from shards.of_task(task_id)
    parents = yield from dependencies.parents(there, task_id)
    return (yield from dependencies.results((yield from shards.around(parents, there)), parents))


def run_graph(shards: Shards, run_id: str, nodes: int) -> Operation[DependencyGraph]:
    return (yield from dependencies.run_graph((yield from lookup.around_run(shards, run_id)), run_id, nodes))


def tasks(
    shards: Shards, state: TaskState | str | None, user_id: str | None, limit: int, cursor: str | None
) -> Operation[ResultPage[Task]]:
    def read(shard: Commands, size: int, at: str | None) -> Operation[ResultPage[Task]]:
        return (yield from listing.tasks(shard, state, user_id, size, at))

    return (yield from read_page(shards, limit, cursor, read, is_filtered=True))


def queue_sizes(shards: Shards, user_ids: Sequence[str]) -> Operation[dict[str, Sizes]]:
    return (yield from listing.queue_sizes(shards.across(), check_ids(user_ids, "user ids")))


def longest_waits(shards: Shards, limit: int) -> Operation[PartialList[WaitingTask]]:
    each_shard = yield from read_together([waiting.longest_waits(shard, limit) for shard in shards])
    found = [each for some in each_shard for each in some]
    return PartialList(sorted(found, key=lambda each: each.since)[:limit], shards.missing)


def busiest_users(shards: Shards, sample: int) -> Operation[PartialList[str]]:
    """Each shard's part of the sample."""
    listing.check_limit(sample)
    found: Counter[str] = Counter()
    for shard in shards:
        found += yield from waiting.waiting_by_user(shard, max(1, sample // len(shards)))
    return PartialList([user_id for user_id, _count in found.most_common()], shards.missing)


def busy_users(shards: Shards, limit: int) -> Operation[PartialList[str]]:
    """As many of each shard."""
    listing.check_limit(limit)
    names: list[str] = []
    for shard in shards:
        names += (yield from listing.users(shard, None, -(-limit // len(shards)), busy_first=True)).items
    return PartialList(names[:limit], shards.missing)


def user_stats(shards: Shards, user_ids: Sequence[str], now: float | None) -> Operation[list[UserStats]]:
    return (yield from users.users_stats(shards.across(), check_ids(user_ids, "user ids"), now))


def workers(shards: Shards) -> Operation[PartialList[WorkerRecord]]:
    """Each worker once, with the leases that it has on all shards."""
    found: dict[str, WorkerRecord] = {}
    for shard in shards:
        for record in (yield from listing.workers(shard)):
            other = found.get(record.worker)
            newest = record if other is None or record.seen_at >= other.seen_at else other
            leases = record.leases + (0 if other is None else other.leases)
            found[record.worker] = WorkerRecord(newest.worker, newest.seen_at, leases, newest.info, newest.command)
    return PartialList(found.values(), shards.missing)


def check_invariants(shards: Shards) -> Operation[PartialList[Violation]]:
    found: list[Violation] = []
    for shard in shards:
        found += yield from check_one(shard)
    return PartialList(found, shards.missing)
