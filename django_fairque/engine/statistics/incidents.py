"""``queue.incidents``: the problems of a queue. An incident covers one rule and one class of tasks, from its beginning
to its end.

There are many alerts: each late task has one. An incident counts the alerts of one rule and one class of tasks. The
server decides which caller sends a message about an incident (`IncidentChange`): when it opens, at most every ten
minutes while alerts come, and when it is over. Workers record alerts and close incidents; ``fairque_health`` closes
them as well.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from django_fairque.engine.inspection.lost_workers import LostWorker, lost_workers, read_lost
from django_fairque.engine.model.durations import check_integer
from django_fairque.engine.model.ids import check_text, new_nonce
from django_fairque.engine.model.lanes import class_name
from django_fairque.engine.scripting.acts import Act, record_act
from django_fairque.engine.scripting.operations import Driver, Operation, Read, read_sound
from django_fairque.engine.statistics.releases import ReleaseComparison, compare_releases

if TYPE_CHECKING:
    from django_fairque.engine.scripting.commands import Commands
    from django_fairque.engine.sharding.shards import Shards
    from django_fairque.engine.statistics.health import Alert, AlertKind

IncidentRule = Literal["sla", "promoted", "given_back", "data_lost", "worker_lost", "limit", "release"]
SUBJECTS: Mapping[str, str] = {
    "sla": "{} tasks start late",
    "promoted": "{} tasks waited too long and were promoted",
    "given_back": "{} tasks are given back again and again",
    "data_lost": "the server lost data",
    "worker_lost": "workers were lost",
    "limit": "over the limit of {}",
    "release": "tasks are slower or fail more since release {}",
}
"""Each rule in words, for the class of tasks, the name of the limit, or the release."""
ALERT_RULES: Mapping[AlertKind, IncidentRule] = {
    "at_risk": "sla",
    "violated": "sla",
    "promoted": "promoted",
    "given_back": "given_back",
    "emptied": "data_lost",
    "went_back": "data_lost",
}
"""The rule of each kind of alert. Deaths are no incidents: dead letters have a page."""
QUIET_SECONDS = 300.0
"""Seconds without an alert after which an incident is over, if none of its tasks waits."""
MAX_INCIDENTS = 1_000
"""The largest number of incidents that are kept, for 30 days (``lua/commands/incident.lua``)."""
MAX_NAMES = 10
"""The largest number of further task names in the text about a release."""
MAX_EVENT_USERS = 20
"""The largest number of users whose alerts an incident counts separately."""


@dataclass(frozen=True)
class Incident:
    """One incident of ``queue``: its ``rule``, and in ``subject`` the class of tasks, the limit or the release. Times are Unix
    times; ``closed_at`` is None while it is open.

    ``alerts`` is the number of counted alerts, the last one at ``last_at``; ``first`` and ``text`` are the texts of the
    first and of the last alert. ``users`` has the numbers of alerts of up to 20 users, and ``other_users`` that of all
    other users; of rule ``worker_lost`` these are numbers of tasks that the workers ran. ``summaries`` is the number of
    messages that were sent while it was open.
    """

    id: str
    queue: str
    rule: IncidentRule
    subject: str
    opened_at: float
    last_at: float
    closed_at: float | None
    alerts: int
    first: str
    text: str
    users: Mapping[str, int] = field(default_factory=dict)
    other_users: int = 0
    summaries: int = 0
    objects: frozenset[str] = frozenset()
    """Ids of up to 100 of its tasks, drawn at random; of rule ``worker_lost`` ids of workers, of ``release`` names of tasks."""

    @property
    def title(self) -> str:
        return SUBJECTS[self.rule].format(self.subject)

    @property
    def is_open(self) -> bool:
        return self.closed_at is None


@dataclass(frozen=True)
class IncidentChange:
    """A message about an ``incident`` that this process must send: the incident was ``opened``, goes on (``summary``),
    or is over (``closed``). No other process gets the same message.
    """

    kind: Literal["opened", "summary", "closed"]
    incident: Incident

    def __str__(self) -> str:
        incident = self.incident
        if self.kind == "opened":
            return f"incident {incident.id} opened: {incident.title}: {incident.first}"
        users = ", ".join(f"{user!r} ({count:,})" for user, count in sorted_users(incident)[:5])
        counted = f"{incident.alerts:,} alert{'' if incident.alerts == 1 else 's'}{f', users {users}' if users else ''}"
        if self.kind == "summary":
            minutes = (incident.last_at - incident.opened_at) / 60
            whole = f"{incident.title}: {counted}; the last: {incident.text}"
            return f"incident {incident.id} goes on for {minutes:,.0f} min: {whole}"
        minutes = ((incident.closed_at or incident.last_at) - incident.opened_at) / 60
        return f"incident {incident.id} recovered after {minutes:,.0f} min: {incident.title}: {counted}"


def sorted_users(incident: Incident) -> list[tuple[str, int]]:
    """Return the users with the number of their alerts, the most first."""
    return sorted(incident.users.items(), key=lambda item: (-item[1], item[0]))


def _event(
    rule: str, subject: str, alerts: int, text: str, users: Sequence[tuple[str, int]] = (), objects: Sequence[str] = ()
) -> list[Any]:
    new_id = time.strftime(f"%Y%m%d-%H%M%S-{secrets.token_hex(4)}", time.gmtime())
    pairs = [part for pair in users for part in pair]
    return ["event", f"{rule} {subject}", new_id, alerts, text, len(users), len(objects), *pairs, *objects]


def _events_of(alerts: Iterable[Alert]) -> list[list[Any]]:
    groups: dict[tuple[IncidentRule, str], list[Alert]] = {}
    for alert in alerts:
        if rule := ALERT_RULES.get(alert.kind):
            subject = class_name(alert.lane, alert.priority) if alert.task_id else ""
            groups.setdefault((rule, subject), []).append(alert)
    events = []
    for (kind, subject), some in groups.items():
        users = Counter(alert.user_id for alert in some if alert.task_id).most_common(MAX_EVENT_USERS)
        tasks = [alert.task_id for alert in some if alert.kind == "at_risk"]
        events.append(_event(kind, subject, len(some), str(some[-1]), users, tasks))
    return events


def _closing_arguments(incident: Incident) -> list[Any]:
    return ["close", f"{incident.rule} {incident.subject}", round(incident.last_at * 1_000_000), 0, "", 0, 0]


def change_incidents(shards: Shards, acts: Sequence[list[Any]], now: float | None) -> Operation[list[IncidentChange]]:
    """Record events and close incidents in one call. Return the changes about which the caller has to send messages."""
    arguments = [len(acts), *(argument for act in acts for argument in act)]
    reply = [part.decode() for part in (yield shards.home.call("incident", arguments, now, reply=new_nonce()))]
    kinds = {incident_id: kind for kind, incident_id in zip(reply[::2], reply[1::2], strict=True) if kind}
    found = yield from read_incidents(shards, list(kinds))
    return [IncidentChange(cast("Any", kinds[one.id]), replace(one, objects=frozenset())) for one in found]


def record_alerts(shards: Shards, alerts: Iterable[Alert], now: float | None) -> Operation[list[IncidentChange]]:
    events = _events_of(alerts)
    return (yield from change_incidents(shards, events, now)) if events else []


def read_incidents(shards: Shards, ids: Sequence[str]) -> Operation[list[Incident]]:
    records = yield from read_sound([("HGETALL", shards.home.keys(f"incident:{incident_id}")) for incident_id in ids])
    return [_incident(shards.name, at, record) for at, record in zip(ids, records, strict=True) if b"opened" in record]


def _incident(queue: str, incident_id: str, record: Mapping[bytes, bytes]) -> Incident:
    values = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in record.items()}

    def moment(name: str) -> float:
        return int(values.get(name, 0)) / 1_000_000

    rule, _, subject = values.get("name", "").partition(" ")
    return Incident(
        *(incident_id, queue, cast("IncidentRule", rule), subject, moment("opened"), moment("last")),
        closed_at=moment("closed") if "closed" in values else None,
        alerts=int(values.get("alerts", 0)),
        first=values.get("first", ""),
        text=values.get("text", ""),
        users={name[5:]: int(count) for name, count in values.items() if name.startswith("user:")},
        other_users=int(values.get("other_users", 0)),
        summaries=int(values.get("summaries", 0)),
        objects=frozenset(value for name, value in values.items() if name.startswith("task:")),
    )


def recent_incidents(shards: Shards, limit: int) -> Operation[list[Incident]]:
    check_integer(limit, "limit", 1, MAX_INCIDENTS)
    ids = yield from _open_ids(shards.home)
    (latest,) = yield Read([("ZREVRANGE", shards.home.keys("incidents"), 0, limit - 1)])
    found = yield from read_incidents(shards, list(dict.fromkeys([*ids, *(name.decode() for name in latest)])))
    return sorted(found, key=lambda incident: (incident.is_open, incident.opened_at), reverse=True)[:limit]


def open_incidents(shards: Shards) -> Operation[list[Incident]]:
    """Return the open incidents, the latest first; none while a shard can't be reached."""
    if shards.missing:
        return []
    found = yield from read_incidents(shards, (yield from _open_ids(shards.home)))
    return sorted(found, key=lambda incident: incident.opened_at, reverse=True)


