"""``queue.acts``: acts on any number of tasks, which workers carry out in steps, and which can be undone for 24 hours.

The first shard has the record of an act, and each shard the progress there. The call that changes tasks saves the progress too.
So a worker that is killed repeats nothing and loses nothing, and an act continues after a restart of the server.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from django_fairque.engine.acts import moves
from django_fairque.engine.dead_letters.dead_letters import DEAD_LETTERS_PER_CALL, letters_page
from django_fairque.engine.dead_letters.letters import Filter, Filters, fingerprint
from django_fairque.engine.inspection.pages import rank_after, score_cursor
from django_fairque.engine.inspection.search import MATCHED_TASK_FIELDS, Search
from django_fairque.engine.inspection.task_lookup import cancel_waiting, server_time
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError, short
from django_fairque.engine.model.ids import check_text, new_nonce
from django_fairque.engine.model.lanes import CLASS_NAMES, Lane, check_lane, class_of
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import ActKind, TaskState
from django_fairque.engine.scripting.acts import Act, record_act
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS, Commands
from django_fairque.engine.scripting.operations import Driver, Operation, Read, parse_scores, slices
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.sharding.shards import AllShardsReader, Shards
from django_fairque.safely import get_logger

if TYPE_CHECKING:
    from typing_extensions import Unpack

ActState = Literal["trial", "running", "stopped", "done", "undoing", "undone"]
ACT_KINDS: tuple[ActKind, ...] = get_args(ActKind)
UNDONE_FROM: tuple[ActState, ...] = ("trial", "running", "stopped", "done")
"""The states in which an undo can begin."""
MAX_PACE = 1_000.0
MIN_PACE = 0.01
"""Tasks a second."""
MAX_NOTE_CHARACTERS = 200
STOP_AFTER = 10
"""The number of retried tasks that fail again with the same error, after which an act stops by itself if none
succeeded.
"""
TASKS_PER_STEP = 300
"""The largest number of tasks that one step of a worker changes: those of three calls, so that leases are renewed in
time.
"""
OUTCOMES_PER_STEP = 500
RECORDS_PER_STEP = 1_000
"""The number of waiting tasks that a step compares with the filter."""
MAX_STEPS_COUNTED = 10
"""The number of reads of each shard in which the start counts the tasks that match: together at most 10,000 records."""
BULK_MICROSECONDS = 1_000
"""The microseconds by which a task's creation time may be later than its call: each of up to 1,000 tasks of a call gets
the next microsecond.
"""
END = "end"
"""The cursor after the last task of a shard."""

logger = get_logger("django_fairque.worker")


@dataclass
class _Progress:
    """The progress of an act on one shard."""

    turn: int
    cursor: str
    counts: Counter[str]
    tasks: int
    """The number of changed tasks that have not ended, or that are not undone yet."""

    @property
    def delivered(self) -> int:
        """The number of these tasks that a move has delivered to the other queue: the first tasks of the list."""
        return self.counts["delivered"] - self.counts["restored"] - self.counts["kept"]


@dataclass(frozen=True)
class TaskAct:
    """An act on many tasks of ``queue``: its ``kind`` (retry, discard, move, cancel), and the ``filters`` that choose the tasks.

    ``state`` is trial (one task is changed, then the act waits for `Acts.go_on`), running, stopped, done, undoing or undone;
    ``reason`` is why it stopped by itself. ``started_at`` and ``ended_at`` (None before its end) are Unix times.
    ``actor`` is the name of the person or program, ``pace`` the tasks a second (None: as fast as possible), ``lane``
    that of retried tasks, ``to`` the queue to which tasks are moved.
    """

    id: str
    queue: str
    kind: ActKind
    filters: Mapping[str, Any]
    state: ActState
    started_at: float
    ended_at: float | None = None
    actor: str = ""
    note: str = ""
    pace: float | None = None
    lane: Lane = "normal"
    to: str = ""
    stop_after: int = STOP_AFTER
    reason: str = ""
    done: int = 0
    """Tasks that were changed."""
    dependents: int = 0
    """The number of dependents of the canceled tasks, which were canceled too."""
    skipped: int = 0
    """Tasks that matched and could not be changed: something else changed them first, or their payload was removed. A move also
    skips tasks of a run, with dependencies or dependents, and without a valid signature."""
    succeeded: int = 0
    """Retried tasks that have finished."""
    failed_again: int = 0
    """Retried tasks that are dead letters again."""
    same_error: int = 0
    """Retried tasks that failed again with the most frequent error."""
    pending: int = 0
    """Retried tasks that have not ended, or moved tasks that the other queue does not have yet."""
    restored: int = 0
    """Tasks that the undo has restored."""
    kept: int = 0
    """Tasks that the undo has skipped, because they were changed after the act."""
    counted: int = 0
    """The number of tasks that matched when the act was started; see `total`."""
    is_counted_whole: bool = True
    """Whether more tasks than ``counted`` may match: the start reads at most 10,000 records of each shard."""
    progress: Sequence[_Progress] = field(default=(), repr=False, compare=False)

    @property
    def handled(self) -> int:
        """The number of tasks that were changed or skipped; while the act is undone, restored or left as they are."""
        return self.restored + self.kept if self.state in ("undoing", "undone") else self.done + self.skipped

    @property
    def total(self) -> int:
        """The number of tasks that `handled` will reach: as counted at the start, and exact as soon as all were
        handled. Tasks that are changed otherwise before the act reaches them count until it does. Tasks that are added
        after the start never count.
        """
        if self.state in ("undoing", "undone"):
            return self.handled + sum(part.tasks for part in self.progress)
        return self.handled if self.is_scanned else max(self.counted, self.handled)

    @property
    def is_active(self) -> bool:
        """Whether workers change tasks now, or would change tasks after `Acts.go_on`."""
        return self.state in ("trial", "running", "undoing")

    @property
    def is_scanned(self) -> bool:
        """Whether each shard was searched to its end."""
        return bool(self.progress) and all(part.cursor == END for part in self.progress)

    @property
    def choice(self) -> str:
        """The filters as text; "all" without any."""
        shown = (f"{name} {value}" for name, value in self.filters.items() if name != "moved_until")
        return ", ".join(shown) or "all"

    @property
    def result(self) -> str:
        """A sentence with the numbers of tasks that the act has changed, that ended since, and that are still open."""
        verb = {"retry": "retried", "discard": "discarded", "move": f"moved to {self.to}", "cancel": "canceled"}[
            self.kind
        ]
        counts = [
            (self.done, verb),
            (self.dependents, "that depended on them canceled"),
            (self.succeeded, "succeeded"),
            (self.failed_again, f"failed again, {self.same_error:,} with the same error"),
            (self.pending, "not delivered yet" if self.kind == "move" else "not ended yet"),
            (self.skipped, "skipped"),
            (self.restored, "restored"),
            (self.kept, "left as they are, because they have changed since"),
        ]
        texts = [f"{count:,} {text}" for count, text in counts if count or text == verb]
        return "; ".join([*texts, *([self.reason] if self.reason else [])])


class Acts:
    """The acts on many tasks of one queue, returned by ``queue.acts``. Workers carry them out. Most methods take ``now``, as
    those of the queue do. The first shard keeps the acts: methods raise `RedisConnectionError` if it can't be reached.
    """

    def __init__(
        self, shards: Shards, run: Driver, read_all_shards: AllShardsReader, write_all_shards: AllShardsReader
    ) -> None:
        self._shards, self._run = shards, run
        self._read_all_shards, self._write_all_shards = read_all_shards, write_all_shards

    def start(
        self,
        kind: ActKind,
        *,
        pace: float | None = None,
        trial: bool = False,
        note: str = "",
        lane: Lane = "normal",
        to: str = "",
        stop_after: int = STOP_AFTER,
        state: TaskState | str | None = None,
        priority: str | None = None,
        actor: str = "",
        now: float | None = None,
        **filters: Unpack[Filters],
    ) -> TaskAct:
        """Start an act on all tasks that match now, and return it. Workers begin within a second or two.

        ``kind`` is ``"retry"``, ``"discard"`` or ``"move"`` for dead letters, ``"cancel"`` for tasks that are queued or
        scheduled. ``to`` is the name of the other queue that gets moved tasks, as new ones with new ids; empty by default.
        ``filters`` are those of `DeadLetterQueue.requeue_all`. A cancel takes ``user_id`` and ``name``, at least one of
        them, ``state`` ("queued" or "scheduled"; both by default), and ``priority``: the name of one as in `QueueStats.depth`,
        such as "LOW" or "BULK"; all by default.

        ``pace`` is the number of tasks a second, from 0.01 to 1000; None (the default) for as many as possible. With ``trial``
        (False by default) one task is changed, then the act waits for `go_on`. ``note`` says why, in at most 200 characters, and
        ``actor`` who acts. ``lane`` is the lane of retried tasks. A retry stops by itself when ``stop_after`` tasks (10 by
        default) have failed again with the same error and none has succeeded.

        Raises `TaskValidationError` if an argument can't be used, or if workers already carry out 100 acts of the queue.
        """
        act = check_act(
            self._shards.name, kind, pace, trial, note, lane, to, stop_after, state, priority, actor, filters
        )
        return self._write_all_shards(lambda shards: start(shards, act, now))

    def get(self, act_id: str) -> TaskAct:
        """Return the act ``act_id``. Raises `TaskNotFoundError` if it is not known: acts are kept for 24 hours after their
        end.
        """
        return self._read_all_shards(lambda shards: get(shards, act_id))

    def list(self) -> Sequence[TaskAct]:
        """Return the acts that are kept, the latest first: at most 100."""
        return self._read_all_shards(list_acts)

    def go_on(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Continue the act ``act_id`` after its trial, or after it stopped. Returns it. Raises what `stop` raises."""
        return self._run(change(self._shards, act_id, "go on", ("trial", "stopped"), "running", now))

    def stop(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Stop the act ``act_id`` after the step that a worker may be taking. Returns it. Raises `TaskNotFoundError` if it is not
        known, and `TaskValidationError` if its state does not allow that."""
        return self._run(change(self._shards, act_id, "stop", ("trial", "running"), "stopped", now))

    def undo(self, act_id: str, *, now: float | None = None) -> TaskAct:
        """Let workers restore the tasks of the act ``act_id``, except tasks that were changed after the act. Returns
        the act. Raises what `stop` raises.

        Discarded dead letters become the same dead letters again; so do requeued and moved ones that have not started.
        Canceled tasks get their earlier position in the queue. Tasks that depended on them and were canceled with them
        wait again, except those on another shard.
        """
        return self._run(change(self._shards, act_id, "undo", UNDONE_FROM, "undoing", now))

    def withdraw(self, task_ids: Sequence[str], *, reason: str = "", now: float | None = None) -> set[str]:
        """Cancel the given tasks that are queued or scheduled, in bounded slices: the undo of a move to this queue.

        ``task_ids`` are their ids, and ``reason`` is written to their histories; empty by default. Returns the ids of all given
        tasks that are canceled now. Raises what `FairQueue.cancel_many` raises.
        """
        return self._write_all_shards(lambda shards: cancel_waiting(shards, task_ids, reason, now))

    def advance(self, mover: moves.Mover | None = None, *, now: float | None = None) -> Sequence[str]:
        """Take the next step of each act: workers call this. ``mover`` opens the queues to which tasks are moved; without it
        (None by default) moves wait. Returns the ids of the tasks that were canceled.
        """
        return self._write_all_shards(lambda shards: advance(shards, mover, now))


def check_act(
    queue: str,
    kind: ActKind,
    pace: float | None,
    trial: bool,
    note: str,
    lane: Lane,
    to: str,
    stop_after: int,
    state: TaskState | str | None,
    priority: str | None,
    actor: str,
    filters: Filters,
) -> TaskAct:
    if kind not in ACT_KINDS:
        raise TaskValidationError(f"kind must be one of {', '.join(ACT_KINDS)}, got {short(kind)}")
    is_number = isinstance(pace, (int, float)) and not isinstance(pace, bool)
    if pace is not None and not (is_number and MIN_PACE <= pace <= MAX_PACE):
        raise TaskValidationError(
            f"pace must be from {MIN_PACE:g} to {MAX_PACE:g} tasks a second, or None, got {short(pace)}"
        )
    if len(check_text(note, "note")) > MAX_NOTE_CHARACTERS:
        raise TaskValidationError(f"note must have at most {MAX_NOTE_CHARACTERS} characters; it has {len(note)}")
    chosen = {
        name: getattr(value, "value", value)
        for name, value in vars(Filter.create(filters)).items()
        if value is not None
    }
    if kind != "cancel" and (state, priority) != (None, None):
        raise TaskValidationError(f"state and priority belong to a cancel; a {kind} is about dead letters")
    if (kind == "move") != bool(check_text(to, "to")) or to == queue:
        raise TaskValidationError(
            f"to must name another queue if dead letters are moved, and only then, got {short(to)}"
        )
    if kind == "cancel":
        chosen |= _check_waiting(chosen, state, priority)
    check_integer(stop_after, "stop_after", 1)
    return TaskAct(
        time.strftime(f"%Y%m%d-%H%M%S-{secrets.token_hex(4)}", time.gmtime()),
        *(queue, kind, chosen, "trial" if trial else "running", 0.0),
        actor=check_text(actor, "actor"),
        note=note,
        pace=pace,
        lane=check_lane(lane, "lane"),
        to=to,
        stop_after=stop_after,
    )


def _check_waiting(chosen: Mapping[str, Any], state: TaskState | str | None, priority: str | None) -> dict[str, Any]:
    """Return the filters of a cancel in addition to ``chosen``."""
    if not chosen or not chosen.keys() <= {"user_id", "name"}:
        raise TaskValidationError(
            f"a cancel needs user_id or name, and takes no other filter, got {', '.join(chosen) or 'none'}; "
            "purge() cancels all tasks"
        )
    found = {} if state is None else {"state": TaskState.from_name(state).value}
    if found.get("state") not in (None, *WAITING_STATES):
        raise TaskValidationError(f"state must be one of {', '.join(WAITING_STATES)}, got {short(state)}")
    if priority not in (None, *CLASS_NAMES.values()):
        raise TaskValidationError(f"priority must be one of {', '.join(CLASS_NAMES.values())}, got {short(priority)}")
    return found if priority is None else {**found, "priority": priority}


WAITING_STATES = (TaskState.SCHEDULED.value, TaskState.QUEUED.value)
"""The states in which a cancel searches, in this order: a scheduled task that becomes queued meanwhile is not missed."""


def start(shards: Shards, act: TaskAct, now: float | None) -> Operation[TaskAct]:
    pace = "" if act.pace is None else act.pace
    values: dict[str, Any] = {
        name: getattr(act, name) for name in ("kind", "state", "actor", "note", "lane", "to", "stop_after")
    }
    values |= {"filters": json.dumps(act.filters), "pace": pace}

    def call() -> Operation[TaskAct]:
        values.update((yield from _count(shards, replace(act, started_at=(yield from server_time(now))))))
        fields = [part for pair in values.items() for part in pair]
        if not (yield shards.home.call("act", ["start", act.id, *fields], now)):
            raise TaskValidationError(
                f"workers carry out 100 acts of queue {shards.name!r}: stop one, or wait until one has ended"
            )
        return (yield from get(shards, act.id))

    after = {"tasks": act.choice, "trial": act.state == "trial", "pace": act.pace, "note": act.note, "lane": act.lane}
    after["to"] = act.to
    shown = {name: value for name, value in after.items() if value not in (None, "", False, "normal")}
    return (yield from record_act(Act(shards.name, act.kind, "act", act.id, after=shown), call()))


def _count(shards: Shards, act: TaskAct) -> Operation[dict[str, Any]]:
    counted, is_whole = 0, not shards.missing
    for shard in shards:
        cursor, steps = "", 0
        while cursor != END and steps < MAX_STEPS_COUNTED:
            rows, cursor = yield from _find_tasks(shard, act, cursor, RECORDS_PER_STEP)
            counted, steps = counted + len(rows), steps + 1
        is_whole = is_whole and cursor == END
    return {"counted": counted, "counted_whole": int(is_whole)}


def change(
    shards: Shards, act_id: str, verb: str, states: Sequence[ActState], to: ActState, now: float | None
) -> Operation[TaskAct]:
    act = yield from get(shards, act_id)
    fields: list[Any] = ["state", to, "reason", ""]
    if to == "running":  # from now on, only new failures can stop the act
        fields += ["stop_after", act.same_error + act.stop_after]

    def call() -> Operation[TaskAct]:
        found = yield from _change_state(shards, act.id, states, is_open=True, fields=fields, now=now)
        if found not in ("", to):
            raise TaskValidationError(f"can't {verb} act {act.id}: it is {found}")
        return (yield from get(shards, act.id))

    values = {"before": {"state": act.state}, "after": {"state": to}}
    return (yield from record_act(Act(shards.name, verb, "act", act.id, **values), call()))


def _change_state(
    shards: Shards, act_id: str, states: Sequence[str], *, is_open: bool, fields: Sequence[Any], now: float | None
) -> Operation[str]:
    """Set the fields if the act is in one of the states. Return its state if it is not; empty if it was."""
    reply = yield shards.home.call("act", ["change", act_id, " ".join(states), int(is_open), *fields], now)
    return "" if reply == 1 else reply.decode()


def get(shards: Shards, act_id: str) -> Operation[TaskAct]:
    for act in (yield from _read_acts(shards, [check_text(act_id, "act_id")])):
        return act
    raise TaskNotFoundError(
        f"queue {shards.name!r} has no act {act_id!r} (any more): acts are kept for 24 hours after their end"
    )


def list_acts(shards: Shards) -> Operation[list[TaskAct]]:
    (ids,) = yield Read([("ZRANGE", shards.home.keys("acts"), 0, -1)])
    found = yield from _read_acts(shards, [act_id.decode() for act_id in ids])
    return sorted(found, key=lambda act: (act.started_at, act.id), reverse=True)


def _read_acts(shards: Shards, ids: Sequence[str]) -> Operation[list[TaskAct]]:
    if not ids:
        return []
    reads: list[tuple[Any, ...]] = []
    for act_id in ids:
        reads.append(("HGETALL", shards.home.keys(f"act:{act_id}")))
        for shard in shards:
            reads.append(("HGETALL", shard.keys(f"act_progress:{act_id}")))
            reads.append(("LLEN", shard.keys(f"act_tasks:{act_id}")))
    replies = yield Read(reads)
    size = len(reads) // len(ids)
    found = (_parse_act(shards.name, act_id, *some) for act_id, some in zip(ids, slices(replies, size), strict=True))
    return [act for act in found if act is not None]


def _parse_act(queue: str, act_id: str, record: Mapping[bytes, bytes], *parts: Any) -> TaskAct | None:
    values = {key.decode(): value.decode("utf-8", "replace") for key, value in record.items()}
    if "state" not in values:
        return None
    progress = [_parse_progress(counts, tasks) for counts, tasks in zip(parts[::2], parts[1::2], strict=True)]
    counts = sum((part.counts for part in progress), Counter[str]())
    state, kind = cast("ActState", values["state"]), cast("ActKind", values["kind"])
    pending = {
        "retry": sum(part.tasks for part in progress),
        "move": sum(part.tasks - part.delivered for part in progress),
    }
    is_over = state in ("stopped", "done", "undone")
    names = ("done", "dependents", "skipped", "succeeded", "failed_again", "restored", "kept")
    same: dict[str, Any] = {name: counts[name] for name in names}
    return TaskAct(
        *(act_id, queue, kind, json.loads(values["filters"]), state, int(values["started"]) / 1_000_000),
        ended_at=int(values["ended"]) / 1_000_000 if is_over else None,
        actor=values["actor"],
        note=values["note"],
        pace=float(values["pace"]) if values["pace"] else None,
        lane=cast("Lane", values["lane"]),
        to=values.get("to", ""),
        stop_after=int(values["stop_after"]),
        reason=values.get("reason", ""),
        **same,
        same_error=max((count for name, count in counts.items() if name.startswith("error:")), default=0),
        pending=pending.get(kind, 0),
        counted=int(values.get("counted", 0)),
        is_counted_whole=values.get("counted_whole") != "0",
        progress=progress,
    )


def _parse_progress(record: Mapping[bytes, bytes], tasks: int) -> _Progress:
    values = {key.decode(): value.decode() for key, value in record.items()}
    turn, cursor = int(values.pop("turn", 0)), values.pop("cursor", "")
    return _Progress(turn, cursor, Counter({name: int(count) for name, count in values.items()}), tasks)


def advance(shards: Shards, mover: moves.Mover | None, now: float | None) -> Operation[list[str]]:
    (names,) = yield Read([("ZRANGEBYSCORE", shards.home.keys("acts"), NEVER_MICROSECONDS, NEVER_MICROSECONDS)])
    ids, canceled = [name.decode() for name in names], list[str]()
    found = yield from _read_acts(shards, ids)
    for act_id in set(ids) - {act.id for act in found}:  # its record is gone
        yield from _change_state(shards, act_id, (), is_open=False, fields=(), now=now)
    for act in found:
        if act.kind != "move":
            canceled += yield from _advance_act(shards, act, mover, now)
        elif mover is not None:
            try:
                yield from _advance_act(shards, act, mover, now)
            except moves.OtherQueueError as error:  # an error of one act does not stop the other acts
                logger.warning(
                    "queue %s: act %s waits, because queue %s can't be used: %s", shards.name, act.id, act.to, error
                )
    return canceled


def _advance_act(shards: Shards, act: TaskAct, mover: moves.Mover | None, now: float | None) -> Operation[list[str]]:
    """Take the next step of an act, or record its end. Return the ids of the tasks that were canceled."""
    if act.kind == "retry" and act.state != "undoing":
        outcomes = 0
        for shard, part in zip(shards, act.progress, strict=True):
            outcomes += yield from _record_outcomes(shard, act, part, now)
        if outcomes:  # the new outcomes may end the act
            act = yield from get(shards, act.id)
    if act.pending and act.kind == "move" and mover:
        yield from _deliver(shards, act, mover, now)
        act = yield from get(shards, act.id)
    if (end := _decide_end(act)) is not None and not shards.missing:
        state, reason = end
        fields = ["state", state, "reason", reason or act.reason]
        yield from _change_state(shards, act.id, [act.state], is_open=True, fields=fields, now=now)
        return []
    if not act.is_active and not act.pending:
        yield from _close(shards, act, now)
        return []
    canceled: list[str] = []
    # Before a move is undone, all its tasks are delivered. A slow worker could otherwise deliver a task that was
    # restored here.
    is_undoing = act.state == "undoing" and not (act.kind == "move" and act.pending)
    if act.state == "running" or is_undoing or (act.state == "trial" and not act.done):
        most = 1 if act.state == "trial" else TASKS_PER_STEP
        left = int((yield shards.home.call("act", ["claim", act.id, most], now)))
        for shard, part in zip(shards, act.progress, strict=True):
            if left > 0 and (part.tasks if act.state == "undoing" else part.cursor != END):
                done = yield from _change_tasks(shard, act, part, mover, left, now)
                left -= len(done)
                canceled += done if act.kind == "cancel" and act.state != "undoing" else []
    return canceled


def _deliver(shards: Shards, act: TaskAct, mover: moves.Mover, now: float | None) -> Operation[None]:
    for shard, part in zip(shards, act.progress, strict=True):
        if part.tasks > part.delivered:
            count = yield from moves.deliver(shard, mover, act.to, act.id, part.delivered, now)
            yield shard.call("act", ["note", act.id, part.turn, part.cursor, 0, 0, "delivered", count], now)


def _decide_end(act: TaskAct) -> tuple[ActState, str] | None:
    """Return the state with which the act ends now, and the reason why it stops by itself; None if it does not end."""
    if act.state in ("trial", "running"):
        if act.same_error >= act.stop_after and not act.succeeded:
            return "stopped", f"stopped by itself: {act.same_error:,} failed again with the same error, none succeeded"
        return ("done", "") if act.is_scanned and not (act.kind == "move" and act.pending) else None
    is_undone = act.state == "undoing" and not any(part.tasks for part in act.progress)
    return ("undone", "") if is_undone else None


def _close(shards: Shards, act: TaskAct, now: float | None) -> Operation[None]:
    """Let the data of an ended act expire."""
    for shard in shards:
        yield shard.call("act", ["close", act.id], now)
    yield from _change_state(shards, act.id, [act.state], is_open=False, fields=(), now=now)


def _record_outcomes(shard: Commands, act: TaskAct, part: _Progress, now: float | None) -> Operation[bool]:
    """Count the outcomes of ended tasks among the first retried tasks of the list, and move the other tasks to its end.
    Return whether anything was written.
    """
    if not part.tasks:
        return False
    (names,) = yield Read([("LRANGE", shard.keys(f"act_tasks:{act.id}"), 0, OUTCOMES_PER_STEP - 1)])
    ids = [name.decode() for name in names]
    fields = yield from read_task_fields(shard.keys, ids, "state", "name", "failure", "reason")
    pending, counts = [], Counter[str]()
    for task_id, values in zip(ids, fields, strict=True):
        state, name, failure, reason = ((value or b"").decode("utf-8", "replace") for value in values)
        if state == "finished":
            counts["succeeded"] += 1
        elif state == "failed":
            counts["failed_again"] += 1
            counts[f"error:{fingerprint(name, failure, reason)}"] += 1
        elif state not in ("canceled", ""):
            pending.append(task_id)
    if len(pending) == part.tasks:
        return False
    figures = [value for pair in counts.items() for value in pair]
    yield shard.call("act", ["note", act.id, part.turn, part.cursor, len(ids), len(pending), *pending, *figures], now)
    return True


def _change_tasks(
    shard: Commands, act: TaskAct, part: _Progress, mover: moves.Mover | None, most: int, now: float | None
) -> Operation[list[str]]:
    """Change up to ``most`` tasks of a shard in calls that save the progress. Return their ids."""
    before: tuple[Any, ...] = ()
    after: tuple[str, ...] = ()
    if act.state == "undoing":
        for _ in range(0, min(most, part.tasks), DEAD_LETTERS_PER_CALL):
            size = min(most, DEAD_LETTERS_PER_CALL)
            step: list[Any] = [act.id, part.turn, part.cursor, size]
            if act.kind == "move" and mover:
                step.append((yield from moves.withdraw(shard, mover, act.to, act.id, size, now)))
            if (yield shard.call("undo", step, now, reply=new_nonce())) == b"-":
                break
            part.turn += 1
        return [""] * min(most, part.tasks)
    rows, cursor = yield from _find_tasks(shard, act, part.cursor, most)
    if act.kind == "cancel":
        before = ("",)
    elif act.kind == "move" and mover:  # the script skips a dead letter whose number of deaths differs
        movable = yield from moves.find_movable(shard, mover, act.to, [row[0] for row in rows])
        rows, after = [(name, died if name in movable else 0) for name, died in rows], ("moved",)
    script, done = {"retry": "requeue", "move": "discard"}.get(act.kind, act.kind), list[str]()
    for first in range(0, max(1, len(rows)), DEAD_LETTERS_PER_CALL):
        some = rows[first : first + DEAD_LETTERS_PER_CALL]
        # Only the last call saves the new cursor: if this worker is killed before, the next worker finds the remaining
        # tasks again.
        place = cursor if first + len(some) >= len(rows) else part.cursor
        step = [*before, len(some), *(value for row in some for value in row), act.id, part.turn, place, *after]
        codes = yield shard.call(script, step, now, reply=new_nonce())
        if codes == b"-":
            break
        part.turn += 1
        done += [row[0] for row, code in zip(some, codes, strict=True) if code == ord("1")]
    return done


def _find_tasks(shard: Commands, act: TaskAct, cursor: str, most: int) -> Operation[tuple[list[tuple[Any, ...]], str]]:
    """Return the arguments of the next tasks that match, and the cursor after them."""
    if act.kind == "cancel":
        return (yield from _find_waiting(shard, act, cursor, most))
    only = Filter.create(cast("Filters", {"moved_until": act.started_at, **act.filters}))
    # The act changes the dead letters that matched at its start, so ages are counted from the start.
    one = Shards(shard.name, shard.config, shard.keys.shard)
    page = yield from letters_page(one, most, cursor or None, only, act.started_at)
    more = (0, b"", class_of(act.lane, Priority.NORMAL)) if act.kind == "retry" else ()
    return [(letter.task_id, letter.died, *more) for letter in page.items], page.cursor or END


def _find_waiting(
    shard: Commands, act: TaskAct, cursor: str, most: int
) -> Operation[tuple[list[tuple[Any, ...]], str]]:
    """Return the next waiting tasks that match, and the cursor after them: the state, and a member of its index."""
    states = [act.filters["state"]] if "state" in act.filters else list(WAITING_STATES)
    state, _, place = cursor.partition(" ")
    state = state or states[0]
    key = shard.keys.state(state)
    first = yield from rank_after(key, place or None)
    (reply,) = yield Read([("ZRANGE", key, first, first + RECORDS_PER_STEP - 1, "WITHSCORES")])
    members = [(name.decode(), score) for name, score in parse_scores(reply)]
    fields = yield from read_task_fields(
        shard.keys, [name for name, _ in members], *MATCHED_TASK_FIELDS, "created", "priority"
    )
    search = Search(TaskState(state), act.filters.get("user_id"), act.filters.get("name"))
    found: list[tuple[Any, ...]] = []
    latest, wanted = round(act.started_at * 1_000_000) + BULK_MICROSECONDS, act.filters.get("priority")
    for (task_id, score), (*values, created, priority) in zip(members, fields, strict=True):
        is_meant = wanted in (None, CLASS_NAMES[int(priority or Priority.NORMAL)]) and int(created or 0) <= latest
        if is_meant and search.matches(*values):
            found.append((task_id,))
            if len(found) == most:
                return found, f"{state} {score_cursor(score, task_id)}"
    if len(members) == RECORDS_PER_STEP:
        return found, f"{state} {score_cursor(members[-1][1], members[-1][0])}"
    following = states[states.index(state) + 1 :]
    return found, f"{following[0]} " if following else END
