"""Pushing tasks: one, many, graphs, and tasks from an outbox.

A task lives on the shard of its user. Functions that take ``shards`` send each task there; functions that take
``commands`` push to one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model import errors
from django_fairque.engine.model.durations import seconds, to_us
from django_fairque.engine.model.ids import new_nonce
from django_fairque.engine.model.limits import describe_skipping
from django_fairque.engine.model.payload import pack
from django_fairque.engine.model.records import REFUSED_STATUSES, EventCount, PushResult, push_refused
from django_fairque.engine.model.signature import SIGNATURE_SEPARATOR, prepared_key, sign, signed_spans
from django_fairque.engine.model.task import PushTemplate, Task, check_tasks
from django_fairque.engine.pushing import batching
from django_fairque.engine.scripting import signing_keys
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, Commands
from django_fairque.engine.scripting.operations import Evaluate, Operation, Read, Stream, slices
from django_fairque.engine.scripting.task_fields import read_fields
from django_fairque.engine.sharding.shards import Shards, change_each, describe_shards, indexes_by_shard
from django_fairque.engine.users.users import users_stats
from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from django_fairque.engine.model.options import QueueConfig


@dataclass(frozen=True)
class Graph:
    """The relations between the tasks of a call: the run ``run_id`` ("" for none), and their dependencies.

    ``mode`` is 0 if the tasks are accepted one by one, 1 if they are accepted as a whole, and 2 if they are a part of a graph
    that was accepted on another shard. ``remote`` maps tasks on other shards, which depend on these tasks or on which these
    tasks depend, to the numbers of their shards. ``parts`` are messages that carry the rest of the graph to other shards.
    """

    run_id: str = ""
    mode: int = 0
    remote: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)


NO_GRAPH = Graph()

STATUS_OF_ERROR: Mapping[type, str] = {errors.TaskIdConflictError: "id_conflict", errors.AtLimitError: "at_limit"}
"""By type of error: the status of the tasks of a graph that was refused with this error."""

TASKS_SORTED_BY_USER = 2000
"""The number of tasks that are sorted by user at a time: about 50 ms of pushing."""
DELIVERY_RECORD_SECONDS = 30 * 86_400.0
"""Seconds for which the delivery of a row is recorded if no process removes the row: longer than any outage."""
REMOVED_ROW_RECORD_SECONDS = 600.0
"""Seconds for which the delivery is recorded after the row was removed: longer than a process keeps a row that it has read."""
MAX_EVENT_ERROR_CHARACTERS = 500
MAX_NAMES_WITH_CAPPED_RETRIES = 1000

logger = get_logger("django_fairque.tasks")

_names_with_capped_retries: set[tuple[str, str]] = set()
"""Queues and task names for which a warning was logged."""


def push(shards: Shards, task: Task, now: float | None) -> Operation[PushResult]:
    if task.depends_on:
        return (yield from push_graph(shards, [task], task.run_id, now))[0]
    if conflicts := (yield from _find_id_conflicts(shards, [task])):
        raise push_refused(shards.name, list(conflicts.values()))
    return (yield from push_to_shard(shards.get_shard(task.user_id), task, now))


def push_to_shard(commands: Commands, task: Task, now: float | None) -> Operation[PushResult]:
    graph = Graph(task.run_id, mode=1) if task.depends_on or task.run_id else NO_GRAPH
    return all_accepted(commands, [task], (yield from _push_in_slices(commands, [task], now, graph)))[0]


def push_batch(shards: Shards, tasks: Iterable[Task], now: float | None) -> Operation[list[PushResult]]:
    found = check_tasks(tasks)
    push_singles = partial(_push_in_slices, shards.home) if len(shards.all) == 1 else partial(_push_to_each, shards)
    if not any(task.depends_on or task.run_id for task in found):
        return all_accepted(shards.home, found, (yield from push_singles(found, now)))
    results: dict[int, PushResult] = {}
    for part in batching.divide_tasks(found):
        some = [found[index] for index in part.indexes]
        done = yield from _push_part(shards, part, some, now) if part.is_graph else push_singles(some, now)
        results.update(zip(part.indexes, done, strict=True))
    return all_accepted(shards.home, found, [results[index] for index in range(len(found))])


def _push_part(
    shards: Shards, part: batching.Part, tasks: Sequence[Task], now: float | None
) -> Operation[list[PushResult]]:
    """Push a part of a batch as a graph. If the graph is refused, its results have the status of the refusal, and the
    other tasks are still pushed.
    """
    try:
        return (yield from push_graph(shards, tasks, part.run_id, now))
    except errors.PushRefusedError as error:
        if part.is_joined and len(tasks) > 1:
            alone: list[PushResult] = []
            for task in tasks:
                alone += yield from _push_part(shards, part, [task], now)
            return alone
        return [PushResult(task.task_id, STATUS_OF_ERROR.get(type(error), "backlog_full")) for task in tasks]


def _push_to_each(shards: Shards, tasks: Sequence[Task], now: float | None) -> Operation[list[PushResult]]:
    results = yield from _find_id_conflicts(shards, tasks)
    parts = _by_shard(shards, tasks, results)

    def act(shard: Commands) -> Operation[None]:
        done = yield from _push_in_slices(shard, [tasks[index] for index in parts[shard]], now)
        results.update(zip(parts[shard], done, strict=True))

    failures = yield from change_each(shards, parts, act)
    if failures:
        away, ids = sorted(failures), [task.task_id for index, task in enumerate(tasks) if index not in results]
        raise errors.ShardsAwayError(
            f"{len(ids)} of {len(tasks)} tasks were not pushed, or nobody knows: {describe_shards(away)} of queue "
            f"{shards.name!r} can't be reached. The error's task_ids names them; pushing them again under the same ids is safe",
            away,
            ids,
        ) from next(iter(failures.values()))
    return [results[index] for index in range(len(tasks))]


def push_graph(shards: Shards, tasks: Sequence[Task], run_id: str, now: float | None) -> Operation[list[PushResult]]:
    """Push tasks that depend on each other as a whole or not at all; ``run_id`` is the id of their run ("" for none)."""
    check_tasks(tasks)
    home, graph, mine = yield from _split_graph(shards, tasks, run_id or (tasks[0].run_id if tasks else ""))
    done = yield from _push_in_slices(home, [tasks[index] for index in mine], now, graph)
    known = dict(zip(mine, done, strict=True))  # this call also accepts the tasks on other shards
    return [known.get(index) or PushResult(task.task_id, "accepted") for index, task in enumerate(tasks)]


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
    """Deliver at most `MAX_CALL_ITEMS` tasks, or a graph, and at most as many counts. The home shard keeps the counts.

    A graph is delivered in the same way as `push_graph` pushes one.
    """
    check_tasks(tasks)
    if is_graph and tasks:
        home, graph, mine = yield from _split_graph(shards, tasks, run_id)
        results = {index: PushResult(task.task_id, "accepted") for index, task in enumerate(tasks)}
        parts = {shards.home: [], home: mine}
    else:
        graph, results = Graph(run_id), (yield from _find_id_conflicts(shards, tasks))
        parts = _by_shard(shards, tasks, results)
        parts.setdefault(shards.home, [])
    for shard, indexes in parts.items():
        some, its_counts = [tasks[index] for index in indexes], counts if shard is shards.home else {}
        if not some and not its_counts:
            continue
        its_graph = graph if some else NO_GRAPH
        if not its_graph.mode and max(len(some), len(its_counts)) > MAX_CALL_ITEMS:
            raise errors.TaskValidationError(f"at most {MAX_CALL_ITEMS} tasks and events are delivered in one call")
        args: list[Any] = [to_us(DELIVERY_RECORD_SECONDS) if from_outbox else 0, len(its_counts)]
        for event, count in its_counts.items():
            args += [event, count.fired, count.coalesced, count.failed, count.error[:MAX_EVENT_ERROR_CHARACTERS]]
        _kept, *rest = push_args(shard, some, its_graph, (yield from find_plans(shard, some)))
        if not shard.has_written_fingerprint:
            yield from signing_keys.write_fingerprint(shard)
        reply = yield shard.call("deliver", [*args, 1, *rest], now, reply=new_nonce())
        results.update(zip(indexes, push_results(shard, some, reply, its_graph), strict=True))
    return [results[index] for index in range(len(tasks))]


def forget_delivered(shards: Shards, task_ids: Iterable[str], now: float | None) -> Operation[int]:
    """Record that the outbox rows of these tasks were removed; return how many of the tasks were recorded as delivered.

    Chosen ids are sent to every shard, because the delivered task may already be forgotten.
    """
    ids, known = list(task_ids), 0
    for shard in shards:
        some = [task_id for task_id in ids if shards.shard_in_id(task_id) in (None, shard)]
        for first in range(0, len(some), MAX_CALL_ITEMS):
            part = some[first : first + MAX_CALL_ITEMS]
            known += yield shard.call("forget_delivered", [to_us(REMOVED_ROW_RECORD_SECONDS), len(part), *part], now)
    return known


def _by_shard(shards: Shards, tasks: Sequence[Task], known: Mapping[int, PushResult]) -> dict[Commands, list[int]]:
    """Group the indexes of the tasks by their users' shards, without tasks whose result is known."""
    return indexes_by_shard(
        None if index in known else shards.get_shard(task.user_id) for index, task in enumerate(tasks)
    )


