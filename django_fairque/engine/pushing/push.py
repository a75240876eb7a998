"""Pushing tasks: one, many, graphs, and tasks from an outbox.

A task lives on the shard of its user. Functions that take ``shards`` send each task there; those whose names end in
``to_shard`` and ``on_shard`` push to one shard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from django_fairque.engine.model.durations import seconds, to_us
from django_fairque.engine.model.errors import (
    BacklogFullError,
    PushRefusedError,
    ShardsAwayError,
    TaskNotFoundError,
    TaskSerializationError,
    TaskValidationError,
)
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.payload import pack
from django_fairque.engine.model.records import EventCount, PushResult, push_refused
from django_fairque.engine.model.signature import SignedFields, is_signing, sign_payload
from django_fairque.engine.model.task import check_tasks
from django_fairque.engine.pushing.batching import (
    check_graph,
    dependency_args,
    id_conflict_error,
    push_apart,
    raise_graph_refusal,
)
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS
from django_fairque.engine.scripting.operations import Operation, Read, Stream
from django_fairque.engine.sharding.shards import change_each, describe_shards
from django_fairque.engine.users.users import users_stats

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from django_fairque.engine.model.options import QueueConfig
    from django_fairque.engine.model.task import PushTemplate, Task
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards


@dataclass(frozen=True)
class OtherShards:
    """What of a graph lies on other shards: where its tasks depend on, and ``parts``, messages that carry the rest there.

    ``is_part``: these tasks are such a part, which was accepted with the whole.
    """

    shards: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)
    is_part: bool = False


NO_OTHER_SHARDS = OtherShards()

TASKS_SORTED_BY_USER = 2000
"""Tasks among which those of a user are sent together: some 50 ms of pushing."""


def push(shards: Shards, task: Task, now: float | None) -> Operation[PushResult]:
    """For several shards: of one it is `push` itself, as pushes are many."""
    if task.depends_on:
        return (yield from _push_checked_graph(shards, [task], task.run_id, now))[0]
    if (yield from _find_id_conflicts(shards, [task])):
        return all_accepted(shards.home, [PushResult(task.task_id, "id_conflict")])[0]
    return (yield from push_to_shard(shards.of(task.user_id), task, now))


def push_batch(shards: Shards, tasks: Iterable[Task], now: float | None) -> Operation[list[PushResult]]:
    if len(shards) == 1:
        return (yield from push_batch_to_shard(shards.home, tasks, now))
    results = yield from push_apart(
        check_tasks(tasks),
        lambda some: _push_to_each(shards, some, now),
        lambda some, run_id: _push_checked_graph(shards, some, run_id, now),
    )
    return all_accepted(shards.home, results)


def _push_to_each(shards: Shards, tasks: Sequence[Task], now: float | None) -> Operation[list[PushResult]]:
    conflicts = yield from _find_id_conflicts(shards, tasks)
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    parts = _by_shard(shards, tasks, conflicts)

    def act(shard: Commands) -> Operation[None]:
        try:
            done = yield from push_batch_to_shard(shard, [tasks[index] for index in parts[shard]], now)
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
    """Push tasks that depend on each other as a whole or not at all; ``run_id`` keeps them together ("" for none)."""
    return (yield from _push_checked_graph(shards, check_tasks(tasks), run_id, now))


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
    """At most `MAX_CALL_ITEMS` tasks, or a graph, and at most as many counts. The home shard keeps the counts; a graph is
    delivered as `push_graph` pushes one.
    """
    check_tasks(tasks)
    if len(shards) == 1 or (is_graph and tasks):
        home, elsewhere, mine = shards.home, NO_OTHER_SHARDS, list(range(len(tasks)))
        if len(shards) > 1:
            home, elsewhere, mine = yield from _split_graph(shards, tasks, run_id)
            if counts and home is not shards.home:
                yield from deliver_to_shard(shards.home, [], counts, now=now)
                counts = {}
        done = yield from deliver_to_shard(
            home,
            [tasks[index] for index in mine],
            counts,
            run_id=run_id,
            is_graph=is_graph,
            from_outbox=from_outbox,
            now=now,
            elsewhere=elsewhere,
        )
        return _merge_results(tasks, mine, done)
    conflicts = yield from _find_id_conflicts(shards, tasks)
    parts = _by_shard(shards, tasks, conflicts)
    parts.setdefault(shards.home, [])
    results = {index: PushResult(tasks[index].task_id, "id_conflict") for index in conflicts}
    for shard, indexes in parts.items():
        some = [tasks[index] for index in indexes]
        event_counts = counts if shard is shards.home else {}
        if some or event_counts:
            done = yield from deliver_to_shard(
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
            known += yield from forget_delivered_on_shard(shard, some, now)
    return known


def _by_shard(shards: Shards, tasks: Sequence[Task], without: Collection[int]) -> dict[Commands, list[int]]:
    """Indexes by the shard of the task's user, except for these."""
    found: dict[Commands, list[int]] = {}
    for index, task in enumerate(tasks):
        if index in without:
            continue
        found.setdefault(shards.of(task.user_id), []).append(index)
    return found


