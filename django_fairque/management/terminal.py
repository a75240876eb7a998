"""The full-screen view of ``fairque_top``: a queue's figures, its running tasks and its users, updated every few
seconds.

The server is read in a separate thread, so that keys work even if the server does not answer. Names and ids come from
users, so each name is shown as one line of plain text, never as markup.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from django.db import connections
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from django_fairque.audit import acting_as
from django_fairque.engine.inspection.worker_activity import decode_activity
from django_fairque.engine.model.errors import FairQueueError, RedisConnectionError, TaskValidationError, short
from django_fairque.engine.model.records import TaskState
from django_fairque.engine.statistics.queue_stats import TREND_MINUTES
from django_fairque.monitoring.formatting import duration, number, plain
from django_fairque.monitoring.report import (
    missing_words,
    pause_suffix,
    queue_lines,
    reserved_slots,
    top_users,
    trend_words,
    with_figures_of_users,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_fairque.engine.inspection.pages import WorkerRecord
    from django_fairque.engine.model.task import Task
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import QueueStats
    from django_fairque.engine.users.users import UserStats

MAX_USERS_RANKED = 150
"""Maximum number of users that are examined to find the users with most ready tasks. Each user needs a read."""


@dataclass(frozen=True)
class TerminalFigures:
    """The figures on the screen. ``heading`` contains lines about the queue. ``lines`` contains the code lines of
    running tasks by task id. ``search`` is the searched part of users' ids. ``moment`` is the Unix time at which the
    figures were read.
    """

    heading: list[str]
    running: list[Task]
    lines: dict[str, str]
    users: list[UserStats]
    search: str
    moment: float


def read_figures(queue: FairQueue, rows: int, search: str = "", selected: str = "") -> TerminalFigures:
    """Read the figures, with at most ``rows`` tasks and users. With ``search``, include only users whose id contains
    this text, and the user with exactly this id even if it has no tasks. The user ``selected`` is always included.
    """
    stats = with_figures_of_users(queue, queue.get_stats(TREND_MINUTES))
    top = top_users(queue, stats, MAX_USERS_RANKED, MAX_USERS_RANKED)
    names = [name for name in top.sizes if search.lower() in name.lower()]
    if search and search not in names and _is_known(queue, search):
        names.insert(0, search)
    names = names[:rows]
    if selected and selected not in names:
        names.append(selected)
    running = queue.tasks(TaskState.STARTED, limit=rows).items
    users = queue.user_stats(names) if names else []
    workers, now = queue.workers(), time.time()
    return TerminalFigures(list(_build_heading(stats, workers)), running, _read_lines(workers, now), users, search, now)


def _read_lines(workers: Sequence[WorkerRecord], now: float) -> dict[str, str]:
    """Return the code lines of the running tasks by task id. Each text includes the age of its sample."""
    return {
        task_id: f"{line}, {duration(max(0.0, now - report.at))} ago"
        for report in filter(None, map(decode_activity, workers))
        for task_id, line in report.lines.items()
    }


def _is_known(queue: FairQueue, text: str) -> bool:
    try:
        return queue.user(text).is_known()
    except TaskValidationError:  # no user has this id
        return False


def _build_heading(stats: QueueStats, workers: Sequence[WorkerRecord]) -> Iterator[str]:
    yield next(queue_lines(stats))
    if stats.missing_shards:
        yield f"! {missing_words(stats.missing_shards)}"
    numbers = [worker.info.get("concurrency", "") for worker in workers]
    slots = sum(int(digits) for digits in numbers if digits.isascii() and digits.isdecimal() and len(digits) < 7)
    waiting = {"ready": sum(stats.depth.values()), "scheduled": stats.states["scheduled"]}
    waiting.update(deferred=stats.states["deferred"], dead=stats.states["failed"])
    reserved = (text := reserved_slots(workers)) and f", reserved {text}"
    yield f"slots    {number(slots)}, running {number(stats.states['started'])}{reserved}"
    trend = trend_words(stats.trend)
    yield (
        "backlog  " + ", ".join(f"{name} {number(count)}" for name, count in waiting.items()) + (trend and f": {trend}")
    )


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise TaskValidationError(f"weight must be a number from 0.001 to 1000, got {short(text)}") from None


def _cell(text: str, style: str = "") -> Text:
    return Text(plain(text), style=style, no_wrap=True)


def _count(value: float) -> Text:
    return Text(number(value), justify="right")


class QueueApp(App[None]):
    """The full-screen view of one queue.

    Args:
        queue: the queue.
        interval: seconds between two reads of the figures. Default: 2.
        rows: the maximum number of tasks and of users that are shown. Default: 100.
        actor: the name of the operator, for the audit log. Default: ``"fairque_top"``.
    """

    CSS = """
    #heading { height: auto; }
    #trouble { height: auto; color: red; text-style: bold; }
    #running { height: 1fr; }
    #users { height: 2fr; }
    #input { dock: bottom; display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause or resume the user"),
        Binding("w", "weight", "Change its weight"),
        Binding("slash", "search", "Search users", key_display="/"),
        Binding("escape", "leave", "Leave", show=False),
        Binding("q", "quit", "Quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, queue: FairQueue, interval: float = 2.0, rows: int = 100, actor: str = "fairque_top") -> None:
        super().__init__()
        self._actor = actor
        self._queue = queue
        self._interval = interval
        self._rows = rows
        self._search = ""
        self._is_reading = self._is_outdated = False
        self._input_purpose = ""
        """The purpose of the input field: ``search``, ``weight``, or empty if it is closed."""
        self._user = ""
        """The user whose weight is entered in the input field."""
        self.figures: TerminalFigures | None = None

    def compose(self) -> ComposeResult:
        yield Static("", id="heading", markup=False)
        yield Static("", id="trouble", markup=False)
        yield DataTable(id="running", cursor_type="none")
        yield DataTable(id="users", cursor_type="row")
        yield Input(id="input")
        yield Footer()

    def on_mount(self) -> None:
        self.title = f"queue {plain(self._queue.name)}"
        self._task_table.add_columns("running task", "name", "user", "worker", "for", "line")
        self._user_table.add_columns("user", "ready", "later", "running", "finished", "dead", "weight", "")
        self._user_table.focus()
        self.refresh_figures()
        self.set_interval(self._interval, self.refresh_figures)

    @property
    def _task_table(self) -> DataTable[Text]:
        return self.query_one("#running", DataTable)

    @property
    def _user_table(self) -> DataTable[Text]:
        return self.query_one("#users", DataTable)

    # --- reading the figures ---

    def refresh_figures(self) -> None:
        """Read the queue's figures and show them. Only one read runs at a time, because otherwise a server that does
        not answer would cause more and more threads.
        """
        if not self.query("#users"):
            return  # an action ended while the view was closing, and its tables are gone
        if self._is_reading:
            self._is_outdated = True
            return
        self._is_reading, self._is_outdated = True, False
        is_same_search = self.figures is not None and self.figures.search == self._search
        self._read(self._search, self.selected_user() if is_same_search else "")

    @work(thread=True, group="figures")
    def _read(self, search: str, selected: str) -> None:
        try:
            figures = read_figures(self._queue, self._rows, search, selected)
        except FairQueueError as error:
            self.call_later(self._show_trouble, str(error))
        else:
            self.call_later(self._show, figures)

    def _end_reading(self) -> None:
        self._is_reading = False
        if self._is_outdated:
            self.refresh_figures()

    def _show_trouble(self, text: str) -> None:
        age = "" if self.figures is None else f" (figures are {duration(time.time() - self.figures.moment)} old)"
        self.query_one("#trouble", Static).update(_cell(f"! {text}{age}"))
        self._end_reading()

    def _show(self, figures: TerminalFigures) -> None:
        selected = self.selected_user()
        self.figures = figures
        found = [f"users with {figures.search!r} in their id"] if figures.search else []
        self.query_one("#heading", Static).update(Text("\n".join(map(plain, [*figures.heading, *found]))))
        self.query_one("#trouble", Static).update("")
        tasks, users = self._task_table, self._user_table
        offsets = [(table, table.scroll_offset) for table in (tasks, users)]
        tasks.clear()
        for task in figures.running:
            seconds = max(0.0, figures.moment - (task.started_at or figures.moment))
            line = figures.lines.get(task.task_id, "-")
            texts = (task.task_id, task.name or "-", task.user_id, task.worker or "-", duration(seconds), line)
            tasks.add_row(*map(_cell, texts))
        users.clear()
        for user in figures.users:
            sizes = user.sizes
            counts = (sizes.ready, sizes.scheduled + sizes.deferred, sizes.running, user.finished, user.dead)
            state = _cell(f"paused{pause_suffix(user.pause)}", "bold yellow") if user.paused else Text("")
            weight = Text(f"{user.weight:g}", justify="right")
            users.add_row(_cell(user.user_id), *map(_count, counts), weight, state)
        for table, offset in offsets:
            table.scroll_to(offset.x, offset.y, animate=False)
        names = [user.user_id for user in figures.users]
        if selected in names:
            users.move_cursor(row=names.index(selected), animate=False)
        self._end_reading()

    def selected_user(self) -> str:
        """The id of the user in the selected row; empty if there is none."""
        row = self._user_table.cursor_row
        users = [] if self.figures is None else self.figures.users
        return users[row].user_id if 0 <= row < len(users) else ""

    # --- changing the queue ---

    @work(thread=True, group="changes")
    def _change(self, change: Callable[[], str]) -> None:
        try:
            with acting_as(self._actor, source="fairque_top"):
                text, is_error = change(), False
        except RedisConnectionError as error:
            text, is_error = f"not confirmed: {error}", True
        except FairQueueError as error:
            text, is_error = str(error), True
        connections.close_all()  # this thread has opened database connections to write the audit log
        severity = "error" if is_error else "information"
        self.call_later(self.notify, plain(text), severity=severity, markup=False)
        self.call_later(self.refresh_figures)

    def action_pause(self) -> None:
        """Pause the user in the selected row, or resume it."""
        name = self.selected_user()
        known = {user.user_id: user for user in (self.figures.users if self.figures else [])}
        if not name:
            return
        user, is_paused = self._queue.user(name), known[name].paused

        def change() -> str:
            (user.resume if is_paused else user.pause)()
            return f"user {name} is {'resumed' if is_paused else 'paused'}"

        self._change(change)

    def action_weight(self) -> None:
        """Ask for the weight of the user in the selected row."""
        self._user = self.selected_user()
        if self._user:
            self._ask("weight", f"weight of {plain(self._user)}, from 0.001 to 1000")

    def action_search(self) -> None:
        """Ask for a part of a user's id."""
        self._ask("search", "part of a user's id; nothing for all")

    def action_leave(self) -> None:
        """Close the input field. If it is closed, end the search."""
        if self._input_purpose:
            self._close_input()
        elif self._search:
            self._search = ""
            self.refresh_figures()

    def _ask(self, what: str, hint: str) -> None:
        field = self.query_one("#input", Input)
        self._input_purpose, field.placeholder, field.value = what, hint, ""
        field.display = True
        field.focus()

    def _close_input(self) -> None:
        self._input_purpose = ""
        self.query_one("#input", Input).display = False
        self._user_table.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search for the entered text, or set the entered weight."""
        purpose, text = self._input_purpose, event.value
        self._close_input()
        if purpose == "search":
            self._search = text
            self.refresh_figures()
        elif purpose == "weight":
            name = self._user

            def change() -> str:
                weight = _weight(text)
                self._queue.user(name).set_weight(weight)
                return f"user {name} has weight {weight:g}"

            self._change(change)
