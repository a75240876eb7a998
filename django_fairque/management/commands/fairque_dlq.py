"""``manage.py fairque_dlq``: the dead letters of a queue."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters.letters import Filters
from django_fairque.engine.dead_letters.operations import DEAD_LETTERS_PER_CALL, MAX_DEAD_LETTERS_READ
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.records import FailureType
from django_fairque.management.base import QueueCommand, positive
from django_fairque.monitoring.formatting import plain, read_age
from django_fairque.monitoring.redaction import HIDDEN, as_line, redacted_text

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

    from django.core.management.base import CommandParser

    from django_fairque.engine.dead_letters.letters import DLQEntry, DLQGroup
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue


def age(text: str) -> float:
    """``90s``, ``10m``, ``2h``, ``7d`` in seconds."""
    try:
        return read_age(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def when(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")


def written(task: Task) -> str:
    return task.payload_bytes.decode("utf-8", "backslashreplace")


def escaped(text: str) -> str:
    """A payload on a terminal, such that it can be copied, edited and given to ``--payload``."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


class Command(QueueCommand):
    help = (
        "List dead letters (tasks that will not be tried again by themselves), look at them, see what they died of, "
        "requeue or discard one, some, or all that match."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "the oldest first")
        listing.add_argument(
            "--limit", type=positive, metavar="N", default=50, help="show at most N (default: %(default)s)"
        )
        listing.add_argument("--json", action="store_true", help="as one JSON object per line, a line per letter")
        show = add_action("show", "one entry with its payload and history")
        show.add_argument("entry", help="the entry's id")
        self.add_unredacted(show)
        self.add_unredacted(listing)
        groups = add_action("groups", "what they died of: letters with the same error together")
        self.add_unredacted(groups)
        add_action("count", "how many there are, by type")
        requeue = add_action("requeue", "another chance with a fresh retry budget")
        requeue.add_argument("--payload", metavar="JSON", help="run it with this payload instead")
        discard = add_action("discard", "give up: the tasks are canceled, and what waits for them")
        for moving in (requeue, discard):
            moving.add_argument("entries", nargs="*", metavar="ENTRY", help="ids of entries")
            moving.add_argument("--all", action="store_true", help="every entry that matches the filters")
            moving.add_argument("--limit", type=positive, metavar="N", help="with --all: at most N, the oldest first")
            moving.add_argument("--yes", action="store_true", help="with --all: don't ask")
        for filtered in (listing, groups, requeue, discard):
            _add_filters(filtered)
        cleanup = add_action("cleanup", "forget entries of some age")
        cleanup.add_argument("--older-than", type=age, required=True, metavar="AGE", help="such as 12h or 7d")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        getattr(self, f"_{options['action']}")(queue, options)

    def _list(self, queue: FairQueue, options: dict[str, Any]) -> None:
        cursor, shown, redact = None, 0, _redaction(options)
        while shown < options["limit"]:
            page = queue.dlq.list(min(DEAD_LETTERS_PER_CALL, options["limit"]), cursor, **_filters(options))
            for entry in page.items[: options["limit"] - shown]:
                self.write_lines(json.dumps(_fields(entry, redact)) if options["json"] else _line(entry, redact))
                shown += 1
            cursor = page.cursor
            if cursor is None:
                break
        if not options["json"]:
            counts = queue.dlq.counts()
            self.write_lines(f"{shown:,} shown of {sum(counts.values()):,} dead letters in queue {queue.name!r}")

    def _show(self, queue: FairQueue, options: dict[str, Any]) -> None:
        entry = queue.dlq.get(options["entry"])
        task, redact = entry.original_task, _redaction(options)
        for name, value in (
            ("entry", entry.entry_id),
            ("task", task.task_id),
            ("user", task.user_id),
            ("name", task.name or "-"),
            ("type", f"{entry.failure_type.value} (fingerprint {entry.fingerprint})"),
            ("reason", redact(entry.reason)),
            ("died", when(entry.moved_at)),
            ("payload", escaped(written(task) if options["unredacted"] else as_line(task))),
        ):
            self.write_lines(f"{name:8} {value}")
        for attempt in entry.retry_history:
            line = f"- {when(attempt.at)}  {attempt.kind}  {attempt.worker}  {redact(attempt.error)}"
            self.write_lines(line.rstrip())
            for line in redact(attempt.traceback).splitlines():
                self.write_lines(f"    {line}")

    def _groups(self, queue: FairQueue, options: dict[str, Any]) -> None:
        redact = _redaction(options)
        found = queue.dlq.groups(MAX_DEAD_LETTERS_READ, **_filters(options))
        for group in found.groups:
            head = f"{group.count:>7,}  {group.fingerprint}  {group.failure_type.value:8}  {group.name or '-'}"
            self.write_lines(f"{head}  {plain(redact(group.error))[:100]}  ({_span(group)})")
        matching = sum(group.count for group in found.groups)
        looked = f", of {found.looked_at:,} looked at" if found.looked_at != matching else ""
        rest = "" if found.is_whole else ", the oldest; there are more"
        self.write_lines(f"{len(found.groups):,} groups of {matching:,} dead letters{looked}{rest}")

    def _count(self, queue: FairQueue, options: dict[str, Any]) -> None:
        counts = queue.dlq.counts()
        self.write_lines("  ".join(f"{kind} {number:,}" for kind, number in counts.items()))

    def _requeue(self, queue: FairQueue, options: dict[str, Any]) -> None:
        payload = None if options["payload"] is None else _json(options["payload"])
        if self._means_all(queue, options, "requeue"):
            count = queue.dlq.requeue_all(payload, limit=options["limit"], **_filters(options))
        elif len(options["entries"]) == 1:
            queue.dlq.requeue(options["entries"][0], payload)  # says why if it can't be
            count = 1
        else:
            count = queue.dlq.requeue_many(options["entries"], payload)
        self._tell(options, count, "requeued")

    def _discard(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if self._means_all(queue, options, "discard"):
            count = queue.dlq.discard_all(limit=options["limit"], **_filters(options))
        elif len(options["entries"]) == 1:
            queue.dlq.discard(options["entries"][0])
            count = 1
        else:
            count = queue.dlq.discard_many(options["entries"])
        self._tell(options, count, "discarded")

    def _tell(self, options: dict[str, Any], count: int, done: str) -> None:
        missing = len(set(options["entries"])) - count
        if options["entries"] and missing:
            raise ValueError(f"{count:,} {done}; the other {missing:,} were not there (any more)")
        self.write_lines(f"{count:,} {done}")

    def _cleanup(self, queue: FairQueue, options: dict[str, Any]) -> None:
        self.write_lines(f"{queue.dlq.cleanup(options['older_than']):,} dead letters forgotten")

    def _means_all(self, queue: FairQueue, options: dict[str, Any], verb: str) -> bool:
        filters = _filters(options)
        if options["all"] == bool(options["entries"]):
            raise ValueError("name entries, or give --all")
        if not options["all"]:
            if filters or options["limit"]:
                raise ValueError("filters go with --all, as --limit does; entries that are named are meant as they are")
            return False
        if options["yes"]:
            return True
        if sys.stdin is None or not sys.stdin.isatty():
            raise ValueError(f"{verb} --all asks first, and there is no terminal to ask at: give --yes")
        what = ", ".join(f"{key} {value}" for key, value in filters.items()) or "every one of them"
        most = f", at most {options['limit']:,}" if options["limit"] else ""
        lying = f"{queue.dlq.count():,} in all"
        try:
            answer = input(f"{verb} dead letters of queue {queue.name!r} ({lying}): {what}{most}. Go on? [y/N] ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise ValueError("nothing was changed")
        return True


def _add_filters(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--type", dest="failure_type", choices=[kind.value for kind in FailureType], help="only of this type")
    add("--user", dest="user_id", help="only of this user")
    add("--name", help="only of this task name")
    add("--fingerprint", help="only with this error (see groups)")
    add("--older-than", type=age, metavar="AGE", help="only those of at least this age, such as 12h or 7d")
    add("--newer-than", type=age, metavar="AGE", help="only younger ones")


def _filters(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in Filters.__annotations__ if options.get(name) is not None}


def _span(group: DLQGroup) -> str:
    return f"{when(group.oldest)} to {when(group.newest)}, such as {group.example}"


def _redaction(options: dict[str, Any]) -> Callable[[str], str]:
    """How errors are shown."""
    return str if options["unredacted"] else redacted_text


def _line(entry: DLQEntry, redact: Callable[[str], str]) -> str:
    task = entry.original_task
    reason = redact(entry.reason).splitlines()[0] if entry.reason else ""
    head = f"{entry.entry_id}  {entry.failure_type.value:8}  {when(entry.moved_at)}"
    return f"{head}  {task.user_id}  {task.name or '-'}  {reason}"


def _fields(entry: DLQEntry, redact: Callable[[str], str]) -> dict[str, Any]:
    task = entry.original_task
    return {
        "entry": entry.entry_id,
        "task": task.task_id,
        "user": task.user_id,
        "name": task.name,
        "type": entry.failure_type.value,
        "fingerprint": entry.fingerprint,
        "reason": redact(entry.reason),
        "died": entry.moved_at,
        "attempts": len(entry.retry_history),
    }


def _json(text: str) -> bytes:
    if HIDDEN in text:
        raise ValueError(f"--payload has {HIDDEN} in it, where a secret was hidden: copy what show --unredacted prints")
    try:
        json_payload.loads(text.encode(), what="it")
    except ValueError as error:
        raise ValueError(f"--payload must be JSON, got {short(text)}: {error}") from error
    return text.encode()
