"""Tasks by id, alone or as a run: reading them, their history, progress and position, and canceling them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.model import errors
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import now_us, seconds
from django_fairque.engine.model.errors import StaleLeaseError, TaskNotFoundError, TaskValidationError, short
from django_fairque.engine.model.head import whole_record
from django_fairque.engine.model.ids import check_id, check_ids, check_text, new_nonce
from django_fairque.engine.model.lanes import class_of, default_sla, read_lane
from django_fairque.engine.model.payload import unpack
from django_fairque.engine.model.priority import SCORE_PER_PRIORITY, Priority
from django_fairque.engine.model.records import Attempt, TaskState
from django_fairque.engine.model.task import Task
from django_fairque.engine.scripting.acts import Act, Values, is_recording, record_act
from django_fairque.engine.scripting.commands import MAX_CALL_ITEMS, Commands, skipped_time
from django_fairque.engine.scripting.operations import Operation, Read, read_sound, slices
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.sharding.shards import Shards, sum_over_shards

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

C = TypeVar("C", bound=int)

TASKS_PER_CALL = 200
"""The number of tasks that one call changes or reads. The server handles no other request during the call."""
MAX_TASKS_READ_FOR_RECORD = 1000
"""Tasks whose states are read before and after a recorded act. For more tasks, only the number of changed tasks is
recorded."""

Note = Callable[[Sequence[str]], object] | None
"""A function that is called with the ids of canceled tasks, once for each slice."""


@dataclass(frozen=True)
class Progress:
    """The progress of a task, as the task reported it: ``current`` of ``total``, in any unit, and a ``message``, empty
    by default.
    """

    current: float
    total: float
    message: str = ""


def cancel(shards: Shards, task_id: str, reason: str, now: float | None) -> Operation[bool]:
    check_text(reason, "reason")
    steps = _change_one(shards, task_id, "cancel", reason, now)
    return (yield from _record_tasks(shards, "cancel", [task_id], steps, count_canceled))


def ignore_dependencies(shards: Shards, task_id: str, now: float | None) -> Operation[bool]:
    steps = _change_one(shards, task_id, "run_now", TaskState.DEFERRED.value, now)
    return (yield from _record_tasks(shards, "release", [task_id], steps, _count_queued))


def count_canceled(count: int) -> Values:
    return {"canceled": int(count)}


def _count_queued(count: int) -> Values:
    return {"queued": int(count)}


def _record_tasks(
    shards: Shards, act: str, task_ids: Sequence[str], steps: Operation[C], describe: Callable[[int], Values]
) -> Operation[C]:
    """Change the tasks, and record the act with the states before and after."""
    if not is_recording():
        return (yield from steps)
    ids = check_ids(task_ids, "task ids")

    def read_states() -> Operation[Values]:
        if len(ids) > MAX_TASKS_READ_FOR_RECORD:
            return {}
        states = Counter[str]()
        places = yield from shards.locate(ids)
        for shard in set(places.values()):
            there = [task_id for task_id in ids if places[task_id] is shard]
            records = yield from read_task_fields(shard.keys, there, "state")
            states.update(state.decode() for (state,) in records if state)
        return states

    return (yield from record_act(Act(shards.name, act, "task", ", ".join(ids)), steps, read_states, describe))


def _change_one(shards: Shards, task_id: str, script: str, option: str, now: float | None) -> Operation[bool]:
    commands = yield from shards.of_task(task_id)
    (code,) = yield from _codes(commands, script, option, [task_id], now)
    if code == 0:
        raise commands.unknown(task_id)
    return code == 1


def _codes(
    commands: Commands, script: str, option: str, task_ids: Sequence[str], now: float | None, *more: str
) -> Operation[list[int]]:
    """Change at most 1000 tasks. Return a code for each: 0 unknown, 1 changed, 2 not in a state that allows the change."""
    reply = yield commands.call(script, [option, len(task_ids), *task_ids, *more], now, reply=new_nonce())
    return [code - 0x30 for code in reply]


def cancel_noting(
    commands: Commands, task_ids: Sequence[str], reason: str, note: Note, now: float | None
) -> Operation[list[str]]:
    """Cancel at most 1000 tasks in one call. Return the ids of the canceled tasks, and call ``note`` with them."""
    check_text(reason, "reason")
    codes = yield from _codes(commands, "cancel", reason, task_ids, now)
    done = [task_id for task_id, code in zip(task_ids, codes, strict=True) if code == 1]
    if note is not None and done:
        note(done)
    return done


def cancel_some(shards: Shards, task_ids: Sequence[str], reason: str, note: Note, now: float | None) -> Operation[int]:
    """Cancel the tasks that have not ended, in slices. Return the number of canceled tasks."""

    def change(commands: Commands, ids: Sequence[str]) -> Operation[int]:
        return len((yield from cancel_noting(commands, ids, reason, note, now)))

    steps = _change_some(shards, task_ids, change, "tasks were canceled")
    return (yield from _record_tasks(shards, "cancel", task_ids, steps, count_canceled))


def cancel_waiting(shards: Shards, task_ids: Sequence[str], reason: str, now: float | None) -> Operation[set[str]]:
    """Cancel the tasks that are queued or scheduled, in slices. Return the ids of those that are canceled now."""

    def change(commands: Commands, ids: Sequence[str]) -> Operation[int]:
        return (yield from _codes(commands, "cancel", reason, ids, now, "")).count(1)

    steps = _change_some(shards, task_ids, change, "tasks were canceled")
    yield from _record_tasks(shards, "cancel", task_ids, steps, count_canceled)
    tasks = yield from get_tasks(shards, task_ids)
    return {task_id for task_id, task in tasks.items() if task.state is TaskState.CANCELED}


def run_now(shards: Shards, task_ids: Sequence[str], now: float | None) -> Operation[int]:
    def change(commands: Commands, ids: Sequence[str]) -> Operation[int]:
        return (yield from _codes(commands, "run_now", TaskState.SCHEDULED.value, ids, now)).count(1)

    steps = _change_some(shards, task_ids, change, "tasks were queued")
    return (yield from _record_tasks(shards, "run now", task_ids, steps, _count_queued))


def _change_some(
    shards: Shards, task_ids: Sequence[str], change: Callable[[Commands, Sequence[str]], Operation[int]], done: str
) -> Operation[int]:
    """Change each of these tasks once, on its shard, in slices."""
    ids = check_ids(task_ids, "task ids")
    places = yield from shards.locate(ids)
    parts: dict[Commands, list[str]] = {}
    for task_id in ids:
        parts.setdefault(places[task_id], []).append(task_id)

    def change_there(shard: Commands, _: object) -> Operation[int]:
        total = 0
        for some in slices(parts[shard], TASKS_PER_CALL):
            total += yield from change(shard, some)
        return total

    return (yield from sum_over_shards(shards, change_there, done, wanted=parts))


def get_task(shards: Shards, task_id: str) -> Operation[Task]:
    commands = yield from shards.of_task(task_id)
    for _ in range(2):  # read again if the task was deleted between the two reads
        record, payload = whole_record(*(yield Read(_build_reads(commands, [task_id]))))
        if not record:
            raise commands.unknown(task_id)
        if b"user" in record:
            break
    return _task(commands, task_id, record, payload)


def get_tasks(shards: Shards, task_ids: Sequence[str]) -> Operation[dict[str, Task]]:
    ids = check_ids(task_ids, "task ids")
    tasks = yield from _known_tasks((yield from shards.route_tasks(ids)), ids)
    return {task.task_id: task for task in tasks}


def _known_tasks(commands: Commands, task_ids: Sequence[str]) -> Operation[list[Task]]:
    """Read tasks in slices; leave out unknown tasks."""
    found: list[Task] = []
    for some in slices(task_ids, TASKS_PER_CALL):
        found += [task for task in (yield from read_tasks(commands, some)) if task is not None]
    return found


def read_tasks(commands: Commands, task_ids: Sequence[str]) -> Operation[list[Task | None]]:
    """Return the tasks with these ids; None for an unknown task, or for a task whose record can't be read."""
    reply = yield from read_sound(_build_reads(commands, task_ids))
    records, payloads = reply[: len(task_ids)], reply[len(task_ids) :]
    return [
        _sound_task(commands, task_id, *whole_record(record, payload))
        for task_id, record, payload in zip(task_ids, records, payloads, strict=True)
    ]


