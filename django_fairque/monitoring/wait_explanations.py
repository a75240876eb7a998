"""Explains why a task waits. All reasons are returned, the most important first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_fairque.engine.model.records import FailureType, TaskState
from django_fairque.monitoring.formatting import approximate, duration, number, share
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.limits.limits import LimitStats
    from django_fairque.engine.model.pauses import Pause
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.users.fairness import UserFairness
    from django_fairque.engine.users.organizations import OrganizationStats
    from django_fairque.engine.users.start_estimates import StartEstimate
    from django_fairque.engine.users.wait_reason import WaitReason

BLOCKERS_NAMED = 20
"""Maximum number of dependencies and workers that a text names; further ones are only counted."""

MOST_AHEAD = 10
"""Maximum lead of a user over its share, in seconds of worker time (with ``FAIR_BY="tasks"`` in tasks), with which its
urgent tasks and its tasks with limits still start before the tasks of other users (``AHEAD`` in lua/lib/ring.lua)."""
_NOT_ALL = re.compile(r" and \d+ more$")
"""The end of a list of users that a worker has shortened in its report. Such a worker may serve more users than
listed."""


@dataclass(frozen=True)
class Reason:
    """One reason why a task waits.

    ``kind``, for programs, is one of unknown_name, scheduled, retry, crashed, depends, resolving, running, lost_lease, ended,
    dead, expired, queue_paused, user_paused, organization_paused, capped, organization_capped, throttled, no_worker,
    not_served, limit_closed, limit_full, limit_rate, limit_ahead, behind_own, lane_ahead, behind_lanes,
    behind_users, next.
    """

    kind: str
    text: str
    tasks: tuple[str, ...] = ()
    """Ids of the tasks that the reason's text mentions."""


def reasons(queue: FairQueue, task_id: str) -> list[Reason]:
    """Return the reasons why the task waits; never empty.

    Raises:
        TaskNotFoundError: the queue does not know the task.
    """
    task, standing = queue.get_task(task_id), queue.wait_reason(task_id)
    return list(_ANSWERS.get(standing.state, _explain_ended)(queue, task, standing))


def describe_start(estimate: StartEstimate) -> str:
    """Return a sentence about the time until a task starts; empty without an estimate."""
    if estimate.low is None or estimate.high is None or estimate.middle is None:
        return ""
    if not estimate.low:
        return _("It probably starts within %(high)s.") % {"high": approximate(estimate.high)}
    times = {"middle": estimate.middle, "low": estimate.low, "high": estimate.high}
    text = _("It starts in about %(middle)s (probably between %(low)s and %(high)s).")
    return text % {name: approximate(seconds) for name, seconds in times.items()}


def describe_paused_users(users: Sequence[UserFairness]) -> str:
    """Return a sentence about the tasks that wait because these users are paused; empty without users."""
    if not users:
        return ""
    count, oldest = sum(user.ready for user in users), max(user.wait_seconds for user in users)
    tasks = ngettext("%(number)s task", "%(number)s tasks", count) % {"number": number(count)}
    facts = {"count": number(len(users)), "tasks": tasks, "time": approximate(oldest)}
    if not oldest:  # only bulk tasks wait, and the waits of bulk tasks are not read
        text = ngettext(
            "%(count)s paused user has %(tasks)s waiting.", "%(count)s paused users have %(tasks)s waiting.", len(users)
        )
    else:
        text = ngettext(
            "%(count)s paused user has %(tasks)s waiting, the oldest for %(time)s.",
            "%(count)s paused users have %(tasks)s waiting, the oldest for %(time)s.",
            len(users),
        )
    return text % facts


def _explain_ended(_queue: FairQueue, _task: Task, standing: WaitReason) -> Iterator[Reason]:
    yield Reason("ended", _("It waits for nothing: it is %(state)s.") % {"state": word(standing.state.value)})


def _dead(queue: FairQueue, task: Task, _standing: WaitReason) -> Iterator[Reason]:
    attempts = queue.history(task.task_id)
    kind, error = (attempts[-1].kind, attempts[-1].error) if attempts else (FailureType.FAILED.value, "")
    if kind == FailureType.EXPIRED.value:
        yield Reason("expired", _("It expired before it was started, and is a dead letter: it waits for a requeue."))
        return
    text = _("It is a dead letter and waits for someone to requeue or discard it: %(error)s")
    yield Reason("dead", text % {"error": redacted_text(error) or word(kind)})


