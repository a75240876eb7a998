"""``manage.py fairque_dlq``: the dead letters of a queue."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django_fairque.engine.dead_letters.dead_letters import DEAD_LETTERS_PER_CALL, MAX_DEAD_LETTERS_READ
from django_fairque.engine.dead_letters.letters import DLQEntry, DLQGroup, Filters
from django_fairque.engine.model import payload as json_payload
from django_fairque.engine.model.errors import short
from django_fairque.engine.model.lanes import LANES
from django_fairque.engine.model.records import FailureType
from django_fairque.management.base import Parser, QueueCommand, pages, positive, when
from django_fairque.management.listing import Column, Listing, age
from django_fairque.monitoring.formatting import pluralize
from django_fairque.monitoring.redaction import HIDDEN, as_line

if TYPE_CHECKING:
    from argparse import ArgumentParser


def escape_payload(text: str) -> str:
    """Escape a payload for a terminal, so that it can be copied, edited and passed to ``--payload``."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


class Command(QueueCommand):
    steers = True
    help = (
        "List dead letters (tasks that will not be tried again by themselves), look at them, see what they died of, "
        "requeue or discard one, some, or all that match."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "the oldest first")
        show = add_action("show", "one entry with its payload and history", entry="the entry's id")
        groups = add_action("groups", "what they died of: letters with the same error together")
        _build_listing(str).add_options(listing)
        _group_listing(str).add_options(groups)
        for showing in (show, listing, groups):
            self.add_unredacted(showing)
        add_action("count", "how many there are, by type")
        requeue = add_action("requeue", "another chance with a fresh retry budget")
        requeue.add_argument("--payload", metavar="JSON", help="run it with this payload instead")
        lane = "the lane in which it comes back (default: %(default)s)"
        requeue.add_argument("--lane", choices=LANES, default="normal", help=lane)
        discard = add_action("discard", "give up: the tasks are canceled, and what waits for them")
        for moving in (requeue, discard):
            moving.add_argument("entries", nargs="*", metavar="ENTRY", help="ids of entries")
            moving.add_argument("--all", action="store_true", help="every entry that matches the filters")
            moving.add_argument("--limit", type=positive, metavar="N", help="with --all: at most N, the oldest first")
            moving.add_argument("--yes", action="store_true", help="with --all: don't ask")
        for filtered in (listing, groups, requeue, discard):
            add_filters(filtered)
        cleanup = add_action("cleanup", "forget entries of some age")
        cleanup.add_argument("--older-than", type=age, required=True, metavar="AGE", help="such as 12h or 7d")

    def _list(self) -> Iterator[str]:
        listing, filters = _build_listing(self.redact), self._filters()
        size = listing.page_size(self.options, DEAD_LETTERS_PER_CALL)
        found = pages(lambda cursor: self.queue.dlq.list(size, cursor, **filters))
        yield from listing.lines((entry for page in found for entry in page.items), self.options)
        if not self.options["json"]:
            counts = self.queue.dlq.counts()
            yield f"{pluralize(sum(counts.values()), 'dead letter')} in queue {self.queue.name!r}"

    def _show(self) -> Iterator[str]:
        entry = self.queue.dlq.get(self.options["entry"])
        task = entry.original_task
        raw = task.payload_bytes.decode("utf-8", "backslashreplace")
        for name, value in (
            ("entry", entry.entry_id),
            ("task", task.task_id),
            ("user", task.user_id),
            ("name", task.name or "-"),
            ("type", f"{entry.failure_type.value} (fingerprint {entry.fingerprint})"),
            ("reason", self.redact(entry.reason)),
            ("died", when(entry.moved_at)),
            ("payload", escape_payload(raw if self.options["unredacted"] else as_line(task))),
        ):
            yield f"{name:8} {value}"
        for attempt in entry.retry_history:
            yield f"- {when(attempt.at)}  {attempt.kind}  {attempt.worker}  {self.redact(attempt.error)}".rstrip()
            for line in self.redact(attempt.traceback).splitlines():
                yield f"    {line}"

    def _groups(self) -> Iterator[str]:
        found = self.queue.dlq.groups(MAX_DEAD_LETTERS_READ, **self._filters())
        yield from _group_listing(self.redact).lines(found.groups, self.options)
        if self.options["json"]:
            return
        matching = sum(group.count for group in found.groups)
        looked = f", of {found.looked_at:,} looked at" if found.looked_at != matching else ""
        rest = "" if found.is_whole else ", the newest; there are more"
        yield f"{pluralize(len(found.groups), 'group')} of {pluralize(matching, 'dead letter')}{looked}{rest}"

    def _count(self) -> Iterator[str]:
        counts = self.queue.dlq.counts()
        yield "  ".join(f"{kind} {number:,}" for kind, number in counts.items())

    def _move(self) -> Iterator[str]:
        """Requeue or discard the given dead letters."""
        verb, entries, dlq = self.options["action"], self.options["entries"], self.queue.dlq
        text = self.options.get("payload")
        more: dict[str, Any] = {} if text is None else {"payload": _json(text)}
        if verb == "requeue":
            more["lane"] = self.options["lane"]
        if self._means_all():
            count = getattr(dlq, f"{verb}_all")(limit=self.options["limit"], **more, **self._filters())
        elif len(entries) == 1:
            getattr(dlq, verb)(entries[0], **more)  # a call for a single dead letter raises an error with the reason
            count = 1
        else:
            count = getattr(dlq, f"{verb}_many")(entries, **more)
        done, missing = "requeued" if verb == "requeue" else "discarded", len(set(entries)) - count
        if entries and missing:
            raise ValueError(f"{count:,} {done}; the other {missing:,} were not there (any more)")
        yield f"{count:,} {done}"

    _requeue = _discard = _move

    def _cleanup(self) -> Iterator[str]:
        yield f"{pluralize(self.queue.dlq.cleanup(self.options['older_than']), 'dead letter')} forgotten"

    def _means_all(self) -> bool:
        verb, limit, filters = self.options["action"], self.options["limit"], self._filters()
        if self.options["all"] == bool(self.options["entries"]):
            raise ValueError("name entries, or give --all")
        if not self.options["all"]:
            if filters or limit:
                raise ValueError("filters go with --all, as --limit does; entries that are named are meant as they are")
            return False
        if self.options["yes"]:
            return True
        if sys.stdin is None or not sys.stdin.isatty():
            raise ValueError(f"{verb} --all asks first, and there is no terminal to ask at: give --yes")
        what = ", ".join(f"{key} {value}" for key, value in filters.items()) or "every one of them"
        most = f", at most {limit:,}" if limit else ""
        lying = f"{self.queue.dlq.count():,} in all"
        try:
            answer = input(f"{verb} dead letters of queue {self.queue.name!r} ({lying}): {what}{most}. Go on? [y/N] ")
        except (EOFError, KeyboardInterrupt):
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            raise ValueError("nothing was changed")
        return True

    def _filters(self) -> dict[str, Any]:
        return read_filters(self.options)