def _open_ids(home: Commands) -> Operation[list[str]]:
    (found,) = yield Read([("HGETALL", home.keys("incidents:open"))])
    return [incident_id.decode() for incident_id in found.values()]


def forgotten(workers: Iterable[str]) -> list[list[Any]]:
    return [["forget", worker, "", 0, "", 0, 0] for worker in workers]


def acknowledge(shards: Shards, worker: str, now: float | None) -> Operation[bool]:
    ids = [
        record.worker for one in (yield from lost_workers(shards)) if one.worker == worker for record in one.processes
    ]

    def change() -> Operation[bool]:
        if ids:
            yield from change_incidents(shards, forgotten(ids), now)
        return bool(ids)

    act = Act(shards.name, "acknowledge", "worker", worker, before={"lost": True}, after={"lost": False})
    return (yield from record_act(act, change()))


def update_incidents(shards: Shards, now: float | None) -> Operation[list[IncidentChange]]:
    """Close the incidents that are over. Record workers that were lost since the last call, and tasks that a release
    made worse.
    """
    lost, returned, moment = yield from read_lost(shards.home, now)
    found = yield from read_incidents(shards, (yield from _open_ids(shards.home)))
    releases = {incident.subject: incident.objects for incident in found if incident.rule == "release"}
    compared: list[ReleaseComparison] | None = None
    if (releases or shards.config.release) and not shards.missing:
        compared = yield from compare_releases(shards, now)
    acts = [*forgotten(returned), *_release_events(compared or (), releases)]
    for incident in found:
        if (yield from _is_over(shards, incident, lost, compared, moment)):
            acts.append(_closing_arguments(incident))
    known = next((incident.objects for incident in found if incident.rule == "worker_lost"), frozenset())
    if fresh := [worker for worker in lost if worker.worker not in known]:
        more = f"; and {len(fresh) - 1:,} more" if len(fresh) > 1 else ""
        ids = [worker.worker for worker in fresh]
        users = Counter(task.user_id for worker in fresh for task in worker.tasks).most_common(MAX_EVENT_USERS)
        acts.append(_event("worker_lost", "", len(fresh), f"{fresh[0]}{more}", users, ids))
    if acts or not (found or lost):
        return (yield from change_incidents(shards, acts, now))
    return []


