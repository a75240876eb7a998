"""``manage.py fairque_format``: shows the format of a queue's data, and converts the data to another format."""

from __future__ import annotations

from django_fairque.conf import get_queue
from django_fairque.engine.model.data_format import FORMAT, FORMAT_VERSIONS
from django_fairque.management.base import Parser, QueueCommand
from django_fairque.management.formats import convert_queue, queue_format


class Command(QueueCommand):
    help = (
        "Print the format of a queue's data, or convert them. Versions of django_fairque with different formats refuse each "
        "other's data. To upgrade, stop all workers and run this with the newer version; to go back, stop all workers and "
        "run this with the newer version and the older format, then install the older version. Tasks may wait meanwhile: "
        "nothing is lost. If this was interrupted, run it again."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--to", type=int, metavar="N", help="the format to convert the data to")

    def run(self) -> None:
        queue, wanted = self.queue, self.options["to"]
        if wanted is None:
            found = queue_format(queue)
            known = ", ".join(f"{number} (from {version} on)" for number, version in FORMAT_VERSIONS.items())
            self.write_lines(
                f"queue {queue.name!r} has no data"
                if found is None
                else f"the data of queue {queue.name!r} have format {found}",
                f"this version uses format {FORMAT}, and converts data to and from these: {known}",
            )
            return
        # without the command's short time-out, because the conversion may take long
        before = convert_queue(get_queue(queue.name), wanted)
        if before is None:
            self.write_lines(f"queue {queue.name!r} has no data; nothing was changed")
        elif before == wanted:
            self.write_lines(f"the data of queue {queue.name!r} have format {wanted} already; nothing was changed")
        else:
            self.write_lines(
                f"the data of queue {queue.name!r} have format {wanted} now (before: {before})",
                style=self.style.SUCCESS,
            )
        if wanted != FORMAT:
            self.write_lines(
                f"install version {FORMAT_VERSIONS[wanted]} before you start workers: this version uses format {FORMAT}",
                style=self.style.WARNING,
            )