def _split_graph(shards: Shards, tasks: Sequence[Task], run_id: str) -> Operation[tuple[Commands, Graph, list[int]]]:
    """Return the home shard, which accepts the graph, the graph with its parts for other shards, and the indexes of the tasks of
    the home shard.

    Raises:
        TaskNotFoundError: a dependency is neither known nor among the tasks.
        BacklogFullError: a user of another shard has too many tasks.
        TaskValidationError: a task can't be part of a graph on several shards.
    """
    batching.check_graph(tasks)
    if len(shards) == 1 or not tasks:
        return shards.home, Graph(run_id, mode=1), list(range(len(tasks)))
    for index in (yield from _find_id_conflicts(shards, tasks)):
        raise batching.id_conflict_error(shards.name, tasks[index].task_id, tasks)
    places = {task.task_id: shards.get_shard(task.user_id) for task in tasks}
    outside = dict.fromkeys(name for task in tasks for name in task.depends_on if name not in places)
    dependents = {name: places[task.task_id] for task in reversed(tasks) for name in task.depends_on}
    located = yield from shards.locate(outside, dependents)
    home = places[tasks[0].task_id]
    others = indexes_by_shard(places.values())
    mine = others.pop(home)

    def remote_to(shard: Commands) -> dict[str, int]:
        return {name: at.keys.shard for name, at in {**located, **places}.items() if at is not shard}

    if not (remote := remote_to(home)):
        return home, Graph(run_id, mode=1), mine
    yield from _check_known(shards, tasks, located)
    # The home shard's tasks are checked too: a task on another shard that depends on a dropped duplicate would wait forever.
    for task in tasks if others else ():
        if task.unique_key:
            raise errors.TaskValidationError(
                f"task {task.task_id!r} has a unique_key and is part of a graph that lies on several shards, where "
                f"nobody could say what depends on which of the two; push it by itself"
            )
    yield from _check_room(shards, [tasks[index] for part in others.values() for index in part])
    parts = {}
    for shard, part in others.items():
        some, graph = [tasks[index] for index in part], Graph(run_id, mode=2, remote=remote_to(shard))
        args = push_args(shard, some, graph, (yield from find_plans(shard, some)))
        parts[f"push:{shard.keys.shard}:{new_nonce()}"] = pack(args)
    return home, Graph(run_id, 1, remote, parts), mine