def _release_events(compared: Iterable[ReleaseComparison], known: Mapping[str, frozenset[str]]) -> Iterator[list[Any]]:
    """Yield an event for each release that made tasks worse. Tasks that its open incident already lists are left out."""
    fresh: dict[str, list[ReleaseComparison]] = {}
    for one in compared:
        if one.is_worse and one.name not in known.get(one.since.release, ()):
            fresh.setdefault(one.since.release, []).append(one)
    for release, some in fresh.items():
        names = [one.name for one in some]
        others = ", ".join(names[1 : 1 + MAX_NAMES]) + (", …" if len(names) > 1 + MAX_NAMES else "")
        more = f"; and {len(some) - 1:,} more: {others}" if others else ""
        yield _event("release", release, len(some), f"{some[0]}{more}", (), names)


def _is_over(
    shards: Shards,
    incident: Incident,
    lost: Sequence[LostWorker],
    compared: Iterable[ReleaseComparison] | None,
    now: float,
) -> Operation[bool]:
    if incident.rule == "worker_lost":
        return not lost
    if incident.rule == "release":
        same = [one for one in compared or () if one.since.release == incident.subject]
        return compared is not None and all(one.has_recovered for one in same)
    if incident.rule == "limit" or now - incident.last_at < QUIET_SECONDS:
        return False
    if not incident.objects:
        return True
    shards.check_present("it is not known whether an incident is over")
    replies = yield Read([("ZMSCORE", shard.keys.state("queued"), *incident.objects) for shard in shards])
    return all(score is None for scores in replies for score in scores)


