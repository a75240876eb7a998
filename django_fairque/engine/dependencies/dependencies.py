"""Dependencies of a task, the graph around it, the results of its parents, and values that tasks pass to each other by key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django_fairque.engine.inspection.pages import PartialList
from django_fairque.engine.inspection.task_lookup import around_run
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import check_integer, positive_us, seconds, to_us
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError, short
from django_fairque.engine.model.ids import check_id, check_ids
from django_fairque.engine.model.payload import unpack
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.scripting.operations import Driver, Operation, Read, parse_scores, slices
from django_fairque.engine.scripting.task_fields import read_fields, read_task_fields

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards

MAX_LISTED_DEPENDENCIES = 1000
"""The largest number of ids in each list of a `DependencyView`."""
NODE_FIELDS = ("state", "name", "user")
NODE_TIME_FIELDS = ("created", "ready", "started", "ended")
MAX_RUNS_KEPT = 200
"""The largest number of runs that are listed (``lua/lib/push_dependencies.lua``)."""
MAX_RUNS_READ = 20
RUN_TASKS_READ = 200
"""The most tasks of one run (on each shard) that are read for its progress."""
RUN_NODES_PER_READ = 1000
RESULTS_PER_READ = 200
"""The number of results that are read in one round trip."""


@dataclass(frozen=True)
class Node:
    """A task of a graph: its ``task_id``, ``name`` and ``user_id``. ``state`` is None if the task is forgotten.

    ``created_at``, ``ready_at`` (since then it could start), ``started_at`` and ``ended_at`` are Unix times, which are read
    only for the graph of a run; None for a moment that has not come.
    """

    task_id: str
    name: str
    user_id: str
    state: TaskState | None
    created_at: float | None = None
    ready_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class DependencyGraph:
    """Tasks that are connected with a task: ``nodes`` by id; ``edges`` lead from a task to a task that depends on it.

    ``is_whole`` is False if some connected tasks were not read.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True


@dataclass(frozen=True)
class DependencyView:
    """The dependencies of a task at one moment.

    ``task_id`` is its id. ``waiting`` are tasks that wait for it, ``blocked`` are tasks that block it (at most 1,000 of
    each; ``waiting_count`` and ``blocked_count`` are exact). ``parents`` are the tasks on which it was declared to depend,
    finished or not. ``graph`` are the tasks around it.
    """

    task_id: str
    waiting: tuple[str, ...]
    waiting_count: int
    blocked: tuple[str, ...]
    blocked_count: int
    parents: tuple[str, ...]
    graph: DependencyGraph


@dataclass(frozen=True)
class Blockers:
    """The tasks that still block a task: ``count`` is their number, and ``nodes`` are some of them.

    ``orphans`` are the ``nodes`` that will never release the task: they are unknown, or they have ended and no process will
    report their end to the task.
    """

    count: int
    nodes: tuple[Node, ...]
    orphans: tuple[str, ...]


def view(shards: Shards, task_id: str, nodes: int, layers: int | None) -> Operation[DependencyView]:
    check_id(task_id, "task_id")
    check_integer(nodes, "nodes", 1)
    if layers is not None:
        check_integer(layers, "layers", 1)
    commands = yield from shards.route_tasks([task_id])
    keys = commands.keys
    blocked_key, waiting_keys = keys.blocked(task_id), [shard.waiting(task_id) for shard in keys.everywhere()]
    reads: list[tuple[Any, ...]] = []
    for key in (blocked_key, *waiting_keys):
        reads += (("SCARD", key), ("SRANDMEMBER", key, MAX_LISTED_DEPENDENCIES))
    ((state, parents),), (blocked_count, blocked, *others) = yield from read_fields(
        [(keys, task_id)], ("state", "parents"), reads
    )
    if state is None:
        raise commands.unknown(task_id)
    counts, members = others[::2], others[1::2]
    waiting = [member for some in members for member in some][:MAX_LISTED_DEPENDENCIES]
    graph = yield from _graph(commands, task_id, nodes, layers)
    return DependencyView(
        task_id,
        tuple(sorted(child.decode() for child in waiting)),
        sum(map(int, counts)),
        tuple(sorted(parent.decode() for parent in blocked)),
        int(blocked_count),
        tuple(parent.decode() for parent in unpack(parents or b"")),
        graph,
    )