def read_filters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters that the options of `add_filters` choose."""
    return {name: options[name] for name in Filters.__annotations__ if options.get(name) is not None}


def add_filters(parser: ArgumentParser) -> None:
    """Add an option for each filter of dead letters."""
    add = parser.add_argument
    add("--type", dest="failure_type", choices=[kind.value for kind in FailureType], help="only of this type")
    add("--user", dest="user_id", help="only of this user")
    add("--name", help="only of this task name")
    add("--fingerprint", help="only with this error (see groups)")
    add("--older-than", type=age, metavar="AGE", help="only those of at least this age, such as 12h or 7d")
    add("--newer-than", "--since", type=age, metavar="AGE", help="only younger ones")


def _build_listing(redact: Callable[[str], str]) -> Listing[DLQEntry]:
    def reason(entry: DLQEntry) -> str:
        return redact(entry.reason).splitlines()[0] if entry.reason else ""

    def fields(entry: DLQEntry) -> dict[str, Any]:
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

    return Listing(
        "letter",
        [
            Column("entry", lambda entry: entry.entry_id, lambda entry: entry.entry_id),
            Column("type", lambda entry: entry.failure_type.value, lambda entry: entry.failure_type.value),
            Column("died", lambda entry: when(entry.moved_at), lambda entry: entry.moved_at),
            Column("user", lambda entry: entry.original_task.user_id, lambda entry: entry.original_task.user_id),
            Column("name", lambda entry: entry.original_task.name or "-", lambda entry: entry.original_task.name),
            Column("reason", reason),
        ],
        fields,
        limit=50,
    )


def _group_listing(redact: Callable[[str], str]) -> Listing[DLQGroup]:
    return Listing(
        "group",
        [
            Column("count", lambda group: f"{group.count:,}", lambda group: group.count, is_number=True),
            Column("fingerprint", lambda group: group.fingerprint),
            Column("type", lambda group: group.failure_type.value, lambda group: group.failure_type.value),
            Column("name", lambda group: group.name or "-", lambda group: group.name),
            Column("oldest", lambda group: when(group.oldest), lambda group: group.oldest),
            Column("newest", lambda group: when(group.newest), lambda group: group.newest),
            Column("example", lambda group: group.example),
            Column("error", lambda group: redact(group.error)[:100]),
        ],
        lambda group: {**asdict(group), "failure_type": group.failure_type.value, "error": redact(group.error)},
    )


def _json(text: str) -> bytes:
    if HIDDEN in text:
        raise ValueError(f"--payload has {HIDDEN} in it, where a secret was hidden: copy what show --unredacted prints")
    try:
        json_payload.loads(text.encode(), what="it")
    except ValueError as error:
        raise ValueError(f"--payload must be JSON, got {short(text)}: {error}") from error
    return text.encode()
