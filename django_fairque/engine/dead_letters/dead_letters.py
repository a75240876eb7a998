"""``queue.dlq``: tasks that will not be retried automatically. Listing, reading, requeuing, discarding and removing them.

An entry's id is ``{task id}~{n}``: the n-th time that this task became a dead letter. The id of an earlier time is refused,
so that a page that was opened long ago can't requeue a newer letter by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from django_fairque.engine.dead_letters import letters as records
from django_fairque.engine.dead_letters.letters import DLQCounts, DLQEntry, DLQGroups, DLQMatching, Filter, make_group
from django_fairque.engine.inspection.pages import ResultPage, parse_cursor, rank_after, read_page, score_cursor
from django_fairque.engine.inspection.task_lookup import attempt, read_tasks, server_time
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import duration, is_integer, seconds
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError, short
from django_fairque.engine.model.ids import check_id, check_list, new_nonce
from django_fairque.engine.model.lanes import Lane, check_lane, class_of
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.model.signature import SignedFields, sign_payload
from django_fairque.engine.scripting.acts import Act as RecordedAct
from django_fairque.engine.scripting.acts import Values, is_recording, record_act
from django_fairque.engine.scripting.commands import Commands
from django_fairque.engine.scripting.operations import Driver, Operation, Read, parse_scores, read_sound, slices
from django_fairque.engine.scripting.task_fields import read_task_fields
from django_fairque.engine.sharding.shards import AllShardsReader, Shards, sum_over_shards

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from django_fairque.engine.dead_letters.letters import Filters, Letter

DEAD_LETTERS_PER_CALL = 100
DEAD_LETTERS_PER_READ = 1000
"""Letters without payloads are read in slices of this size: at most 2 MB, and 20 round trips for 10,000 letters."""
MAX_CALL_PAYLOAD_BYTES = 4 * 1024 * 1024
"""The largest size of a slice with payloads: the server reads the whole call before it serves other clients."""
MAX_DEAD_LETTERS_READ = 10_000
"""The largest number of letters that one call reads to group, count or filter them: 0.2 s for all."""

Key = tuple[str, int]
"""The key of an entry: a task's id, and the number of times that the task had become a dead letter."""
T = TypeVar("T")
Act = Callable[[Commands, Sequence[Key]], Operation[int]]
"""A change of the dead letters with these keys on one shard. The operation returns how many it has changed."""


