"""The health of all queues in one line at the top of every page. ``fairque_health`` reports the same health."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_fairque.admin.page_queues import page_client
from django_fairque.engine.statistics.health import NO_WORKER_RUNS, Health
from django_fairque.engine.statistics.incidents import Incident, open_incidents
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.health import judged_with
from django_fairque.monitoring.probe import Probe, ProbeResult
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.monitoring.translations import incident_title, sentence

STATUS_MAX_AGE_SECONDS = 4.0
"""Maximum age in seconds of the health that a process shows. Pages refresh every 5 seconds in many browser tabs, so the
health is not read each time."""
REASONS_SHOWN = 8
"""Maximum number of reasons in the line; further reasons are only counted."""
HEALTH_STATUSES = ("good", "degraded", "down")
"""All statuses, from the best to the worst."""

_Reading = tuple[Health, list[Incident]]
"""The health of a queue, and its open incidents, the latest first."""
_judge = partial(judged_with, read=open_incidents)
status_probe: Probe[_Reading] = Probe(lambda queue: next(_judge([queue])), STATUS_MAX_AGE_SECONDS, _judge, page_client)

_REMEDIES = (
    (re.compile("dead letters?|failed attempts"), "dead_letters"),
    (re.compile("tasks that wait for others"), "dependencies"),
    (re.compile("worker|event loop"), "workers"),
    (re.compile("ready tasks|wait|started too late"), "users"),
)
"""Pages that show more about a reason. The reason is recognized by words of its English text."""


@dataclass(frozen=True)
class StatusReason:
    """A reason why the status is not good: a sentence, and the URL of the page where an operator can act on it."""

    text: str
    queue: str = ""
    """The only queue to which the reason applies; empty if it applies to all queues, or if the text already names the
    queue."""
    url: str = ""


@dataclass(frozen=True)
class StatusLine:
    """The worst status of all queues, with its reasons."""

    status: str
    """The status: one of `HEALTH_STATUSES`."""
    is_stopped: bool
    """Whether tasks of the page's queue wait while no worker runs."""
    reasons: tuple[StatusReason, ...] = ()
    more: int = 0
    """The number of reasons that are left out."""
    readings: Mapping[str, Health] = field(default_factory=dict)
    """The health of each queue that could be read."""

    @property
    def word(self) -> str:
        if self.is_stopped and self.status != "down":
            return _("No workers")
        return {"good": _("Good"), "degraded": _("Degraded")}.get(self.status, _("Down"))

    @property
    def headline(self) -> str:
        if self.is_stopped and self.status != "down":
            return _("Tasks are waiting, and nothing works on them")
        good = _("The queues work, and incidents are open") if self.reasons else _("All is well")
        texts = {"good": good, "degraded": _("Something needs attention")}
        return texts.get(self.status, _("No task is accepted"))

    @property
    def level(self) -> str:
        """The color of the line: "good", "warning" or "critical"."""
        if self.status == "down" or self.is_stopped:
            return "critical"
        return "good" if self.status == "good" else "warning"


def read_status(link: Callable[..., str], queue: str, *, shows_reasons: bool) -> StatusLine:
    """Return the status of all queues, at most `STATUS_MAX_AGE_SECONDS` old.

    This function never raises, and waits at most 1.5 seconds for a server that does not answer.

    Args:
        link: returns the URL of a page by its name and the ``queue``, or "" if the reader may not see it.
        queue: the queue of the page. If tasks of another queue wait for a worker, this is only a warning.
        shows_reasons: whether the reader may see reasons, which name tasks, processes and queues.
    """
    return _status_line(status_probe.read(), queue, link if shows_reasons else None)


def _status_line(result: ProbeResult[_Reading], queue: str, link: Callable[..., str] | None) -> StatusLine:
    known = {name: health for name, (health, _incidents) in result.readings.items()}
    healths = {**known, **{name: Health("down", [text], {}) for name, text in result.troubles.items()}}
    is_stopped = queue in healths and NO_WORKER_RUNS in healths[queue].reasons
    worst = max((health.status for health in healths.values()), key=HEALTH_STATUSES.index, default="good")
    reasons = list(_reasons(healths, link)) if link else []
    more = max(0, len(reasons) - REASONS_SHOWN)
    opened, shown = list(_open_incidents(result.readings, link)) if link else [], reasons[:REASONS_SHOWN]
    # The end of the line may be cut off, so the short sentences come first, unless nothing works.
    shown = [*shown, *opened] if is_stopped or worst == "down" else [*opened, *shown]
    return StatusLine(worst, is_stopped, tuple(shown), more, known)


def _open_incidents(readings: Mapping[str, _Reading], link: Callable[..., str]) -> Iterator[StatusReason]:
    """Yield a sentence about the open incidents of each queue that has any."""
    for name, (_health, incidents) in readings.items():
        if count := len(incidents):
            text = ngettext(
                "%(count)s incident is open: %(title)s", "%(count)s incidents are open, the latest: %(title)s", count
            )
            facts = {"count": number(count), "title": incident_title(incidents[0])}
            queue = name if len(readings) > 1 else ""
            yield StatusReason(redacted_text(text % facts), queue, link("incidents", queue=name))


def _reasons(healths: Mapping[str, Health], link: Callable[..., str]) -> Iterator[StatusReason]:
    """Return each reason once. `NO_WORKER_RUNS`, which stops all work, comes first. If a reason applies to all queues,
    no queue is named.
    """
    queues_of: dict[str, list[str]] = defaultdict(list)
    for name, health in healths.items():
        for reason in dict.fromkeys(health.reasons):
            queues_of[reason].append(name)
    for reason in sorted(queues_of, key=lambda reason: reason != NO_WORKER_RUNS):
        names = queues_of[reason]
        page = next((page for pattern, page in _REMEDIES if pattern.search(reason)), "")
        text = redacted_text(sentence(reason))
        if len(names) == len(healths):
            yield StatusReason(text, "", link(page, queue=names[0]) if page else "")
            continue
        for name in names:
            is_named = reason.startswith(f"queue {name}: ")
            yield StatusReason(text, "" if is_named else name, link(page, queue=name) if page else "")
