"""``manage.py fairque_organization``: look at organizations and change what holds for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_fairque.management.base import QueueCommand, limit_of, pages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.management.base import CommandParser

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.organizations import OrganizationQueue, OrganizationStats


class Command(QueueCommand):
    help = (
        "List the organizations of a queue's users, pause or resume one, set its weight and limit. For members see fairque_user "
        "organization, and fairque_user list --organization."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        add_action("list", "every organization with its members, running tasks, weight and limit")
        for name, text in (("pause", "start none of its members' tasks any more"), ("resume", "start them again")):
            add_action(name, text).add_argument("organization", help="the organization's name")
        weight = add_action("weight", "set the share: 2 is twice that of a user of weight 1")
        weight.add_argument("organization", help="the organization's name")
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        limit = add_action("limit", "set how many tasks of all members may run at once, on each shard")
        limit.add_argument("organization", help="the organization's name")
        limit.add_argument("running", metavar="N", help="tasks at once; 'none' for no limit")

    def run(self, queue: FairQueue, options: dict[str, Any]) -> None:
        if options["action"] == "list":
            return self._list(queue)
        organization = queue.organization(options["organization"])
        self._change(organization, options)
        return self._show([organization.stats()])

    @staticmethod
    def _change(organization: OrganizationQueue, options: dict[str, Any]) -> None:
        if options["action"] == "weight":
            organization.set_weight(options["weight"])
        elif options["action"] == "limit":
            organization.set_max_running(limit_of(options["running"]))
        else:
            {"pause": organization.pause, "resume": organization.resume}[options["action"]]()

    def _list(self, queue: FairQueue) -> None:
        for number, page in enumerate(pages(queue.organizations)):
            self._show(queue.organization_stats(page.items), heading=number == 0)

    def _show(self, organizations: Iterable[OrganizationStats], *, heading: bool = True) -> None:
        line = "{:30}  {:>7}  {:>9}  {:>7}  {:>7}  {:>7}  {}"
        if heading:
            names = ("organization", "members", "with work", "running", "weight", "at once", "")
            self.write_lines(line.format(*names).rstrip())
        for each in organizations:
            figures = (each.members, each.members_ready, each.running, f"{each.weight:g}", each.max_running or "-")
            state = "paused" if each.paused else ""
            self.write_lines(line.format(ascii(each.organization)[1:-1], *figures, state).rstrip())