class DeadLetterQueue:
    """The dead letters of one queue, returned by ``queue.dlq``.

    Most methods take ``now``, as those of the queue do. `list`, `letters`, `groups`, `matching`, `requeue_all` and
    `discard_all` take ``filters``, by name (`Filters`): ``failure_type`` (failed, expired, poisoned), ``user_id``, the
    task's ``name``, ``fingerprint``, ``older_than`` and ``newer_than`` (ages in seconds), ``moved_until`` (a Unix
    time). Without filters they concern all letters.
    """

    def __init__(
        self, shards: Shards, run: Driver, read_all_shards: AllShardsReader, write_all_shards: AllShardsReader
    ) -> None:
        self._shards, self._run = shards, run
        self._read_all_shards, self._write_all_shards = read_all_shards, write_all_shards

    def list(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[DLQEntry]:
        """Return a page of entries, the oldest first.

        ``limit`` is the number of letters that are read, from 1 to 1000; 100 by default. ``cursor`` is that of the
        previous page; None for the first page. ``filters`` leave out entries that do not match.
        """
        return self._read_all_shards(lambda shards: page(shards, limit, cursor, Filter.create(filters), now))

    def get(self, entry_id: str) -> DLQEntry:
        """Return an entry.

        ``entry_id`` is its id (``"task id~1"``). Raises `TaskNotFoundError` if it was requeued, discarded or
        forgotten.
        """
        return self._run(get(self._shards, entry_id))

    def of_task(self, task_id: str) -> DLQEntry | None:
        """Return the entry of a task; None if the task is no dead letter.

        ``task_id`` is its id.
        """
        return self._run(of_task(self._shards, task_id))

    def count(self) -> int:
        """Return the number of dead letters. Raises `ShardsAwayError` if a shard can't be reached."""
        return self._read_all_shards(count)

    def counts(self) -> DLQCounts:
        """Return the number of dead letters, by failure type."""
        return self._read_all_shards(counts)

    def groups(self, look_at: int = 1000, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQGroups:
        """Return the dead letters grouped by fingerprint, that is, by error.

        ``look_at`` is the number of letters that are read, the newest first, from 1 to 10,000; 1000 by default.
        ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(lambda shards: groups(shards, look_at, Filter.create(filters), now))

    def letters(
        self, limit: int = 100, cursor: str | None = None, *, now: float | None = None, **filters: Unpack[Filters]
    ) -> ResultPage[Letter]:
        """Return a page of letters without payloads and histories, which can be large, the oldest first.

        ``limit`` is the largest number, from 1 to 1000; 100 by default. At most 1000 letters are read. ``cursor`` is
        that of the previous page; None for the first page. ``filters`` leave out letters that do not match.
        """
        return self._read_all_shards(lambda shards: letters_page(shards, limit, cursor, Filter.create(filters), now))

    def matching(self, *, now: float | None = None, **filters: Unpack[Filters]) -> DLQMatching:
        """Return how many letters match ``filters``, before all of them are requeued or discarded.

        At most the 10,000 newest letters are read. Pass ``until`` of the result as ``moved_until`` to the next call, so
        that it leaves out letters that came later.
        """
        return self._read_all_shards(lambda shards: count_matching(shards, Filter.create(filters), now))

    def requeue(self, entry_id: str, payload: Any = None, *, lane: Lane = "normal", now: float | None = None) -> str:
        """Queue the task of an entry again, with a fresh retry budget.

        ``entry_id`` is the entry's id. ``payload`` replaces the task's payload: any JSON value, or JSON as text in
        bytes (``b"null"`` for a null); by default the payload stays.
        ``lane`` is the lane in which the task comes back: ``"urgent"``, ``"normal"`` (the default) or ``"bulk"``. In lane
        normal it has its earlier priority, or the priority 3 (normal) after another lane.

        Returns the task's id. Raises `TaskNotFoundError` if the entry was requeued, discarded or forgotten, and
        `TaskValidationError` if ``lane`` has another value, or if no ``payload`` is given and that of the entry was
        removed (``max_dead_letters``).
        """
        steps = requeue(self._shards, entry_id, payload, lane, now)
        return self._run(record_letters(self._shards, "requeue", steps, entry_id, lane))

    def requeue_many(
        self, entry_ids: Sequence[str], payload: Any = None, *, lane: Lane = "normal", now: float | None = None
    ) -> int:
        """Requeue the given entries that still exist, in bounded slices.

        ``entry_ids`` are their ids. ``payload`` and ``lane`` are those of `requeue`. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries on the other shards are requeued.
        """
        return self._write_all_shards(
            lambda shards: record_letters(
                shards, "requeue", requeue_some(shards, entry_ids, payload, lane, now), entry_ids, lane
            )
        )

    def requeue_all(
        self,
        payload: Any = None,
        *,
        lane: Lane = "normal",
        limit: int | None = None,
        now: float | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Requeue the entries that match, in bounded slices.

        ``payload`` and ``lane`` are those of `requeue`. ``limit`` is the largest number of entries; all by default.
        ``filters`` choose the entries. Returns how many were requeued.

        Raises `ShardsAwayError` if some shards can't be reached; the entries on the other shards are requeued, and the
        message contains their number.
        """
        only = Filter.create(filters)
        return self._write_all_shards(
            lambda shards: record_letters(
                shards, "requeue", requeue_all(shards, only, payload, lane, limit, now), str(only), lane
            )
        )

    def discard(self, entry_id: str, *, now: float | None = None) -> None:
        """Discard an entry: its task becomes CANCELED, and so do the tasks that depend on it, unless they run anyhow.

        ``entry_id`` is the entry's id. Raises `TaskNotFoundError` if it was requeued, discarded or forgotten.
        """
        self._run(record_letters(self._shards, "discard", discard(self._shards, entry_id, now), entry_id))

    def discard_many(self, entry_ids: Sequence[str], *, now: float | None = None) -> int:
        """Discard the given entries that still exist, in bounded slices.

        ``entry_ids`` are their ids. Returns how many were discarded. Raises `ShardsAwayError` as `requeue_many` does.
        """
        return self._write_all_shards(
            lambda shards: record_letters(shards, "discard", discard_some(shards, entry_ids, now), entry_ids)
        )

    def discard_all(self, *, limit: int | None = None, now: float | None = None, **filters: Unpack[Filters]) -> int:
        """Discard the entries that match, in bounded slices.

        ``limit`` is the largest number of entries; all by default. ``filters`` choose the entries. Returns how many
        were discarded. Raises `ShardsAwayError` as `requeue_all` does.
        """
        only = Filter.create(filters)
        return self._write_all_shards(
            lambda shards: record_letters(shards, "discard", discard_all(shards, only, limit, now), str(only))
        )

    def cleanup(self, older_than: float, *, now: float | None = None) -> int:
        """Forget old entries and their tasks.

        ``older_than`` is the age in seconds. Returns how many were forgotten. Raises `ShardsAwayError` as
        `requeue_all` does.
        """
        return self._write_all_shards(
            lambda shards: record_letters(
                shards, "forget", cleanup(shards, older_than, now), f"older_than {short(older_than)}"
            )
        )


def record_letters(
    shards: Shards, act: str, steps: Operation[T], subject: str | Sequence[str], lane: Lane = "normal"
) -> Operation[T]:
    """Change dead letters, and record the change for an audit. ``subject`` is their ids, or a text that names the
    chosen letters.
    """

    def read_count() -> Operation[Values]:
        return {"dead letters": (yield from count(shards))}

    def describe(result: T) -> Values:
        changed = {} if result is None else {ACT_RESULTS[act]: result if isinstance(result, int) else 1}
        return {**changed, **({} if lane == "normal" else {"lane": lane})}

    if not is_recording():
        return steps
    name = ", ".join(map(str, subject)) if isinstance(subject, (list, tuple)) else str(subject)
    return record_act(RecordedAct(shards.name, act, "dead letter", name), steps, read_count, describe)


ACT_RESULTS = {"requeue": "requeued", "discard": "discarded", "forget": "forgotten"}


def letters(commands: Commands, task_ids: Sequence[str]) -> Operation[list[Letter]]:
    """Return the dead letters among these tasks."""
    fields = ("state", "user", "name", "failure", "reason", "ended", "died")
    reply = yield from read_task_fields(commands.keys, task_ids, *fields)
    found = []
    for task_id, (state, user, name, failure, reason, ended, died) in zip(task_ids, reply, strict=True):
        if state == b"failed" and user is not None:
            with suppress(ValueError):  # the record is damaged, which the checker reports
                kind = FailureType((failure or b"failed").decode())
                text = (reason or b"").decode("utf-8", "replace")
                moved_at = seconds(ended) or 0.0
                found.append(
                    records.Letter(task_id, int(died or 1), user.decode(), (name or b"").decode(), kind, text, moved_at)
                )
    return found


def entries(commands: Commands, chosen: Sequence[Letter]) -> Operation[list[DLQEntry]]:
    """Return these letters with their tasks and histories, without letters that were removed meanwhile."""
    histories = yield from read_sound([("LRANGE", commands.keys.history(letter.task_id), 0, -1) for letter in chosen])
    tasks = yield from read_tasks(commands, [letter.task_id for letter in chosen])
    return [
        DLQEntry(
            entry_id=letter.entry_id,
            original_task=task,
            failure_type=letter.failure_type,
            reason=letter.reason,
            moved_at=letter.moved_at,
            retry_history=tuple(attempt(line) for line in lines),
        )
        for letter, task, lines in zip(chosen, tasks, histories, strict=True)
        if task is not None and task.state.value == "failed"
    ]


def page(
    shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[DLQEntry]]:
    def read(commands: Commands, size: int, at: str | None) -> Operation[ResultPage[DLQEntry]]:
        _, index = parse_cursor(at, 1)
        moment = yield from _moment(only, now)
        (ids,) = yield Read([("ZRANGE", commands.keys.state("failed"), index, index + size - 1)])
        found = yield from letters(commands, [task_id.decode() for task_id in ids])
        items = yield from entries(commands, [letter for letter in found if only.matches(letter, moment)])
        return ResultPage(items, f"0:{index + size}" if len(ids) == size else None)

    return (yield from read_page(shards, limit, cursor, read, is_filtered=True))


def get(shards: Shards, entry_id: str) -> Operation[DLQEntry]:
    task_id, number = _key(entry_id)
    commands = yield from shards.of_task(task_id)
    found = yield from letters(commands, [task_id])
    for entry in (yield from entries(commands, [letter for letter in found if letter.died == number])):
        return entry
    raise _build_missing_error(shards, entry_id)


def of_task(shards: Shards, task_id: str) -> Operation[DLQEntry | None]:
    commands = yield from shards.of_task(task_id)
    found = yield from letters(commands, [task_id])
    return next(iter((yield from entries(commands, found))), None)


def requeue(shards: Shards, entry_id: str, payload: Any, lane: Lane, now: float | None) -> Operation[str]:
    task_id, died = _key(entry_id)
    if not (yield from requeue_some(shards, [entry_id], payload, lane, now)):
        shard = yield from shards.of_task(task_id)
        ((state, deaths, removed),) = yield from read_task_fields(shard.keys, [task_id], "state", "died", "short")
        if payload is None and (size := int(removed or 0)) and (state, int(deaths or 0)) == (b"failed", died):
            raise TaskValidationError(
                f"dead letter {entry_id!r} can't be requeued as it was: its payload ({size:,} bytes) was removed because "
                "its user had max_dead_letters dead letters; give requeue() the payload, or enqueue the task again"
            )
        raise _build_missing_error(shards, entry_id)
    return task_id


def discard(shards: Shards, entry_id: str, now: float | None) -> Operation[None]:
    if not (yield from discard_some(shards, [entry_id], now)):
        raise _build_missing_error(shards, entry_id)


def requeue_some(
    shards: Shards, entry_ids: Sequence[str], payload: Any, lane: Lane, now: float | None
) -> Operation[int]:
    """Requeue the given entries that still exist, in slices. Return how many were requeued."""
    return (yield from _change_some(shards, entry_ids, _prepare_requeue(shards, payload, lane, now), "requeued"))


def discard_some(shards: Shards, entry_ids: Sequence[str], now: float | None) -> Operation[int]:
    """Discard the given entries that still exist, in slices. Return how many were discarded."""
    return (yield from _change_some(shards, entry_ids, _in_slices("discard", (), now), "given up"))


def _change_some(shards: Shards, entry_ids: Sequence[str], act: Act, done: str) -> Operation[int]:
    # Remove duplicates: the script that discards would count a dead letter twice.
    keys = list(dict.fromkeys(map(_key, check_list(entry_ids, "entries' ids"))))
    places = yield from shards.locate(task_id for task_id, _ in keys)
    parts: dict[Commands, list[Key]] = {}
    for key in keys:
        parts.setdefault(places[key[0]], []).append(key)

    def change(commands: Commands, _: object) -> Operation[int]:
        return (yield from act(commands, parts[commands]))

    return (yield from sum_over_shards(shards, change, f"dead letters were {done}", wanted=parts))


def requeue_all(
    shards: Shards, only: Filter, payload: Any, lane: Lane, limit: int | None, now: float | None
) -> Operation[int]:
    return (yield from _change_all(shards, only, _prepare_requeue(shards, payload, lane, now), "requeued", limit, now))


def discard_all(shards: Shards, only: Filter, limit: int | None, now: float | None) -> Operation[int]:
    return (yield from _change_all(shards, only, _in_slices("discard", (), now), "given up", limit, now))


def cleanup(shards: Shards, older_than: float, now: float | None) -> Operation[int]:
    duration(older_than, "older_than")  # raises an error for None, with which all dead letters would be removed

    def forget(commands: Commands, keys: Sequence[Key]) -> Operation[int]:
        return int((yield commands.call("forget", [len(keys), *(task_id for task_id, _ in keys)], now)))

    # The filter compares the moments at which letters were moved. Scores in the registry are not usable for this: a score is the
    # moment at which the letter is forgotten, computed with an earlier failed_ttl, which may have changed.
    return (yield from _change_all(shards, Filter.create({"older_than": older_than}), forget, "forgotten", None, now))


def _change_all(
    shards: Shards, only: Filter, act: Act, done: str, limit: int | None, now: float | None
) -> Operation[int]:
    """Change the matching letters in slices, oldest first.

    The scan ends after as many dead letters as existed at its start: those that are added meanwhile have later
    positions.
    """
    if limit is not None and not is_integer(limit, 1):
        raise TaskValidationError(f"limit must be an integer of at least 1, got {short(limit)}")

    def change(commands: Commands, most: int | None) -> Operation[int]:
        moment = yield from _moment(only, now)
        scan = DeadLetterScan(commands, (yield from _count(commands)))
        total = 0
        while (most is None or total < most) and (found := (yield from scan.read_slice())) is not None:
            keys = [(letter.task_id, letter.died) for letter in found if only.matches(letter, moment)]
            if keys := keys[: None if most is None else most - total]:
                total += yield from act(commands, keys)
        return total

    return (yield from sum_over_shards(shards, change, f"dead letters were {done}", limit))


def count(shards: Shards) -> Operation[int]:
    shards.check_present("the dead letters can't be counted")
    total = 0
    for shard in shards:
        total += yield from _count(shard)
    return total


def _count(commands: Commands) -> Operation[int]:
    (size,) = yield Read([("ZCARD", commands.keys.state("failed"))])
    return int(size)


def counts(shards: Shards) -> Operation[DLQCounts]:
    """Return the numbers of dead letters by type. The scripts keep these counters, so this takes one read of each shard."""
    total = dict.fromkeys((kind.value for kind in FailureType), 0)
    for shard in shards:
        (found,) = yield Read([("HMGET", shard.keys("stats"), *(f"lying:{kind}" for kind in total))])
        for kind, number in zip(total, found, strict=True):
            total[kind] += int(float(number or 0))
    return DLQCounts(total, shards.missing)


def groups(shards: Shards, look_at: int, only: Filter, now: float | None) -> Operation[DLQGroups]:
    """Group the newest ``look_at`` / n dead letters of each of the n shards."""
    if not is_integer(look_at, 1, MAX_DEAD_LETTERS_READ):
        raise TaskValidationError(f"look_at must be an integer from 1 to {MAX_DEAD_LETTERS_READ}, got {short(look_at)}")
    moment = yield from _moment(only, now)
    share = max(1, look_at // len(shards))
    found: dict[str, list[Letter]] = {}
    looked_at, is_whole = 0, not shards.missing
    for shard in shards:
        size = yield from _count(shard)
        scan = DeadLetterScan(shard, min(share, size), newest_first=True)
        while (some := (yield from scan.read_slice())) is not None:
            for letter in some:
                if only.matches(letter, moment):
                    found.setdefault(letter.fingerprint, []).append(letter)
        looked_at, is_whole = looked_at + scan.read_count, is_whole and size <= share
    made = [make_group(key, members) for key, members in found.items()]
    made.sort(key=lambda group: (-group.count, -group.newest, group.fingerprint))
    return DLQGroups(tuple(made), looked_at, is_whole, shards.missing)


def in_us(score: float) -> str:
    """Return a score of the registry in the form that commands accept."""
    return f"{score:.0f}"


class DeadLetterScan:
    """The oldest ``most`` letters of a shard, or the newest letters, a slice at a time.

    The scan continues at a score and not at a rank: if other processes remove dead letters meanwhile, ranks would skip
    some.
    """

    def __init__(self, commands: Commands, most: int, *, newest_first: bool = False) -> None:
        self._commands, self._most, self._newest_first = commands, most, newest_first
        # The score of the last letter that was read, and the ids of the letters that were read with this score.
        self._score, self._seen = "+inf" if newest_first else "-inf", frozenset[bytes]()
        self.read_count = 0

    def read_slice(self) -> Operation[list[Letter] | None]:
        """Return the letters of the next slice; None at the end."""
        size = min(DEAD_LETTERS_PER_READ, self._most - self.read_count)
        if size <= 0:
            return None
        # Up to a thousand letters have the same score, because one call made them. Letters that were read before are
        # skipped.
        limit = ("LIMIT", 0, size + len(self._seen), "WITHSCORES")
        last, direction = ("-inf", ("REV",)) if self._newest_first else ("+inf", ())
        key = self._commands.keys.state("failed")
        (reply,) = yield Read([("ZRANGE", key, self._score, last, "BYSCORE", *direction, *limit)])
        new = [(name, in_us(score)) for name, score in parse_scores(reply) if name not in self._seen][:size]
        if not new:
            return None
        last = new[-1][1]
        earlier = self._seen if last == self._score else frozenset[bytes]()
        self._score, self._seen = last, earlier | {name for name, score in new if score == last}
        self.read_count += len(new)
        return (yield from letters(self._commands, [name.decode() for name, _ in new]))


def _prepare_requeue(shards: Shards, payload: Any, lane: Lane, now: float | None) -> Act:
    """Check payload and lane, and return the change that requeues letters with them."""
    task_class = class_of(check_lane(lane, "lane"), Priority.NORMAL)
    if payload is None:
        return _in_slices("requeue", (0, b"", task_class), now)
    value = json_payload.loads(payload, what="the payload") if isinstance(payload, bytes) else payload
    body = json_payload.dumps(value, limit=shards.config.max_payload_bytes)
    size = max(1, min(DEAD_LETTERS_PER_CALL, MAX_CALL_PAYLOAD_BYTES // (len(body) or 1)))

    def act(commands: Commands, keys: Sequence[Key]) -> Operation[int]:
        total = 0
        for some in slices(keys, size):
            bodies = yield from _signed_payloads(commands, body, [task_id for task_id, _ in some])
            rows = [(*key, 1, body, task_class) for key, body in zip(some, bodies, strict=True)]
            total += yield from _call(commands, "requeue", rows, now)
        return total

    return act


def _signed_payloads(commands: Commands, body: bytes, task_ids: Sequence[str]) -> Operation[list[bytes]]:
    """Return the payload with a signature for each of these tasks."""
    found = yield from read_task_fields(commands.keys, task_ids, "name", "user", "run")
    bodies, config = [], commands.config
    key = config.signing_key.read()
    for task_id, fields in zip(task_ids, found, strict=True):
        name, user, run = ((field or b"").decode("utf-8", "replace") for field in fields)
        signed = SignedFields(config.prefix, commands.name, name, user, body, task_id, run)
        bodies.append(body + sign_payload(signed, key))
    return bodies


def _in_slices(script: str, more: tuple[Any, ...], now: float | None) -> Act:
    def act(commands: Commands, keys: Sequence[Key]) -> Operation[int]:
        total = 0
        for some in slices(keys, DEAD_LETTERS_PER_CALL):
            total += yield from _call(commands, script, [(*key, *more) for key in some], now)
        return total

    return act


def _call(commands: Commands, script: str, rows: Sequence[tuple[Any, ...]], now: float | None) -> Operation[int]:
    args = [len(rows), *(value for row in rows for value in row)]
    codes = yield commands.call(script, args, now, reply=new_nonce())
    return int(codes.count(b"1"))


def _key(entry_id: str) -> Key:
    if not isinstance(entry_id, str):
        raise TaskValidationError(f"an entry's id is a string such as 'task id~1', got {short(entry_id)}")
    task_id, _, number = entry_id.rpartition("~")
    if not task_id or not re.fullmatch(r"[1-9][0-9]{0,14}", number):
        raise TaskNotFoundError(f"{short(entry_id, 300)} is no dead letter's id; it looks like 'task id~1'")
    return check_id(task_id, "the task id in an entry's id"), int(number)


def _moment(only: Filter, now: float | None) -> Operation[float]:
    """Read the engine's time if the filter needs ages; otherwise return 0 without a request."""
    has_age_bounds = only.older_than is not None or only.newer_than is not None
    return (yield from server_time(now)) if has_age_bounds else 0.0


def _build_missing_error(shards: Shards, entry_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(
        f"queue {shards.name!r} has no dead letter {entry_id!r} (any more): it was requeued, discarded or forgotten"
    )


def letters_page(
    shards: Shards, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[Letter]]:
    """Read up to `MAX_DEAD_LETTERS_READ` dead letters. Return at most ``limit`` that match, and the cursor after the last
    letter that was read."""

    def read(commands: Commands, size: int, at: str | None) -> Operation[ResultPage[Letter]]:
        moment = yield from _moment(only, now)
        place = yield from rank_after(commands.keys.state("failed"), at)
        found: list[Letter] = []
        left, count = MAX_DEAD_LETTERS_READ, DEAD_LETTERS_PER_CALL
        while left > 0:
            key = commands.keys.state("failed")
            (reply,) = yield Read([("ZRANGE", key, place, place + count - 1, "WITHSCORES")])
            scores = {name.decode(): score for name, score in parse_scores(reply)}
            known = {letter.task_id: letter for letter in (yield from letters(commands, list(scores)))}
            for task_id, score in scores.items():
                at = score_cursor(score, task_id)
                letter = known.get(task_id)
                if letter is not None and only.matches(letter, moment):
                    found.append(letter)
                    if len(found) == size:
                        return ResultPage(found, at)
            if len(scores) < count:
                return ResultPage(found, None)
            place, left = place + count, left - count
            count = min(DEAD_LETTERS_PER_READ, left)  # few dead letters match, so read the rest at once
        return ResultPage(found, at)

    return (yield from read_page(shards, limit, cursor, read, is_filtered=True))


def count_matching(shards: Shards, only: Filter, now: float | None) -> Operation[DLQMatching]:
    """Count the letters that match now. Later letters are left out of a following call that passes `DLQMatching.until` as
    ``moved_until``.
    """
    moment = yield from server_time(now)
    is_whole = not shards.missing
    if only == Filter(failure_type=only.failure_type):
        kept = yield from counts(shards)
        matched = sum(kept.values()) if only.failure_type is None else kept[only.failure_type.value]
        return DLQMatching(matched, moment, matched, is_whole, shards.missing)
    # Ages are counted from now, not from the later moment at which a person confirms the action.
    until = min(moment - (only.older_than or 0.0), moment if only.moved_until is None else only.moved_until)
    meant = replace(only, older_than=None, moved_until=until)
    matched = looked_at = 0
    for shard in shards:
        scan = DeadLetterScan(shard, MAX_DEAD_LETTERS_READ, newest_first=True)
        while (some := (yield from scan.read_slice())) is not None:
            matched += sum(meant.matches(letter, moment) for letter in some)
        looked_at += scan.read_count
        is_whole = scan.read_count >= (yield from _count(shard)) and is_whole
    return DLQMatching(matched, until, looked_at, is_whole, shards.missing)
