"""``manage.py fairque_reshard``: distributes a drained queue over another number of shards."""

from __future__ import annotations

from django_fairque.conf import get_queue
from django_fairque.management.base import Parser, QueueCommand
from django_fairque.monitoring.formatting import pluralize


class Command(QueueCommand):
    steers = True
    help = (
        "Spread a queue over another number of shards. It must be drained: no task waits or runs, there are no dead "
        "letters, its workers are stopped, and so are the processes that push. Users keep their weights, limits and pauses, "
        "schedules their times; ended tasks and their results are forgotten. Then set SHARDS to the same number everywhere. "
        "What was interrupted is completed by running it again."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--shards", type=int, required=True, metavar="N", help="how many there are to be (1 to 256)"
        )

    def run(self) -> None:
        # without the command's short time-out, because resharding may take long
        queue, wanted = get_queue(self.queue.name), self.options["shards"]
        before, moved = queue.reshard(wanted)
        if moved is None:
            self.write_lines(f"queue {queue.name!r} lies on {pluralize(before, 'shard')} already; nothing was changed")
            return
        self.write_lines(
            f"moved: {pluralize(moved.users, 'user')} with settings and {pluralize(moved.schedules, 'schedule')}; "
            f"forgotten: {pluralize(moved.forgotten, 'ended task')}"
        )
        self.write_lines(
            f"queue {queue.name!r} lies on {pluralize(wanted, 'shard')} now (before: {before})",
            style=self.style.SUCCESS,
        )
        if queue.config.shards != wanted:
            self.write_lines(f"set SHARDS to {wanted} before anybody uses it again", style=self.style.WARNING)
