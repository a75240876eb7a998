"""Handing tasks over, to the shards of their users."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django_fairque.engine.model.errors import (
    BacklogFullError,
    PushRefusedError,
    ShardsAwayError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.payload import pack
from django_fairque.engine.model.records import PushResult
from django_fairque.engine.model.task import check_tasks
from django_fairque.engine.pushing import push as pushing
from django_fairque.engine.pushing.batching import check_graph, id_conflict_error, push_apart
from django_fairque.engine.pushing.push import NO_OTHER_SHARDS, OtherShards
from django_fairque.engine.sharding.shards import change_each, describe_shards
from django_fairque.engine.users.users import users_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from django_fairque.engine.model.records import EventCount
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


def push(shards: Shards, task: Task, now: float | None) -> Operation[PushResult]:
    """For several shards: of one it is `pushing.push` itself, as pushes are many."""
    if task.depends_on:
        return (yield from push_checked_graph(shards, [task], task.run_id, now))[0]
    if (yield from find_id_conflicts(shards, [task])):
        return pushing.all_accepted(shards.home, [PushResult(task.task_id, "id_conflict")])[0]
    return (yield from pushing.push(shards.of(task.user_id), task, now))


def push_batch(shards: Shards, tasks: Iterable[Task], now: float | None) -> Operation[list[PushResult]]:
    if len(shards) == 1:
        return (yield from pushing.push_batch(shards.home, tasks, now))
    results = yield from push_apart(
        check_tasks(tasks),
        lambda some: _push_to_each(shards, some, now),
        lambda some, run_id: push_checked_graph(shards, some, run_id, now),
    )
    return pushing.all_accepted(shards.home, results)


def _push_to_each(shards: Shards, tasks: Sequence[Task], now: float | None) -> Operation[list[PushResult]]:
    conflicts = yield from find_id_conflicts(shards, tasks)
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    parts = _by_shard(shards, tasks, conflicts)

    def act(shard: Commands) -> Operation[None]:
        try:
            done = yield from pushing.push_batch(shard, [tasks[index] for index in parts[shard]], now)
        except PushRefusedError as error:
            done = cast("list[PushResult]", list(error.results))
        results.update(zip(parts[shard], done, strict=True))

    failures = yield from change_each(shards, parts, act)
    if failures:
        raise _not_all(shards, sorted(failures), tasks, results) from next(iter(failures.values()))
    return [results[index] for index in range(len(tasks))]


def _not_all(
    shards: Shards, away: Sequence[int], tasks: Sequence[Task], results: Mapping[int, PushResult]
) -> ShardsAwayError:
    ids = [task.task_id for index, task in enumerate(tasks) if index not in results]
    return ShardsAwayError(
        f"{len(ids)} of {len(tasks)} tasks were not pushed, or nobody knows: {describe_shards(away)} of queue "
        f"{shards.name!r} can't be reached. The error's task_ids names them; pushing them again under the same ids is safe",
        away,
        ids,
    )


def push_graph(shards: Shards, tasks: Sequence[Task], run_id: str, now: float | None) -> Operation[list[PushResult]]:
    return (yield from push_checked_graph(shards, check_tasks(tasks), run_id, now))


def deliver(
    shards: Shards,
    tasks: Sequence[Task],
    counts: Mapping[str, EventCount],
    *,
    run_id: str,
    is_graph: bool,
    from_outbox: bool,
    now: float | None,
) -> Operation[list[PushResult]]:
    """The counts are kept at home, and a graph is delivered as `graphs.push` pushes one."""
    check_tasks(tasks)
    if len(shards) == 1 or (is_graph and tasks):
        home, elsewhere, mine = shards.home, pushing.NO_OTHER_SHARDS, list(range(len(tasks)))
        if len(shards) > 1:
            home, elsewhere, mine = yield from split_graph(shards, tasks, run_id)
            if counts and home is not shards.home:
                yield from pushing.deliver(shards.home, [], counts, now=now)
                counts = {}
        done = yield from pushing.deliver(
            home,
            [tasks[index] for index in mine],
            counts,
            run_id=run_id,
            is_graph=is_graph,
            from_outbox=from_outbox,
            now=now,
            elsewhere=elsewhere,
        )
        return merge_results(tasks, mine, done)
    conflicts = yield from find_id_conflicts(shards, tasks)
    parts = _by_shard(shards, tasks, conflicts)
    parts.setdefault(shards.home, [])
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    for shard, indexes in parts.items():
        some = [tasks[index] for index in indexes]
        event_counts = counts if shard is shards.home else {}
        if some or event_counts:
            done = yield from pushing.deliver(
                shard, some, event_counts, run_id=run_id, from_outbox=from_outbox, now=now
            )
            results.update(zip(indexes, done, strict=True))
    return [results[index] for index in range(len(tasks))]


def forget_delivered(shards: Shards, task_ids: Iterable[str], now: float | None) -> Operation[int]:
    """Chosen ids are sent to every shard: what was delivered may be forgotten as a task."""
    ids, known = list(task_ids), 0
    for shard in shards:
        some = [task_id for task_id in ids if shards.shard_in_id(task_id) in (None, shard)]
        if some:
            known += yield from pushing.forget_delivered(shard, some, now)
    return known


def _by_shard(shards: Shards, tasks: Sequence[Task], without: Collection[int]) -> dict[Commands, list[int]]:
    """Indexes by the shard of the task's user, except for these."""
    found: dict[Commands, list[int]] = {}
    for index, task in enumerate(tasks):
        if index in without:
            continue
        found.setdefault(shards.of(task.user_id), []).append(index)
    return found


