"""Workers: where they run, how they are, whom they serve; and the commands to drain, to work again, and to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import WorkerRecord

WORKERS_PER_PAGE = 100
DEFAULT_LEASE_SECONDS = 30.0
"""Seconds, for a worker that does not report its own."""


@dataclass(frozen=True)
class WorkerRow:
    """One process that runs tasks, as its last heartbeat described it. What it did not report is a dash."""

    record: WorkerRecord
    now: float

    @property
    def age(self) -> float:
        """Seconds since its heartbeat."""
        return max(0.0, self.now - self.record.seen_at)

    @property
    def seen(self) -> datetime:
        return datetime.fromtimestamp(self.record.seen_at, timezone.utc)

    @property
    def is_silent(self) -> bool:
        """Whether its heartbeat is overdue for so long that its leases have ended."""
        return self.age > float(self.record.info.get("lease") or DEFAULT_LEASE_SECONDS)

    @property
    def status(self) -> str:
        if self.is_silent:
            return _("silent")
        words = {"working": _("working"), "draining": _("draining"), "stopping": _("stopping")}
        reported = self.record.info.get("status", "")
        return words.get(reported, reported or "–")

    @property
    def pending_command(self) -> str:
        """The command that it got and has not carried out yet."""
        status = self.record.info.get("status", "")
        words = {"drain": _("drain requested"), "work": _("resume requested"), "stop": _("stop requested")}
        done = {"drain": ("draining", "stopping"), "work": ("working", "stopping"), "stop": ("stopping",)}
        command = self.record.command
        return "" if status in done.get(command, ()) else words.get(command, "")

    @property
    def memory_bytes(self) -> float | None:
        reported = self.record.info.get("memory_mb", "")
        return float(reported) * 2**20 if reported else None

    @property
    def up(self) -> float | None:
        """Seconds since it was started."""
        reported = self.record.info.get("started", "")
        return max(0.0, self.now - float(reported)) if reported else None


class WorkersPage(AdminPage):
    """One row for each process; a command to one is for the whole worker that it belongs to."""

    name = "workers"
    title = gettext_lazy("Workers")
    permission = "view_worker"
    subject_field = "worker"

    def template_context(self) -> dict[str, Any]:
        records = sorted(self.queue.workers(), key=lambda each: each.worker)
        following = [each for each in records if each.worker > self.request.GET.get("after", "")]
        shown = following[:WORKERS_PER_PAGE]
        return {
            "table": [WorkerRow(each, time.time()) for each in shown],
            **self.paging(shown[-1].worker if len(following) > WORKERS_PER_PAGE else None, "after"),
        }

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

    def _send_command(self, command: str, done: str) -> str:
        if not self.queue.set_worker_command(self.subject, command):
            raise ValueError(_("Worker %(worker)s is gone; nothing was done.") % {"worker": self.subject})
        return done % {"worker": self.subject}
