"""What can be read of a queue, over its shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.engine.dependencies import dependencies
from django_fairque.engine.inspection import task_lookup as lookup
from django_fairque.engine.model.ids import check_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.dependencies.dependencies import DependencyView
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


def view(shards: Shards, task_id: str, nodes: int) -> Operation[DependencyView]:
    return (yield from dependencies.view((yield from shards.around([task_id])), task_id, nodes))


def blockers(shards: Shards, task_ids: Sequence[str], most: int) -> Operation[dict[str, dependencies.Blockers]]:
    ids = check_ids(task_ids, "task ids")
    return (yield from dependencies.blockers((yield from shards.around(ids)), ids, most))


def parent_results(shards: Shards, task_id: str) -> Operation[dict[str, Any]]:
    there = yield from shards.of_task(task_id)
    parents = yield from dependencies.parents(there, task_id)
    return (yield from dependencies.results((yield from shards.around(parents, there)), parents))


def run_graph(shards: Shards, run_id: str, nodes: int) -> Operation[dependencies.DependencyGraph]:
    return (yield from dependencies.run_graph((yield from lookup.around_run(shards, run_id)), run_id, nodes))
