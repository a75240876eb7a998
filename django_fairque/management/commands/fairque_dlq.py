"""``manage.py fairque_dlq``: the dead letters of a queue."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dlq import KEEP
from django_fairque.engine.records import FailureType
from django_fairque.management.base import QueueCommand

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_fairque.engine.queue import FairQueue


def _when(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


class Command(QueueCommand):
    help = (
        "List dead letters (tasks that will not be tried again by themselves), look at them, requeue or discard them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        listing = actions.add_parser("list", help="the oldest first")
        listing.add_argument("--limit", type=int, default=50, help="at most so many (default: %(default)s)")
        show = actions.add_parser("show", help="one entry with its payload and history")
        show.add_argument("entry", help="the entry's id")
        requeue = actions.add_parser("requeue", help="another chance with a fresh retry budget")
        requeue.add_argument("entry", nargs="?", help="the entry's id")
        requeue.add_argument("--all", action="store_true", help="every entry that matches the filters")
        requeue.add_argument("--payload", metavar="JSON", help="run it with this payload instead")
        for parser_of in (listing, requeue):
            parser_of.add_argument("--type", choices=[kind.value for kind in FailureType], help="only of this type")
            parser_of.add_argument("--user", help="only of this user")
            parser_of.add_argument("--name", help="only of this task name")
        discard = actions.add_parser("discard", help="give an entry up: its task is canceled")
        discard.add_argument("entry", help="the entry's id")
        cleanup = actions.add_parser("cleanup", help="forget entries older than so many days")
        cleanup.add_argument("--older-than-days", type=float, required=True, metavar="DAYS")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        getattr(self, f"_{options['action']}")(queue, options)

    @staticmethod
    def _filters(options: dict[str, Any]) -> dict[str, Any]:
        return {"failure_type": options["type"], "user_id": options["user"], "name": options["name"]}

    def _list(self, queue: FairQueue, options: dict[str, Any]) -> None:
        cursor, shown = None, 0
        while shown < options["limit"]:
            page = queue.dlq.list(min(1000, options["limit"]), cursor, **self._filters(options))
            for entry in page.items[: options["limit"] - shown]:
                task = entry.original_task
                who = ascii(task.user_id)[1:-1]
                what = ascii(entry.reason.splitlines()[0] if entry.reason else "")[1:-1]
                head = f"{entry.entry_id}  {entry.failure_type.value:8}  {_when(entry.moved_at)}"
                self.stdout.write(f"{head}  {who}  {task.name or '-'}  {what}")
                shown += 1
            cursor = page.cursor
            if cursor is None:
                break
        self.stdout.write(f"{shown} shown of {queue.dlq.count():,} dead letters in queue {queue.name!r}")

    def _show(self, queue: FairQueue, options: dict[str, Any]) -> None:
        entry = queue.dlq.get(options["entry"])
        task = entry.original_task
        for name, value in (
            ("entry", entry.entry_id),
            ("task", task.task_id),
            ("user", ascii(task.user_id)[1:-1]),
            ("name", task.name or "-"),
            ("type", entry.failure_type.value),
            ("reason", ascii(entry.reason)[1:-1]),
            ("died", _when(entry.moved_at)),
            ("payload", ascii(task.payload_bytes.decode("utf-8", "replace"))[1:-1]),
        ):
            self.stdout.write(f"{name:8} {value}")
        for attempt in entry.retry_history:
            self.stdout.write(f"- {_when(attempt.at)}  {attempt.kind}  {attempt.worker}  {ascii(attempt.error)[1:-1]}")

    def _requeue(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if options["all"] == bool(options["entry"]):
            raise ValueError("name one entry, or give --all")
        if options["all"]:
            if options["payload"] is not None:
                raise ValueError("--payload replaces one entry's payload; it can't go with --all")
            self.stdout.write(f"{queue.dlq.requeue_all(**self._filters(options)):,} requeued")
            return
        payload = KEEP if options["payload"] is None else json.loads(options["payload"])
        self.stdout.write(f"task {queue.dlq.requeue(options['entry'], payload)} requeued")

    def _discard(self, queue: FairQueue, options: dict[str, Any]) -> None:
        queue.dlq.discard(options["entry"])
        self.stdout.write(f"{options['entry']} discarded")

    def _cleanup(self, queue: FairQueue, options: dict[str, Any]) -> None:
        removed = queue.dlq.cleanup(options["older_than_days"] * 86_400)
        self.stdout.write(f"{removed:,} dead letters forgotten")
