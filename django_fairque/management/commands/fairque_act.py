"""``manage.py fairque_act``: acts on many tasks, which workers carry out, and their undo."""

from __future__ import annotations

from collections.abc import Iterator

from django_fairque.audit import read_entries, undo_settings
from django_fairque.conf.current import get_queue
from django_fairque.engine.acts.acts import ACT_KINDS, STOP_AFTER, TaskAct
from django_fairque.engine.model.lanes import CLASS_NAMES, LANES
from django_fairque.management.base import Parser, QueueCommand, positive, when
from django_fairque.management.commands.fairque_dlq import add_filters, read_filters
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.report import progress_words


class Command(QueueCommand):
    steers = True
    help = (
        "Start an act on all tasks that match: retry, discard or move dead letters, cancel waiting tasks. Workers carry it out, "
        "at a pace if you wish. List acts, go on after a trial, stop one, or undo one for 24 hours after its end."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        start = add_action("start", "an act on all tasks that match now")
        start.add_argument("kind", choices=ACT_KINDS, help="%(choices)s")
        start.add_argument("--pace", type=float, metavar="N", help="tasks a second (default: as many as possible)")
        start.add_argument("--trial", action="store_true", help="change one task, then wait for go-on")
        start.add_argument("--note", default="", metavar="TEXT", help="why, at most 200 characters")
        start.add_argument(
            "--lane", choices=LANES, default="normal", help="the lane of retried tasks (default: %(default)s)"
        )
        stop = "a retry stops when N tasks failed again with the same error and none succeeded (default: %(default)s)"
        start.add_argument("--stop-after", type=positive, default=STOP_AFTER, metavar="N", help=stop)
        start.add_argument("--to", default="", metavar="QUEUE", help="the other queue to which dead letters are moved")
        start.add_argument("--state", metavar="STATE", help="of a cancel: only queued or only scheduled tasks")
        start.add_argument(
            "--priority", choices=CLASS_NAMES.values(), help="of a cancel: only tasks of this priority or lane"
        )
        add_filters(start)
        ACT_LIST.add_options(add_action("list", "the acts of the last 24 hours, the latest first"))
        for name, text in (
            ("show", "one act"),
            ("go-on", "continue after a trial or a stop"),
            ("stop", "change no more tasks"),
            ("undo", "restore the tasks that nothing has changed since"),
        ):
            add_action(name, text, act="the act's id")
        text = "set a pause, weight or limit of the last 24 hours back to the values before"
        add_action("undo-entry", text, entry="the id of the entry in the JSON of fairque_audit")

    def _start(self) -> Iterator[str]:
        if self.options["to"]:
            get_queue(self.options["to"])  # raises an error if the queue is not declared
        names = ("kind", "pace", "trial", "note", "lane", "to", "stop_after", "state", "priority")
        options = {name: self.options[name] for name in names}
        act = self.queue.acts.start(**options, actor=self.actor, **read_filters(self.options))
        yield from _describe(act)
        if not self.queue.workers():
            yield f"! no worker runs: workers of queue {self.queue.name!r} carry out the act"

    def _list(self) -> Iterator[str]:
        yield from ACT_LIST.lines(self.queue.acts.list(), self.options)

    def _show(self) -> Iterator[str]:
        yield from _describe(self.queue.acts.get(self.options["act"]))

    def _go_on(self) -> Iterator[str]:
        yield from _describe(self.queue.acts.go_on(self.options["act"]))

    def _stop(self) -> Iterator[str]:
        yield from _describe(self.queue.acts.stop(self.options["act"]))

    def _undo(self) -> Iterator[str]:
        yield from _describe(self.queue.acts.undo(self.options["act"]))

    def _undo_entry(self) -> Iterator[str]:
        number = self.options["entry"]
        entry = read_entries().filter(pk=int(number)).first() if number.isdecimal() and len(number) < 19 else None
        if entry is None:
            raise ValueError(f"the audit has no entry {number}; fairque_audit --json prints the ids")
        undo_settings(self.queue, entry)
        yield f"undone: {entry.act} {entry.kind} {entry.subject}".rstrip()


def _describe(act: TaskAct) -> Iterator[str]:
    for name, value in (
        ("act", act.id),
        ("kind", act.kind),
        ("tasks", act.choice),
        ("state", act.state),
        ("progress", progress_words(act)),
        ("result", act.result),
        ("pace", f"{act.pace:g}/s" if act.pace else ""),
        ("actor", act.actor),
        ("note", act.note),
        ("started", when(act.started_at)),
        ("ended", when(act.ended_at) if act.ended_at else ""),
    ):
        if value:
            yield f"{name:8} {value}"


ACT_LIST: Listing[TaskAct] = Listing(
    "act",
    [
        Column("act", lambda act: act.id, lambda act: act.id),
        Column("state", lambda act: act.state, lambda act: act.state),
        Column("kind", lambda act: act.kind, lambda act: act.kind),
        Column("tasks", lambda act: act.choice, lambda act: act.choice),
        Column("started", lambda act: when(act.started_at), lambda act: act.started_at),
        Column("actor", lambda act: act.actor or "-", lambda act: act.actor),
        Column("result", lambda act: act.result),
    ],
    lambda act: {
        **{name: value for name, value in vars(act).items() if name not in ("progress", "counted")},
        "handled": act.handled,
        "total": act.total,
    },
)