def _build_reads(commands: Commands, task_ids: Sequence[str]) -> list[tuple[Any, ...]]:
    reads: list[tuple[Any, ...]] = [("HGETALL", commands.keys.task(task_id)) for task_id in task_ids]
    return reads + [("GET", commands.keys.payload(task_id)) for task_id in task_ids]


def _sound_task(commands: Commands, task_id: str, record: Mapping[bytes, bytes], payload: bytes) -> Task | None:
    """Return None for a damaged record, so that the other tasks of a page stay readable. The checker reports it."""
    try:
        return _task(commands, task_id, record, payload) if record else None
    except errors.TaskSerializationError:
        return None


def _task(commands: Commands, task_id: str, record: Mapping[bytes, bytes], payload: bytes) -> Task:
    task = Task.from_redis_dict({**record, b"id": task_id, b"payload": payload})
    ready = seconds(record.get(b"ready")) or task.created_at
    if task.state in (TaskState.SCHEDULED, TaskState.DEFERRED):
        return task
    sla = default_sla(task.lane, commands.config.sla[task.priority.name]) if task.sla is None else task.sla
    deadline = None if sla is None else ready + sla
    return task.model_copy(update={"sla_deadline": deadline, "ready_at": ready})


def server_time(now: float | None) -> Operation[float]:
    """Return the engine's time in seconds since the epoch: ``now`` if it is given, otherwise the time of the server's
    clock.
    """
    if now is not None:
        return now_us(now) / 1_000_000
    (clock,) = yield Read([("TIME",)])
    return int(clock[0]) + int(clock[1]) / 1_000_000 + skipped_time.seconds


