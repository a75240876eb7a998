"""Dead letters: tasks that will not be tried again by themselves. List, look at, requeue, discard, clean up.

An entry's id is ``{task id}~{n}``: the n-th time that this task died. An id of an earlier death is refused, so
that a page that was opened long ago can't requeue a newer letter by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters.letters import (
    DLQEntry,
    DLQGroup,
    DLQGroups,
    DLQMatching,
    Filter,
    Letter,
    normalize_error,
)
from django_fairque.engine.inspection.pages import ResultPage, check_limit, cursor_error, parse_cursor
from django_fairque.engine.inspection.task_lookup import attempt, read_tasks, server_time
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.durations import duration, seconds
from django_fairque.engine.model.errors import TaskNotFoundError, TaskValidationError, short
from django_fairque.engine.model.ids import check_id, new_nonce
from django_fairque.engine.model.records import FailureType
from django_fairque.engine.model.signature import SignedFields, sign_payload
from django_fairque.engine.scripting.operations import Operation, Read, parse_scores, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands

DEAD_LETTERS_PER_CALL = 100
MAX_CALL_PAYLOAD_BYTES = 4 * 1024 * 1024
"""A slice that carries payloads is this large at most: the server reads a call before it does anything else."""
MAX_DEAD_LETTERS_READ = 10_000

Key = tuple[str, int]
"""A task's id and how often it had died."""
Act = Callable[[Sequence[Key]], Operation[int]]


def letters(commands: Commands, task_ids: Sequence[str]) -> Operation[list[Letter]]:
    """The dead letters among these tasks."""
    if not task_ids:
        return []
    fields = ("state", "user", "name", "failure", "reason", "ended", "died")
    reply = yield from read_sound([("HMGET", commands.keys.task(task_id), *fields) for task_id in task_ids])
    found = []
    for task_id, (state, user, name, failure, reason, ended, died) in zip(task_ids, reply, strict=True):
        if state == b"failed" and user is not None:
            with suppress(ValueError):  # a damaged record; the checker names it
                kind = FailureType((failure or b"failed").decode())
                text = (reason or b"").decode("utf-8", "replace")
                moved_at = seconds(ended) or 0.0
                found.append(
                    Letter(task_id, int(died or 1), user.decode(), (name or b"").decode(), kind, text, moved_at)
                )
    return found


def entries(commands: Commands, chosen: Sequence[Letter]) -> Operation[list[DLQEntry]]:
    """These letters with their tasks and histories, but for those that have gone since."""
    if not chosen:
        return []
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
    commands: Commands, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[DLQEntry]]:
    check_limit(limit)
    _, index = parse_cursor(cursor, 1)
    moment = yield from _moment(only, now)
    (ids,) = yield Read([("ZRANGE", commands.keys.state("failed"), index, index + limit - 1)])
    found = yield from letters(commands, [task_id.decode() for task_id in ids])
    items = yield from entries(commands, [letter for letter in found if only.matches(letter, moment)])
    return ResultPage(items, f"0:{index + limit}" if len(ids) == limit else None)


def get(commands: Commands, entry_id: str) -> Operation[DLQEntry]:
    task_id, number = _key(entry_id)
    found = yield from letters(commands, [task_id])
    for entry in (yield from entries(commands, [letter for letter in found if letter.died == number])):
        return entry
    raise _gone(commands, entry_id)


def of_task(commands: Commands, task_id: str) -> Operation[DLQEntry | None]:
    found = yield from letters(commands, [check_id(task_id, "task_id")])
    return next(iter((yield from entries(commands, found))), None)


def requeue(commands: Commands, entry_id: str, payload: Any, now: float | None) -> Operation[str]:
    if not (yield from requeue_some(commands, [entry_id], payload, now)):
        raise _gone(commands, entry_id)
    return _key(entry_id)[0]


def discard(commands: Commands, entry_id: str, now: float | None) -> Operation[None]:
    if not (yield from discard_some(commands, [entry_id], now)):
        raise _gone(commands, entry_id)


