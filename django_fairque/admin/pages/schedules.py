"""Schedules with their timing as text, and their next and last runs. Operators can add, change, run, switch and remove
schedules.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime, timezone, tzinfo
from typing import TYPE_CHECKING, Any

from cronsim import CronSim, CronSimError
from django import forms
from django.contrib.admin.utils import quote as quote_key
from django.utils.dates import WEEKDAYS
from django.utils.functional import lazy
from django.utils.timezone import get_default_timezone_name
from django.utils.translation import get_language, gettext_lazy, ngettext
from django.utils.translation import gettext as _

from django_fairque.admin.pages.base import Action, AdminPage, InvalidForm, refusal, run_form_check
from django_fairque.admin.pages.users import posted_pause
from django_fairque.engine.model.durations import MAX_DURATION_SECONDS
from django_fairque.engine.model.errors import FairQueueError, TaskValidationError
from django_fairque.engine.model.lanes import LANES, check_lane_and_priority
from django_fairque.engine.model.priority import Priority
from django_fairque.engine.schedules.due_times import Timing, find_long_step, find_zone
from django_fairque.engine.schedules.schedule_ops import Schedule
from django_fairque.monitoring.formatting import duration
from django_fairque.monitoring.translations import word
from django_fairque.monitoring.wait_explanations import with_details
from django_fairque.tasks import registry
from django_fairque.tasks.schedules import SOURCE as FROM_SETTINGS
from django_fairque.tasks.schedules import make_step

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.tasks.pipelines import Step

KEPT = {
    "args": gettext_lazy(
        'a JSON list, such as ["acme", 42]; left empty, they stay as they are; they are not shown because there may be '
        "secrets among them"
    ),
    "kwargs": gettext_lazy(
        'a JSON object, such as {"force": true}; left empty, they stay as they are; they are not shown because there may '
        "be secrets among them"
    ),
}


def _text(label: StrOrPromise, help_text: StrOrPromise = "", **options: Any) -> forms.CharField:
    return forms.CharField(label=label, help_text=help_text, **{"max_length": 200, **options})


def _arguments(label: StrOrPromise, help_text: StrOrPromise) -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField"})
    return forms.CharField(label=label, help_text=help_text, required=False, widget=widget)


def _seconds(label: StrOrPromise, help_text: StrOrPromise) -> forms.FloatField:
    return forms.FloatField(
        label=label, help_text=help_text, required=False, min_value=0, max_value=MAX_DURATION_SECONDS
    )


class ScheduleForm(forms.Form):
    """A form for a new schedule, or with ``known`` for an existing schedule. An existing schedule keeps its arguments
    unless new arguments are given.
    """

    name = _text(gettext_lazy("Name"))
    task = _text(gettext_lazy("Task"), gettext_lazy("the name of a task that this site knows"))
    cron = _text(
        gettext_lazy("Cron"),
        gettext_lazy("minute hour day-of-month month day-of-week, such as 0 3 * * 1-5; or"),
        required=False,
    )
    every = forms.FloatField(label=gettext_lazy("Every"), required=False, help_text=gettext_lazy("seconds, at least 1"))
    timezone = _text(gettext_lazy("Time zone"), gettext_lazy("in which cron is meant"), max_length=100)
    args = _arguments(gettext_lazy("Arguments"), gettext_lazy('a JSON list, such as ["acme", 42]'))
    kwargs = _arguments(gettext_lazy("Keyword arguments"), gettext_lazy('a JSON object, such as {"force": true}'))
    # An id may begin or end with a space, and saving the form without changes must not change the user.
    user = _text(
        gettext_lazy("User"), gettext_lazy("empty: as the task says"), required=False, max_length=256, strip=False
    )
    priority = forms.ChoiceField(
        label=gettext_lazy("Priority"),
        required=False,
        choices=[("", gettext_lazy("as the task says")), *((priority.name, priority.name) for priority in Priority)],
    )
    lane = forms.ChoiceField(
        label=gettext_lazy("Lane"),
        required=False,
        choices=[("", gettext_lazy("as the task says")), *((lane, lazy(word, str)(lane)) for lane in LANES)],
        help_text=gettext_lazy("urgent and bulk tasks have no priority"),
    )
    missed = forms.ChoiceField(
        label=gettext_lazy("Missed run times"),
        choices=[
            ("skip", gettext_lazy("skip them")),
            ("one", gettext_lazy("fire the last")),
            ("all", gettext_lazy("fire all")),
        ],
        help_text=gettext_lazy("what becomes of those at which no worker lived"),
    )
    catch_up = _seconds(gettext_lazy("Missed after"), gettext_lazy("seconds after a run time; empty: 60"))
    overlap = forms.ChoiceField(
        label=gettext_lazy("Overlap"),
        choices=[
            ("allow", gettext_lazy("run it all the same")),
            ("skip", gettext_lazy("skip it")),
            ("queue", gettext_lazy("let one run wait")),
        ],
        help_text=gettext_lazy("what becomes of a run if the task of the one before has not ended"),
    )
    jitter = _seconds(
        gettext_lazy("Jitter"), gettext_lazy("seconds; each task starts later by a part of them; empty: none")
    )
    expires = forms.FloatField(
        label=gettext_lazy("Expires after"),
        required=False,
        min_value=0.001,
        help_text=gettext_lazy("seconds from each run time, if it has not started by then; empty: as the task says"),
    )
    enabled = forms.BooleanField(label=gettext_lazy("Enabled"), required=False)

    def __init__(self, data: Mapping[str, Any] | None = None, *, known: Schedule | None = None) -> None:
        self.known = known
        super().__init__(data, initial=_initial(known))
        if known is not None:
            self.fields["name"].disabled = True
            # a task without a name (a bare payload) can't have a name in the form
            self.fields["task"].required = bool(known.task.get("name"))
            for name, text in KEPT.items():
                self.fields[name].help_text = text
        self.fields["task"].widget.attrs["list"] = "fq-tasks"

    def clean_task(self) -> str:
        name: str = self.cleaned_data["task"]
        if registry.find(name) is None and (self.known is None or name != self.known.task.get("name")):
            raise refusal(registry.not_registered(name))
        return name

    def clean_user(self) -> str:
        user_id: str = self.cleaned_data["user"]
        return user_id if "user" not in self.changed_data else user_id.strip()

    def clean_lane(self) -> str:
        lane: str = self.cleaned_data["lane"]
        run_form_check(
            check_lane_and_priority, lane or "normal", Priority[self.cleaned_data.get("priority") or "NORMAL"]
        )
        return lane

    def clean_timezone(self) -> str:
        return str(run_form_check(find_zone, self.cleaned_data["timezone"]))

    def clean_args(self) -> Any:
        return _json(self.cleaned_data["args"], list, _("a JSON list"))

    def clean_kwargs(self) -> Any:
        return _json(self.cleaned_data["kwargs"], dict, _("a JSON object"))

    def clean(self) -> dict[str, Any]:
        found = self.cleaned_data
        if "timezone" in found and not self.has_error("every"):
            cron, every = found.get("cron") or None, found.get("every")
            try:
                Timing.create(cron, every, found["timezone"], 0.0)
            except TaskValidationError as error:
                self.add_error("every" if cron is None and every is not None else "cron", str(error))
        return found

    def save(self, queue: FairQueue) -> Schedule:
        """Add or change the schedule. Raise `InvalidForm` if a value is wrong."""
        if not self.is_valid():
            raise InvalidForm(self)
        found = self.cleaned_data
        if self.known is None and any(schedule.name == found["name"] for schedule in queue.schedules.list()):
            raise InvalidForm(self, "name", _("There is a schedule of this name already: change that one."))
        try:
            task = self._task(queue)
        except (FairQueueError, TypeError, ValueError) as error:
            raise InvalidForm(self, "args" if found["args"] or not found["kwargs"] else "kwargs", error) from None
        options = {name: found[name] for name in ("every", "timezone", "missed", "overlap", "enabled")}
        options |= {name: found[name] for name in ("catch_up", "jitter") if found[name] is not None}
        options["source"] = "admin"
        if self.known is not None:  # an existing schedule keeps its owner
            kept = ("pause_note", "pause_until", "source", "declared")
            options |= {name: getattr(self.known, name) for name in kept}
        if found["expires"] is not None or self._is_kept:
            options["expires"] = found["expires"]
        try:
            return queue.schedules.add(found["name"], task=task, cron=found["cron"] or None, **options)
        except TaskValidationError as error:
            raise InvalidForm(self, "name", error) from None

    @property
    def _is_kept(self) -> bool:
        """Return whether the operator changed nothing about the task."""
        return self.known is not None and not {"task", "args", "kwargs", "user", "priority", "lane"} & set(
            self.changed_data
        )

    def _task(self, queue: FairQueue) -> Task | Step:
        """Return the schedule's task unchanged, or a new task if the operator has changed a field of the task."""
        found = self.cleaned_data
        if self.known is not None and self._is_kept:
            return self.known.make_task(None)
        args, kwargs = self._arguments("args", list), self._arguments("kwargs", dict)
        step = make_step(found["task"], args, kwargs, queue.name, found["user"], found["priority"], found["lane"])
        step.to_task()  # raises an error if there are mistakes in the arguments
        return step

    def _arguments(self, name: str, kind: type) -> Any:
        """Return the arguments from the form, or else the known arguments. Return none if the known payload has another
        form.
        """
        if self.cleaned_data[name] is not None:
            return self.cleaned_data[name]
        payload = self.known.task.get("payload") if self.known is not None else None
        known = payload.get(name) if isinstance(payload, dict) else None
        return known if isinstance(known, kind) else kind()


