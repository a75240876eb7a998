"""``manage.py fairque_user``: show users and change their settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from django_fairque.engine.model.errors import short
from django_fairque.engine.users.users import HOLD_REASONS
from django_fairque.management.base import (
    NO_LIMIT,
    Parser,
    QueueCommand,
    add_pause_options,
    pages,
    parse_limit,
    pause_options,
)
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import number, pluralize
from django_fairque.monitoring.report import pause_suffix
from django_fairque.tasks import results

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django_fairque.engine.inspection.pages import ResultPage
    from django_fairque.engine.users.users import UserQueue, UserStats


class Command(QueueCommand):
    steers = True
    help = "List the users of a queue, pause or resume one, set its plan, weight, organization and limits, cancel what waits."

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every user with its backlog, running tasks, weight and limits")
        listing.add_argument("--organization", metavar="NAME", help="the members of this organization only")
        listing.add_argument("--plan", metavar="NAME", help="the users of this plan only")
        USER_LIST.add_options(listing)

        def add_changing(name: str, text: str) -> ArgumentParser:
            action = add_action(name, text, user="the user's id")
            create = "also for a user of whom the queue knows nothing, as it had no task yet"
            action.add_argument("--create", action="store_true", help=create)
            return action

        add_pause_options(add_changing("pause", "start none of the user's tasks any more"))
        add_changing("resume", "start them again")
        add_action("purge", "cancel everything that waits", user="the user's id")
        weight = add_changing("weight", "set the share: 2 is twice that of a user of weight 1")
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        organization = add_changing(
            "organization", "make it a member of an organization, whose members share what one user would get"
        )
        name = "the organization's name; without one it leaves the organization that it is in"
        organization.add_argument("organization", nargs="?", help=name)
        plan = add_changing("plan", "give it a plan of PLANS, whatever PLAN_OF returns; 'none' restores its usual one")
        plan.add_argument("plan", metavar="PLAN", help="the plan's name; 'none' also removes limits that were set here")
        add = add_changing("limit", "set limits; 'none' removes one").add_argument
        add("--running", metavar="N", help="tasks at once")
        add("--rate", metavar="N/UNIT", help="starts per s, m, h or d, such as 100/m")
        add("--burst", metavar="N", type=int, help="with --rate: how many may start at once (1)")
        add("--backlog", metavar="N", help="tasks that may wait")
        add("--backlog-bytes", metavar="N", help="bytes that tasks that have not ended may take")
        add("--sla", metavar="SECONDS", help="within which tasks should start, of any priority")

    def _list(self) -> Iterator[str]:
        name, plan, size = (*map(self.options.get, ("organization", "plan")), USER_LIST.page_size(self.options, 100))
        if name is not None and plan is not None:
            raise ValueError("--organization does not go with --plan: give one")
        organization = None if name is None else self.queue.organization(name)

        def read(cursor: str | None) -> ResultPage[str]:
            if plan is not None:
                return self.queue.users_of_plan(plan, cursor, size)
            return self.queue.users(cursor, size) if organization is None else organization.members(cursor, size)

        return USER_LIST.lines(
            (user for page in pages(read) for user in self.queue.user_stats(page.items)), self.options
        )

    def _user(self) -> UserQueue:
        user = self.queue.user(self.options["user"])
        if not self.options.get("create") and not user.is_known():
            raise ValueError(
                f"queue {self.queue.name!r} has no user {short(user.user_id)}; nothing was changed. A user is known from its "
                "first task on, until it has been idle for an hour. To set it up before, add --create"
            )
        return user

    def _purge(self) -> Iterator[str]:
        user_id = self._user().user_id
        yield f"{pluralize(results.purge_user(self.queue, user_id), 'task')} of {user_id!r} canceled"

    def _change(self) -> Iterator[str]:
        user, action = self._user(), self.options["action"]
        if action == "limit":
            self._set_limits(user)
        elif action in ("weight", "organization"):
            getattr(user, f"set_{action}")(self.options[action])
        elif action == "plan":
            user.set_plan(None if self.options["plan"] == NO_LIMIT else self.options["plan"])
        elif action == "pause":
            user.pause(**pause_options(self.options))
        else:
            user.resume()
        return USER_LIST.table([user.stats()])

    _pause = _resume = _weight = _organization = _plan = _limit = _change

    def _set_limits(self, user: UserQueue) -> None:
        options = self.options
        if options["burst"] is not None and options["rate"] in (None, NO_LIMIT):
            raise ValueError("--burst belongs to --rate: give both")
        if all(options[name] is None for name in ("running", "rate", "backlog", "backlog_bytes", "sla")):
            raise ValueError("nothing to change: give --running, --rate, --backlog, --backlog-bytes or --sla")
        if options["sla"] is not None:
            user.set_sla(None if options["sla"] == NO_LIMIT else float(options["sla"]))
        if options["rate"] is not None:
            burst = 1 if options["burst"] is None else options["burst"]
            user.set_rate(None if options["rate"] == NO_LIMIT else options["rate"], burst=burst)
        for name in ("running", "backlog", "backlog_bytes"):
            if options[name] is not None:
                getattr(user, f"set_max_{name}")(parse_limit(options[name]))


def _state(stats: UserStats) -> str:
    organization = [] if stats.organization is None else [f"organization {stats.organization!a}"]
    reason = f": {HOLD_REASONS[stats.held_by]}" if stats.held_by and not stats.paused else ""
    held = [f"{stats.sizes.ready:,} held back{reason}"] if stats.held_by and stats.sizes.ready else []
    paused = [f"paused{pause_suffix(stats.pause)}"] if stats.paused else []
    return ", ".join(paused + held + organization)


USER_LIST: Listing[UserStats] = Listing(
    "user",
    [
        Column("user", lambda stats: stats.user_id, lambda stats: stats.user_id),
        Column("waiting", lambda stats: number(stats.waiting), lambda stats: stats.waiting, is_number=True),
        Column("running", lambda stats: number(stats.sizes.running), lambda stats: stats.sizes.running, is_number=True),
        Column("finished", lambda stats: number(stats.finished), lambda stats: stats.finished, is_number=True),
        Column("dead", lambda stats: number(stats.dead), lambda stats: stats.dead, is_number=True),
        Column("plan", lambda stats: stats.plan or "-", lambda stats: stats.plan or ""),
        Column("weight", lambda stats: f"{stats.weight:g}", lambda stats: stats.weight, is_number=True),
        Column("at once", lambda stats: number(stats.max_running) if stats.max_running else "-", is_number=True),
        Column("rate", lambda stats: stats.rate or "-", is_number=True),
        Column("", _state),
    ],
    fields=asdict,
)
