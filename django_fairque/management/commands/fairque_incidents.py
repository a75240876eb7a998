"""``manage.py fairque_incidents``: the incidents of a queue, and its lost workers."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from django_fairque.engine.statistics.incidents import MAX_INCIDENTS, Incident, sorted_users
from django_fairque.management.base import Parser, QueueCommand, when
from django_fairque.management.listing import Column, Listing
from django_fairque.monitoring.formatting import approximate, duration, number, pluralize
from django_fairque.monitoring.redaction import redacted_line
from django_fairque.monitoring.reports.incident_impact import incident_impact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.monitoring.reports.incident_impact import Impact

USERS_SHOWN = 5


class Command(QueueCommand):
    steers = True
    help = (
        "List the incidents of the last 30 days, the open ones first, and the workers that were lost in the last 24 hours. With "
        "an id, everything about one incident; with --acknowledge, remove a lost worker from the list."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        parser.add_argument("incident", nargs="?", metavar="ID", help="show this incident")
        parser.add_argument("--acknowledge", metavar="WORKER", help="the loss of this worker is known: list it no more")
        INCIDENT_LIST.add_options(parser)

    def run(self) -> None:
        incidents, wanted, worker = self.queue.incidents, self.options["incident"], self.options["acknowledge"]
        if worker is not None:
            if not incidents.acknowledge(worker):
                raise CommandError(f"no worker {worker} is lost; run the command without --acknowledge for the list")
            self.write_lines(f"worker {worker} is no longer listed as lost")
        elif wanted is not None:
            found = incidents.get(wanted)
            if found is None:
                raise CommandError(f"queue {self.queue.name} has no incident {wanted}; it may be older than 30 days")
            self.write_lines(*INCIDENT_LIST.lines([found], self.options))
            if not self.options["json"]:
                self.write_lines(*_details(found), *_impact_lines(incident_impact(self.queue, found)))
        else:
            lost = [] if self.options["json"] else incidents.lost_workers()
            for line in (
                *INCIDENT_LIST.lines(incidents.recent(MAX_INCIDENTS), self.options),
                *(f"! {worker}" for worker in lost),
            ):
                self.write_lines(line)


def _details(incident: Incident) -> list[str]:
    users = [f"user {user}: {count:,}" for user, count in sorted_users(incident)]
    others = [f"other users: {incident.other_users:,}"] if incident.other_users else []
    return [f"first: {incident.first}", f"last: {incident.text}", *users, *others]


def _impact_lines(impact: Impact) -> Iterator[str]:
    hurt, late = impact.hurt, impact.late_seconds
    together = "" if late is None else f", late by about {approximate(late)} together"
    yield (
        f"from {when(impact.begin)} to {when(impact.end)}: {pluralize(len(hurt), 'user')} with "
        f"{number(impact.late_tasks)} starts later than the SLA{together} "
        f"({number(len(impact.users))} of {pluralize(impact.known_users, 'user')} examined)"
    )
    if impact.incident.is_open:
        ready = pluralize(sum(user.ready for user in impact.waiting), "task")
        yield f"ready now, and not counted yet: {ready} of {pluralize(len(impact.waiting), 'user')}"
    for user in hurt[:USERS_SHOWN]:
        yield f"late: user {user.user_id}: {number(user.figures.sla_missed)} of {pluralize(user.figures.wait.count, 'attempt')}"
    for user in impact.busiest[:USERS_SHOWN]:
        busy = "" if user.busy_seconds is None else f", {duration(user.busy_seconds)} of worker time in the last hour"
        yield f"work: user {user.user_id}: {pluralize(user.figures.wait.count, 'attempt')}{busy}"
    if error := impact.first_error:
        about = f"{error.name or 'a task'} of user {error.user_id}: {redacted_line(error.reason)}"
        yield f"first error: {when(error.moved_at)} {about}"
    for release in impact.releases:
        yield f"release: {when(release.at)} {release.code_version}"


def _fields(incident: Incident) -> dict[str, Any]:
    return {
        **asdict(incident),
        "users": dict(incident.users),
        "objects": sorted(incident.objects),
        "title": incident.title,
    }


INCIDENT_LIST: Listing[Incident] = Listing(
    "incident",
    [
        Column("incident", lambda incident: incident.id, lambda incident: incident.id),
        Column("what", lambda incident: incident.title),
        Column("opened", lambda incident: when(incident.opened_at), lambda incident: incident.opened_at),
        Column("closed", lambda incident: when(incident.closed_at) if incident.closed_at else "open"),
        Column("alerts", lambda incident: number(incident.alerts), lambda incident: incident.alerts, is_number=True),
        Column("last", lambda incident: when(incident.last_at), lambda incident: incident.last_at),
    ],
    fields=_fields,
    moment=lambda incident: incident.opened_at,
    moment_name="that opened",
)
