"""Handing tasks over, to the shards of their users."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django_fairque.engine.model.errors import PushRefusedError, ShardsAwayError
from django_fairque.engine.model.records import PushResult
from django_fairque.engine.model.task import check_tasks
from django_fairque.engine.pushing import deliver as delivering
from django_fairque.engine.pushing import graph_sharded as graphs
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.pushing.batching import push_apart
from django_fairque.engine.pushing.graph_sharded import conflicting
from django_fairque.engine.sharding.fan_out import reach
from django_fairque.engine.sharding.shards import said

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from django_fairque.engine.model.records import EventCount
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards


def push(shards: Shards, task: Task, now: float | None) -> Steps[PushResult]:
    """For several shards: of one it is `pushing.push` itself, as pushes are many."""
    if task.depends_on:
        return (yield from graphs.push(shards, [task], task.run_id, now))[0]
    if (yield from conflicting(shards, [task])):
        return pushing.all_accepted(shards.home, [PushResult(task.task_id, "id_conflict")])[0]
    return (yield from pushing.push(shards.of(task.user_id), task, now))


def push_batch(shards: Shards, tasks: Iterable[Task], now: float | None) -> Steps[list[PushResult]]:
    if len(shards) == 1:
        return (yield from pushing.push_batch(shards.home, tasks, now))
    results = yield from push_apart(
        check_tasks(tasks),
        lambda some: _push_to_each(shards, some, now),
        lambda some, run_id: graphs.push(shards, some, run_id, now),
    )
    return pushing.all_accepted(shards.home, results)


def _push_to_each(shards: Shards, tasks: Sequence[Task], now: float | None) -> Steps[list[PushResult]]:
    conflicts = yield from conflicting(shards, tasks)
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    parts = _by_shard(shards, tasks, conflicts)

    def act(shard: Commands) -> Steps[None]:
        try:
            done = yield from pushing.push_batch(shard, [tasks[index] for index in parts[shard]], now)
        except PushRefusedError as error:
            done = cast("list[PushResult]", list(error.results))
        results.update(zip(parts[shard], done, strict=True))

    failures = yield from reach(shards, parts, act)
    if failures:
        raise _not_all(shards, sorted(failures), tasks, results) from next(iter(failures.values()))
    return [results[index] for index in range(len(tasks))]


def _not_all(
    shards: Shards, away: Sequence[int], tasks: Sequence[Task], results: Mapping[int, PushResult]
) -> ShardsAwayError:
    ids = [task.task_id for index, task in enumerate(tasks) if index not in results]
    return ShardsAwayError(
        f"{len(ids)} of {len(tasks)} tasks were not pushed, or nobody knows: {said(away)} of queue {shards.name!r} can't be "
        f"reached. The error's task_ids names them; pushing them again under the same ids is safe",
        away,
        ids,
    )


def push_graph(shards: Shards, tasks: Sequence[Task], run_id: str, now: float | None) -> Steps[list[PushResult]]:
    return (yield from graphs.push(shards, check_tasks(tasks), run_id, now))


def deliver(
    shards: Shards,
    tasks: Sequence[Task],
    counts: Mapping[str, EventCount],
    *,
    run_id: str,
    is_graph: bool,
    from_outbox: bool,
    now: float | None,
) -> Steps[list[PushResult]]:
    """The counts are kept at home, and a graph is delivered as `graphs.push` pushes one."""
    check_tasks(tasks)
    if len(shards) == 1 or (is_graph and tasks):
        home, elsewhere, mine = shards.home, pushing.NOWHERE, list(range(len(tasks)))
        if len(shards) > 1:
            home, elsewhere, mine = yield from graphs.divide(shards, tasks, run_id)
            if counts and home is not shards.home:
                yield from delivering.deliver(shards.home, [], counts, now=now)
                counts = {}
        done = yield from delivering.deliver(
            home,
            [tasks[index] for index in mine],
            counts,
            run_id=run_id,
            is_graph=is_graph,
            from_outbox=from_outbox,
            now=now,
            elsewhere=elsewhere,
        )
        return graphs.results(tasks, mine, done)
    conflicts = yield from conflicting(shards, tasks)
    parts = _by_shard(shards, tasks, conflicts)
    parts.setdefault(shards.home, [])
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    for shard, indexes in parts.items():
        some = [tasks[index] for index in indexes]
        told = counts if shard is shards.home else {}
        if some or told:
            done = yield from delivering.deliver(shard, some, told, run_id=run_id, from_outbox=from_outbox, now=now)
            results.update(zip(indexes, done, strict=True))
    return [results[index] for index in range(len(tasks))]


def forget_delivered(shards: Shards, task_ids: Iterable[str], now: float | None) -> Steps[int]:
    """Chosen ids are told to every shard: what was delivered may be forgotten as a task."""
    ids, known = list(task_ids), 0
    for shard in shards:
        some = [task_id for task_id in ids if shards.said_by(task_id) in (None, shard)]
        if some:
            known += yield from delivering.forget_delivered(shard, some, now)
    return known


def _by_shard(shards: Shards, tasks: Sequence[Task], without: Collection[int]) -> dict[Commands, list[int]]:
    """Indexes by the shard of the task's user, except for these."""
    found: dict[Commands, list[int]] = {}
    for index, task in enumerate(tasks):
        if index in without:
            continue
        found.setdefault(shards.of(task.user_id), []).append(index)
    return found
