"""Workers: where they run, how they are, whom they serve; and the commands to drain, to work again, and to stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, FormPage, ask_first, posted
from django_fairque.monitoring.formatting import duration, size

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.queue.queue import FairQueue

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
    def age_text(self) -> str:
        return _("%(time)s ago") % {"time": duration(self.age)}

    @property
    def seen(self) -> datetime:
        return datetime.fromtimestamp(self.record.seen_at, timezone.utc)

    @property
    def is_silent(self) -> bool:
        """Whether its heartbeat is overdue for so long that its leases have ended."""
        return self.age > self.lease

    @property
    def lease(self) -> float:
        return float(self.record.info.get("lease") or DEFAULT_LEASE_SECONDS)

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
    def is_draining(self) -> bool:
        return self.record.info.get("status") == "draining"

    @property
    def memory(self) -> str:
        reported = self.record.info.get("memory_mb", "")
        return size(float(reported) * 2**20) if reported else "–"

    @property
    def up(self) -> str:
        reported = self.record.info.get("started", "")
        return duration(max(0.0, self.now - float(reported))) if reported else "–"


def _worker_of(page: WorkersPage, request: HttpRequest) -> str:
    return posted(request, "worker")


class WorkersPage(FormPage):
    """One row for each process; a command to one is for the whole worker that it belongs to."""

    name = "workers"
    path = "workers/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Workers")
    permission = "view_worker"
    template = "admin/django_fairque/workers.html"

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        records = sorted(queue.workers(), key=lambda each: each.worker)
        after = self.request.GET.get("after", "")
        following = [each for each in records if each.worker > after]
        shown = following[:WORKERS_PER_PAGE]
        return {
            "table": [WorkerRow(each, time.time()) for each in shown],
            "next": self.url(self.name, after=shown[-1].worker) if len(following) > WORKERS_PER_PAGE else "",
            "first": self.url(self.name) if after else "",
        }

    def drain(self, queue: FairQueue, request: HttpRequest) -> str:
        worker = _send_command(queue, request, "drain")
        return _("Worker %(worker)s will drain from its next heartbeat on: running tasks end, and no others start.") % {
            "worker": worker
        }

    def work(self, queue: FairQueue, request: HttpRequest) -> str:
        worker = _send_command(queue, request, "work")
        return _("Worker %(worker)s will work again from its next heartbeat on.") % {"worker": worker}

    def stop(self, queue: FairQueue, request: HttpRequest) -> str:
        sentence = _(
            "The worker that %(worker)s belongs to will stop, with all its processes and for all its queues: what runs may "
            "end, what has not begun is given back. It can't be started from here; whatever keeps it running may do so."
        )
        ask_first(request, sentence % {"worker": posted(request, "worker")}, _("Stop it"))
        return _("Worker %(worker)s will stop at its next heartbeat.") % {
            "worker": _send_command(queue, request, "stop")
        }

    actions: ClassVar[dict[str, Action]] = {
        "drain": Action("change_worker", drain, _worker_of),
        "work": Action("change_worker", work, _worker_of),
        "stop": Action("change_worker", stop, _worker_of),
    }


def _send_command(queue: FairQueue, request: HttpRequest, command: str) -> str:
    worker = posted(request, "worker")
    if not queue.set_worker_command(worker, command):
        raise ValueError(_("Worker %(worker)s is gone; nothing was done.") % {"worker": worker})
    return worker
