"""``manage.py fairque_organization``: show organizations and change their settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from django_fairque.management.base import Parser, QueueCommand, add_pause_options, pages, parse_limit, pause_options
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import number, share
from django_fairque.monitoring.report import pause_suffix

if TYPE_CHECKING:
    from django_fairque.engine.users.organizations import OrganizationStats


class Command(QueueCommand):
    steers = True
    help = (
        "List the organizations of a queue's users, pause or resume one, set its weight, share and limit. For members see "
        "fairque_user organization, and fairque_user list --organization."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add_action = self.add_actions(parser)
        listing = add_action("list", "every organization with its members, running tasks, weight and limit")
        ORGANIZATION_LIST.add_options(listing)
        named = {"organization": "the organization's name"}
        add_pause_options(add_action("pause", "start none of its members' tasks any more", **named))
        add_action("resume", "start them again", **named)
        weight = add_action("weight", "set the share: 2 is twice that of a user of weight 1", **named)
        weight.add_argument("weight", type=float, help="0.001 to 1000")
        part = add_action("share", "guarantee a part of the worker time while it has tasks", **named)
        part.add_argument("share", metavar="SHARE", help="0.01 to 0.9, as 0.2 for a fifth; 'none' for no guarantee")
        limit = add_action("limit", "set how many tasks of all members may run at once, on each shard", **named)
        limit.add_argument("running", metavar="N", help="tasks at once; 'none' for no limit")

    def _list(self) -> Iterator[str]:
        size = ORGANIZATION_LIST.page_size(self.options, 100)
        found = pages(lambda cursor: self.queue.organizations(cursor, size))
        stats = (organization for page in found for organization in self.queue.organization_stats(page.items))
        return ORGANIZATION_LIST.lines(stats, self.options)

    def _change(self) -> Iterator[str]:
        action, organization = self.options["action"], self.queue.organization(self.options["organization"])
        if action == "weight":
            organization.set_weight(self.options["weight"])
        elif action == "share":
            organization.set_share(parse_limit(self.options["share"], float, "a share is a number, as 0.2 for a fifth"))
        elif action == "limit":
            organization.set_max_running(parse_limit(self.options["running"]))
        elif action == "pause":
            organization.pause(**pause_options(self.options))
        else:
            organization.resume()
        return ORGANIZATION_LIST.table([organization.stats()])

    _pause = _resume = _weight = _share = _limit = _change


ORGANIZATION_LIST: Listing[OrganizationStats] = Listing(
    "organization",
    [
        Column("organization", lambda row: row.organization, lambda row: row.organization),
        Column("members", lambda row: number(row.members), lambda row: row.members, is_number=True),
        Column("with work", lambda row: number(row.members_ready), is_number=True),
        Column("running", lambda row: number(row.running), lambda row: row.running, is_number=True),
        Column("weight", lambda row: f"{row.weight:g}", lambda row: row.weight, is_number=True),
        Column("at least", lambda row: share(row.share) if row.share else "-", is_number=True),
        Column("at once", lambda row: number(row.max_running) if row.max_running else "-", is_number=True),
        Column("", lambda row: f"paused{pause_suffix(row.pause)}" if row.paused else ""),
    ],
    fields=asdict,
)
