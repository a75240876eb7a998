"""The limits by key of a queue: their figures over all shards, closing and opening them.

Each shard that has tasks of a shared limit has its own record of it, with its part of the limit (``lua/lib/limits.lua``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import PartialList, check_limit
from django_fairque.engine.model.durations import now_us, number
from django_fairque.engine.model.ids import check_id
from django_fairque.engine.model.limits import ClosingEnd, encode_end, limit_id_of, write_rate
from django_fairque.engine.model.pauses import format_moment
from django_fairque.engine.scripting.acts import Act, Values, record_act
from django_fairque.engine.scripting.commands import NEVER_MICROSECONDS
from django_fairque.engine.scripting.operations import Operation, parse_scores, read_each, read_sound

if TYPE_CHECKING:
    from django_fairque.engine.sharding.shards import AllShardsReader, Shards


@dataclass(frozen=True)
class LimitStats:
    """A limit by key at one moment, over the shards that have tasks of it. Moments are Unix times.

    ``key`` is its key, and ``user`` the user to whom it belongs, None for a limit that all users share. ``running`` tasks
    run and ``waiting`` tasks wait at it. Its values are those of the newest push: ``at_once`` (None for no limit), ``rate``
    (such as ``"100/s"``, None if there is none) and ``burst``. A limit without tasks has no values.
    """

    key: str
    user: str | None
    at_once: int | None
    rate: str | None
    burst: int | None
    running: int
    waiting: int
    is_closed: bool = False
    """Whether the limit is closed, so that none of its tasks starts."""
    closed_until: float | None = None
    """The moment at which the limit opens by itself; None if it is not closed, or closed until somebody opens it."""
    opens_at: float | None = None
    """The moment from which the limit is open and its rate allows a start; None if both are true now, or if the closing
    has no end."""
    missing_shards: tuple[int, ...] = ()
    """The numbers of shards that can't be reached now; the figures do not include their data."""

    @property
    def is_full(self) -> bool:
        """Whether as many tasks of the limit run as ``at_once`` allows."""
        return self.at_once is not None and self.running >= self.at_once

    @property
    def is_open(self) -> bool:
        """Whether a task of the limit may start now."""
        return not (self.is_closed or self.is_full or self.opens_at is not None)


class LimitQueue:
    """One limit by key of one queue, returned by ``queue.limit(key)``.

    Methods take ``now``, as the methods of the queue do. Changes take effect at once, on every shard. Methods raise
    `ShardsAwayError` if some shards can't be reached (the others are changed).
    """

    def __init__(self, read_all_shards: AllShardsReader, key: str, user: str | None = None) -> None:
        self.key = check_id(key, "the key of a limit")
        self.user = None if user is None else check_id(user, "user")
        self._read_all_shards = read_all_shards

    def close(self, until: ClosingEnd = None, *, now: float | None = None) -> None:
        """Let no task of the limit start. Running tasks continue, and pushes are accepted.

        ``until`` is a number of seconds from now, a timedelta, or an aware datetime; None (the default) closes the
        limit until `open` is called. A moment that has passed closes nothing. Raises `TaskValidationError` if ``until``
        has another type.
        """
        end = encode_end(until)
        self._read_all_shards(lambda shards: change(shards, self.key, self.user, ["close", end], now))

    def open(self, *, now: float | None = None) -> None:
        """End the closing of the limit. Its number of tasks at once and its rate still apply."""
        self._read_all_shards(lambda shards: change(shards, self.key, self.user, ["open", ""], now))

    def stats(self, *, now: float | None = None) -> LimitStats:
        """Return the figures of the limit now."""
        return self._read_all_shards(lambda shards: stats(shards, [(self.key, self.user)], now))[0]


def parse_limit_id(name: bytes) -> tuple[str, str | None]:
    """Return the key and the user in an id of `limit_id_of`."""
    if name.startswith(b"s:"):
        return name[2:].decode(), None
    size, _, rest = name[2:].partition(b":")
    return rest[int(size) + 1 :].decode(), rest[: int(size)].decode()


