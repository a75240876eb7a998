"""``manage.py fairque_format``: shows the format of a queue's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.engine.maintenance.resharding import read_shard_count
from django_fairque.engine.model.data_format import FORMAT, FORMAT_FIELDS, FORMAT_VERSION, parse_format
from django_fairque.engine.scripting.operations import Read
from django_fairque.management.base import QueueCommand

if TYPE_CHECKING:
    from django_fairque.engine.scripting.operations import Operation
    from django_fairque.engine.sharding.shards import Shards


class Command(QueueCommand):
    help = "Print the format of a queue's data. Versions of django_fairque with different formats refuse each other's data."

    def run(self) -> None:
        queue = self.queue
        found = queue._drive(_read_lowest_format(queue._shards))  # noqa: SLF001 - the queue's own methods refuse another format
        self.write_lines(
            f"queue {queue.name!r} has no data"
            if found is None
            else f"the data of queue {queue.name!r} have format {found}",
            f"this version uses format {FORMAT} (from {FORMAT_VERSION} on)",
        )


def _read_lowest_format(shards: Shards) -> Operation[int | None]:
    """Return the lowest format of the queue's shards, even if another number of shards is configured."""
    written = shards.with_shard_count((yield from read_shard_count(shards)))
    replies = yield Read([("HMGET", shard.keys("stats"), *FORMAT_FIELDS) for shard in written])
    return min((number for number in map(parse_format, replies) if number is not None), default=None)