def _find_id_conflicts(shards: Shards, tasks: Sequence[Task]) -> Operation[dict[int, PushResult]]:
    """Return the results, by index, of tasks whose chosen ids are taken by a task of another user: on another shard, or earlier
    in ``tasks``. If ids were chosen, this takes one round trip.

    If the other task is on the same shard, the shard refuses the new one by itself. Conflicts are not noticed between two
    simultaneous pushes to different shards, nor with tasks on a shard that can't be reached.
    """
    if len(shards) == 1:
        return {}
    chosen = {index: shards.get_shard(task.user_id) for index, task in enumerate(tasks) if task.has_chosen_id}
    candidates = [(index, shard) for index, own in chosen.items() for shard in shards if shard is not own]
    if not candidates:
        return {}
    owners, _ = yield from read_fields([(shard.keys, tasks[index].task_id) for index, shard in candidates], ("user",))
    found = {index for (index, _), (owner,) in zip(candidates, owners, strict=True) if owner is not None}
    first: dict[str, str] = {}
    for index in chosen:
        if index not in found and first.setdefault(tasks[index].task_id, tasks[index].user_id) != tasks[index].user_id:
            found.add(index)
    return {index: PushResult(tasks[index].task_id, "id_conflict") for index in found}


def _check_known(shards: Shards, tasks: Sequence[Task], located: Mapping[str, Commands]) -> Operation[None]:
    if not located:
        return
    there = yield Read([("EXISTS", *shard.keys.of_task(name)) for name, shard in located.items()])
    unknown = {name for name, is_there in zip(located, there, strict=True) if not is_there}
    for task in tasks:
        for name in task.depends_on:
            if name in unknown:
                raise errors.TaskNotFoundError(
                    f"task {task.task_id!r} depends on {name!r}, which queue {shards.name!r} does not know: push it "
                    f"before or together with it; nothing was pushed"
                )