def _push_checked_graph(
    shards: Shards, tasks: Sequence[Task], run_id: str, now: float | None
) -> Operation[list[PushResult]]:
    """As `push_graph`."""
    if len(shards) == 1 or not tasks:
        return (yield from push_graph_to_shard(shards.home, tasks, run_id, now))
    run = run_id or tasks[0].run_id
    home, elsewhere, mine = yield from _split_graph(shards, tasks, run)
    done = yield from push_graph_to_shard(home, [tasks[index] for index in mine], run, now, elsewhere)
    return _merge_results(tasks, mine, done)


def _merge_results(tasks: Sequence[Task], mine: Sequence[int], done: Sequence[PushResult]) -> list[PushResult]:
    """What was answered for those at home, and that the others are accepted with them."""
    known = dict(zip(mine, done, strict=True))
    return [known.get(index) or PushResult(task.task_id, "accepted") for index, task in enumerate(tasks)]


def _split_graph(
    shards: Shards, tasks: Sequence[Task], run_id: str
) -> Operation[tuple[Commands, OtherShards, list[int]]]:
    """The shard that accepts the graph, what of it lies elsewhere, and the indexes of the tasks that lie there.

    Raises:
        TaskNotFoundError: a dependency is neither known nor among them. BacklogFullError: a user of another shard has
        too many tasks. TaskValidationError: what can't be kept over several shards.
    """
    check_graph(tasks)
    for index in (yield from _find_id_conflicts(shards, tasks)):
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
            push_args(
                shard, part, run_id, is_graph=True, other_shards=OtherShards(_except(numbers, shard), is_part=True)
            )
        )
        for shard, part in others.items()
    }
    return home, OtherShards(strangers, parts), mine


def _find_id_conflicts(shards: Shards, tasks: Sequence[Task]) -> Operation[set[int]]:
    """The indexes of tasks whose chosen ids belong to tasks of other users: on other shards, or before them in this call. One
    look, if ids were chosen.

    Each shard refuses such ids by itself. Two pushes in the same moment to two shards are not noticed, nor one while a shard is
    away.
    """
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


def push_to_shard(commands: Commands, task: Task, now: float | None = None) -> Operation[PushResult]:
    if task.depends_on or task.run_id:
        return (yield from push_graph_to_shard(commands, [task], "", now))[0]
    results = yield from _push_slice(commands, [task], now)
    return all_accepted(commands, results)[0]


def push_batch_to_shard(
    commands: Commands, tasks: Iterable[Task], now: float | None = None
) -> Operation[list[PushResult]]:
    waiting = check_tasks(tasks)
    if any(task.depends_on or task.run_id for task in waiting):
        results = yield from push_apart(
            waiting,
            lambda some: push_batch_to_shard(commands, some, now),
            lambda some, run_id: push_graph_to_shard(commands, some, run_id, now),
        )
        return all_accepted(commands, results)
    size = commands.config.pipeline_batch_size
    order = range(len(waiting)) if len(waiting) <= size else _user_by_user(waiting)
    parts = [order[first : first + size] for first in range(0, len(waiting), size)]
    if len(parts) == 1:
        reply = yield commands.call("push", push_args(commands, waiting), now, reply=new_nonce())
        return all_accepted(commands, push_results(waiting, reply))
    check_limits(commands.config, waiting)  # before any of them is sent
    found: dict[int, PushResult] = {}
    slices = ([waiting[index] for index in part] for part in parts)
    calls = (commands.call("push", push_args(commands, some), now, reply=new_nonce()) for some in slices)
    unheard = iter(parts)

    def on_reply(reply: Sequence[Any]) -> None:
        part = next(unheard)
        found.update(zip(part, push_results([waiting[index] for index in part], reply), strict=True))

    yield Stream(calls, on_reply)
    return all_accepted(commands, [found[index] for index in range(len(waiting))])