def history(shards: Shards, task_id: str) -> Operation[list[Attempt]]:
    commands = yield from shards.of_task(task_id)
    (lines,) = yield Read([("LRANGE", commands.keys.history(task_id), 0, -1)])
    return [attempt(line) for line in lines]


def set_progress(
    shards: Shards, lease: Lease, current: float, total: float, message: str, now: float | None
) -> Operation[None]:
    for value, what in ((current, "current"), (total, "total")):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TaskValidationError(f"{what} of a task's progress must be a number, got {short(value)}")
    if not isinstance(message, str):
        raise TaskValidationError(f"the message of a task's progress must be a string, got {short(message)}")
    body = json_payload.dumps([current, total, message], limit=4096, what="progress")
    recorded = yield shards.of_lease(lease).call("progress", [lease.task_id, lease.token, body], now)
    if not recorded:
        raise StaleLeaseError(f"the lease of task {lease.task_id!r} is not its current one; progress was not kept")


def get_progress(shards: Shards, task_id: str) -> Operation[Progress | None]:
    commands = yield from shards.of_task(task_id)
    (body,) = yield Read([("HGET", commands.keys.task(task_id), "progress")])
    return None if body is None else Progress(*json_payload.loads(body, what="progress"))


def position(shards: Shards, task_id: str) -> Operation[int | None]:
    return (yield from position_on_shard((yield from shards.of_task(task_id)), task_id))


def position_on_shard(commands: Commands, task_id: str) -> Operation[int | None]:
    ((state, user, priority),) = yield from read_task_fields(commands.keys, [task_id], "state", "user", "priority")
    if state is None or user is None or priority is None:
        raise commands.unknown(task_id)
    if state != b"queued":
        return None
    name = user.decode()
    normal, urgent = commands.keys.normal(name), f"{class_of('urgent', 0) * SCORE_PER_PRIORITY:.0f}"
    if int(priority) == Priority.CRITICAL:
        index, before = yield Read(
            [("LPOS", commands.keys.critical(name), task_id), ("ZCOUNT", normal, urgent, "+inf")]
        )
        return None if index is None else int(index) + int(before)
    length, at = yield Read([("LLEN", commands.keys.critical(name)), ("ZSCORE", normal, task_id)])
    if at is None:
        return None
    band = float(at) // 1e15 * 1e15
    higher, older = (f"{band + 1e15:.0f}", "+inf"), (f"{band:.0f}", f"({float(at):.0f}")
    above, before = yield Read([("ZCOUNT", normal, *higher), ("ZCOUNT", normal, *older)])
    return (0 if read_lane(priority) == "urgent" else int(length)) + int(above) + int(before)


