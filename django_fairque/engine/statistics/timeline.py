"""What happened lately, in spans of whole minutes: for charts, which need no more points than can be seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.model.shortening import short
from django_fairque.engine.scripting.operations import Read
from django_fairque.engine.statistics.histograms import Histograms, Percentiles, percentiles, summed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django_fairque.engine.scripting.operations import Steps
    from django_fairque.engine.sharding.shards import Shards

DAY = 1440
"""Minutes: what is kept (a little longer) by default, see ``stats_minutes_ttl``."""


@dataclass(frozen=True)
class Span:
    """What happened from ``begin`` (seconds since the epoch) on, for ``seconds``: the latest span is still going on.

    Percentiles of the attempts that ended in it: how long they had waited for their start, and how long they ran.
    """

    begin: int
    seconds: int
    pushed: int
    finished: int
    failed: int
    dead: int
    violated: int
    promoted: int
    wait: Percentiles
    run: Percentiles


@dataclass(frozen=True)
class Activity:
    """The spans, the oldest first, and the percentiles of all of them together."""

    spans: list[Span]
    wait: Percentiles
    run: Percentiles
    wait_by_priority: dict[str, Percentiles] = field(default_factory=dict)
    missing_shards: tuple[int, ...] = ()
    """Shards that can't be reached now: what happened there is in none of the figures."""


def activity(queue: Shards, minutes: int, per_span: int) -> Steps[Activity]:
    are_whole = isinstance(minutes, int) and isinstance(per_span, int)
    if not (are_whole and 1 <= per_span <= minutes <= DAY) or minutes % per_span:
        raise TaskValidationError(
            f"minutes must be from 1 to {DAY} and a multiple of per_span, got "
            f"minutes={short(minutes)}, per_span={short(per_span)}"
        )
    shards = tuple(queue)
    (clock,) = yield Read([("TIME",)])
    now = int(clock[0])
    first = now // 60 // per_span * per_span - minutes + per_span  # spans begin at round times: they don't flicker
    reads = [("HGETALL", shard.keys.minute(first + index)) for index in range(minutes) for shard in shards]
    replies, size = (yield Read(reads)), len(shards)
    records = [summed(replies[at : at + size]) for at in range(0, len(replies), size)]
    whole, spans = Histograms(), []
    for index in range(0, minutes, per_span):
        begin = (first + index) * 60
        spans.append(_span(begin, min(60 * per_span, now - begin + 1), records[index : index + per_span]))
    for record in records:
        whole.add(record)
    by_priority = {Priority(number).name: percentiles(whole.waits[number]) for number in sorted(whole.waits)}
    return Activity(spans, percentiles(whole.wait), percentiles(whole.runs), by_priority, queue.missing)


def _span(begin: int, seconds: int, records: Sequence[Mapping[bytes, bytes]]) -> Span:
    histograms = Histograms()
    for record in records:
        histograms.add(record)
    counted = ("pushed", "finished", "failed", "dead", "violated", "promoted")
    return Span(
        begin,
        seconds,
        wait=percentiles(histograms.wait),
        run=percentiles(histograms.runs),
        **{name: sum(int(record.get(name.encode(), 0)) for record in records) for name in counted},
    )
