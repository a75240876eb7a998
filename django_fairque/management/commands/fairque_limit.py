"""``manage.py fairque_limit``: shows limits by key, closes a limit, and opens it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.pages import MAX_PAGE_SIZE
from django_fairque.management.base import Parser, QueueCommand, add_end_options, end_option, when
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.report import limit_values

if TYPE_CHECKING:
    from django_fairque.engine.limits.limits import LimitStats


class Command(QueueCommand):
    steers = True
    help = "List the limits by key at which tasks wait or that are closed, show one, close or open it."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", f"the limits that are closed or have waiting tasks, at most {MAX_PAGE_SIZE:,}")
        LIMIT_LIST.add_options(listing)
        for name, text in (
            ("show", "one limit: its values, and how many of its tasks run and wait"),
            ("close", "start none of its tasks any more; running tasks go on"),
            ("open", "start them again"),
        ):
            action = add_action(name, text, key="the limit's key, filled in, such as mailbox:7")
            action.add_argument("--user", metavar="ID", help="its user, if each user has a separate limit")
            if name == "close":
                add_end_options(action, "the limit opens")

    def _list(self) -> Iterator[str]:
        return LIMIT_LIST.lines(self.queue.limits(LIMIT_LIST.page_size(self.options, MAX_PAGE_SIZE)), self.options)

    def _show(self) -> Iterator[str]:
        limit = self.queue.limit(self.options["key"], self.options["user"])
        if self.options["action"] == "close":
            limit.close(end_option(self.options))
        elif self.options["action"] == "open":
            limit.open()
        return LIMIT_LIST.table([limit.stats()])

    _close = _open = _show


def _state(stats: LimitStats) -> str:
    if stats.is_closed:
        return "closed" if stats.closed_until is None else f"closed until {when(stats.closed_until)}"
    return "" if stats.opens_at is None else f"next start at {when(stats.opens_at)}"


LIMIT_LIST: Listing[LimitStats] = Listing(
    "limit",
    [
        Column("limit", lambda row: row.key, lambda row: row.key),
        Column("user", lambda row: row.user or "-", lambda row: row.user),
        Column("waiting", lambda row: number(row.waiting), lambda row: row.waiting, is_number=True),
        Column("running", lambda row: number(row.running), lambda row: row.running, is_number=True),
        Column("values", limit_values),
        Column("", _state),
    ],
    fields=asdict,
)