class Incidents:
    """The incidents of one queue, and its lost workers, returned by ``queue.incidents``. Most methods take ``now``, as the
    methods of the queue do. The first shard keeps incidents: methods raise `RedisConnectionError` if it can't be reached.
    """

    def __init__(self, shards: Shards, run: Driver) -> None:
        self._shards, self._run = shards, run

    def recent(self, limit: int = 100) -> list[Incident]:
        """Return incidents: the open ones first, then the latest. At most ``limit``, from 1 to 1000; 100 by default."""
        return self._run(recent_incidents(self._shards, limit))

    def get(self, incident_id: str) -> Incident | None:
        """Return the incident ``incident_id``; None if it is not known, or was forgotten after 30 days."""
        return next(iter(self._run(read_incidents(self._shards, [check_text(incident_id, "incident_id")]))), None)

    def record(self, alerts: Iterable[Alert], *, now: float | None = None) -> list[IncidentChange]:
        """Count ``alerts`` of `FairQueue.take_alerts` in incidents. An alert opens an incident if none is open. Return
        the changes about which this caller, and no other, has to send messages. Workers call this.
        """
        return self._run(record_alerts(self._shards, alerts, now))

    def update(self, *, now: float | None = None) -> list[IncidentChange]:
        """Close incidents that are over, and open incidents of lost workers and of releases. Return the changes, as
        `record` does.
        """
        return self._run(update_incidents(self._shards, now))

    def open_limit(self, name: str, text: str, *, now: float | None = None) -> list[IncidentChange]:
        """Open the incident of the limit ``name``, with ``text`` for people. Return the changes, as `record` does."""
        return self._run(open_limit(self._shards, name, text, now))

    def close_limit(self, name: str, *, now: float | None = None) -> list[IncidentChange]:
        """Close the incident of the limit ``name``, if it is open. Return the changes, as `record` does."""
        return self._run(close_limit(self._shards, name, now))

    def lost_workers(self) -> list[LostWorker]:
        """Return the workers that ended without a report of their stop in the last 24 hours, the latest first.

        A worker is no longer lost if it runs again, if a worker of its name has started since, or if somebody has
        acknowledged the loss.
        """
        return self._run(lost_workers(self._shards))

    def acknowledge(self, worker: str, *, now: float | None = None) -> bool:
        """Remove the lost ``worker`` (the id of a `LostWorker`) from the list. Returns whether it was there."""
        return self._run(acknowledge(self._shards, check_text(worker, "worker"), now))


def open_limit(shards: Shards, name: str, text: str, now: float | None) -> Operation[list[IncidentChange]]:
    event = _event("limit", check_text(name, "name"), 1, check_text(text, "text"))
    return (yield from change_incidents(shards, [event], now))


def close_limit(shards: Shards, name: str, now: float | None) -> Operation[list[IncidentChange]]:
    (found,) = yield Read([("HGET", shards.home.keys("incidents:open"), f"limit {name}")])
    incidents = (yield from read_incidents(shards, [found.decode()])) if found else []
    acts = list(map(_closing_arguments, incidents))
    return (yield from change_incidents(shards, acts, now)) if acts else []
