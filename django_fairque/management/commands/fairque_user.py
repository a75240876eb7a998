"""``manage.py fairque_user``: look at users and change what holds for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django_fairque.engine.model.errors import short
from django_fairque.management.base import NO_LIMIT, QueueCommand, limit_of, pages
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import CommandParser

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.users import UserQueue, UserStats


class Command(QueueCommand):
    help = "List the users of a queue, pause or resume one, set its weight, organization and limits, cancel what it has waiting."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every user with its backlog, running tasks, weight and limits")
        listing.add_argument("--organization", metavar="NAME", help="the members of this organization only")
        listing.add_argument("--json", action="store_true", help="as one JSON object per line, a line per user")
        for name, text in (
            ("pause", "start none of the user's tasks any more"),
            ("resume", "start them again"),
            ("purge", "cancel everything that waits"),
        ):
            add_user(add_action(name, text), can_create=name != "purge")
        weight = add_action("weight", "set the share: 2 is twice that of a user of weight 1")
        add_user(weight)
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        organization = add_action(
            "organization", "make it a member of an organization, whose members share what one user would get"
        )
        add_user(organization)
        organization.add_argument(
            "organization",
            nargs="?",
            help="the organization's name; without one it leaves the organization that it is in",
        )
        limit = add_action("limit", "set limits; 'none' removes one")
        add_user(limit)
        limit.add_argument("--running", metavar="N", help="tasks at once")
        limit.add_argument("--rate", metavar="N/UNIT", help="starts per s, m, h or d, such as 100/m")
        limit.add_argument("--burst", metavar="N", type=int, help="with --rate: how many may start at once (1)")
        limit.add_argument("--backlog", metavar="N", help="tasks that may wait")
        limit.add_argument("--backlog-bytes", metavar="N", help="bytes that tasks that have not ended may take")
        limit.add_argument("--sla", metavar="SECONDS", help="within which tasks should start, of any priority")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if options["action"] == "list":
            return self._list(queue, options["organization"], as_json=options["json"])
        user = queue.user(options["user"])
        if not options.get("create") and not user.is_known():
            raise ValueError(
                f"queue {queue.name!r} has no user {short(user.user_id)}; nothing was changed. A user is known from its first "
                "task on, until it has been idle for an hour. To set it up before, add --create"
            )
        if options["action"] == "purge":
            self.write_lines(f"{canceling.purge_user(queue, user.user_id):,} tasks of {user.user_id!r} canceled")
            return None
        {"pause": user.pause, "resume": user.resume}.get(options["action"], lambda: self._change(user, options))()
        return self._show([user.stats()])

    def _change(self, user: UserQueue, options: dict[str, Any]) -> None:
        if options["action"] == "weight":
            return user.set_weight(options["weight"])
        if options["action"] == "organization":
            return user.set_organization(options["organization"])
        if options["burst"] is not None and options["rate"] in (None, NO_LIMIT):
            raise ValueError("--burst belongs to --rate: give both")
        if all(options[name] is None for name in ("running", "rate", "backlog", "backlog_bytes", "sla")):
            raise ValueError("nothing to change: give --running, --rate, --backlog, --backlog-bytes or --sla")
        if options["sla"] is not None:
            user.set_sla(None if options["sla"] == NO_LIMIT else float(options["sla"]))
        if options["running"] is not None:
            user.set_max_running(limit_of(options["running"]))
        if options["rate"] is not None:
            burst = 1 if options["burst"] is None else options["burst"]
            user.set_rate(None if options["rate"] == NO_LIMIT else options["rate"], burst=burst)
        if options["backlog"] is not None:
            user.set_max_backlog(limit_of(options["backlog"]))
        if options["backlog_bytes"] is not None:
            user.set_max_backlog_bytes(limit_of(options["backlog_bytes"]))
        return None

    def _list(self, queue: FairQueue, organization: str | None, *, as_json: bool) -> None:
        names = queue.users if organization is None else queue.organization(organization).members
        for number, page in enumerate(pages(names)):
            users = queue.user_stats(page.items)
            if not as_json:
                self._show(users, heading=number == 0)
                continue
            for stats in users:
                self.write_lines(json.dumps(asdict(stats)))

    def _show(self, users: list[UserStats], *, heading: bool = True) -> None:
        line = "{:30}  {:>8}  {:>7}  {:>8}  {:>8}  {:>7}  {:>10}  {:>9}  {}"
        if heading:
            names = ("user", "waiting", "running", "finished", "dead", "weight", "at once", "rate", "")
            self.write_lines(line.format(*names).rstrip())
        for stats in users:
            waiting = stats.sizes.total - stats.sizes.running
            state = ", ".join(
                ["paused"] * stats.paused + [f"organization {stats.organization!a}"] * (stats.organization is not None)
            )
            figures = (waiting, stats.sizes.running, stats.finished, stats.dead, f"{stats.weight:g}")
            limits = (stats.max_running or "-", stats.rate or "-")
            self.write_lines(line.format(ascii(stats.user_id)[1:-1], *figures, *limits, state).rstrip())


def add_user(parser: ArgumentParser, *, can_create: bool = True) -> None:
    parser.add_argument("user", help="the user's id")
    if can_create:
        parser.add_argument(
            "--create",
            action="store_true",
            help="also for a user of whom the queue knows nothing, as it had no task yet",
        )