def _initial(known: Schedule | None) -> dict[str, Any]:
    if known is None:
        return {"timezone": get_default_timezone_name(), "missed": "skip", "overlap": "allow", "enabled": True}
    names = ("name", "cron", "every", "timezone", "missed", "catch_up", "overlap", "jitter", "expires", "enabled")
    return {
        **{name: getattr(known, name) for name in names},
        "task": known.task.get("name", ""),
        "user": known.task["user_id"],
        "priority": Priority(known.task["priority"]).name,
        "lane": known.task.get("lane", "normal"),
    }


def _json(text: str, kind: type, words: str) -> Any:
    """Return the JSON value of a field; None for an empty field."""
    if not text.strip():
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise forms.ValidationError(_("Expected %(what)s: %(error)s.") % {"what": words, "error": str(error)}) from None
    if not isinstance(value, kind):
        raise forms.ValidationError(_("Expected %(what)s, got %(got)s.") % {"what": words, "got": f"{text:.60}"})
    return value


SCHEDULES_PER_PAGE = 100
NEXT_TIMES_SHOWN = 5
"""Number of future run times that are shown for a schedule."""


def in_words(schedule: Schedule) -> str:
    """Describe the timing as text: "At 09:00 on Monday through Friday", "Every 5 min". If that is not possible, in
    languages without such texts, or if a step is longer than its field, return the expression itself.
    """
    if schedule.every is not None:
        return _("Every %(length)s") % {"length": duration(schedule.every)}
    if not (get_language() or "en").startswith("en") or find_long_step(schedule.cron or ""):
        return cron_in_words(schedule.cron or "")
    try:
        return str(CronSim(schedule.cron or "", datetime.now(timezone.utc)).explain())
    except CronSimError:  # a later version of the package may have written an expression that this version can't read
        return schedule.cron or ""


