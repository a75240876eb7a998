"""Options that every list has: `--limit`, `--sort`, `--reverse`, `--since` and `--json`."""

from __future__ import annotations

import json
import time

import pytest
from fairque_docs import commands

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.management import listing

from .conftest import COMMANDS, Bury, Push, Run, parser_of


def test_every_list_has_the_options_of_lists() -> None:
    lists = []
    for name in COMMANDS:
        for action, _, action_parser in commands.actions(parser_of(name)):
            if (name != "fairque_keys" and action in ("list", "groups")) or (name, action) == ("fairque_task", "run"):
                lists.append(f"{name} {action}")
                options = action_parser.format_help()
                assert all(f"--{option}" in options for option in ("limit", "sort", "reverse", "json")), lists[-1]
    assert len(lists) == 8


def test_users_are_sorted_by_a_figure(run: Run, push: Push) -> None:
    for user, tasks in (("bob", 1), ("ann", 3), ("cid", 2)):
        for _ in range(tasks):
            push(user)
    lines = run("fairque_user", "list", "--sort", "waiting", "--reverse", "--limit", "2").splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["ann", "cid"]
    assert lines[3] == "2 shown; there are more"
    by_name = run("fairque_user", "list", "--sort", "user", "--json").splitlines()
    assert [json.loads(line)["user_id"] for line in by_name] == ["ann", "bob", "cid"]


def test_tasks_and_dead_letters_are_listed_from_an_age_on(run: Run, queue: FairQueue, push: Push, bury: Bury) -> None:
    task = Task.create("ann", 3, {}, name="mail.send")
    old = queue.push(task, now=time.time() - 7200).task_id
    new = push("ann")
    assert old in run("fairque_task", "list")
    (line,) = run("fairque_task", "list", "--since", "1h", "--json").splitlines()
    assert json.loads(line)["task"] == new
    entry = bury()
    assert entry in run("fairque_dlq", "list", "--since", "1h")
    assert len(run("fairque_dlq", "groups", "--since", "1h", "--json").splitlines()) == 1


def test_a_list_sorts_a_limited_number_of_rows_and_says_so(
    run: Run, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_SORTED_ROWS", 2)
    for user in ("ann", "bob", "cid"):
        push(user)
    assert run("fairque_user", "list", "--sort", "user").endswith("\nthere are more than the 2 that were sorted\n")