def attempt(line: bytes) -> Attempt:
    """Return the attempt in an entry of a history list (`history.add` in lua/lib/history.lua packs it)."""
    at, kind, worker, error, trace, *run = (text.decode("utf-8", "replace") for text in unpack(line))
    return Attempt(int(at) / 1_000_000, kind, worker, error, trace, *(int(moment) / 1_000_000 for moment in run[:2]))


@dataclass(frozen=True)
class RunView:
    """A run at one moment. ``run_id`` is its id; ``tasks`` are its tasks that are not forgotten, in the order of their
    push.
    """

    run_id: str
    tasks: tuple[Task, ...]

    @property
    def states(self) -> Mapping[TaskState, int]:
        """The number of the run's tasks in each state."""
        return Counter(task.state for task in self.tasks)

    @property
    def state(self) -> str:
        """The state "running" while a task runs or can still start; "failed" if the run can continue only after a dead
        letter is requeued. Otherwise "finished" if all tasks finished, "canceled" if some were canceled.
        """
        states = self.states
        if any(states.get(state) for state in (TaskState.SCHEDULED, TaskState.QUEUED, TaskState.STARTED)):
            return "running"
        if states.get(TaskState.FAILED):
            return "failed"
        if states.get(TaskState.DEFERRED):
            return "running"  # the deferred tasks wait for tasks of other runs
        return "canceled" if states.get(TaskState.CANCELED) else "finished"


def view_run(shards: Shards, run_id: str) -> Operation[RunView]:
    tasks = yield from _run_tasks((yield from around_run(shards, run_id)), run_id)
    return RunView(run_id, tuple(tasks))


def around_run(shards: Shards, run_id: str) -> Operation[Commands]:
    """Return commands that read the tasks of a run on their shards. Tasks with chosen ids are located in one read."""
    if len(shards) == 1:
        return shards.home
    return (yield from shards.route_tasks((yield from run_members(shards.route_names(), run_id))))


def cancel_run(shards: Shards, run_id: str, reason: str, note: Note, now: float | None) -> Operation[int]:
    check_id(run_id, "run_id")
    unknown = list[TaskNotFoundError]()

    def cancel_there(shard: Commands, _: object) -> Operation[int]:
        try:
            tasks = yield from _run_tasks(shard, run_id)
        except TaskNotFoundError as error:  # the run has no members on that shard
            unknown.append(error)
            return 0
        # Cancel the last tasks of the graph first, so that no dependent is released meanwhile.
        ids = [task.task_id for task in reversed(tasks) if not task.state.is_ended]
        done: set[str] = set()
        for some in slices(ids, MAX_CALL_ITEMS):
            done.update((yield from cancel_noting(shard, some, reason or f"run {run_id} was canceled", note, now)))
        after = zip(ids, (yield from read_tasks(shard, ids)), strict=True)
        # Canceling an earlier slice also canceled its dependents, which may be in later slices.
        more = [
            task_id for task_id, task in after if task_id not in done and (not task or task.state is TaskState.CANCELED)
        ]
        if note is not None and more:
            note(more)
        return len(done) + len(more)

    steps = sum_over_shards(shards, cancel_there, f"tasks of run {run_id!r} were canceled")
    total = yield from record_act(Act(shards.name, "cancel", "run", run_id), steps, describe=count_canceled)
    if len(unknown) == len(shards):
        raise unknown[0]
    return total


def run_members(commands: Commands, run_id: str) -> Operation[list[str]]:
    """Return the sorted ids of a run's tasks. Raises `TaskNotFoundError` if the run has no tasks, or they were all
    forgotten.
    """
    check_id(run_id, "run_id")
    found = yield Read([("SMEMBERS", keys.run(run_id)) for keys in commands.keys.everywhere()])
    ids = sorted(member.decode() for some in found for member in some)
    if not ids:
        raise TaskNotFoundError(f"queue {commands.name!r} knows no run {run_id!r}; one is forgotten with its last task")
    return ids


def _run_tasks(commands: Commands, run_id: str) -> Operation[list[Task]]:
    tasks = yield from _known_tasks(commands, (yield from run_members(commands, run_id)))
    return sorted(tasks, key=lambda task: (task.created_at, task.task_id))