def requeue_some(commands: Commands, entry_ids: Sequence[str], payload: Any, now: float | None) -> Operation[int]:
    """Requeue those of these entries that are (still) there, in slices; returns how many."""
    return (yield from _requeuing(commands, payload, now)(_keys(entry_ids)))


def discard_some(commands: Commands, entry_ids: Sequence[str], now: float | None) -> Operation[int]:
    """Give up those of these entries that are (still) there, in slices; returns how many."""
    return (yield from _discarding(commands, now)(_keys(entry_ids)))


def requeue_all(commands: Commands, only: Filter, payload: Any, limit: int | None, now: float | None) -> Operation[int]:
    return (yield from _all_matching(commands, only, _requeuing(commands, payload, now), limit, now))


def discard_all(commands: Commands, only: Filter, limit: int | None, now: float | None) -> Operation[int]:
    return (yield from _all_matching(commands, only, _discarding(commands, now), limit, now))


def cleanup(commands: Commands, older_than: float, now: float | None) -> Operation[int]:
    duration(older_than, "older_than")  # None would be no filter: for all of them

    def forget(keys: Sequence[Key]) -> Operation[int]:
        return int((yield commands.call("forget", [len(keys), *(task_id for task_id, _ in keys)], now)))

    # By when they were moved, not by their place in the registry: that is when they are forgotten by themselves,
    # counted with the failed_ttl of then, which may not be today's.
    return (yield from _all_matching(commands, Filter.create({"older_than": older_than}), forget, None, now))


def count(commands: Commands) -> Operation[int]:
    (size,) = yield Read([("ZCARD", commands.keys.state("failed"))])
    return int(size)


def counts(commands: Commands) -> Operation[dict[str, int]]:
    """How many lie there now, by type: kept by the scripts, so this costs one read."""
    kinds = [kind.value for kind in FailureType]
    (found,) = yield Read([("HMGET", commands.keys("stats"), *(f"lying:{kind}" for kind in kinds))])
    return {kind: int(float(number or 0)) for kind, number in zip(kinds, found, strict=True)}


def groups(commands: Commands, look_at: int, only: Filter, now: float | None) -> Operation[DLQGroups]:
    if isinstance(look_at, bool) or not isinstance(look_at, int) or not 1 <= look_at <= MAX_DEAD_LETTERS_READ:
        raise TaskValidationError(f"look_at must be an integer from 1 to {MAX_DEAD_LETTERS_READ}, got {short(look_at)}")
    moment = yield from _moment(only, now)
    size = yield from count(commands)
    found: dict[str, list[Letter]] = {}
    walk = DeadLetterScan(commands, min(look_at, size))
    while ids := (yield from walk.following()):
        for letter in (yield from letters(commands, ids)):
            if only.matches(letter, moment):
                found.setdefault(letter.fingerprint, []).append(letter)
    made = [_group(key, members) for key, members in found.items()]
    made.sort(key=lambda group: (-group.count, -group.newest, group.fingerprint))
    return DLQGroups(tuple(made), walk.read_count, size <= look_at)


def _group(key: str, members: Sequence[Letter]) -> DLQGroup:
    newest = max(members, key=lambda letter: letter.moved_at)
    return DLQGroup(
        *(key, newest.name, newest.failure_type, normalize_error(newest.reason), len(members)),
        oldest=min(letter.moved_at for letter in members),
        newest=newest.moved_at,
        example=newest.entry_id,
    )


def in_us(score: float) -> str:
    """A place in the registry, as commands take it."""
    return f"{score:.0f}"


