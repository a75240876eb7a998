"""Workers: where they run, whether they are healthy, the tasks in their slots, and processes that died. Operators can
drain, resume and stop workers here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import quote
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.engine.inspection.worker_activity import (
    UNRESPONSIVE_FIELD,
    ActivityReport,
    EndReason,
    ProcessDeath,
    decode_activity,
    list_recent_deaths,
)
from django_fairque.engine.model.errors import RedisConnectionError
from django_fairque.engine.model.ids import natural_order
from django_fairque.monitoring.formatting import duration, number, share
from django_fairque.monitoring.report import reserved_slots
from django_fairque.monitoring.translations import word

if TYPE_CHECKING:
    from django_fairque.engine.inspection.lost_workers import LostWorker
    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.inspection.worker_activity import ReportedTask

WORKERS_PER_PAGE = 100
SLOTS_SHOWN = 200
"""Maximum number of slots, of all workers together, whose activity a page shows."""
DEATHS_SHOWN = 20
STUCK_NAMED = 3
"""Maximum number of stuck processes that the first sentence names."""
DEFAULT_LEASE_SECONDS = 30.0
"""Length of a lease in seconds that is assumed for a worker that does not report it."""


@dataclass(frozen=True)
class WorkerRow:
    """One process that runs tasks, as described by its last heartbeat. The page shows a dash for a missing value."""

    record: WorkerRecord
    now: float

    @property
    def age(self) -> float:
        """Seconds since the last heartbeat of the process."""
        return max(0.0, self.now - self.record.seen_at)

    @property
    def seen(self) -> datetime:
        return datetime.fromtimestamp(self.record.seen_at, timezone.utc)

    @property
    def is_silent(self) -> bool:
        """Whether the heartbeat of the process is overdue for so long that its leases have ended."""
        return self.age > float(self.record.info.get("lease") or DEFAULT_LEASE_SECONDS)

    @property
    def stuck_text(self) -> str:
        """The reason why the process may be stuck; empty if it is not."""
        if self.is_silent:
            return _("silent for %(time)s") % {"time": duration(self.age)}
        blocked_by = self.record.info.get("blocked_by", "")
        if blocked_by:
            return _("event loop blocked by %(task)s") % {"task": blocked_by}
        return _("process does not respond") if self.record.info.get(UNRESPONSIVE_FIELD) else ""

    @property
    def status(self) -> str:
        if self.is_silent:
            return _("silent")
        words = {"working": _("working"), "draining": _("draining"), "stopping": _("stopping")}
        reported = self.record.info.get("status", "")
        return words.get(reported, reported or "–")

    @property
    def pending_command(self) -> str:
        """The operator's command that the process has received and not carried out yet."""
        status = self.record.info.get("status", "")
        words = {"drain": _("drain requested"), "work": _("resume requested"), "stop": _("stop requested")}
        done = {"drain": ("draining", "stopping"), "work": ("working", "stopping"), "stop": ("stopping",)}
        command = self.record.command
        return "" if status in done.get(command, ()) else words.get(command, "")

    @property
    def reserved(self) -> str:
        return reserved_slots([self.record], word)

    @property
    def memory_bytes(self) -> float | None:
        reported = self.record.info.get("memory_mb", "")
        return float(reported) * 2**20 if reported else None

    @cached_property
    def activity(self) -> ActivityReport | None:
        """The process's report about its slots; None if there is none."""
        return decode_activity(self.record)

    @property
    def utilization(self) -> str:
        """The fraction of the last minute in which the slots of the process were busy; empty if unknown."""
        used = None if self.activity is None else self.activity.utilization
        return "" if used is None else share(used)

    @property
    def up(self) -> float | None:
        """Seconds since the process was started."""
        reported = self.record.info.get("started", "")
        return max(0.0, self.now - float(reported)) if reported else None


@dataclass(frozen=True)
class SlotRow:
    """One slot, as its process described it with the last heartbeat. ``task`` is None for readers without the
    permission ``view_task``.
    """

    worker: str
    number: int
    is_busy: bool
    """Whether a task ran in the slot in the last second of the report."""
    utilization: str
    """The fraction of the last minute in which the slot was busy."""
    seconds: float | None
    """Seconds for which the slot's task had run; None if this was not reported."""
    task: ReportedTask | None = None
    url: str = ""
    """The URL of the task's page."""
    age: float | None = None
    """Seconds since the last sample."""
    is_outdated: bool = False
    """Whether the process does not respond, so that the slot may now run another task."""


@dataclass(frozen=True)
class DeathRow:
    """A process that died, and the tasks that it was running: their ids with the URLs of their pages. A URL is empty
    for readers without the permission ``view_task``.
    """

    death: ProcessDeath
    tasks: Sequence[tuple[str, str]]

    @property
    def reason(self) -> str:
        death = self.death
        if death.reason is EndReason.EXITED:
            return _("exited with code %(code)s") % {"code": death.code}
        if death.reason is EndReason.SIGNAL and death.code != signal.SIGKILL:
            return _("ended by signal %(number)s") % {"number": death.code}
        return str(DEATH_TEXTS.get(death.reason, death.reason.value))