def push_checked_graph(
    shards: Shards, tasks: Sequence[Task], run_id: str, now: float | None
) -> Operation[list[PushResult]]:
    """As `pushing.push_graph`."""
    if len(shards) == 1 or not tasks:
        return (yield from pushing.push_graph(shards.home, tasks, run_id, now))
    run = run_id or tasks[0].run_id
    home, elsewhere, mine = yield from split_graph(shards, tasks, run)
    done = yield from pushing.push_graph(home, [tasks[index] for index in mine], run, now, elsewhere)
    return merge_results(tasks, mine, done)


def merge_results(tasks: Sequence[Task], mine: Sequence[int], done: Sequence[PushResult]) -> list[PushResult]:
    """What was answered for those at home, and that the others are accepted with them."""
    known = dict(zip(mine, done, strict=True))
    return [known.get(index) or PushResult(task.task_id, "accepted") for index, task in enumerate(tasks)]


def split_graph(
    shards: Shards, tasks: Sequence[Task], run_id: str
) -> Operation[tuple[Commands, OtherShards, list[int]]]:
    """The shard that accepts the graph, what of it lies elsewhere, and the indexes of the tasks that lie there.

    Raises:
        TaskNotFoundError: a dependency is neither known nor among them. BacklogFullError: a user of another shard has
        too many tasks. TaskValidationError: what can't be kept over several shards.
    """
    check_graph(tasks)
    for index in (yield from find_id_conflicts(shards, tasks)):
        raise id_conflict_error(shards.name, tasks[index].task_id, tasks)
    places = {task.task_id: shards.of(task.user_id) for task in tasks}
    outside = [each for each in dict.fromkeys(name for task in tasks for name in task.depends_on) if each not in places]
    dependents = {name: shards.of(task.user_id) for task in reversed(tasks) for name in task.depends_on}
    located = yield from shards.locate(outside, dependents)
    home = shards.of(tasks[0].user_id)
    mine = [index for index, task in enumerate(tasks) if places[task.task_id] is home]
    numbers = {name: shard.keys.shard for name, shard in {**located, **places}.items()}
    strangers = {name: number for name, number in numbers.items() if number != home.keys.shard}
    if not strangers:
        return home, NO_OTHER_SHARDS, mine
    yield from _check_known(shards, tasks, dict(located.items()))
    others: dict[Commands, list[Task]] = {}
    for task in tasks:
        if places[task.task_id] is not home:
            others.setdefault(places[task.task_id], []).append(task)
    if others:
        _check_unique(tasks)
    yield from _check_room(shards, [task for part in others.values() for task in part])
    parts = {
        f"push:{shard.keys.shard}:{new_nonce()}": pack(
            pushing.push_args(
                shard, part, run_id, is_graph=True, other_shards=OtherShards(_except(numbers, shard), is_part=True)
            )
        )
        for shard, part in others.items()
    }
    return home, OtherShards(strangers, parts), mine


def find_id_conflicts(shards: Shards, tasks: Sequence[Task]) -> Operation[set[int]]:
    """The indexes of tasks whose chosen ids belong to tasks of other users: on other shards, or before them in this call. One
    look, if ids were chosen.

    Each shard refuses such ids by itself. Two pushes in the same moment to two shards are not noticed, nor one while a shard is
    away.
    """
    from django_fairque.engine.scripting.operations import Read

    chosen = {index: shards.of(task.user_id) for index, task in enumerate(tasks) if task.has_chosen_id}
    candidates = [(index, shard) for index, own in chosen.items() for shard in shards if shard is not own]
    if not candidates:
        return set()
    owners = yield Read([("HGET", shard.keys.task(tasks[index].task_id), "user") for index, shard in candidates])
    found = {index for (index, _), owner in zip(candidates, owners, strict=True) if owner is not None}
    first: dict[str, str] = {}
    for index in chosen:
        if index not in found and first.setdefault(tasks[index].task_id, tasks[index].user_id) != tasks[index].user_id:
            found.add(index)
    return found


def _except(numbers: dict[str, int], shard: Commands) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if number != shard.keys.shard}


def _check_known(shards: Shards, tasks: Sequence[Task], located: dict[str, Commands]) -> Operation[None]:
    from django_fairque.engine.scripting.operations import Read

    if not located:
        return
    names = list(located)
    there = yield Read([("EXISTS", located[name].keys.task(name)) for name in names])
    unknown = {name for name, is_there in zip(names, there, strict=True) if not is_there}
    for task in tasks:
        for name in task.depends_on:
            if name in unknown:
                raise TaskNotFoundError(
                    f"task {task.task_id!r} depends on {name!r}, which queue {shards.name!r} does not know: push it "
                    f"before or together with it; nothing was pushed"
                )


def _check_unique(tasks: Sequence[Task]) -> None:
    """Also of the first shard's tasks: what waits on others for one that is dropped would wait for nothing."""
    for task in tasks:
        if task.unique_key:
            raise TaskValidationError(
                f"task {task.task_id!r} has a unique_key and is part of a graph that lies on several shards, where "
                f"nobody could say what depends on which of the two; push it by itself"
            )


def _check_room(shards: Shards, tasks: Sequence[Task]) -> Operation[None]:
    """Limits of users on other shards are looked at before: their parts can't be refused any more."""
    users = list(dict.fromkeys(task.user_id for task in tasks))
    for stats in (yield from users_stats(shards.across(), users)):
        limit = stats.max_backlog or shards.config.max_backlog
        coming = sum(task.user_id == stats.user_id for task in tasks)
        if limit and stats.sizes.total - stats.sizes.running + coming > limit:
            raise BacklogFullError(
                f"the backlog of user {stats.user_id!r} is full (queue {shards.name!r}), so nothing of this graph was "
                f"accepted; try again later, or raise max_backlog",
                refused=[task.task_id for task in tasks],
            )
