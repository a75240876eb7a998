"""``fairque_top``, driven by keys, on a real server."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from django_fairque.conf import get_queue
from django_fairque.engine.inspection.worker_activity import ReportedTask, encode_activity
from django_fairque.management.terminal import QueueApp
from tests.fixture_types import FairQueue, MakeServer, Settings
from tests.leases import pop

from .conftest import Push, Run

HOSTILE = "[red]x[/red]\x1b[31m\n"


async def wait_until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        await pilot.pause(0.02)


def cells(app: QueueApp, table: str) -> list[list[str]]:
    shown: DataTable[Any] = app.query_one(f"#{table}", DataTable)
    return [[str(cell) for cell in shown.get_row_at(row)] for row in range(shown.row_count)]


def notified(app: QueueApp) -> str:
    return "\n".join(notification.message for notification in app._notifications)


async def test_the_screen_shows_running_tasks_and_users(queue: FairQueue, push: Push) -> None:
    for user, tasks in (("acme", 3), (HOSTILE, 1)):
        for _ in range(tasks):
            push(user)
    lease = pop(queue, "worker-1", ["acme"])
    reported = ReportedTask(lease.task_id, "mail.send", "acme", 0.0, line=f"mail.py:3 {HOSTILE}")
    activity = encode_activity(time.time() - 60, [([], reported)]).decode()
    queue.heartbeat("worker-1", {"concurrency": "8", "activity": activity})
    app = QueueApp(queue)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 2)
        assert cells(app, "users")[0] == ["acme", "2", "0", "1", "0", "0", "1", ""]
        assert cells(app, "users")[1][0] == "[red]x[/red]\\x1b[31m\\n"
        (running,) = cells(app, "running")
        assert running[:4] == [lease.task_id, "mail.send", "acme", "worker-1"]
        assert running[5].startswith("mail.py:3 [red]x[/red]\\x1b[31m\\n, 1 min")
        heading = str(app.query_one("#heading", Static).render()).splitlines()
        assert heading[0].startswith("queue 'default'")
        assert heading[1:] == ["slots    8, running 1", "backlog  ready 3, scheduled 0, deferred 0, dead 0"]
        await pilot.press("q")


async def test_keys_pause_the_selected_user_and_set_its_weight(queue: FairQueue, push: Push) -> None:
    for user in ("acme", "acme", "bolt"):
        push(user)
    app = QueueApp(queue)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 2)
        await pilot.press("down", "p")
        await wait_until(pilot, lambda: queue.user("bolt").stats().paused)
        await wait_until(pilot, lambda: cells(app, "users")[1][-1] == "paused")
        assert app.selected_user() == "bolt"
        await pilot.press("p")
        await wait_until(pilot, lambda: not queue.user("bolt").stats().paused)
        await pilot.press("w", *"2.5", "enter")
        await wait_until(pilot, lambda: queue.user("bolt").stats().weight == 2.5)
        await pilot.press("w", *"nan", "enter", "w", *"heavy", "enter")
        await wait_until(pilot, lambda: "got nan" in notified(app) and "got 'heavy'" in notified(app))
        assert queue.user("bolt").stats().weight == 2.5
        assert not queue.user("acme").stats().paused


async def test_an_act_that_ends_while_the_view_closes_is_no_error(queue: FairQueue, push: Push) -> None:
    push("acme")
    app = QueueApp(queue)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 1)
        await app.query_one("#users").remove()
        app.refresh_figures()


async def test_the_selected_user_stays_selected_when_other_rows_are_added_above(queue: FairQueue, push: Push) -> None:
    push("acme")
    app = QueueApp(queue, rows=1)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 1)
        for _ in range(2):
            push("bolt")
        app.refresh_figures()
        await wait_until(pilot, lambda: [row[0] for row in cells(app, "users")] == ["bolt", "acme"])
        assert app.selected_user() == "acme"


async def test_a_search_limits_the_users_until_it_ends(queue: FairQueue, push: Push) -> None:
    for user in ("acme", "bolt"):
        push(user)
    app = QueueApp(queue)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: len(cells(app, "users")) == 2)
        await pilot.press("slash", *"OL", "enter")
        await wait_until(pilot, lambda: [row[0] for row in cells(app, "users")] == ["bolt"])
        await pilot.press("escape")
        await wait_until(pilot, lambda: len(cells(app, "users")) == 2)
        await pilot.press("slash", *"x", "escape")
        assert not app.query_one("#input", Input).display
        assert len(cells(app, "users")) == 2


async def test_the_view_names_a_server_that_is_down_and_takes_keys(make_server: MakeServer, settings: Settings) -> None:
    away = make_server()
    settings.FAIRQUE = {"REDIS": {"URL": away.url}, "QUEUE": {"REQUEST_TIMEOUT": 0.1}}
    queue = get_queue()
    app = QueueApp(queue, 0.1)
    async with app.run_test() as pilot:
        await wait_until(pilot, lambda: app.figures)
        away.stop()
        await wait_until(pilot, lambda: "figures are" in str(app.query_one("#trouble", Static).render()))
        await pilot.press("q")


@pytest.mark.usefixtures("queue")
def test_the_command_names_the_package_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_fairque.management.commands.fairque_top.find_spec", lambda _: None)
    assert importlib.util.find_spec("textual")
    with pytest.raises(CommandError, match=r'needs the package textual: install "django-fairque\[terminal\]"'):
        run("fairque_top")
