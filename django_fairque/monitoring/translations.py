"""Translates words and sentences of the engine into the reader's language, because the engine itself has only English
texts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from django.utils.translation import gettext, gettext_lazy, gettext_noop, pgettext_lazy

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.statistics.incidents import Incident

_WORDS: dict[str, StrOrPromise] = {
    "scheduled": pgettext_lazy("state of a task", "scheduled"),
    "deferred": pgettext_lazy("state of a task", "deferred"),
    "queued": pgettext_lazy("state of a task", "queued"),
    "started": pgettext_lazy("state of a task", "started"),
    "finished": pgettext_lazy("state of a task", "finished"),
    "failed": pgettext_lazy("state of a task", "failed"),
    "canceled": pgettext_lazy("state of a task", "canceled"),
    "unknown": pgettext_lazy("state of a task", "unknown"),
    "expired": pgettext_lazy("why a task is a dead letter", "expired"),
    "poisoned": pgettext_lazy("why a task is a dead letter", "poisoned"),
    "code": pgettext_lazy("where a schedule is from", "code"),
    "settings": pgettext_lazy("where a schedule is from", "settings"),
    "command": pgettext_lazy("where a schedule is from", "command"),
    "admin": pgettext_lazy("where a schedule is from", "admin"),
    "skipped": pgettext_lazy("run of a schedule", "skipped"),
    "missed": pgettext_lazy("run of a schedule", "missed"),
    "refused": pgettext_lazy("run of a schedule", "refused"),
    "urgent": pgettext_lazy("lane of a task", "urgent"),
    "normal": pgettext_lazy("lane of a task", "normal"),
    "bulk": pgettext_lazy("lane of a task", "bulk"),
    "user": pgettext_lazy("object of an act", "user"),
    "organization": pgettext_lazy("object of an act", "organization"),
    "limit": pgettext_lazy("object of an act", "limit"),
    "task": pgettext_lazy("object of an act", "task"),
    "run": pgettext_lazy("object of an act", "run"),
    "dead letter": pgettext_lazy("object of an act", "dead letter"),
    "schedule": pgettext_lazy("object of an act", "schedule"),
    "worker": pgettext_lazy("object of an act", "worker"),
    "queue": pgettext_lazy("object of an act", "queue"),
    "outbox": pgettext_lazy("object of an act", "outbox"),
    "pause": pgettext_lazy("act", "pause"),
    "resume": pgettext_lazy("act", "resume"),
    "weight": pgettext_lazy("value", "weight"),
    "limits": pgettext_lazy("act", "limits"),
    "plan": pgettext_lazy("value", "plan"),
    "share": pgettext_lazy("value", "share"),
    "close": pgettext_lazy("act", "close"),
    "open": pgettext_lazy("act", "open"),
    "cancel": pgettext_lazy("act", "cancel"),
    "purge": pgettext_lazy("act", "purge"),
    "release": pgettext_lazy("act", "release"),
    "run now": pgettext_lazy("act", "run now"),
    "requeue": pgettext_lazy("act", "requeue"),
    "discard": pgettext_lazy("act", "discard"),
    "acknowledge": pgettext_lazy("act", "acknowledge"),
    "retry": pgettext_lazy("act", "retry"),
    "move": pgettext_lazy("act", "move"),
    "moved": pgettext_lazy("value", "moved"),
    "to": pgettext_lazy("value", "to queue"),
    "go on": pgettext_lazy("act", "go on"),
    "stop": pgettext_lazy("act", "stop"),
    "undo": pgettext_lazy("act", "undo"),
    "act": pgettext_lazy("object of an act", "act"),
    "trial": pgettext_lazy("state of an act", "trial"),
    "running": pgettext_lazy("state of an act", "running"),
    "stopped": pgettext_lazy("state of an act", "stopped"),
    "done": pgettext_lazy("state of an act", "done"),
    "undoing": pgettext_lazy("state of an act", "undoing"),
    "undone": pgettext_lazy("state of an act", "undone"),
    "state": pgettext_lazy("value", "state"),
    "tasks": pgettext_lazy("value", "tasks"),
    "pace": pgettext_lazy("value", "tasks a second"),
    "restored": pgettext_lazy("value", "restored"),
    "paused": pgettext_lazy("value", "paused"),
    "note": pgettext_lazy("value", "note"),
    "until": pgettext_lazy("value", "until"),
    "max_running": pgettext_lazy("value", "tasks at once"),
    "rate": pgettext_lazy("value", "rate"),
    "burst": pgettext_lazy("value", "burst"),
    "sla": pgettext_lazy("value", "SLA in seconds"),
    "max_backlog": pgettext_lazy("value", "tasks that may wait"),
    "max_backlog_bytes": pgettext_lazy("value", "bytes that may wait"),
    "waiting": pgettext_lazy("value", "waiting tasks"),
    "dead letters": pgettext_lazy("value", "dead letters"),
    "requeued": pgettext_lazy("value", "requeued"),
    "discarded": pgettext_lazy("value", "discarded"),
    "closed": pgettext_lazy("value", "closed"),
    "lost": pgettext_lazy("value", "lost"),
    "lane": pgettext_lazy("value", "lane"),
    "yes": pgettext_lazy("value", "yes"),
    "no": pgettext_lazy("value", "no"),
    "none": pgettext_lazy("value", "none"),
}

_SENTENCES = (
    gettext_noop("tasks are waiting and no worker is running; start one with manage.py fairque_worker"),
    gettext_noop("no worker is running, so tasks that are pushed will wait; start one with manage.py fairque_worker"),
    gettext_noop("maintenance is %(seconds)s s late: no worker has swept the queue"),
    gettext_noop("%(count)s dead letter waits for someone to look at it"),
    gettext_noop("%(count)s dead letters wait for someone to look at them"),
    gettext_noop("the server is a read-only replica; connect to the primary"),
    gettext_noop("the server could not write its append-only file and refuses changes; look at its disk"),
    gettext_noop("the append-only file is off: a restart of the server loses what came since its last snapshot"),
    gettext_noop("the server could not write its last snapshot, and may refuse changes until it can; look at its disk"),
    gettext_noop("maxmemory-policy is %(policy)s; it should be noeviction"),
    gettext_noop("memory is %(part)s %% full; new tasks will be refused when it is full"),
    gettext_noop("memory is full (%(part)s %% of maxmemory): new tasks are refused, what waits drains"),
    gettext_noop("%(server)s %(version)s is too old; upgrade to 7.2 or newer"),
    gettext_noop("%(server)s %(version)s writes some integers as 3e+8 inside scripts; upgrade to %(newer)s or newer"),
    gettext_noop("%(server)s %(version)s has holes that are known (%(holes)s); upgrade to %(newer)s or newer"),
    gettext_noop(
        "Dragonfly (%(version)s) is not supported: it runs scripts at the same time, and refuses keys that are not "
        "declared; use Redis 7.2.5, Valkey 7.2.6 or newer"
    ),
    gettext_noop("KeyDB (%(version)s) has no functions; use Redis 7.2.5, Valkey 7.2.6 or newer"),
    gettext_noop(
        "no worker knows a task named %(name)s: deploy its code, or import its module where the workers start"
    ),
    gettext_noop(
        "%(count)s of %(all)s workers does not know a task named %(name)s: deploy its code, or import its module where the "
        "workers start"
    ),
    gettext_noop(
        "%(count)s of %(all)s workers do not know a task named %(name)s: deploy its code, or import its module where the "
        "workers start"
    ),
    gettext_noop("workers do not know %(count)s more name of tasks"),
    gettext_noop("workers do not know %(count)s more names of tasks"),
    gettext_noop("the event loop of process %(worker)s is blocked by %(task)s; its log has the stack"),
    gettext_noop("the event loop of %(count)s more process is blocked"),
    gettext_noop("the event loops of %(count)s more processes are blocked"),
    # Sentences about the limits of MONITOR.
    gettext_noop("queue %(queue)s: ready tasks %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: longest wait %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: wait (p95 of the last hour) %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: run time (p95 of the last hour) %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: failed attempts of the last 5 minutes %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: dead letters %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: tasks that wait for others %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: tasks started too late in the last 5 minutes %(value)s, over %(limit)s"),
    gettext_noop("queue %(queue)s: users and due tasks that wait while no worker lives %(value)s, over %(limit)s"),
    # Reasons why a queue can't be read.
    gettext_noop("the server did not answer in time"),
    gettext_noop("the server can't be reached"),
    gettext_noop("the server refuses work"),
    gettext_noop("the server is too old, or set up to throw tasks away"),
    gettext_noop("the configuration has mistakes; manage.py check lists them"),
    gettext_noop("the queue can't be read; the log says why"),
)
"""All sentences about a queue's health. Tests check that the health contains no other sentences."""