def _user_by_user(tasks: Sequence[Task]) -> Sequence[int]:
    """The tasks' indexes, those of one user next to each other: a call reads and writes each of its users once, which takes
    as long as a task. Among `TASKS_SORTED_BY_USER` tasks at a time, and users with few before those with many: nobody waits
    until all of another's are there. Where tasks may be the same as others, the first or the last of them counts, so they
    stay as they came.
    """
    if any(task.has_chosen_id or task.unique_key for task in tasks):
        return range(len(tasks))
    order: list[int] = []
    for first in range(0, len(tasks), TASKS_SORTED_BY_USER):
        users: dict[str, list[int]] = {}
        for index, task in enumerate(tasks[first : first + TASKS_SORTED_BY_USER], first):
            users.setdefault(task.user_id, []).append(index)
        for indexes in sorted(users.values(), key=len):
            order += indexes
    return order


def push_graph_to_shard(
    commands: Commands,
    tasks: Sequence[Task],
    run_id: str,
    now: float | None = None,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    check_graph(tasks)
    run = run_id or (tasks[0].run_id if tasks else "")
    return (yield from _push_slice(commands, tasks, now, run, is_graph=True, elsewhere=elsewhere))


def _push_slice(
    commands: Commands,
    tasks: Sequence[Task],
    now: float | None,
    run_id: str = "",
    *,
    is_graph: bool = False,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    if not tasks:
        return []
    args = push_args(commands, tasks, run_id, is_graph=is_graph, other_shards=elsewhere)
    reply = yield commands.call("push", args, now, reply=new_nonce())
    if is_graph:
        raise_graph_refusal(commands, tasks, reply)
    return push_results(tasks, reply)


def push_results(tasks: Sequence[Task], reply: Sequence[Any]) -> list[PushResult]:
    """What ``push.lua`` answers of each task, unless it refused a graph."""
    others = {int(reply[i]): reply[i + 1].decode() for i in range(2, len(reply), 2)}
    words = {0x31: "accepted", 0x32: "duplicate", 0x33: "backlog_full", 0x34: "id_conflict"}
    return [
        PushResult(others.get(index, task.task_id), words[code])
        for index, (task, code) in enumerate(zip(tasks, reply[1], strict=True), 1)
    ]


def check_limits(config: QueueConfig, tasks: Iterable[Task]) -> None:
    """Raise `TaskValidationError` for a task beyond what this queue is configured to take; of its payload it is a
    `TaskSerializationError`, as everywhere.
    """
    limit, most_retries = config.max_payload_bytes, config.max_retry_attempts
    for task in tasks:
        size = len(task.payload_bytes)
        if size > limit:
            raise TaskSerializationError(
                f"the payload of task {task.task_id!r} takes {size:,} bytes, "
                f"the limit (max_payload_bytes) is {limit:,}; store the data and pass a reference to it"
            )
        if task.max_retries > most_retries:
            raise TaskValidationError(
                f"max_retries of task {task.task_id!r} is {task.max_retries}, "
                f"the limit (max_retry_attempts) is {most_retries}"
            )


def push_args(
    commands: Commands,
    tasks: Sequence[Task],
    run_id: str = "",
    *,
    is_graph: bool = False,
    other_shards: OtherShards = NO_OTHER_SHARDS,
) -> list[Any]:
    """The arguments of ``push.lua`` behind the options.

    Raises:
        TaskValidationError: a task is beyond what this queue is configured to take.
    """
    check_limits(commands.config, tasks)
    forms: dict[PushTemplate, int] = {}
    args: list[Any] = []
    for task in tasks:
        form = forms.setdefault(task.push_template, len(forms) + 1)
        args += (task.task_id, task.user_id, task.payload_bytes + _signature_of(commands, task, run_id), form)
    parts = other_shards.parts
    is_kept = bool(parts) or any(form.is_idempotent for form in forms)
    tail = dependency_args(tasks, other_shards.shards) if is_graph else []
    traced = [(index, task.trace.stored()) for index, task in enumerate(tasks, 1) if task.traceparent]
    if traced or parts:
        tail += [len(traced), *(each for pair in traced for each in pair)]
    if parts:
        tail += [len(parts), *(each for part in parts.items() for each in part)]
    mode = 2 if other_shards.is_part else int(is_graph)
    return [int(is_kept), run_id, mode, len(tasks), len(forms), *args, *(form.packed() for form in forms), *tail]


def _signature_of(commands: Commands, task: Task, run_id: str) -> bytes:
    if task.signature is not None:
        return task.signature
    if not is_signing():
        return b""
    known = ("", "") if task.debounce is not None else (task.task_id, run_id)
    return sign_payload(
        SignedFields(commands.config.prefix, commands.name, task.name, task.user_id, task.payload_bytes, *known),
    )


def all_accepted(commands: Commands, results: list[PushResult]) -> list[PushResult]:
    """These results; `PushRefusedError` with all of them if some tasks were refused."""
    if all(result.is_known for result in results):
        return results
    raise push_refused(commands.name, results)


DELIVERY_RECORD_SECONDS = 30 * 86_400.0
"""Seconds for which it is known that a row was delivered, should nobody come to remove it: beyond any outage."""
REMOVED_ROW_RECORD_SECONDS = 600.0
"""Seconds for which it is known once the row is gone: longer than anybody holds on to a row that was read."""
MAX_EVENT_ERROR_CHARACTERS = 500


def deliver_to_shard(
    commands: Commands,
    tasks: Sequence[Task],
    counts: Mapping[str, EventCount],
    *,
    run_id: str = "",
    is_graph: bool = False,
    from_outbox: bool = False,
    now: float | None = None,
    elsewhere: OtherShards = NO_OTHER_SHARDS,
) -> Operation[list[PushResult]]:
    if is_graph:
        check_graph(tasks)
    elif max(len(tasks), len(counts)) > MAX_CALL_ITEMS:
        raise TaskValidationError(f"at most {MAX_CALL_ITEMS} tasks and events are delivered in one call")
    args: list[Any] = [to_us(DELIVERY_RECORD_SECONDS) if from_outbox else 0, len(counts)]
    for event, count in counts.items():
        args += [event, count.fired, count.coalesced, count.failed, count.error[:MAX_EVENT_ERROR_CHARACTERS]]
    _kept, *rest = push_args(commands, tasks, run_id, is_graph=is_graph, other_shards=elsewhere)
    reply = yield commands.call("deliver", [*args, 1, *rest], now, reply=new_nonce())
    if is_graph:
        raise_graph_refusal(commands, tasks, reply)
    return push_results(tasks, reply)


def forget_delivered_on_shard(commands: Commands, task_ids: Iterable[str], now: float | None = None) -> Operation[int]:
    """Say that the rows of these tasks are gone; how many were known."""
    ids, known = list(task_ids), 0
    for first in range(0, len(ids), MAX_CALL_ITEMS):
        part = ids[first : first + MAX_CALL_ITEMS]
        known += yield commands.call("forget_delivered", [to_us(REMOVED_ROW_RECORD_SECONDS), len(part), *part], now)
    return known


def event_counts(commands: Commands) -> Operation[dict[str, EventCount]]:
    """What is known of each event that ever added a task to this queue."""
    (fields,) = yield Read([("HGETALL", commands.keys("events"))])
    found: dict[str, EventCount] = {}
    for name, value in fields.items():
        kind, _, event = name.decode().partition(":")
        count = found.setdefault(event, EventCount())
        if kind == "last":
            count.last = seconds(value)
        elif kind == "error":
            count.error = value.decode(errors="replace")
        else:
            setattr(count, kind, int(value))
    return found