class DeadLetterScan:
    """The ids of the oldest ``most`` letters, a slice at a time.

    The place is kept by score, not by rank: others may take letters out meanwhile, and ranks would then skip some.
    """

    def __init__(self, commands: Commands, most: int) -> None:
        self._key, self._most = commands.keys.state("failed"), most
        self._score, self._seen = "-inf", frozenset[bytes]()  # the last score, and the ids read with it
        self.read_count = 0

    def following(self) -> Operation[list[str]]:
        size = min(DEAD_LETTERS_PER_CALL, self._most - self.read_count)
        if size <= 0:
            return []
        # Of one score are those that died in one call, a thousand at most; those that were read are skipped.
        limit = ("LIMIT", 0, size + len(self._seen), "WITHSCORES")
        (reply,) = yield Read([("ZRANGE", self._key, self._score, "+inf", "BYSCORE", *limit)])
        new = [(name, in_us(score)) for name, score in parse_scores(reply) if name not in self._seen][:size]
        if new:
            last = new[-1][1]
            earlier = self._seen if last == self._score else frozenset[bytes]()
            self._score, self._seen = last, earlier | {name for name, score in new if score == last}
        self.read_count += len(new)
        return [name.decode() for name, _ in new]


def _all_matching(commands: Commands, only: Filter, act: Act, limit: int | None, now: float | None) -> Operation[int]:
    """In slices, oldest first, of as many as lay there at the start: what dies again meanwhile has a later place."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise TaskValidationError(f"limit must be an integer of at least 1, got {short(limit)}")
    moment = yield from _moment(only, now)
    walk = DeadLetterScan(commands, (yield from count(commands)))
    total = 0
    while (limit is None or total < limit) and (ids := (yield from walk.following())):
        found = yield from letters(commands, ids)
        keys = [(letter.task_id, letter.died) for letter in found if only.matches(letter, moment)]
        if limit is not None:
            keys = keys[: limit - total]
        if keys:
            total += yield from act(keys)
    return total


def _requeuing(commands: Commands, payload: Any, now: float | None) -> Act:
    """Checks the payload before anything is sent."""
    if payload is None:
        return _in_slices(commands, "requeue", (0, b""), DEAD_LETTERS_PER_CALL, now)
    value = json_payload.loads(payload, what="the payload") if isinstance(payload, bytes) else payload
    body = json_payload.dumps(value, limit=commands.config.max_payload_bytes)
    size = max(1, min(DEAD_LETTERS_PER_CALL, MAX_CALL_PAYLOAD_BYTES // (len(body) or 1)))

    def act(keys: Sequence[Key]) -> Operation[int]:
        total = 0
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            bodies = yield from _signed_payloads(commands, body, [task_id for task_id, _ in some])
            total += yield from _call(
                commands, "requeue", [(*key, 1, each) for key, each in zip(some, bodies, strict=True)], now
            )
        return total

    return act


def _signed_payloads(commands: Commands, body: bytes, task_ids: Sequence[str]) -> Operation[list[bytes]]:
    """The payload for each of these tasks: a new payload gets a new signature."""
    found = yield Read([("HMGET", commands.keys.task(task_id), "name", "user", "run") for task_id in task_ids])
    bodies = []
    for task_id, fields in zip(task_ids, found, strict=True):
        name, user, run = ((field or b"").decode("utf-8", "replace") for field in fields)
        bodies.append(
            body + sign_payload(SignedFields(commands.config.prefix, commands.name, name, user, body, task_id, run))
        )
    return bodies


def _discarding(commands: Commands, now: float | None) -> Act:
    return _in_slices(commands, "discard", (), DEAD_LETTERS_PER_CALL, now)


def _in_slices(commands: Commands, script: str, more: tuple[Any, ...], size: int, now: float | None) -> Act:
    def act(keys: Sequence[Key]) -> Operation[int]:
        total = 0
        for first in range(0, len(keys), size):
            total += yield from _call(commands, script, [(*key, *more) for key in keys[first : first + size]], now)
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


def task_of(entry_id: str) -> str:
    """The task whose death an entry's id means."""
    return _key(entry_id)[0]


def _keys(entry_ids: Sequence[str]) -> list[Key]:
    """Each once: the discarding script would count a letter as often as it is named."""
    if isinstance(entry_ids, (str, bytes)) or not isinstance(entry_ids, Iterable):
        kind = "the string " if isinstance(entry_ids, str) else ""
        raise TaskValidationError(f"expected a list of entries' ids, got {kind}{short(entry_ids)}")
    return list(dict.fromkeys(_key(entry_id) for entry_id in entry_ids))