def _explain_scheduled(queue: FairQueue, task: Task, standing: WaitReason) -> Iterator[Reason]:
    due, alive = task.execute_after or standing.now, queue.workers()
    left, attempt, count = duration(due - standing.now), task.retry_count, task.delivery
    kind, text = "scheduled", _("It is scheduled for %(when)s, in %(left)s.")
    if due <= standing.now:
        text = _("Its time came at %(when)s: the next round of maintenance queues it.")
    elif count:
        kind = "crashed"
        text = _("Handed out %(count)s times without an outcome: its next turn is at %(when)s, in %(left)s.")
    elif attempt:
        kind, text = "retry", _("Attempt %(attempt)s failed; it is tried again at %(when)s, in %(left)s.")
    yield from _unknown_name(alive, task)
    yield Reason(kind, text % {"when": _when(due), "left": left, "attempt": number(attempt), "count": number(count)})
    yield from _workers(alive, task)


def _explain_deferred(queue: FairQueue, task: Task, standing: WaitReason) -> Iterator[Reason]:
    view = queue.dependencies(task.task_id, BLOCKERS_NAMED + 1, layers=1)
    nodes = [view.graph.nodes.get(blocker) for blocker in view.blocked]
    if all(node and node.state in (TaskState.FINISHED, TaskState.CANCELED) for node in nodes):
        text = _("What it waited for has ended: the next round of maintenance tells it.")
        yield Reason("resolving", text, view.blocked)
        return
    states = [word(node.state.value if node and node.state else "unknown") for node in nodes]
    named = [
        _("%(task)s (%(state)s)") % {"task": blocker, "state": state}
        for blocker, state in zip(view.blocked[:BLOCKERS_NAMED], states, strict=False)
    ]
    more = view.blocked_count - len(named)
    if more > 0:
        named.append(ngettext("%s more", "%s more", more) % number(more))
    text = ngettext(
        "It waits for %(count)s task: %(tasks)s.", "It waits for %(count)s tasks: %(tasks)s.", view.blocked_count
    )
    words = {"count": number(view.blocked_count), "tasks": ", ".join(named)}
    yield Reason("depends", text % words, view.blocked[:BLOCKERS_NAMED])
    if task.execute_after and task.execute_after > standing.now:
        yield Reason("scheduled", _("After that it is scheduled for %(when)s.") % {"when": _when(task.execute_after)})


def _explain_started(queue: FairQueue, task: Task, standing: WaitReason) -> Iterator[Reason]:
    ends = standing.lease_ends_at or standing.now
    words = {"worker": task.worker, "when": _when(ends)}
    if ends > standing.now:
        yield Reason("running", _("It runs: worker %(worker)s holds it until %(when)s, and renews that.") % words)
    else:
        text = _(
            "Worker %(worker)s has not renewed its lease, which ended at %(when)s: the next round of maintenance takes it back."
        )
        yield Reason("lost_lease", text % words)
        yield from _workers(queue.workers(), task)


def _explain_queued(queue: FairQueue, task: Task, standing: WaitReason) -> Iterator[Reason]:
    alive = queue.workers()
    found = [*_unknown_name(alive, task), *_limits(task, standing), *_workers(alive, task)]
    if standing.limit is not None:
        found += _explain_limit(queue, standing, standing.limit)
    yield from found
    ahead = standing.position or 0
    if ahead:
        text = ngettext(
            "%(count)s task of the same user is before it.", "%(count)s tasks of the same user are before it.", ahead
        )
        yield Reason("behind_own", text % {"count": number(ahead)})
    if standing.users_before:
        text = ngettext(
            "%(count)s user has a turn before its user.",
            "%(count)s users have their turn before its user.",
            standing.users_before,
        )
        yield Reason("behind_users", text % {"count": number(standing.users_before)})
    of_lanes = [] if standing.limit is not None else list(_explain_lane(queue, standing))
    yield from of_lanes
    if not (found or ahead or standing.users_before or of_lanes):
        yield Reason("next", _("Nothing stands in its way: the next free worker takes it."))