def zone_of(schedule: Schedule) -> tzinfo:
    """Return the schedule's time zone, or UTC if this machine does not know the time zone."""
    try:
        return find_zone(schedule.timezone)
    except TaskValidationError:
        return timezone.utc


def next_times(schedule: Schedule, after: float) -> list[float]:
    """Return the next run times after a Unix time; none if this version can't read the expression."""
    try:
        return list(schedule.iterate_next_runs(after, NEXT_TIMES_SHOWN))
    except TaskValidationError:
        return []


TIMING_FIELDS = ("cron", "every", "timezone")


def _preview(given: Mapping[str, Any]) -> dict[str, Any]:
    """Describe when a schedule with these form fields would run, or the mistake in the fields. Return an empty text if
    neither ``cron`` nor ``every`` is given.
    """
    fields = {name: str(given.get(name, "")) for name in TIMING_FIELDS}
    if not (fields["cron"].strip() or fields["every"].strip()):
        return {}
    form = ScheduleForm(fields)
    mistakes = [error for name in TIMING_FIELDS for error in form.errors.get(name, ())]
    if mistakes:
        return {"preview_error": mistakes[0]}
    found, now = form.cleaned_data, time.time()
    # Run times of ``every`` are counted from the moment at which the schedule is saved.
    schedule = Schedule("", {}, cron=found["cron"] or None, every=found["every"], timezone=found["timezone"], start=now)
    return {"preview_when": in_words(schedule), "preview_times": next_times(schedule, now), "zone": zone_of(schedule)}


