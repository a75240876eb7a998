"""Options that every list has: `--limit`, `--sort`, `--reverse`, `--since` and `--json`."""

from __future__ import annotations

import json
import re
import time

import pytest
from fairque_docs import commands

from django_fairque.engine.model.task import Task
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.management import listing
from tests.leases import pop

from .conftest import COMMANDS, Bury, Push, Run, parser_of


def test_every_list_has_the_options_of_lists() -> None:
    lists = []
    for name in COMMANDS:
        for action, _, action_parser in commands.actions(parser_of(name)):
            if (name != "fairque_keys" and action in ("list", "groups")) or (name, action) == ("fairque_task", "run"):
                lists.append(f"{name} {action}")
                options = action_parser.format_help()
                assert all(f"--{option}" in options for option in ("limit", "sort", "reverse", "json")), lists[-1]
    assert len(lists) == 9


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


def test_a_sorted_list_has_a_maximum_of_rows_and_reports_it(
    run: Run, push: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_SORTED_ROWS", 2)
    for user in ("ann", "bob", "cid"):
        push(user)
    assert run("fairque_user", "list", "--sort", "user").endswith("\nthere are more than the 2 that were sorted\n")


def test_an_incident_is_printed_with_its_affected_users(queue: FairQueue, run: Run) -> None:
    now = time.time()
    queue.push_batch([Task.create("acme", 3, None, sla=1, max_retries=0) for _ in range(3)], now=now - 60)
    queue.incidents.open_limit("depth", "too many", now=now - 50)
    queue.finish(pop(queue, "w", ["acme"]), took=2)
    queue.fail(pop(queue, "w", ["acme"]), "no such address")
    queue.heartbeat("w", {"code_version": "v1.1.0"})
    text = run("fairque_incidents", queue.incidents.recent()[0].id)
    assert "1 user with 2 starts later than the SLA (1 of 1 user examined)\n" in text
    assert (
        "ready now, and not counted yet: 1 task of 1 user\nlate: user acme: 2 of 2 attempts\nwork: user acme: 2 att"
        in text
    )
    assert re.search(r"first error: .*Z a task of user acme: no such address\nrelease: .*Z v1.1.0\n", text)
