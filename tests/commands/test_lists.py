"""Options that every list has: `--limit`, `--sort`, `--reverse`, `--since` and `--json`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, get_commands, load_command_class
from fairque_docs import commands

from django_fairque.engine.model.task import Task
from django_fairque.management import listing

if TYPE_CHECKING:
    from django_fairque.engine.queue.queue import FairQueue

    from .conftest import Bury, Push, Run

NAMES = [name for name, app in get_commands().items() if app == "django_fairque"]


def test_every_list_has_options_for_age_order_and_limit() -> None:
    lists = []
    for name in NAMES:
        parser = load_command_class("django_fairque", name).create_parser("manage.py", name)
        for action, _, action_parser in commands.actions(parser):
            if (name != "fairque_keys" and action in ("list", "groups")) or (name, action) == ("fairque_task", "run"):
                lists.append(f"{name} {action}")
                options = action_parser.format_help()
                assert all(f"--{option}" in options for option in ("limit", "sort", "reverse", "json")), lists[-1]
    assert len(lists) == 7


def test_users_are_sorted_by_a_figure(run: Run, push: Push) -> None:
    for user, tasks in (("bob", 1), ("ann", 3), ("cid", 2)):
        for _ in range(tasks):
            push(user)
    lines = run("fairque_user", "list", "--sort", "waiting", "--reverse", "--limit", "2").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["ann", "cid"]
    assert lines[3] == "2 shown; there are more"
    by_name = run("fairque_user", "list", "--sort", "user", "--json").splitlines()
    assert [json.loads(line)["user_id"] for line in by_name] == ["ann", "bob", "cid"]


def test_tasks_can_be_listed_since_an_age(run: Run, queue: FairQueue, push: Push) -> None:
    task = Task.create("ann", 3, {}, name="mail.send")
    old = queue.push(task, now=time.time() - 7200).task_id
    new = push("ann")
    assert old in run("fairque_task", "list")
    (line,) = run("fairque_task", "list", "--since", "1h", "--json").splitlines()
    assert json.loads(line)["task"] == new


def test_dead_letters_can_be_listed_since_an_age(run: Run, bury: Bury) -> None:
    entry = bury()
    assert entry in run("fairque_dlq", "list", "--since", "1h")
    assert len(run("fairque_dlq", "groups", "--since", "1h", "--json").splitlines()) == 1


def test_no_more_rows_are_sorted_than_the_limit(run: Run, push: Push, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_SORTED_ROWS", 2)
    for user in ("ann", "bob", "cid"):
        push(user)
    assert run("fairque_user", "list", "--sort", "user").endswith("\nthere are more than the 2 that were sorted\n")


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("fairque_user", "list", "--sort", "height"), "invalid choice: 'height'"),
        (("fairque_user", "list", "--reverse"), "--reverse belongs to --sort"),
        (("fairque_task", "list", "--since", "yesterday"), "expected an age such as 90s"),
        (("fairque_organization", "list", "--limit", "0"), "at least 1, got '0'"),
        (("fairque_task", "list", "--limit", "many"), "expected a whole number of at least 1, got 'many'"),
    ],
)
def test_wrong_options_of_a_list_are_one_line_errors(run: Run, words: tuple[str, ...], expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        run(*words)