def _explain_limit(queue: FairQueue, standing: WaitReason, limit: LimitStats) -> Iterator[Reason]:
    """Yield the reasons why a limit prevents the start of the task."""
    words = {
        "limit": limit.key,
        "running": number(limit.running),
        "cap": number(limit.at_once or 0),
        "rate": limit.rate,
    }
    if limit.closed_until is not None:
        text = _("Limit %(limit)s is closed until %(when)s.") % {**words, "when": _when(limit.closed_until)}
        yield Reason("limit_closed", text)
    elif limit.is_closed:
        yield Reason("limit_closed", _("Limit %(limit)s is closed until somebody opens it.") % words)
    if limit.is_full:
        text = ngettext(
            "%(running)s of %(cap)s task of limit %(limit)s runs.",
            "%(running)s of %(cap)s tasks of limit %(limit)s run.",
            limit.at_once or 0,
        )
        yield Reason("limit_full", text % words)
    if limit.opens_at is not None and limit.opens_at != limit.closed_until:
        text = _("The rate %(rate)s of limit %(limit)s allows the next start in %(left)s.")
        yield Reason("limit_rate", text % {**words, "left": duration(limit.opens_at - standing.now)})
    if limit.is_open and limit.user is None and standing.limit_ahead > MOST_AHEAD:
        if queue.config.fair_by == "tasks":
            text = _(
                "Limit %(limit)s has a free place; its user is %(ahead)s tasks ahead of its share; %(most)s tasks are allowed."
            )
            facts = {"ahead": number(standing.limit_ahead), "most": number(MOST_AHEAD)}
        else:
            text = _(
                "Limit %(limit)s has a free place; its user is %(ahead)s ahead of its share; %(most)s are allowed."
            )
            facts = {"ahead": duration(standing.limit_ahead), "most": duration(MOST_AHEAD)}
        yield Reason("limit_ahead", text % {**words, **facts})


def _explain_lane(queue: FairQueue, standing: WaitReason) -> Iterator[Reason]:
    if standing.other_lanes and standing.ahead > MOST_AHEAD:
        if queue.config.fair_by == "tasks":
            text = _("It is urgent, but its user is %(ahead)s tasks ahead of its share; %(most)s tasks are allowed.")
            words = {"ahead": number(standing.ahead), "most": number(MOST_AHEAD)}
        else:
            text = _("It is urgent, but its user is %(ahead)s ahead of its share; %(most)s are allowed.")
            words = {"ahead": duration(standing.ahead), "most": duration(MOST_AHEAD)}
        yield Reason("lane_ahead", text % words)
    if standing.other_lanes and standing.lane == "bulk":
        text = _(
            "It is a bulk task: it waits until no urgent or normal task can start, except for a least share of %(share)s."
        )
        yield Reason("behind_lanes", text % {"share": share(queue.config.lanes.bulk)})
    elif "urgent" in standing.other_lanes:
        yield Reason("behind_lanes", _("Urgent tasks can start, and go first."))


def _limits(task: Task, standing: WaitReason) -> Iterator[Reason]:
    user, organization = standing.user, standing.organization
    words = {
        "user": user.user_id,
        "running": number(user.sizes.running),
        "cap": number(user.max_running or 0),
        "rate": user.rate,
    }
    if task.expires_at and task.expires_at <= standing.now:
        text = _("It expired at %(when)s: instead of being started it becomes a dead letter.")
        yield Reason("expired", text % {"when": _when(task.expires_at)})
    if standing.is_paused:
        yield Reason("queue_paused", with_details(_("The queue is paused."), standing.pause))
    if user.paused:
        yield Reason("user_paused", with_details(_("User %(user)s is paused.") % words, user.pause))
    one_more = standing.lane == "urgent"
    if user.max_running is not None and user.sizes.running >= user.max_running + one_more:
        text = ngettext(
            "User %(user)s may run %(cap)s task at once, and runs %(running)s.",
            "User %(user)s may run %(cap)s tasks at once, and runs %(running)s.",
            user.max_running,
        )
        if one_more:
            text += " " + _("One urgent task more is allowed.")
        yield Reason("capped", text % words)
    if organization is not None:
        yield from _explain_organization_limits(organization)
    if standing.user_free_at is not None:
        text = _("User %(user)s has used up the rate of %(rate)s: the next task may start at %(when)s.")
        yield Reason("throttled", text % {**words, "when": _when(standing.user_free_at)})


