"""``manage.py fairque_dlq`` as an operator uses it: what it prints, what it asks, what it refuses."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from django.core.management import CommandError

from django_fairque.engine.model.records import TaskState
from django_fairque.engine.queue.queue import FairQueue

from .conftest import Bury, Run, Terminal


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "fairque_dlq")


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


def test_a_payload_that_is_shown_can_be_sent_back(queue: FairQueue, run: Run, bury: Bury) -> None:
    payload = {"to": "Zoë", "text": 'a\\b "c"\n\u202e'}
    entry = bury(payload=payload)
    shown = re.search(r"^payload +(.*)$", run("show", entry), re.MULTILINE)
    assert shown is not None
    assert "Zoë" in shown[1]
    assert "\u202e" not in shown[1]
    assert run("requeue", entry, "--payload", shown[1]) == "1 requeued\n"
    assert queue.get_task(entry[:-2]).payload == payload


def test_a_requeue_may_replace_the_payload_with_null(queue: FairQueue, run: Run, bury: Bury) -> None:
    entry, kept = bury(payload={"n": 1}), bury(payload={"n": 2})
    assert run("requeue", entry, "--payload", "null") == "1 requeued\n"
    assert run("requeue", kept) == "1 requeued\n"
    assert [queue.get_task(entry_id[:-2]).payload for entry_id in (entry, kept)] == [None, {"n": 2}]


def test_a_dead_letter_is_shown_without_control_characters(run: Run, bury: Bury) -> None:
    try:
        raise ValueError("no\x1b[2J such")  # noqa: TRY301 - an error with a traceback
    except ValueError as error:
        entry = bury(error, user="a\nb")
    shown = run("show", entry)
    traceback = "    Traceback (most recent call last):\n"
    for line in (f"entry    {entry}\n", "user     a\\nb\n", "reason   ValueError: no\\x1b[2J such\n", traceback):
        assert line in shown
    assert re.search(r"^- \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  failed  w  ValueError: no", shown, re.MULTILINE)
    assert "\x1b" not in shown


def test_a_limited_list_of_dead_letters_says_that_it_is_incomplete(queue: FairQueue, run: Run, bury: Bury) -> None:
    entries = [bury() for _ in range(3)]
    assert [json.loads(line)["entry"] for line in run("list", "--json", "--limit", "2").splitlines()] == entries[:2]
    assert run("list", "--limit", "2").endswith("\n2 shown; there are more\n3 dead letters in queue 'default'\n")


def test_a_filtered_list_continues_over_pages_without_a_match(run: Run, bury: Bury) -> None:
    for _ in range(120):
        bury()
    last = bury(user="bolt")
    assert last in run("list", "--user", "bolt", "--limit", "1")


def test_groups_of_dead_letters_are_listed_with_the_number_examined(run: Run, bury: Bury) -> None:
    bury("no order 17")
    newest = bury("no order 4711")
    bury("timeout", user="bolt")
    assert run("count") == "failed 3  expired 0  poisoned 0\n"
    lines = run("groups").splitlines()
    assert lines[1].split()[:1] + lines[1].split()[2:4] == ["2", "failed", "mail.send"]
    assert "no order <n>" in lines[1]
    letter = json.loads(run("list", "--json", "--user", "acme", "--newer-than", "1h", "--limit", "1"))
    assert letter["fingerprint"] == lines[1].split()[1]
    assert newest in lines[1]
    assert lines[-1] == "2 groups of 3 dead letters"
    assert run("groups", "--user", "bolt").splitlines()[-1] == "1 group of 1 dead letter, of 3 looked at"


def test_all_matching_dead_letters_are_requeued_after_a_confirmation(
    queue: FairQueue, run: Run, bury: Bury, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for user in ("acme", "acme", "bolt"):
        bury(user=user)
    answer(monkeypatch, "yes\n")
    assert run("requeue", "--all", "--user", "acme", "--limit", "5") == "2 requeued\n"
    question = "requeue dead letters of queue 'default' (3 in all): user_id acme, at most 5. Go on? [y/N]"
    assert question in capsys.readouterr().out


@pytest.mark.parametrize("text", ["n\n", "\n", "", "sure\n"])
def test_dead_letters_are_kept_unless_the_answer_is_yes(
    queue: FairQueue, run: Run, bury: Bury, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    bury()
    answer(monkeypatch, text)
    with pytest.raises(CommandError, match=r"^nothing was changed$"):
        run("discard", "--all")
    assert queue.dlq.count() == 1


def test_a_limit_bounds_how_many_dead_letters_are_discarded(queue: FairQueue, run: Run, bury: Bury) -> None:
    entries = [bury() for _ in range(3)]
    assert run("discard", "--all", "--limit", "2", "--yes", "--name", "mail.send") == "2 discarded\n"
    assert [entry.entry_id for entry in queue.dlq.list().items] == entries[2:]


def test_dead_letters_that_are_gone_are_counted_in_the_error(queue: FairQueue, run: Run, bury: Bury) -> None:
    first, second = bury(), bury()
    assert run("discard", "--all", "--yes", "--older-than", "1d") == "0 discarded\n"
    queue.dlq.discard(first)
    with pytest.raises(CommandError, match=r"^1 requeued; the other 1 were not there \(any more\)$"):
        run("requeue", first, second, second)
    assert queue.get_task(second[:-2]).state is TaskState.QUEUED