def change(shards: Shards, key: str, user: str | None, action: Sequence[object], now: float | None) -> Operation[None]:
    """Change a limit on the shards of its users, then raise `ShardsAwayError` if one can't be reached. Record the act."""

    def read_closing() -> Operation[Values]:
        (found,) = yield from stats(shards, [(key, user)], now)
        return {"closed": found.is_closed, "until": format_moment(found.closed_until)}

    subject = key if user is None else f"{key} ({user})"
    return record_act(
        Act(shards.name, str(action[0]), "limit", subject), _change(shards, key, user, action, now), read_closing
    )


def _change(shards: Shards, key: str, user: str | None, action: Sequence[object], now: float | None) -> Operation[None]:
    wanted = shards if user is None else (shards.get_shard(user),)
    for shard in wanted:
        yield shard.call("limit", [limit_id_of(key, user), *action], now)
    if user is None:
        shards.check_present(f"limit {key!r} was changed without some")


def stats(
    shards: Shards, limits: Sequence[tuple[str, str | None]], now: float | None = None
) -> Operation[PartialList[LimitStats]]:
    """Return the figures of limits, in order, in one round trip."""
    places = [tuple(shards) if user is None else (shards.get_shard(user),) for _, user in limits]
    clocks = [("TIME",), *(("HGET", shard.keys("stats"), "clock") for shard in shards)]
    reads = [
        [("HGETALL", shard.keys.limit(limit_id_of(*limit))) for shard in some]
        for limit, some in zip(limits, places, strict=True)
    ]
    (clock, *engine_clocks), *found = yield from read_each([clocks, *reads], only_sound=True)
    at = int(clock[0]) * 1_000_000 + int(clock[1]) if now is None else now_us(now)
    at = max([at, *(int(number(engine_clock)) for engine_clock in engine_clocks)])
    return PartialList(
        [
            combine_limit_records(key, user, records, at, () if user is not None else shards.missing)
            for (key, user), records in zip(limits, found, strict=True)
        ],
        shards.missing,
    )


def top_limits(shards: Shards, limit: int, now: float | None = None) -> Operation[PartialList[LimitStats]]:
    """Return the limits that have waiting tasks or are closed, the limit with most waiting tasks first."""
    check_limit(limit)
    found = yield from read_sound([("ZREVRANGE", shard.keys("limits"), 0, limit - 1, "WITHSCORES") for shard in shards])
    waiting = Counter[bytes]()
    for reply in found:
        waiting.update({name: int(score) for name, score in parse_scores(reply)})
    names = sorted(waiting, key=lambda name: (-waiting[name], name))[:limit]
    return (yield from stats(shards, [parse_limit_id(name) for name in names], now))


def combine_limit_records(
    key: str, user: str | None, records: Sequence[Mapping[bytes, bytes]], now_us: int, missing: tuple[int, ...] = ()
) -> LimitStats:
    """Combine a limit's records on several shards, each with a part of the limit."""

    def numbers(field: bytes) -> list[float]:
        return [number(record[field]) for record in records if field in record]

    closed = max(numbers(b"closed"), default=0.0)
    free = [max(number(record.get(b"closed")), number(record.get(b"tat")) - _tolerance(record)) for record in records]
    opens, gaps = min(free, default=0.0), [gap for gap in numbers(b"gap") if gap >= 1]
    return LimitStats(
        *(key, user),
        at_once=int(sum(numbers(b"at_once"))) or None,
        rate=write_rate(round(1 / sum(1 / gap for gap in gaps))) if gaps else None,
        burst=int(sum(numbers(b"burst"))) or len(gaps) if gaps else None,
        running=int(sum(numbers(b"running"))),
        waiting=int(sum(numbers(b"waiting"))),
        is_closed=closed > now_us,
        closed_until=closed / 1_000_000 if now_us < closed < NEVER_MICROSECONDS else None,
        opens_at=opens / 1_000_000 if now_us < opens < NEVER_MICROSECONDS else None,
        missing_shards=missing,
    )


def _tolerance(record: Mapping[bytes, bytes]) -> float:
    """Return the microseconds by which the next start may be ahead of the rate."""
    return number(record.get(b"gap")) * (number(record.get(b"burst"), 1.0) - 1)
