"""``manage.py fairque_organization``: look at organizations and change what holds for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_fairque.management.base import Parser, QueueCommand, limit_of, pages

if TYPE_CHECKING:
    from django_fairque.engine.users.organizations import OrganizationStats


class Command(QueueCommand):
    help = (
        "List the organizations of a queue's users, pause or resume one, set its weight and limit. For members see fairque_user "
        "organization, and fairque_user list --organization."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        add_action("list", "every organization with its members, running tasks, weight and limit")
        named = {"organization": "the organization's name"}
        add_action("pause", "start none of its members' tasks any more", **named)
        add_action("resume", "start them again", **named)
        weight = add_action("weight", "set the share: 2 is twice that of a user of weight 1", **named)
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        limit = add_action("limit", "set how many tasks of all members may run at once, on each shard", **named)
        limit.add_argument("running", metavar="N", help="tasks at once; 'none' for no limit")

    def _list(self) -> Iterator[str]:
        for number, page in enumerate(pages(self.queue.organizations)):
            yield from _lines(self.queue.organization_stats(page.items), heading=number == 0)

    def _change(self) -> Iterator[str]:
        action, organization = self.options["action"], self.queue.organization(self.options["organization"])
        if action == "weight":
            organization.set_weight(self.options["weight"])
        elif action == "limit":
            organization.set_max_running(limit_of(self.options["running"]))
        else:
            getattr(organization, action)()
        return _lines([organization.stats()])

    _pause = _resume = _weight = _limit = _change


def _lines(organizations: list[OrganizationStats], *, heading: bool = True) -> Iterator[str]:
    line = "{:30}  {:>7}  {:>9}  {:>7}  {:>7}  {:>7}  {}"
    if heading:
        yield line.format("organization", "members", "with work", "running", "weight", "at once", "").rstrip()
    for each in organizations:
        figures = (each.members, each.members_ready, each.running, f"{each.weight:g}", each.max_running or "-")
        yield line.format(ascii(each.organization)[1:-1], *figures, "paused" if each.paused else "").rstrip()
