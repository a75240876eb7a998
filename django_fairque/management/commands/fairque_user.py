"""``manage.py fairque_user``: look at users and change what holds for them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django_fairque.management.base import NONE, QueueCommand, limit_of, pages
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from django_fairque.engine.queue import FairQueue
    from django_fairque.engine.users import UserQueue, UserStats


class Command(QueueCommand):
    help = (
        "List the users of a queue, pause or resume one, set its weight, group and limits, cancel what it has waiting."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every user with its backlog, running tasks, weight and limits")
        listing.add_argument("--group", metavar="NAME", help="the members of this group only")
        listing.add_argument("--json", action="store_true", help="as one JSON object per line, a line per user")
        for name, text in (
            ("pause", "start none of the user's tasks any more"),
            ("resume", "start them again"),
            ("purge", "cancel everything that waits"),
        ):
            add_action(name, text).add_argument("user", help="the user's id")
        weight = add_action("weight", "set the share: 2 is twice that of a user of weight 1")
        weight.add_argument("user", help="the user's id")
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        group = add_action("group", "make it a member of a group, whose members share what one user would get")
        group.add_argument("user", help="the user's id")
        group.add_argument("group", nargs="?", help="the group's name; without one it leaves the group that it is in")
        limit = add_action("limit", "set limits; 'none' removes one")
        limit.add_argument("user", help="the user's id")
        limit.add_argument("--running", metavar="N", help="tasks at once")
        limit.add_argument("--rate", metavar="N/UNIT", help="starts per s, m, h or d, such as 100/m")
        limit.add_argument("--backlog", metavar="N", help="tasks that may wait")
        limit.add_argument("--sla", metavar="SECONDS", help="within which tasks are promised to start, of any priority")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if options["action"] == "list":
            return self._list(queue, options["group"], as_json=options["json"])
        user = queue.user(options["user"])
        if options["action"] == "purge":
            self.tell(f"{canceling.purge_user(queue, user.user_id):,} tasks of {user.user_id!r} canceled")
            return None
        {"pause": user.pause, "resume": user.resume}.get(options["action"], lambda: self._change(user, options))()
        return self._show([user.stats()])

    def _change(self, user: UserQueue, options: dict[str, Any]) -> None:
        if options["action"] == "weight":
            return user.set_weight(options["weight"])
        if options["action"] == "group":
            return user.set_group(options["group"])
        if all(options[name] is None for name in ("running", "rate", "backlog", "sla")):
            raise ValueError("nothing to change: give --running, --rate, --backlog or --sla")
        if options["sla"] is not None:
            user.set_sla(None if options["sla"] == NONE else float(options["sla"]))
        if options["running"] is not None:
            user.set_max_running(limit_of(options["running"]))
        if options["rate"] is not None:
            user.set_rate(None if options["rate"] == NONE else options["rate"])
        if options["backlog"] is not None:
            user.set_max_backlog(limit_of(options["backlog"]))
        return None

    def _list(self, queue: FairQueue, group: str | None, *, as_json: bool) -> None:
        names = queue.users if group is None else queue.group(group).members
        for number, page in enumerate(pages(names)):
            users = queue.user_stats(page.items)
            if not as_json:
                self._show(users, heading=number == 0)
                continue
            for stats in users:
                self.tell(json.dumps(asdict(stats)))

    def _show(self, users: list[UserStats], *, heading: bool = True) -> None:
        line = "{:30}  {:>8}  {:>7}  {:>8}  {:>8}  {:>7}  {:>10}  {:>9}  {}"
        if heading:
            names = ("user", "waiting", "running", "finished", "dead", "weight", "at once", "rate", "")
            self.tell(line.format(*names).rstrip())
        for stats in users:
            waiting = stats.sizes.total - stats.sizes.running
            state = ", ".join(["paused"] * stats.paused + [f"group {stats.group!a}"] * (stats.group is not None))
            figures = (waiting, stats.sizes.running, stats.finished, stats.dead, f"{stats.weight:g}")
            limits = (stats.max_running or "-", stats.rate or "-")
            self.tell(line.format(ascii(stats.user_id)[1:-1], *figures, *limits, state).rstrip())