class SchedulesPage(AdminPage):
    """A table of schedules. With ``?runs=`` the page shows the latest runs of a schedule; with ``?edit=`` the form of a
    schedule, with ``?add=1`` the form of a new schedule. With ``?preview=1`` it returns for the form's script when a
    schedule with the given ``cron``, ``every`` and ``timezone`` would run.
    """

    name = "schedules"
    title = gettext_lazy("Schedules")
    permission = "view_schedule"
    preview_permission = "change_schedule"
    subject_field = "name"

    @property
    def edited(self) -> str:
        """The name of the schedule that is being changed; empty if there is none."""
        return self.request.GET.get("edit", "")

    @property
    def subject(self) -> str:
        return self.edited or super().subject

    def preview_context(self) -> dict[str, Any]:
        return _preview(self.request.GET)

    def template_context(self) -> dict[str, Any]:
        if self.may("change_schedule") and (self.edited or "add" in self.request.GET or self.form):
            self.refreshes = False
            known = self.queue.schedules.get(self.edited) if self.edited else None
            form = self.form or ScheduleForm(known=known)
            return {
                "form": form,
                "edited": known,
                "all": self.url(self.name),
                "names": registry.names(),
                "preview": self.url(self.name, preview="1"),
                **_preview({name: form[name].value() or "" for name in TIMING_FIELDS}),
            }
        if name := self.request.GET.get("runs"):
            return self._list_runs(self.queue.schedules.get(name))
        found = self.queue.schedules.list()
        begin = bisect_right([schedule.name for schedule in found], self.request.GET.get("after", ""))
        shown = found[begin : begin + SCHEDULES_PER_PAGE]
        more = shown[-1].name if len(found) > begin + SCHEDULES_PER_PAGE else None
        fired = self.queue.get_tasks([schedule.last.task_id for schedule in shown if schedule.last])
        now = time.time()
        rows = [
            {
                "schedule": schedule,
                "when": in_words(schedule),
                "zone": zone_of(schedule),
                "edit": self.url(self.name, edit=schedule.name),
                "runs": self.url(self.name, runs=schedule.name),
                "pause": schedule.get_pause(now),
                "next": next_times(schedule, max(now, schedule.pause_until or 0)) if schedule.enabled else [],
                "last_task": fired.get(schedule.last.task_id) if schedule.last else None,
                "last_url": self.link("task", quote_key(schedule.last.task_id)) if schedule.last else "",
            }
            for schedule in shown
        ]
        return {"table": rows, "add": self.url(self.name, add="1"), **self.build_page_links(more, "after")}

    def _list_runs(self, schedule: Schedule) -> dict[str, Any]:
        tasks = self.queue.get_tasks([run.task_id for run in schedule.runs if run.task_id])
        rows = [
            {
                "run": run,
                "task": (task := tasks.get(run.task_id)),
                "url": self.link("task", quote_key(run.task_id)) if task else "",
                "took": task and task.started_at and task.ended_at and task.ended_at - task.started_at,
            }
            for run in schedule.runs
        ]
        return {"shown": schedule, "zone": zone_of(schedule), "runs": rows, "all": self.url(self.name)}

    def get_return_url(self) -> str:
        """Return the URL of the table, because the form is no longer needed."""
        return self.url(self.name)

    @Action("change_schedule")
    def save(self) -> str:
        known = self.queue.schedules.get(self.edited) if self.edited else None
        schedule = ScheduleForm(self.request.POST, known=known).save(self.queue)
        facts = {"name": schedule.name, "when": in_words(schedule)}
        if known is None:
            return _("Schedule %(name)s was added: %(when)s.") % facts
        return _("Schedule %(name)s was changed: %(when)s.") % facts

    @Action("change_schedule")
    def run(self) -> str:
        task_id = self.queue.schedules.run_now(self.subject)
        return _("Schedule %(name)s: task %(task)s was enqueued.") % {"name": self.subject, "task": task_id}

    @Action("change_schedule")
    def pause(self) -> str:
        pause = posted_pause(self.request.POST)
        self.queue.schedules.pause(self.subject, note=pause.note, until=pause.until)
        done = _("Schedule %(name)s is paused: it enqueues no tasks at its run times.") % {"name": self.subject}
        return with_details(done, pause)

    @Action("change_schedule")
    def resume(self) -> str:
        self.queue.schedules.resume(self.subject)
        return _("Schedule %(name)s is resumed.") % {"name": self.subject}

    @Action("change_schedule")
    def remove(self) -> str:
        schedule = self.queue.schedules.get(self.subject)
        sentence = _("Schedule %(name)s will be removed: %(when)s. Tasks that it has enqueued stay.")
        if schedule.source == FROM_SETTINGS:
            sentence += " " + _("It is declared in the settings, so a worker that starts adds it again.")
        self.ask_first(sentence % {"name": schedule.name, "when": in_words(schedule)}, _("Remove it"))
        if not self.queue.schedules.remove(self.subject):
            raise TaskValidationError(_("Schedule %(name)s was gone already.") % {"name": self.subject})
        return _("Schedule %(name)s was removed.") % {"name": self.subject}


