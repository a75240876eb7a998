"""Looking through many dead letters: a page of them without what they carry, and how many there are of a kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django_fairque.engine.dead_letters import operations as dlq
from django_fairque.engine.dead_letters.filters import Filter, Letter
from django_fairque.engine.inspection.pages import Page, check_limit, wrong_cursor
from django_fairque.engine.inspection.task_lookup import server_time
from django_fairque.engine.model.records import DLQMatching
from django_fairque.engine.scripting.operations import Read, Steps, scored

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands

LOOKED_AT = 1000
"""Letters that one page looks at, if the filters leave most of them out."""
COUNTED = 4000
"""Letters of which those that match are counted while somebody waits: with a fingerprint to make of each, 0.2 s."""


def page(commands: Commands, limit: int, cursor: str | None, only: Filter, now: float | None) -> Steps[Page[Letter]]:
    """At most ``limit`` letters, of at most `LOOKED_AT`, and where to go on: behind the last one that was looked at."""
    check_limit(limit)
    moment = (yield from server_time(now)) if only.asks_age else 0.0
    place = yield from _place(commands, cursor)
    found: list[Letter] = []
    for _ in range(LOOKED_AT // dlq.SLICE):
        key = commands.keys.state("failed")
        (reply,) = yield Read([("ZRANGE", key, place, place + dlq.SLICE - 1, "WITHSCORES")])
        pairs = scored(reply)
        letters = {
            letter.task_id: letter for letter in (yield from dlq.letters(commands, [n.decode() for n, _ in pairs]))
        }
        for name, score in pairs:
            cursor = f"{dlq.in_us(score)}:{name.decode()}"
            letter = letters.get(name.decode())
            if letter is not None and only.matches(letter, moment):
                found.append(letter)
                if len(found) == limit:
                    return Page(found, cursor)
        if len(pairs) < dlq.SLICE:
            return Page(found, None)
        place += dlq.SLICE
    return Page(found, cursor)


def _place(commands: Commands, cursor: str | None) -> Steps[int]:
    """How many letters lie before the one to go on with.

    The cursor names the last one that was looked at. If it has gone since, it goes on with those that died when it
    did: to show some twice is better than to miss some.
    """
    if cursor is None:
        return 0
    score, separator, task_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (separator and task_id and score.isascii() and score.isdecimal() and len(score) < 20):
        raise wrong_cursor(cursor)
    key = commands.keys.state("failed")
    rank, before = yield Read([("ZRANK", key, task_id), ("ZCOUNT", key, "-inf", f"({score}")])
    return int(before) if rank is None else int(rank) + 1


def matching(commands: Commands, only: Filter, now: float | None) -> Steps[DLQMatching]:
    """How many match now. What dies later is not meant: `DLQMatching.until` is for the ``moved_until`` of what follows."""
    moment = yield from server_time(now)
    if only == Filter(failure_type=only.failure_type):
        kept = yield from dlq.counts(commands)
        count = sum(kept.values()) if only.failure_type is None else kept[only.failure_type.value]
        return DLQMatching(count, moment, count, is_whole=True)
    # Ages are counted from now on, not from whenever somebody has made up their mind.
    until = min(moment - (only.older_than or 0.0), moment if only.moved_until is None else only.moved_until)
    meant = replace(only, older_than=None, moved_until=until)
    walk = dlq.Walk(commands, COUNTED)
    count = 0
    while ids := (yield from walk.following()):
        count += sum(meant.matches(letter, moment) for letter in (yield from dlq.letters(commands, ids)))
    return DLQMatching(count, until, walk.met, is_whole=walk.met >= (yield from dlq.count(commands)))
