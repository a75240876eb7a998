"""The list of tasks, with actions on one task, on selected tasks or on all tasks; and the figures by task name."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import messages
from django.contrib.admin.utils import quote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_fairque.admin.charts import LineChart, draw_charts, printable
from django_fairque.admin.pages.base import Action, AdminPage, NotHereError, Question
from django_fairque.admin.pages.task_page import time_limit
from django_fairque.engine.acts.acts import WAITING_STATES
from django_fairque.engine.inspection.search import MAX_RECORDS_READ, Search
from django_fairque.engine.model.lanes import CLASS_NAMES
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.model.task import Undecodable
from django_fairque.engine.queue.lockstep import read_in_lockstep
from django_fairque.engine.statistics.deployments import deployed
from django_fairque.engine.statistics.queue_stats import percentiles
from django_fairque.engine.statistics.releases import compare_releases
from django_fairque.engine.statistics.task_names import hours_of_name
from django_fairque.monitoring.formatting import duration, number, share
from django_fairque.monitoring.redaction import redact_value
from django_fairque.monitoring.translations import word
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.inspection.search import SearchResult
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.statistics.task_names import NameFigures

TASKS_PER_PAGE = 50
TASKS_EXAMINED = 1000
"""Maximum number of records that one page examines to find tasks of a user, with a name or with an argument."""
ALL_STATES = "all"
"""The value of ``state`` that stands for tasks of all states."""
PAYLOAD_MAX_BYTES_READ = 4096
"""Maximum bytes of a payload that the list shows and searches."""
ARGUMENTS_MAX_CHARACTERS = 80
TRAIL_MAX_CHARACTERS = 1500
"""Maximum characters for the cursors of earlier pages in the address, because servers refuse long addresses."""
SLOW_FACTOR = 10
"""A running task without a time limit is marked as slow when it has run for this many times the p95 of all run
times."""
TASKS_PER_REQUEST = 1000
"""Maximum number of tasks that one request changes. After that, the operator must confirm to continue."""
CANCELABLE = (TaskState.SCHEDULED, TaskState.DEFERRED, TaskState.QUEUED, TaskState.STARTED)
NAME_FIGURES_HOURS = (1, 24)
"""The periods in hours for which figures by task name can be shown."""
NAME_FIGURES_ORDERS: dict[str, tuple[StrOrPromise, Callable[[NameFigures], float]]] = {
    "attempts": (gettext_lazy("Attempts"), lambda row: row.attempts),
    "failed": (gettext_lazy("Failed"), lambda row: row.failed),
    "share": (gettext_lazy("Failed, share"), lambda row: row.failed_share),
    "p50": (gettext_lazy("Run time (p50)"), lambda row: row.run.p50),
    "p95": (gettext_lazy("Run time (p95)"), lambda row: row.run.p95),
    "retrying": (gettext_lazy("Wait for a retry"), lambda row: row.retrying),
}
"""The sort orders of the figures by task name: title of the column and sort key. The largest value comes first."""


class TasksPage(AdminPage):
    """The list of tasks.

    The query selects tasks by ``state``, ``user``, ``name``, ``worker`` and ``argument``. With ``id``, the page
    redirects to the page of a task.
    """

    name = "tasks"
    title = gettext_lazy("Tasks")
    permission = "view_task"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        task_id = request.GET.get("id", "").strip()
        if task_id:
            return HttpResponseRedirect(self.url("task", quote(task_id)))
        return super().get(request, **kwargs)

    def search(self) -> Search:
        """Return the search that the query describes. Raises `ValueError` for an unknown state."""
        state, user, name, worker = (self.request.GET.get(key) or None for key in ("state", "user", "name", "worker"))
        states = [*(state.value for state in TaskState), ALL_STATES]
        if state is not None and state not in states:
            facts = {"state": state, "known": ", ".join(states)}
            raise ValueError(_("There is no state %(state)s: it is one of %(known)s.") % facts)
        wanted = None if state == ALL_STATES else TaskState(state or TaskState.QUEUED)
        newest_first = wanted is not None and (wanted.is_ended or bool(self.argument))
        return Search(wanted, user, name, TASKS_EXAMINED, worker, newest_first, PAYLOAD_MAX_BYTES_READ)

    @property
    def argument(self) -> str:
        """The text that is searched in the arguments of tasks."""
        return self.request.GET.get("argument", "").strip()

    def template_context(self) -> dict[str, Any]:
        stats = self.queue.get_stats(0)
        argument, cursor = self.argument, self.request.GET.get("cursor") or None
        try:
            search = self.search()
            found = self._find_tasks(search, argument, cursor)
        except ValueError as error:
            messages.error(self.request, str(error))
            search, argument, cursor = Search(TaskState.QUEUED, payload_bytes=PAYLOAD_MAX_BYTES_READ), "", None
            found = self.queue.find(search, TASKS_PER_PAGE)
        state = search.state.value if search.state else ALL_STATES
        requested = {"user": search.user_id, "name": search.name, "worker": search.worker, "argument": argument or None}
        query = {key: value for key, value in requested.items() if value is not None}
        p95 = percentiles(stats.runs.buckets).p95
        may_change, is_listed_whole = self.may("change_task"), search.state is not None and not argument
        return {
            "search": search,
            "argument": argument,
            "state_name": state,
            "all_states": ALL_STATES,
            "is_listed_whole": is_listed_whole,
            "most_looked_at": TASKS_EXAMINED,
            "found": found,
            "rows": [self._row(task, p95) for task in found.tasks],
            "states": [
                (ALL_STATES, sum(stats.states.values()), self.url(self.name, **query, state=ALL_STATES)),
                *(
                    (state.value, stats.states[state.value], self.url(self.name, **query, state=state.value))
                    for state in TaskState
                ),
            ],
            **self._build_page_links(found.cursor, cursor, state=state, **query),
            "can_cancel": (search.state is None or search.state in CANCELABLE) and may_change,
            "can_run": search.state is TaskState.SCHEDULED and may_change,
        }

    def _find_tasks(self, search: Search, argument: str, cursor: str | None) -> SearchResult:
        """Return one page of tasks. If an argument is searched, only the first records are examined, because each
        payload must be read.
        """
        if not argument:
            return self.queue.find(search, TASKS_PER_PAGE, cursor)
        found = self.queue.find(search, TASKS_EXAMINED)
        wanted = argument.casefold()
        tasks = [task for task in found.tasks if wanted in arguments_text(task.payload).casefold()]
        return replace(found, tasks=tuple(tasks[:TASKS_PER_PAGE]), cursor=None)

    def _row(self, task: Task, p95: float) -> dict[str, Any]:
        """Return the values of a task for the list. ``is_slow`` is true if the task has run for more than half of its
        time limit; without a limit, for more than ten times the p95.
        """
        length, is_slow = None, False
        if task.started_at is not None and task.state is TaskState.STARTED:
            length, limit = max(0.0, time.time() - task.started_at), time_limit(self.queue, task)
            is_slow = length > (limit / 2 if limit is not None else (SLOW_FACTOR * p95 or math.inf))
        elif task.started_at is not None and task.ended_at is not None:
            length = max(0.0, task.ended_at - task.started_at)
        text = arguments_text(task.payload)
        if len(text) > ARGUMENTS_MAX_CHARACTERS:
            text = f"{text[: ARGUMENTS_MAX_CHARACTERS - 1]}…"
        return {
            "task": task,
            "url": self.url("task", quote(task.task_id)),
            "since": _get_state_time(task),
            "length": length,
            "is_slow": is_slow,
            "arguments": text,
        }

    def _build_page_links(self, following: str | None, cursor: str | None, **query: str) -> dict[str, str]:
        """Return the links to the next, the previous and the first page. The address contains as many cursors of
        earlier pages as fit.
        """
        trail = self.request.GET.getlist("trail") if cursor else []
        links = self.build_page_links(following, **query)
        longer = [*trail, cursor or ""]
        while sum(len(urlencode([("trail", earlier)])) for earlier in longer) > TRAIL_MAX_CHARACTERS:
            longer.pop(0)
        if links["next"]:
            links["next"] += f"&{urlencode([('trail', earlier) for earlier in longer])}"
        links["previous"] = ""
        if trail:
            before = {"cursor": trail[-1]} if trail[-1] else {}
            links["previous"] = self.url(self.name, **query, **before)
            if trail[:-1]:
                links["previous"] += f"&{urlencode([('trail', earlier) for earlier in trail[:-1]])}"
        return links

    @property
    def subject(self) -> str:
        if "as_act" in self.request.POST:
            return ""  # no message, because the audit log shows the act
        if "all" not in self.request.POST["action"]:
            return ", ".join(self._read_selection())
        search = self.search()
        state = search.state.value if search.state else ALL_STATES
        return ", ".join(condition for condition in (state, search.user_id, search.name, search.worker) if condition)

    def _read_selection(self) -> list[str]:
        ids = self.posted_list("task")
        if not ids:
            raise ValueError(_("Select the tasks first."))
        return ids[:TASKS_PER_REQUEST]

    @Action("change_task")
    def cancel(self) -> str:
        ids = self._read_selection()
        text = ngettext(
            "%(count)s task is canceled, and what depends on it.",
            "%(count)s tasks are canceled, and what depends on them.",
            len(ids),
        )
        self.ask_first(text % {"count": number(len(ids))}, _("Cancel them"))
        done = self._cancel(ids)
        return _summary(
            ngettext("%s task was canceled.", "%s tasks were canceled.", done) % number(done), done, len(ids)
        )

    @Action("change_task")
    def run_now(self) -> str:
        ids = self._read_selection()
        done = self.queue.run_now(*ids)
        return _summary(ngettext("%s task was queued.", "%s tasks were queued.", done) % number(done), done, len(ids))

    @Action("change_task")
    def cancel_all(self) -> str:
        search = self.search()
        if search.state is None:
            raise ValueError(_("Choose one state first."))
        if search.state not in CANCELABLE:
            raise ValueError(_("Tasks that have ended can't be canceled."))
        can_be_act = self._can_be_act(search)
        if self.is_confirmed and "as_act" in self.request.POST:
            if not can_be_act:
                raise ValueError(_("Choose a user or a task name, and no worker."))
            chosen = {
                "user_id": search.user_id,
                "name": search.name,
                "priority": self.request.POST.get("priority") or None,
            }
            return self.start_act("cancel", state=search.state, **chosen)
        return self._all(search, self._cancel, _("Cancel these tasks"), offers_act=can_be_act)

    def _can_be_act(self, search: Search) -> bool:
        """Return whether workers can cancel these tasks by an act, which can be undone."""
        is_waiting = search.state is not None and search.state.value in WAITING_STATES
        return is_waiting and bool(search.user_id or search.name) and not (search.worker or self.argument)

    @Action("change_task")
    def run_all_now(self) -> str:
        search = self.search()
        if search.state is not TaskState.SCHEDULED:
            raise ValueError(_("Only scheduled tasks can be run before their time."))
        return self._all(search, lambda ids: self.queue.run_now(*ids), _("Run these tasks now"))

    def _cancel(self, ids: list[str]) -> int:
        return results.cancel_many(self.queue, ids, self.canceled_by)

    def _all(self, search: Search, act: Callable[[list[str]], int], yes: str, *, offers_act: bool = False) -> str:
        """Act on a part of the matching tasks after their number is confirmed, then ask whether to continue.

        The action never changes more tasks than were counted, because the confirmation does not apply to later tasks.
        """
        if self.argument:
            raise ValueError(_("Tasks that were found by an argument can only be changed by selecting them."))
        found = self.queue.matching(replace(search, look_at=MAX_RECORDS_READ))
        ids = found.task_ids
        if not self.is_confirmed:
            if not ids:
                raise ValueError(_("No task matches (any more)."))
            text = _how_many(search, len(ids), is_whole=found.is_whole)
            choice = ("priority", _("Priority"), ["", *reversed(CLASS_NAMES.values())]) if offers_act else None
            fields = {"done": "0", "left": str(len(ids))}
            raise Question([text], yes, fields=fields, offers_act=offers_act, act_choice=choice)
        before, allowed = int(self.posted_number("done")), int(self.posted_number("left"))
        some = ids[: min(TASKS_PER_REQUEST, allowed)]
        if not some and not before:
            raise ValueError(_("No task matches (any more)."))
        done = act(some) if some else 0
        left = min(allowed, len(ids)) - len(some)
        total = before + done
        sentence = ngettext("%s task was changed.", "%s tasks were changed.", total) % number(total)
        if not left or not done:
            return sentence
        self.log(sentence)
        text = _("%(done)s of %(all)s tasks are done. Go on?") % {"done": number(total), "all": number(total + left)}
        raise Question([text], yes, fields={"done": str(total), "left": str(left)})


def arguments_text(payload: Any) -> str:
    """Return the arguments of a call as one line, with secrets hidden. Return any other payload as JSON."""
    shown = redact_value(payload)
    if isinstance(shown, Undecodable):
        return shown.error
    if isinstance(shown, dict) and isinstance(shown.get("args"), list) and isinstance(shown.get("kwargs"), dict):
        values = [_json(argument) for argument in shown["args"]]
        return ", ".join([*values, *(f"{name}={_json(argument)}" for name, argument in shown["kwargs"].items())])
    return _json(shown)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _get_state_time(task: Task) -> float:
    """Return the time when the task entered its state. For a scheduled task, return the time when it is due."""
    moments = {
        TaskState.SCHEDULED: task.execute_after,
        TaskState.QUEUED: task.ready_at,
        TaskState.STARTED: task.started_at,
        TaskState.DEFERRED: task.created_at,
    }
    return moments.get(task.state, task.ended_at) or task.created_at


def _how_many(search: Search, count: int, *, is_whole: bool) -> str:
    state = search.state.value if search.state else ALL_STATES
    words = {"count": number(count), "state": word(state), "looked": number(MAX_RECORDS_READ)}
    if is_whole:
        return ngettext("%(count)s %(state)s task matches.", "%(count)s %(state)s tasks match.", count) % words
    text = _(
        "%(count)s of the first %(looked)s %(state)s tasks match; there are more, which are left for the next time."
    )
    return text % words


def _summary(sentence: str, done: int, selected: int) -> str:
    """Return the message after an action on selected tasks. Some of these tasks may have changed their state before the
    action.
    """
    if not done:
        raise ValueError(_("Nothing was done: all of them had moved on before."))
    if done == selected:
        return sentence
    text = _("%(summary)s The others (%(missing)s) had moved on before.")
    return text % {"summary": sentence, "missing": number(selected - done)}


class TaskNamesPage(AdminPage):
    """The busiest, slowest and most failing task names of the last hour or day: a row for each name."""

    name = "task_names"
    title = gettext_lazy("Task names")
    permission = "view_task"

    def template_context(self) -> dict[str, Any]:
        hours, order = self.request.GET.get("hours", "1"), self.request.GET.get("sort", "attempts")
        if hours not in map(str, NAME_FIGURES_HOURS):
            raise NotHereError(_("hours must be 1 or 24, got %(hours)s.") % {"hours": hours})
        if order not in NAME_FIGURES_ORDERS:
            raise NotHereError(_("The table can't be sorted by %(sort)s.") % {"sort": order})
        figures = sorted(self.queue.task_names(int(hours)), key=NAME_FIGURES_ORDERS[order][1], reverse=True)
        failing = [row for row in figures if row.name and row.failed]
        name, release = self.request.GET.get("name", ""), self.queue.config.release
        worst = max(failing, key=NAME_FIGURES_ORDERS["failed"][1], default=None)
        return {
            "refresh": 15,
            "hours": hours,
            "worst": worst,
            "worst_name": printable(worst.name) if worst else "",
            "choices": self.build_hour_links(NAME_FIGURES_HOURS, by_clock=True, sort=order),
            "releases": read_in_lockstep([(self.queue, compare_releases)])[0] if release else [],
            **(self._draw_hours(name) if name else {}),
            "columns": [
                (title, self.url(self.name, hours=hours, sort=key), key == order)
                for key, (title, _key) in NAME_FIGURES_ORDERS.items()
            ],
            "table": [
                (printable(row.name), self.url(self.name, hours=hours, sort=order, name=row.name), row)
                for row in figures
            ],
        }

    def _draw_hours(self, name: str) -> dict[str, Any]:
        """Draw the attempts of a task name in the last 24 hours."""
        hours, deployments = read_in_lockstep([(self.queue, partial(hours_of_name, name=name)), (self.queue, deployed)])
        runs = {
            _("Half ran no longer (p50)"): [hour.run.p50 or None for hour in hours],
            _("19 of 20 ran no longer (p95)"): [hour.run.p95 or None for hour in hours],
        }
        failed = {_("Failed, share"): [hour.failed / hour.attempts if hour.attempts else None for hour in hours]}
        charts = [
            LineChart(_("Run time"), runs, duration),
            LineChart(_("Failed attempts"), failed, share),
            LineChart(_("Attempts an hour"), {_("Attempts"): [hour.attempts for hour in hours]}),
        ]
        return {"chart_name": printable(name), **draw_charts(charts, [hour.begin for hour in hours], deployments)}
