"""Schedules: what recurs, when in words, next and last; to be added, changed, run at once, switched on and off, removed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar

from cronsim import CronSim, CronSimError
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from django_fairque.admin.confirming import ask_first
from django_fairque.admin.cron_words import cron_in_words
from django_fairque.admin.forms import FormPage
from django_fairque.admin.pages.base import Action
from django_fairque.admin.posted import posted
from django_fairque.admin.schedule_form import ScheduleForm
from django_fairque.engine.model.errors import TaskValidationError
from django_fairque.engine.schedules.due_times import find_zone
from django_fairque.monitoring.formatting import duration
from django_fairque.tasks import registry
from django_fairque.tasks.schedules import SOURCE as FROM_SETTINGS

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.schedules.schedule import Schedule

PER_PAGE = 100


@dataclass(frozen=True)
class Row:
    """One schedule as the table shows it."""

    schedule: Schedule
    when: str
    next: datetime | None
    last: datetime | None
    edit: str


def in_words(schedule: Schedule) -> str:
    """When it is due, for people: "At 09:00 on Monday through Friday", "Every 5 min"; as it is written if that fails, or
    in languages in which nobody has told how to say it."""
    if schedule.every is not None:
        return _("Every %(length)s") % {"length": duration(schedule.every)}
    if not (get_language() or "en").startswith("en"):
        return cron_in_words(schedule.cron or "")
    try:
        return str(CronSim(schedule.cron or "", datetime.now(timezone.utc)).explain())
    except CronSimError:  # another version has written it
        return schedule.cron or ""


def _moment(seconds: float | None, schedule: Schedule) -> datetime | None:
    """In the schedule's own zone; in UTC if that is not known on this machine."""
    if seconds is None:
        return None
    try:
        zone: tzinfo = find_zone(schedule.timezone)
    except TaskValidationError:
        zone = timezone.utc
    return datetime.fromtimestamp(seconds, zone)


def _name_of(page: Schedules, request: HttpRequest) -> str:
    return request.GET.get("edit") or posted(request, "name")


class Schedules(FormPage):
    """A table of schedules; with ``?edit=`` the form of one, with ``?add=1`` of a new one."""

    name = "schedules"
    path = "schedules/"
    title: ClassVar[StrOrPromise] = gettext_lazy("Schedules")
    permission = "view_schedule"
    template = "admin/django_fairque/schedules.html"

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        edited, is_adding = self.request.GET.get("edit", ""), "add" in self.request.GET
        if self.may("change_schedule") and (edited or is_adding or self.form):
            self.hold()
            known = queue.schedules.get(edited) if edited else None
            form = self.form or ScheduleForm(known=known)
            back = self.url(self.name)
            return {"form": form, "edited": known, "all": back, "names": registry.names()}
        return self._table(queue)

    def _table(self, queue: FairQueue) -> dict[str, Any]:
        found = queue.schedules.list()
        begin = bisect_right([each.name for each in found], self.request.GET.get("after", ""))
        shown = found[begin : begin + PER_PAGE]
        more = len(found) > begin + PER_PAGE
        return {
            "table": [self._row(each) for each in shown],
            "add": self.url(self.name, add="1"),
            "next": self.url(self.name, after=shown[-1].name) if more else "",
            "first": self.url(self.name) if begin else "",
        }

    def _row(self, schedule: Schedule) -> Row:
        last = schedule.last.instant if schedule.last else None
        return Row(
            schedule,
            in_words(schedule),
            _moment(schedule.next_at, schedule),
            _moment(last, schedule),
            self.url(self.name, edit=schedule.name),
        )

    def back_to(self, request: HttpRequest) -> str:
        """The table: the form has done its work."""
        return self.url(self.name)

    def save(self, queue: FairQueue, request: HttpRequest) -> str:
        edited = request.GET.get("edit", "")
        known = queue.schedules.get(edited) if edited else None
        schedule = ScheduleForm(request.POST, known=known).save(queue)
        facts = {"name": schedule.name, "when": in_words(schedule)}
        if known is None:
            return _("Schedule %(name)s was added: %(when)s.") % facts
        return _("Schedule %(name)s was changed: %(when)s.") % facts

    def run_now(self, queue: FairQueue, request: HttpRequest) -> str:
        name = posted(request, "name")
        task_id = queue.schedules.run_now(name)
        return _("Schedule %(name)s: task %(task)s was enqueued.") % {"name": name, "task": task_id}

    def enable(self, queue: FairQueue, request: HttpRequest) -> str:
        name = posted(request, "name")
        queue.schedules.enable(name)
        return _("Schedule %(name)s is enabled.") % {"name": name}

    def disable(self, queue: FairQueue, request: HttpRequest) -> str:
        name = posted(request, "name")
        queue.schedules.disable(name)
        return _("Schedule %(name)s is disabled: it fires no more until it is enabled.") % {"name": name}

    def remove(self, queue: FairQueue, request: HttpRequest) -> str:
        name = posted(request, "name")
        schedule = queue.schedules.get(name)
        sentence = _("Schedule %(name)s will be removed: %(when)s. Tasks that it has enqueued stay.")
        if schedule.source == FROM_SETTINGS:
            sentence += " " + _("It is declared in the settings, so a worker that starts adds it again.")
        ask_first(request, sentence % {"name": name, "when": in_words(schedule)}, _("Remove it"))
        if not queue.schedules.remove(name):
            raise TaskValidationError(_("Schedule %(name)s was gone already.") % {"name": name})
        return _("Schedule %(name)s was removed.") % {"name": name}

    actions: ClassVar[dict[str, Action]] = {
        "save": Action("change_schedule", save, _name_of),
        "run": Action("change_schedule", run_now, _name_of),
        "enable": Action("change_schedule", enable, _name_of),
        "disable": Action("change_schedule", disable, _name_of),
        "remove": Action("change_schedule", remove, _name_of),
    }