def _check_room(shards: Shards, tasks: Sequence[Task]) -> Operation[None]:
    """Check the backlogs of users on other shards before the push, because those shards can't refuse their parts
    later."""
    users = list(dict.fromkeys(task.user_id for task in tasks))
    for stats in (yield from users_stats(shards.route_names(), users)):
        limit = stats.max_backlog or shards.config.max_backlog
        coming = sum(task.user_id == stats.user_id for task in tasks)
        if limit and stats.sizes.total - stats.sizes.running + coming > limit:
            raise errors.BacklogFullError(
                f"the backlog of user {stats.user_id!r} is full (queue {shards.name!r}), so nothing of this graph was "
                f"accepted; try again later, or raise max_backlog",
                refused=[task.task_id for task in tasks],
            )


def find_plans(commands: Commands, tasks: Sequence[Task]) -> Operation[list[Any]]:
    """Return the plans of the tasks' users as the last arguments of ``push.lua``; none without plans."""
    plans = commands.config.plans
    if plans is None or plans.find is None:
        return []
    users = dict.fromkeys(task.user_id for task in tasks)
    found = plans.get_known(users)
    if missing := [user_id for user_id in users if user_id not in found]:
        found |= yield Evaluate(partial(plans.look_up, missing), plans.in_thread)
    return plans.to_args(found)


def _push_in_slices(
    commands: Commands, tasks: Sequence[Task], now: float | None, graph: Graph = NO_GRAPH
) -> Operation[list[PushResult]]:
    """Push the tasks in one call, or in several if there are many tasks and they are accepted one by one."""
    size = commands.config.pipeline_batch_size
    if not tasks:
        return []
    if graph.mode or len(tasks) <= size:
        args = push_args(commands, tasks, graph, (yield from find_plans(commands, tasks)))
        if not commands.has_written_fingerprint:
            yield from signing_keys.write_fingerprint(commands)
        reply = yield commands.call("push", args, now, reply=new_nonce())
        return push_results(commands, tasks, reply, graph)
    check_payload_sizes(commands.config, tasks)  # all sizes are checked before a task is sent
    if not commands.has_written_fingerprint:
        yield from signing_keys.write_fingerprint(commands)
    order = _user_by_user(tasks)
    parts = list(slices([tasks[index] for index in order], size))
    plans = []
    for part in parts:  # the plans of users are looked up before any call is sent
        plans.append((yield from find_plans(commands, part)))
    calls = (
        commands.call("push", push_args(commands, part, NO_GRAPH, known), now, reply=new_nonce())
        for part, known in zip(parts, plans, strict=True)
    )
    answered = iter(parts)
    results: list[PushResult] = []

    def on_reply(reply: Sequence[Any]) -> None:
        results.extend(push_results(commands, next(answered), reply))

    yield Stream(calls, on_reply)
    found = dict(zip(order, results, strict=True))
    return [found[index] for index in range(len(tasks))]