def _moment(only: Filter, now: float | None) -> Operation[float]:
    """The engine's moment, if the filter asks for ages."""
    return (yield from server_time(now)) if only.has_age_bounds else 0.0


def _gone(commands: Commands, entry_id: str) -> TaskNotFoundError:
    return TaskNotFoundError(
        f"queue {commands.name!r} has no dead letter {entry_id!r} (any more): it was requeued, discarded or forgotten"
    )


DEAD_LETTERS_READ_PER_PAGE = 1000
"""Letters that one page looks at, if the filters leave most of them out."""
MAX_DEAD_LETTERS_COUNTED = 4000
"""Letters of which those that match are counted while somebody waits: with a fingerprint to make of each, 0.2 s."""


def letters_page(
    commands: Commands, limit: int, cursor: str | None, only: Filter, now: float | None
) -> Operation[ResultPage[Letter]]:
    """At most ``limit`` of `DEAD_LETTERS_READ_PER_PAGE` dead letters, and the cursor behind the last one that was read."""
    check_limit(limit)
    moment = (yield from server_time(now)) if only.has_age_bounds else 0.0
    place = yield from _cursor_rank(commands, cursor)
    found: list[Letter] = []
    for _ in range(DEAD_LETTERS_READ_PER_PAGE // DEAD_LETTERS_PER_CALL):
        key = commands.keys.state("failed")
        (reply,) = yield Read([("ZRANGE", key, place, place + DEAD_LETTERS_PER_CALL - 1, "WITHSCORES")])
        pairs = parse_scores(reply)
        found_letters = {
            letter.task_id: letter for letter in (yield from letters(commands, [n.decode() for n, _ in pairs]))
        }
        for name, score in pairs:
            cursor = f"{in_us(score)}:{name.decode()}"
            letter = found_letters.get(name.decode())
            if letter is not None and only.matches(letter, moment):
                found.append(letter)
                if len(found) == limit:
                    return ResultPage(found, cursor)
        if len(pairs) < DEAD_LETTERS_PER_CALL:
            return ResultPage(found, None)
        place += DEAD_LETTERS_PER_CALL
    return ResultPage(found, cursor)


def _cursor_rank(commands: Commands, cursor: str | None) -> Operation[int]:
    """How many letters lie before the one to go on with.

    The cursor names the last one that was looked at. If it has gone since, it goes on with those that died when it
    did: to show some twice is better than to miss some.
    """
    if cursor is None:
        return 0
    score, separator, task_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (separator and task_id and score.isascii() and score.isdecimal() and len(score) < 20):
        raise cursor_error(cursor)
    key = commands.keys.state("failed")
    rank, before = yield Read([("ZRANK", key, task_id), ("ZCOUNT", key, "-inf", f"({score}")])
    return int(before) if rank is None else int(rank) + 1


def matching(commands: Commands, only: Filter, now: float | None) -> Operation[DLQMatching]:
    """How many match now. What dies later is not meant: `DLQMatching.until` is for the ``moved_until`` of what follows."""
    moment = yield from server_time(now)
    if only == Filter(failure_type=only.failure_type):
        kept = yield from counts(commands)
        matched = sum(kept.values()) if only.failure_type is None else kept[only.failure_type.value]
        return DLQMatching(matched, moment, matched, is_whole=True)
    # Ages are counted from now on, not from whenever somebody has made up their mind.
    until = min(moment - (only.older_than or 0.0), moment if only.moved_until is None else only.moved_until)
    meant = replace(only, older_than=None, moved_until=until)
    walk = DeadLetterScan(commands, MAX_DEAD_LETTERS_COUNTED)
    matched = 0
    while ids := (yield from walk.following()):
        matched += sum(meant.matches(letter, moment) for letter in (yield from letters(commands, ids)))
    return DLQMatching(matched, until, walk.read_count, is_whole=walk.read_count >= (yield from count(commands)))