def _graph(commands: Commands, start: str, most: int, most_layers: int | None) -> Operation[DependencyGraph]:
    """Read the graph breadth first from ``start`` along parents and waiting tasks, in one round trip per layer."""
    read_layers = 0
    keys = commands.keys
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], None] = {}
    is_whole = True
    layer, queued = [start], {start}
    while layer:
        if most_layers is not None and read_layers > most_layers:
            is_whole = False
            break
        read_layers += 1
        ids, layer = layer, []
        records, others = yield from read_fields(
            [(keys, task_id) for task_id in ids],
            (*NODE_FIELDS, "parents"),
            [("SRANDMEMBER", shard.waiting(task_id), most + 1) for task_id in ids for shard in keys.everywhere()],
        )
        shards = len(keys.everywhere())
        for number, task_id in enumerate(ids):
            state, name, user, parents = records[number]
            waiting = {member for some in others[number * shards : (number + 1) * shards] for member in some}
            nodes[task_id] = _node(task_id, state, name, user)
            for other, edge in [
                *((parent.decode(), (parent.decode(), task_id)) for parent in unpack(parents or b"")),
                *((child.decode(), (task_id, child.decode())) for child in sorted(waiting)),
            ]:
                if other not in queued:
                    if len(queued) >= most:
                        is_whole = False
                        continue
                    queued.add(other)
                    layer.append(other)
                edges[edge] = None
    return DependencyGraph(nodes, tuple(edges), is_whole)


def blockers(shards: Shards, task_ids: Sequence[str], most: int) -> Operation[dict[str, Blockers]]:
    """Return the tasks that block each of ``task_ids``.

    This takes three round trips: at most ``most`` + 2 commands for each task, and two for each blocking task that has ended.
    """
    ids = check_ids(task_ids, "task ids")
    check_integer(most, "most", 1)
    if not ids:
        return {}
    commands = yield from shards.route_tasks(ids)
    keys = [commands.keys.blocked(task_id) for task_id in ids]
    reply = yield Read([("SCARD", key) for key in keys] + [("SRANDMEMBER", key, most) for key in keys])
    counts, members = reply[: len(keys)], [sorted(member.decode() for member in some) for some in reply[len(keys) :]]
    names = list(dict.fromkeys(member for some in members for member in some))
    records = yield from read_task_fields(commands.keys, names, *NODE_FIELDS)
    nodes = {task_id: _node(task_id, *values) for task_id, values in zip(names, records, strict=True)}
    over = [task_id for task_id, node in nodes.items() if node.state in (None, TaskState.FINISHED, TaskState.CANCELED)]
    reads = [("ZSCORE", commands.keys.get_shard_keys(task_id)("resolving"), task_id) for task_id in over]
    scores = (yield Read(reads)) if reads else []
    lost = {task_id for task_id, score in zip(over, scores, strict=True) if score is None}

    def orphans(task_id: str, some: Sequence[str]) -> tuple[str, ...]:
        # A task on another shard is no orphan: that shard is asked about it every minute.
        here = commands.keys.get_shard_keys(task_id)
        return tuple(task_id for task_id in some if task_id in lost and commands.keys.get_shard_keys(task_id) is here)

    return {
        task_id: Blockers(int(count), tuple(nodes[task_id] for task_id in some), orphans(task_id, some))
        for task_id, count, some in zip(ids, counts, members, strict=True)
    }