def cron_in_words(cron: str) -> str:
    """Describe common cron expressions: every N minutes, at a minute of each hour, at a time of each day, on some
    weekdays, on a day of the month. Return any other expression unchanged.
    """
    fields = cron.split()
    if len(fields) != 5 or fields[3] != "*":
        return cron
    minute, hour, day, _month, weekday = fields
    if hour == day == weekday == "*":
        return _within_the_hour(minute) or cron
    if not (minute.isdecimal() and hour.isdecimal()):
        return cron
    return _on_days(f"{int(hour):02}:{int(minute):02}", day, weekday) or cron


def _within_the_hour(minute: str) -> str:
    if minute == "*":
        return _("Every minute")
    if minute.isdecimal():
        return _("At minute %(minute)s of every hour") % {"minute": minute}
    found = re.fullmatch(r"\*/([0-9]+)", minute)
    count = int(found[1]) if found else 0
    if not count or 60 % count:
        return ""
    return ngettext("Every %(count)d minute", "Every %(count)d minutes", count) % {"count": count}


def _on_days(time: str, day: str, weekday: str) -> str:
    if day == weekday == "*":
        return _("At %(time)s every day") % {"time": time}
    if day == "*":
        days = _weekdays(weekday)
        return _("At %(time)s on %(days)s") % {"time": time, "days": _(", ").join(days)} if days else ""
    if weekday == "*" and day.isdecimal():
        return _("At %(time)s on day %(day)s of every month") % {"time": time, "day": day}
    return ""


def _weekdays(text: str) -> list[str]:
    """Return the names of the weekdays in a cron field, where 0 and 7 are Sunday. Return none if the text has another
    form.
    """
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-7])(?:-([0-7]))?", part)
        days = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not days:
            return []
        numbers += [number % 7 for number in days]
    return [str(WEEKDAYS[(number - 1) % 7]) for number in dict.fromkeys(numbers)]