_INCIDENT_TITLES = {
    "sla": gettext_lazy("%(subject)s tasks start late"),
    "promoted": gettext_lazy("%(subject)s tasks waited too long and were promoted"),
    "given_back": gettext_lazy("%(subject)s tasks are given back again and again"),
    "data_lost": gettext_lazy("the server lost data"),
    "worker_lost": gettext_lazy("workers were lost"),
    "limit": gettext_lazy("over the limit of %(subject)s"),
    "release": gettext_lazy("tasks are slower or fail more since release %(subject)s"),
}


def word(value: str) -> str:
    """Translate a state, a kind of failure, the source of a schedule or a lane. Other words are returned unchanged."""
    return str(_WORDS.get(value, value))


def incident_title(incident: Incident) -> str:
    """Return the title of an incident in the reader's language."""
    title = _INCIDENT_TITLES.get(incident.rule)
    return str(title) % {"subject": incident.subject} if title else incident.title


def sentence(text: str) -> str:
    """Translate a reason of a queue's health. An unknown reason is returned unchanged."""
    for known, pattern in _patterns():
        if found := pattern.fullmatch(text):
            return gettext(known) % found.groupdict()
    return text


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Return a compiled pattern for each sentence. Placeholders in a sentence match any text."""
    found = {known: re.escape(known).replace("%%", "%") for known in _SENTENCES}
    return [(known, re.compile(re.sub(r"%\\\((\w+)\\\)s", r"(?P<\1>.+)", text))) for known, text in found.items()]