def _node(task_id: str, state: bytes | None, name: bytes | None, user: bytes | None, *times: bytes | None) -> Node:
    known = None if state is None else TaskState(state.decode())
    return Node(task_id, (name or b"").decode(), (user or b"").decode(), known, *map(seconds, times))


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run: ``run_id`` is its id, ``count`` the number of its tasks that are not forgotten.

    ``states`` are the numbers of tasks by state among the tasks that were read: all of them, unless ``is_whole`` is False.
    ``name``, ``user_id`` and ``created_at`` are those of the task that was created first. ``ended_at`` is the moment at which
    a task ended last, None if none has ended. Moments are Unix times.
    """

    run_id: str
    count: int
    states: Mapping[TaskState, int]
    name: str
    user_id: str
    created_at: float
    ended_at: float | None

    @property
    def is_whole(self) -> bool:
        """Whether all tasks of the run were read."""
        return sum(self.states.values()) >= self.count

    @property
    def done(self) -> float:
        """The fraction of the tasks that have ended, from 0 to 1."""
        read = sum(self.states.values())
        return sum(count for state, count in self.states.items() if state.is_ended) / read if read else 0.0


def recent_runs(shards: Shards, limit: int) -> Operation[PartialList[RunProgress]]:
    """Return the runs that were pushed, or added to, last."""
    check_integer(limit, "limit", 1, MAX_RUNS_READ)
    last: dict[str, float] = {}
    for scored in (yield Read([("ZREVRANGE", shard.keys("runs"), 0, -1, "WITHSCORES") for shard in shards])):
        for name, at in parse_scores(scored):
            last[name.decode()] = max(last.get(name.decode(), 0.0), at)
    known = sorted(last, key=lambda run_id: (-last[run_id], run_id))[:MAX_RUNS_KEPT]
    questions = [("EXISTS", shard.keys.run(run_id)) for run_id in known for shard in shards]
    there = (yield Read(questions)) if questions else []
    size = len(list(shards))
    run_ids = [run_id for index, run_id in enumerate(known) if any(there[size * index : size * (index + 1)])][:limit]
    places = [(run_id, shard.keys.run(run_id)) for run_id in run_ids for shard in shards]
    reads = [("SCARD", key) for _, key in places] + [("SRANDMEMBER", key, RUN_TASKS_READ) for _, key in places]
    reply = (yield Read(reads)) if reads else []
    counts, members = Counter[str](), defaultdict[str, list[str]](list)
    for number, (run_id, _key) in enumerate(places):
        counts[run_id] += int(reply[number])
        members[run_id] += (member.decode() for member in reply[len(places) + number])
    ids = [member for run_id in run_ids for member in members[run_id]]
    commands = yield from shards.route_tasks(ids)
    nodes: dict[str, Node] = {}
    for some in slices(ids, RUN_NODES_PER_READ):
        fields = (*NODE_FIELDS, *NODE_TIME_FIELDS)
        records = yield from read_task_fields(commands.keys, some, *fields)
        nodes.update({task_id: _node(task_id, *values) for task_id, values in zip(some, records, strict=True)})
    found = [_progress(run_id, counts[run_id], [nodes[task_id] for task_id in members[run_id]]) for run_id in run_ids]
    return PartialList([progress for progress in found if progress is not None], shards.missing)


def _progress(run_id: str, count: int, nodes: Sequence[Node]) -> RunProgress | None:
    """Return the progress of a run, or None if all its tasks are forgotten."""
    known = sorted(
        (node for node in nodes if node.state is not None), key=lambda node: (node.created_at or 0.0, node.task_id)
    )
    if not known:
        return None
    return RunProgress(
        run_id,
        count,
        Counter(node.state for node in known if node.state is not None),
        known[0].name,
        known[0].user_id,
        known[0].created_at or 0.0,
        max((node.ended_at for node in known if node.ended_at is not None), default=None),
    )


def run_graph(shards: Shards, run_id: str, most: int) -> Operation[DependencyGraph]:
    """Return the tasks of a run with the dependencies among them. Their payloads are not read."""
    check_id(run_id, "run_id")
    check_integer(most, "nodes", 1)
    commands = yield from around_run(shards, run_id)
    found = yield Read([("SRANDMEMBER", keys.run(run_id), most + 1) for keys in commands.keys.everywhere()])
    members = [member for some in found for member in some]
    if not members:
        raise TaskNotFoundError(f"queue {commands.name!r} knows no run {run_id!r}; one is forgotten with its last task")
    ids = sorted(member.decode() for member in members)[:most]
    nodes, edges = {}, []
    for some in slices(ids, RESULTS_PER_READ):
        fields = (*NODE_FIELDS, *NODE_TIME_FIELDS, "parents")
        reply = yield from read_task_fields(commands.keys, some, *fields)
        for task_id, (state, name, user, *times, parents) in zip(some, reply, strict=True):
            nodes[task_id] = _node(task_id, state, name, user, *times)
            edges += [(parent.decode(), task_id) for parent in unpack(parents or b"")]
    inside = tuple((parent, child) for parent, child in edges if parent in nodes)
    return DependencyGraph(nodes, inside, len(members) <= most)


def parent_results(
    shards: Shards, task_id: str, load: Callable[[str, Any], Any] | None = None
) -> Operation[dict[str, Any]]:
    """Return the results of the tasks on which a task depends, by id, without tasks that have not finished or are forgotten.

    ``load`` gets a task's name and its result as a JSON value, and returns the value to use.
    """
    there = yield from shards.of_task(task_id)
    ((state, parents),) = yield from read_task_fields(there.keys, [task_id], "state", "parents")
    if state is None:
        raise there.unknown(task_id)
    ids = [parent.decode() for parent in unpack(parents or b"")]
    commands = yield from shards.route_tasks(ids, there)
    values: dict[str, Any] = {}
    for some in slices(ids, RESULTS_PER_READ):
        found = yield from read_task_fields(commands.keys, some, "state", "result", "name")
        for parent, (state, result, name) in zip(some, found, strict=True):
            if state == b"finished":
                value = json_payload.loads(result, what="result") if result else None
                values[parent] = value if load is None else load((name or b"").decode(), value)
    return values


MAX_XCOM_KEYS = 1000
"""The most keys in one namespace, so that a list of its keys is bounded."""
MAX_XCOM_VALUES_PER_PUSH = 1000
XCOM_VALUE_MISSING = object()
MAX_RUN_TASKS_READ = 1000
"""The largest number of tasks of a run whose values may be removed early. Values of a larger run are kept until they
expire, because it would take too long to check whether all its tasks have ended."""
XCOM_PART_REMOVED = 0.1
"""The fraction of the limit that a removal frees in addition, so that not every push has to remove a namespace."""


def push(
    shards: Shards, namespace: str, user: str, values: Mapping[str, Any], ttl: float | None, now: float | None
) -> Operation[None]:
    if not values:
        return
    if len(values) > MAX_XCOM_VALUES_PER_PUSH:
        raise TaskValidationError(f"at most {MAX_XCOM_VALUES_PER_PUSH} values are kept in one call, got {len(values)}")
    commands, config = shards.get_shard(namespace), shards.config
    length = to_us(config.result_ttl) if ttl is None else positive_us(ttl, "ttl")
    head: list[Any] = [length, MAX_XCOM_KEYS, namespace, user, config.max_xcom_bytes]
    body: list[Any] = [len(values)]
    for key, value in values.items():
        body.append(check_id(key, "an xcom key"))
        body.append(json_payload.dumps(value, limit=config.max_payload_bytes, what=f"value {short(key)}"))
    kept = yield commands.call("xcom", [*head, 0, *body], now, xcom=namespace)
    if isinstance(kept, list):
        removable = yield from _removable_namespaces(shards, user, namespace, kept)
        if removable:
            kept = yield commands.call("xcom", [*head, len(removable), *removable, *body], now, xcom=namespace)
    if isinstance(kept, list):
        total, excess = int(kept[0]), int(kept[1])
        raise TaskValidationError(
            f"user {user!r} has {total:,} bytes of xcom values of runs that have not ended, and these values would exceed "
            f"max_xcom_bytes ({config.max_xcom_bytes:,}) by {excess:,}; nothing was kept. Pass references to large values, "
            "such as the name of a file, or raise the limit"
        )
    if not kept:
        raise TaskValidationError(
            f"namespace {namespace!r} holds at most {MAX_XCOM_KEYS} keys and these would be more; nothing was kept"
        )


def _removable_namespaces(shards: Shards, user: str, pushed: str, reply: Sequence[bytes]) -> Operation[list[str]]:
    """Choose the namespaces to remove from the reply of ``xcom``: those that expire first, as many as necessary.

    Namespaces of a run with a task that has not ended, or with a task of another user, stay, because a task may need them.
    """
    names = [name.decode() for name in reply[2::2] if name.decode() != pushed]
    sizes = dict(zip((name.decode() for name in reply[2::2]), map(int, reply[3::2]), strict=True))
    reads = [
        ("SRANDMEMBER", keys.run(name), MAX_RUN_TASKS_READ + 1)
        for name in names
        for keys in shards.route_names().keys.everywhere()
    ]
    found = iter((yield Read(reads)) if reads else [])
    removable: list[str] = []
    excess = int(reply[1]) + XCOM_PART_REMOVED * shards.config.max_xcom_bytes
    for name in names:
        members = [member.decode() for _ in shards.all for member in next(found)] or [name]
        if excess <= 0 or len(members) > MAX_RUN_TASKS_READ:
            continue
        commands = yield from shards.route_tasks(members)
        tasks: list[list[bytes | None]] = []
        for some in slices(members, RESULTS_PER_READ):
            tasks += yield from read_task_fields(commands.keys, some, "state", "user")
        if all(
            state is None or (TaskState(state.decode()).is_ended and owner == user.encode()) for state, owner in tasks
        ):
            removable.append(name)
            excess -= sizes[name]
    return removable


def pull(commands: Commands, namespace: str, key: str, default: Any) -> Operation[Any]:
    (value,) = yield Read([("HGET", commands.keys.xcom(namespace), check_id(key, "an xcom key"))])
    if value is not None:
        return json_payload.loads(value, what=f"value {short(key)}")
    if default is XCOM_VALUE_MISSING:
        raise KeyError(key)
    return default


def items(commands: Commands, namespace: str) -> Operation[dict[str, Any]]:
    (found,) = yield Read([("HGETALL", commands.keys.xcom(namespace))])
    return {key.decode(): json_payload.loads(value, what="value") for key, value in sorted(found.items())}


def keys(commands: Commands, namespace: str) -> Operation[list[str]]:
    (found,) = yield Read([("HKEYS", commands.keys.xcom(namespace))])
    return sorted(key.decode() for key in found)


class XCom:
    """One namespace of values, returned by ``queue.xcom(namespace)``.

    Values are any JSON, each of at most ``max_payload_bytes`` bytes; a namespace has at most 1000 keys, and a user at
    most ``max_xcom_bytes`` bytes, each value with its key and 100 bytes. Beyond that limit, the user's values that would
    expire first are removed, unless a task may still need them: the run has not ended, or has tasks of other users. ``now``
    is that of the queue.
    """

    def __init__(self, shards: Shards, run: Driver, namespace: str, user: str = "") -> None:
        self.namespace = check_id(namespace, "namespace")
        self._shards, self._commands, self._run = shards, shards.get_shard(namespace), run
        self._user = user and check_id(user, "user")

    def push(self, key: str, value: Any, *, ttl: float | None = None, now: float | None = None) -> None:
        """Store a value under a key, in place of an earlier value.

        ``key`` is a text of at most 256 bytes, ``value`` any JSON value. ``ttl`` is the number of seconds from now for
        which the namespace lasts at least; ``result_ttl`` (86,400) by default. All values of a namespace expire together.

        Raises `TaskValidationError` if the namespace would have too many keys, or the user too many bytes of values in
        namespaces of pipeline runs that have not ended, and `TaskSerializationError` if the value is not JSON or too large.
        """
        self._run(push(self._shards, self.namespace, self._user, {key: value}, ttl, now))

    def push_many(self, values: Mapping[str, Any], *, ttl: float | None = None, now: float | None = None) -> None:
        """Store several values in one call: all of them or none.

        ``values`` are at most 1000 values by key. ``ttl`` and the errors are those of `push`.
        """
        self._run(push(self._shards, self.namespace, self._user, values, ttl, now))

    def pull(self, key: str, default: Any = XCOM_VALUE_MISSING) -> Any:
        """Return the value of a key.

        ``key`` is its name. ``default`` is returned if there is no value. Raises `KeyError` if there is none and no
        ``default`` is given.
        """
        return self._run(pull(self._commands, self.namespace, key, default))

    def items(self) -> dict[str, Any]:
        """Return all values that are kept in this namespace, as a dict from key to value."""
        return self._run(items(self._commands, self.namespace))

    def keys(self) -> list[str]:
        """Return the keys that have values, sorted."""
        return self._run(keys(self._commands, self.namespace))