DEATH_TEXTS = {
    EndReason.SIGNAL: gettext_lazy("killed with SIGKILL, by the system if memory ran out"),
    EndReason.HARD_LIMIT: gettext_lazy("a task ran beyond its hard time limit"),
    EndReason.MEMORY: gettext_lazy("its task exceeded its max_memory"),
    EndReason.LEASES_ENDED: gettext_lazy("its leases could not be renewed"),
    EndReason.LOOP_BLOCKED: gettext_lazy("its event loop was blocked"),
    EndReason.STOPPED_BY_SIGNAL: gettext_lazy("it was stopped by a signal"),
    EndReason.UNRESPONSIVE: gettext_lazy("it did not respond until the time limits of its tasks"),
    EndReason.NO_OUTCOMES: gettext_lazy("it did not report outcomes"),
    EndReason.NO_PROGRESS: gettext_lazy("its fetch loop made no progress"),
    EndReason.WORKER_GAVE_UP: gettext_lazy("its worker gave up, because no process could start"),
}


class WorkersPage(AdminPage):
    """The page with one row for each process. A command to a process applies to the whole worker to which it
    belongs.
    """

    name = "workers"
    title = gettext_lazy("Workers")
    permission = "view_worker"
    subject_field = "worker"

    def template_context(self) -> dict[str, Any]:
        records = self.queue.workers()
        after = natural_order(self.request.GET.get("after", ""))
        following = [record for record in records if natural_order(record.worker) > after]
        shown = following[:WORKERS_PER_PAGE]
        now = time.time()
        table = [WorkerRow(record, now) for record in shown]
        slots = list(islice(self._slots(table), SLOTS_SHOWN + 1))
        return {
            "table": table,
            "slots": slots[:SLOTS_SHOWN],
            "slots_shown": SLOTS_SHOWN if len(slots) > SLOTS_SHOWN else 0,
            **self._stuck([WorkerRow(record, now) for record in records]),
            "longest": max(
                (slot for slot in slots if slot.seconds), key=lambda slot: slot.seconds or 0.0, default=None
            ),
            "lost": self._list_lost(),
            "deaths": [self._death_row(death) for death in list_recent_deaths(records, now)[:DEATHS_SHOWN]],
            **self.build_page_links(shown[-1].worker if len(following) > WORKERS_PER_PAGE else None, "after"),
        }

    def _list_lost(self) -> list[LostWorker]:
        """Return the lost workers. The list is empty while the shard that stores them can't be reached; the page then
        shows a notice.
        """
        try:
            return self.queue.incidents.lost_workers()
        except RedisConnectionError:
            if not self.queue.missing_shards:
                raise
            return []

    def _stuck(self, table: Sequence[WorkerRow]) -> dict[str, Any]:
        """Return a sentence about the processes that are stuck, and their names."""
        stuck = [row for row in table if row.stuck_text]
        facts = {"count": number(len(stuck)), "all": number(len(table))}
        if not stuck:
            text = ngettext(
                "No process is stuck: %(all)s reports in time.",
                "No process is stuck: %(all)s report in time.",
                len(table),
            )
            return {"summary": text % facts, "stuck": [], "stuck_more": ""}
        text = ngettext(
            "%(count)s of %(all)s processes is stuck", "%(count)s of %(all)s processes are stuck", len(stuck)
        )
        more = max(0, len(stuck) - STUCK_NAMED)
        return {
            "summary": _("%(text)s:") % {"text": text % facts},
            "stuck": stuck[:STUCK_NAMED],
            "stuck_more": ngettext("%s more", "%s more", more) % number(more) if more else "",
        }

    def _slots(self, table: Sequence[WorkerRow]) -> Iterator[SlotRow]:
        may_view_task = self.may("view_task")
        for row in table:
            for index, slot in enumerate(row.activity.slots if row.activity else ()):
                used = share(slot.busy_seconds / len(slot.users)) if slot.users else ""
                is_busy = slot.task is not None or slot.users[-1:] not in ((), ("",))
                task = slot.task
                seconds = None if task is None or row.activity is None else max(0.0, row.activity.at - task.started_at)
                shown = task if may_view_task else None
                url = self.link("task", quote(shown.task_id)) if shown and shown.task_id else ""
                age = None if row.activity is None else max(0.0, row.now - row.activity.at)
                is_outdated = bool(row.record.info.get(UNRESPONSIVE_FIELD))
                yield SlotRow(row.record.worker, index + 1, is_busy, used, seconds, shown, url, age, is_outdated)

    def _death_row(self, death: ProcessDeath) -> DeathRow:
        task_ids = death.task_ids if self.may("view_task") else ()
        return DeathRow(death, [(task_id, self.link("task", quote(task_id))) for task_id in task_ids if task_id])

    @Action("change_worker")
    def drain(self) -> str:
        text = _("Worker %(worker)s will drain from its next heartbeat on: running tasks end, and no others start.")
        return self._send_command("drain", text)

    @Action("change_worker")
    def work(self) -> str:
        return self._send_command("work", _("Worker %(worker)s will work again from its next heartbeat on."))

    @Action("change_worker")
    def stop(self) -> str:
        sentence = _(
            "The worker that %(worker)s belongs to will stop, with all its processes and for all its queues: what runs may "
            "end, what has not begun is given back. It can't be started from here; whatever keeps it running may do so."
        )
        self.ask_first(sentence % {"worker": self.subject}, _("Stop it"))
        return self._send_command("stop", _("Worker %(worker)s will stop at its next heartbeat."))

    @Action("change_worker")
    def acknowledge(self) -> str:
        if not self.queue.incidents.acknowledge(self.subject):
            raise ValueError(_("Worker %(worker)s is not lost; nothing was done.") % {"worker": self.subject})
        return _("Worker %(worker)s is no longer listed as lost.") % {"worker": self.subject}

    def _send_command(self, command: str, done: str) -> str:
        if not self.queue.set_worker_command(self.subject, command):
            raise ValueError(_("Worker %(worker)s is gone; nothing was done.") % {"worker": self.subject})
        return done % {"worker": self.subject}