def _user_by_user(tasks: Sequence[Task]) -> Sequence[int]:
    """Return the indexes of the tasks, sorted so that tasks of one user follow each other.

    A call reads and writes each of its users once, which takes as long as a task. `TASKS_SORTED_BY_USER` tasks are sorted at a
    time, and users with few tasks come first, so that they do not wait until all tasks of another user are pushed. Tasks that
    may be duplicates of each other keep their order, because the first or the last of them counts.
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


def push_results(
    commands: Commands, tasks: Sequence[Task], reply: Sequence[Any], graph: Graph = NO_GRAPH
) -> list[PushResult]:
    """Return the result of each task in the reply of ``push.lua``. Raises an error if the script refused a graph."""
    if graph.mode:
        batching.raise_graph_refusal(commands, tasks, reply)
    if len(reply) == 2 and not reply[1].strip(b"1"):
        return [PushResult(task.task_id, "accepted") for task in tasks]
    others = {int(reply[i]): reply[i + 1].decode() for i in range(2, len(reply), 2)}
    words = {0x31: "accepted", 0x32: "duplicate", 0x33: "backlog_full", 0x34: "id_conflict", 0x35: "at_limit"}
    return [
        PushResult(others.get(index, task.task_id), words[code])
        for index, (task, code) in enumerate(zip(tasks, reply[1], strict=True), 1)
    ]


def check_payload_sizes(config: QueueConfig, tasks: Iterable[Task]) -> None:
    """Raise `TaskSerializationError` if the payload of a task is too large for this queue."""
    limit = config.max_payload_bytes
    for task in tasks:
        size = len(task.payload_bytes)
        if size > limit:
            raise errors.TaskSerializationError(
                f"the payload of task {task.task_id!r} takes {size:,} bytes, "
                f"the limit (max_payload_bytes) is {limit:,}; store the data and pass a reference to it"
            )


def cap_retries(template: PushTemplate, limit: int, queue: str) -> PushTemplate:
    """Return the template with at most ``limit`` retries. Logs a warning, once in a process for each name and queue."""
    known = _names_with_capped_retries
    if (queue, template.name) not in known and len(known) < MAX_NAMES_WITH_CAPPED_RETRIES:
        known.add((queue, template.name))
        logger.warning(
            "tasks %r of queue %s have max_retries %d, which is reduced to the queue's limit (max_retry_attempts): %d",
            *(template.name, queue, template.max_retries, limit),
        )
    return template._replace(max_retries=limit)


def push_args(
    commands: Commands, tasks: Sequence[Task], graph: Graph = NO_GRAPH, plans: Sequence[Any] = ()
) -> list[Any]:
    """Return the arguments of ``push.lua`` after the options. ``plans`` is the result of `find_plans`.

    Raises:
        TaskSerializationError: a payload is too large.
    """
    check_payload_sizes(commands.config, tasks)
    most_retries = commands.config.max_retry_attempts
    forms: dict[PushTemplate, int] = {}
    args: list[Any] = []
    traced: list[Any] = []
    prefix, queue, secret = commands.config.prefix, commands.name, commands.config.signing_key.read()
    key = None if secret is None else prepared_key(secret)
    for task in tasks:
        template = task.push_template
        if task.max_retries > most_retries:
            template = cap_retries(template, most_retries, queue)
        payload, form = task.payload_bytes, forms.setdefault(template, len(forms) + 1)
        if task.signature is not None:
            payload += task.signature
        elif key is not None:
            known = (task.task_id, graph.run_id) if task.debounce is None else ("", "")
            spans = b"" if task.delay is None and task.expires is None else signed_spans(task.delay, task.expires)
            payload += SIGNATURE_SEPARATOR + sign(key, prefix, queue, task.name, task.user_id, payload, *known, spans)
        args += (task.task_id, task.user_id, payload, form)
        if task.traceparent:
            traced += (len(args) // 4, task.trace.encode())
    is_kept = bool(graph.parts)
    for template in forms:
        is_kept = is_kept or template.is_chosen or bool(template.unique_key)
        there = template.on_shard(commands.config.lanes, commands.keys.shard, commands.config.shards)
        args.append(there.pack())
    if graph.mode:
        args += batching.dependency_args(tasks, graph.remote)
    is_part = graph.mode == 2  # the script that accepts the graph adds its time as the last argument
    if traced or graph.parts or is_part or plans:
        args += [len(traced) // 2, *traced]
    if graph.parts or is_part or plans:
        args += [len(graph.parts), *(value for part in graph.parts.items() for value in part), *plans]
    return [int(is_kept), graph.run_id, graph.mode, len(tasks), len(forms), *args]


def all_accepted(commands: Commands, tasks: Sequence[Task], results: list[PushResult]) -> list[PushResult]:
    """Return the results of the tasks; raise `PushRefusedError` with all of them if some were refused."""
    for result in results:
        if result.status in REFUSED_STATUSES:
            answers = zip(tasks, results, strict=True)
            limits = (limit for task, answer in answers if answer.status == "at_limit" for limit in task.limits)
            raise push_refused(commands.name, results, describe_skipping(limits))
    return results


def event_counts(commands: Commands) -> Operation[dict[str, EventCount]]:
    """Return the counts of each model event that ever added a task to this queue."""
    (fields,) = yield Read([("HGETALL", commands.keys("events"))])
    readers: dict[str, Callable[[bytes], Any]] = {"last": seconds, "error": partial(bytes.decode, errors="replace")}
    found: dict[str, EventCount] = {}
    for name, value in fields.items():
        kind, _, event = name.decode().partition(":")
        setattr(found.setdefault(event, EventCount()), kind, readers.get(kind, int)(value))
    return found