def _explain_organization_limits(organization: OrganizationStats) -> Iterator[Reason]:
    name, running, most = organization.organization, organization.running, organization.max_running
    if organization.paused:
        text = _("Organization %(organization)s, to which its user belongs, is paused.")
        yield Reason("organization_paused", with_details(text % {"organization": name}, organization.pause))
    if organization.is_full:
        text = ngettext(
            "Organization %(organization)s, to which its user belongs, may run %(cap)s task at once, and runs %(running)s.",
            "Organization %(organization)s, to which its user belongs, may run %(cap)s tasks at once, and runs %(running)s.",
            most or 0,
        )
        yield Reason(
            "organization_capped", text % {"organization": name, "running": number(running), "cap": number(most or 0)}
        )


def _unknown_name(alive: Sequence[WorkerRecord], task: Task) -> Iterator[Reason]:
    serving = [worker for worker in alive if _serves(worker.info, task.user_id)]
    ignorant = sum(task.name in worker.unknown_tasks for worker in serving)
    if not ignorant:
        return
    if ignorant == len(serving):
        text = _(
            "No worker knows a task named %(name)s: deploy its code, or import its module where the workers start. It is offered "
            "to workers for ten minutes and then becomes a dead letter."
        )
    else:
        text = ngettext(
            "%(count)s of %(all)s workers does not know a task named %(name)s: it waits for one that does.",
            "%(count)s of %(all)s workers do not know a task named %(name)s: it waits for one that does.",
            ignorant,
        )
    yield Reason("unknown_name", text % {"name": task.name, "count": number(ignorant), "all": number(len(serving))})


def _workers(alive: Sequence[WorkerRecord], task: Task) -> Iterator[Reason]:
    if not alive:
        yield Reason("no_worker", _("No worker is running: start one with manage.py fairque_worker."))
    elif not any(_serves(worker.info, task.user_id) for worker in alive):
        text = ngettext(
            "The worker that runs does not serve user %(user)s.",
            "None of the %(count)s workers serves user %(user)s.",
            len(alive),
        )
        yield Reason("not_served", text % {"count": number(len(alive)), "user": task.user_id})


def _serves(info: dict[str, str], user_id: str) -> bool:
    """Return whether a worker reports that it serves the user. If a worker reports no users, it serves all users."""
    texts = [info.get(field, "") for field in ("users", "steal")]
    return "users" not in info or any(
        users == "*" or f", {user_id}, " in f", {users}, " or _NOT_ALL.search(users) for users in texts
    )


def pause_details(pause: Pause | None) -> str:
    """Return the end of a pause and its note as text; empty if the pause has neither."""
    parts = []
    if pause is not None and pause.until is not None:
        parts.append(_("It ends at %(when)s.") % {"when": _when(pause.until)})
    if pause is not None and pause.note:
        parts.append(_("Note: %(note)s") % {"note": pause.note})
    return " ".join(parts)


def with_details(text: str, pause: Pause | None) -> str:
    """Return a sentence about a pause, together with its end and its note."""
    return f"{text} {pause_details(pause)}".rstrip()


def _when(moment: float) -> str:
    """Format a time in Django's current time zone, as in the admin, with the name of the zone."""
    return datetime.fromtimestamp(moment, timezone.get_current_timezone()).strftime("%Y-%m-%d %H:%M:%S %Z")


_ANSWERS: dict[TaskState, Callable[[FairQueue, Task, WaitReason], Iterator[Reason]]] = {
    TaskState.SCHEDULED: _explain_scheduled,
    TaskState.DEFERRED: _explain_deferred,
    TaskState.QUEUED: _explain_queued,
    TaskState.STARTED: _explain_started,
    TaskState.FAILED: _dead,
}
