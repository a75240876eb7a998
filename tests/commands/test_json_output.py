"""`--json` prints what docs/reference/commands.md says of each command: a line for each thing, or one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import call_command
from fairque_docs import commands

from django_fairque.engine.queue.queue import FairQueue
from tests.docs.blocks import DOCS

from .conftest import COMMANDS, Bury, Push, Run, parser_of

PAGE = (DOCS / "reference" / "commands.md").read_text()
ROW = re.compile(r"^\| (`fairque_\w+(?: \w+)?`(?:, `fairque_\w+(?: \w+)?`)*) \| (.+) \|$", re.MULTILINE)
DOCUMENTED = {
    words: text for commands_of_row, text in ROW.findall(PAGE) for words in re.findall(r"`(.+?)`", commands_of_row)
}


def with_json() -> Iterator[str]:
    """Each command, with its action if it has several, that has the option."""
    for name in COMMANDS:
        parser = parser_of(name)
        actions = ((f"{name} {action}", action_parser) for action, _, action_parser in commands.actions(parser))
        yield from (words for words, parser in ((name, parser), *actions) if "--json" in parser.format_help())


def test_the_reference_names_every_command_with_json() -> None:
    assert sorted(DOCUMENTED) == sorted(with_json())


ELSEWHERE = {"fairque_act list", "fairque_audit", "fairque_events", "fairque_outbox", "fairque_schedule runs"}
"""Rows that are not in the queue, or are of one schedule: tests/events, tests/outbox and tests/commands have them."""


@pytest.mark.parametrize(
    "words",
    [words for words, text in DOCUMENTED.items() if text.startswith("a line for each") and words not in ELSEWHERE],
)
def test_lists_print_one_line_of_json_for_each_object(words: str, queue: FairQueue, run: Run, bury: Bury) -> None:
    command = [*words.split(), "--json"]
    assert run(*command) == ""
    for user in ("ann", "bob"):
        bury(f"no such {user}", user=user)
        queue.user(user).set_organization(user)
        queue.limit(user).close()
        queue.incidents.open_limit(user, "text")
        queue.schedules.add(user, every=60, task=queue.dlq.list()[0].original_task)
    found = [json.loads(line) for line in run(*command).splitlines()]
    assert [type(line) for line in found] == [dict, dict]


@pytest.mark.parametrize("words", [words for words, text in DOCUMENTED.items() if text.startswith("one line")])
def test_other_commands_print_one_line_of_json(words: str, queue: FairQueue) -> None:
    out = StringIO()
    with suppress(SystemExit):  # health says by its exit code how the queue is
        call_command(*words.split(), "--json", stdout=out)
    (line,) = out.getvalue().splitlines()
    assert isinstance(json.loads(line), list if "a list" in DOCUMENTED[words] else dict)


def test_a_listed_user_has_the_figures_of_its_stats(queue: FairQueue, run: Run, push: Push) -> None:
    push("ann")
    push("b\u00f6b\n")
    queue.user("ann").set_rate("100/m")
    queue.user("ann").set_organization("acme")
    listed = {user["user_id"]: user for user in map(json.loads, run("fairque_user", "list", "--json").splitlines())}
    assert listed.keys() == {"ann", "b\u00f6b\n"}
    for user_id, user in listed.items():
        alone = json.loads(run("fairque_stats", "--user", user_id, "--json"))
        history = alone.pop("history")
        assert user == alone
        assert (len(history["hours"]), len(history["days"])) == (48, 35)
    (member,) = run("fairque_user", "list", "--organization", "acme", "--json").splitlines()
    assert json.loads(member)["rate"] == "100/60s"


def test_users_of_all_pages_are_listed(queue: FairQueue, run: Run, push: Push) -> None:
    for number in range(205):
        push(f"user-{number:03}")
    lines = run("fairque_user", "list", "--json").splitlines()
    assert [json.loads(line)["user_id"] for line in lines] == [f"user-{number:03}" for number in range(205)]
